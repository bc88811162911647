//! Owns: the encoding of a stamped command, in the log and on the wire.
//! Never: parses a JSON body. Damaged bytes, or bytes of another version, are an error and never a panic.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use serde::de::DeserializeOwned;

use super::record::Unreadable;
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::append_many::AppendMany;
use crate::machine::apply::beside::{self, Beside};
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::delete::DeleteSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::apply::feed_order::FeedOrder;
use crate::machine::apply::fork::ForkSession;
use crate::machine::apply::import::{FinishImport, IfExists, ImportEntries};
use crate::machine::apply::long::LongWork;
use crate::machine::apply::set_active_leaf::SetActiveLeaf;
use crate::machine::apply::set_meta::SetMeta;
use crate::machine::apply::set_status::SetStatus;
use crate::machine::apply::store::{Envelope, StoreWrite};
use crate::machine::apply::update_message::{NewContent, UpdateMessage};
use crate::machine::beside::RecordLeftover;
use crate::machine::change::SessionChange;
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::{EntryId, Position, RequestId, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::level::RaiseLevel;
use crate::machine::long::{Home, Leftover};
use crate::machine::message::{Message, Role};
use crate::machine::patch::Patch;
use crate::machine::scope::Scope;
use crate::machine::stamp::Stamp;
use crate::machine::{Command, Stamped};
use crate::metrics::trace::Context;
use crate::proto::log as proto;
use crate::proto::log::stamped_command::Command as Encoded;
use crate::proto::store;
use crate::storage::proto_types::{
    kind_from_proto, kind_to_proto, object_from_text, object_to_text, place_from_proto, place_to_proto,
    role_from_proto, role_to_proto, status_from_proto, status_to_proto,
};
use crate::storage::state::{entry, meta};

/// A stamped command with its encoding. The proposer encodes it once; the bytes are shared from then on.
#[derive(Clone)]
pub struct Order(Arc<Inner>);

struct Inner {
    stamped: Stamped,
    encoded: Bytes,
    /// The call that it belongs to, if that is traced. Only in memory: no file has it.
    trace: Option<Box<Context>>,
}

impl Order {
    pub fn new(stamped: Stamped) -> Order {
        let encoded = encode(&stamped);
        Order(Arc::new(Inner { stamped, encoded, trace: None }))
    }

    /// Reads the bytes another `Order` was encoded to.
    pub fn read(encoded: Bytes) -> Result<Order, Unreadable> {
        let stamped = decode(encoded.clone())?;
        Ok(Order(Arc::new(Inner { stamped, encoded, trace: None })))
    }

    /// The command alone. Copies it only if the order is shared.
    pub fn into_stamped(self) -> Stamped {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.stamped.clone(), |inner| inner.stamped)
    }

    pub fn stamped(&self) -> &Stamped {
        &self.0.stamped
    }

    pub fn encoded(&self) -> &Bytes {
        &self.0.encoded
    }

    /// Where the call of this command is in its trace.
    pub fn trace(&self) -> Option<&Context> {
        self.0.trace.as_deref()
    }

    /// Names the call of a new order. One that is shared already stays as it is.
    pub fn belongs_to(&mut self, trace: Option<Context>) {
        if let (Some(trace), Some(inner)) = (trace, Arc::get_mut(&mut self.0)) {
            inner.trace = Some(Box::new(trace));
        }
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Order) -> bool {
        self.0.encoded == other.0.encoded
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {:032x} of {} bytes", self.0.stamped.request_id.0, self.0.encoded.len())
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn encode(stamped: &Stamped) -> Bytes {
    let encoded = proto::StampedCommand {
        at_ms: stamped.stamp.at_ms,
        seed: Bytes::copy_from_slice(&stamped.stamp.seed.to_be_bytes()),
        request_id: Bytes::copy_from_slice(&stamped.request_id.0.to_be_bytes()),
        repeated: stamped.is_retry,
        command: Some(match &stamped.scope {
            None => to_proto(&stamped.command),
            Some(scope) => within_to_proto(scope, &stamped.command),
        }),
    };
    encoded.encode_to_vec().into()
}

fn decode(bytes: Bytes) -> Result<Stamped, Unreadable> {
    let decoded = proto::StampedCommand::decode(bytes).map_err(|error| Unreadable(format!("command: {error}")))?;
    let command = decoded
        .command
        .ok_or_else(|| Unreadable("command: this version does not know it; a newer version wrote it".to_owned()))?;
    let (scope, command) = match command {
        Encoded::Within(within) => {
            let (scope, command) = within_from_proto(within)?;
            (Some(Arc::new(scope)), command)
        }
        command => (None, from_proto(command)?),
    };
    Ok(Stamped {
        stamp: Stamp { at_ms: decoded.at_ms, seed: wide(&decoded.seed, "seed")? },
        request_id: RequestId(wide(&decoded.request_id, "request_id")?),
        is_retry: decoded.repeated,
        scope,
        command,
    })
}

fn within_to_proto(scope: &Scope, command: &Command) -> Encoded {
    let inner = proto::StampedCommand { command: Some(to_proto(command)), ..proto::StampedCommand::default() };
    Encoded::Within(proto::Within { scope: scope.text().to_owned(), command: inner.encode_to_vec().into() })
}

fn within_from_proto(within: proto::Within) -> Result<(Scope, Command), Unreadable> {
    let wrong = |why: &dyn fmt::Display| Unreadable(format!("command.within: {why}"));
    let scope = Scope::parse(&within.scope).map_err(|error| wrong(&error))?;
    let inner = proto::StampedCommand::decode(within.command).map_err(|error| wrong(&error))?;
    let command = inner.command.ok_or_else(|| wrong(&"this version does not know it; a newer version wrote it"))?;
    Ok((scope, from_proto(command)?))
}

fn to_proto(command: &Command) -> Encoded {
    match command {
        Command::Create(c) => Encoded::Create(create_to_proto(c)),
        Command::Ensure(c) => Encoded::Ensure(proto::Ensure {
            session_id: c.session_id.to_string(),
            session: Some(create_to_proto(&c.session)),
        }),
        Command::SetMeta(c) => Encoded::SetMeta(proto::SetMeta {
            session_id: c.session_id.to_string(),
            title: c.title.clone(),
            description: c.description.clone(),
            metadata: c.metadata.as_ref().map(object_to_text),
        }),
        Command::SetStatus(c) => Encoded::SetStatus(proto::SetStatus {
            session_id: c.session_id.to_string(),
            status: status_to_proto(c.status) as i32,
            reason: c.reason.clone(),
        }),
        Command::Delete(c) => Encoded::Delete(session_ref(&c.session_id)),
        Command::Append(c) => Encoded::Append(append_to_proto(c)),
        Command::AppendMany(c) => Encoded::AppendMany(proto::AppendMany {
            session_id: c.session_id.to_string(),
            parent_id: c.parent_id.as_ref().map(EntryId::to_string),
            origin: c.origin.as_ref().map(json_text),
            messages: c.messages.iter().map(message_to_proto).collect(),
        }),
        Command::UpdateMessage(c) => Encoded::UpdateMessage(proto::UpdateMessage {
            session_id: c.session_id.to_string(),
            entry_id: c.entry_id.to_string(),
            content: Some(content_to_proto(&c.content)),
            details: c.details.as_ref().map(json_text),
            expected_revision: c.expected_revision,
            origin: c.origin.as_ref().map(json_text),
        }),
        Command::Fork(c) => Encoded::Fork(fork_to_proto(c)),
        Command::SetActiveLeaf(c) => Encoded::SetActiveLeaf(store::EntryRef {
            session_id: c.session_id.to_string(),
            entry_id: c.entry_id.to_string(),
        }),
        Command::Import(c) => Encoded::Import(import_to_proto(c)),
        Command::Store(write) => store_to_proto(write),
        Command::Feed(order) => feed_to_proto(order),
        Command::Long(work) => Encoded::LongWork(proto::LongWork { work: Some(long_to_proto(work)) }),
        Command::Beside(Beside::Turn(command)) => Encoded::Turn(json_text(&beside::print(command))),
        Command::Beside(Beside::Level(RaiseLevel { level })) => {
            Encoded::RaiseLevel(proto::RaiseLevel { level: *level })
        }
        Command::Beside(Beside::Gateway(command)) => Encoded::Gateway(json_text(&beside::print(command))),
        Command::Beside(Beside::Model(command)) => Encoded::Model(json_text(&beside::print(command))),
    }
}

fn session_ref(session_id: &SessionId) -> proto::SessionRef {
    proto::SessionRef { session_id: session_id.to_string() }
}

fn fork_to_proto(fork: &ForkSession) -> proto::Fork {
    proto::Fork {
        session_id: fork.session_id.to_string(),
        entry_id: fork.entry_id.to_string(),
        title: fork.title.clone(),
    }
}

fn fork_from_proto(fork: proto::Fork) -> ForkSession {
    ForkSession { session_id: fork.session_id.into(), entry_id: fork.entry_id.into(), title: fork.title }
}

fn long_to_proto(work: &LongWork) -> proto::long_work::Work {
    use proto::long_work::Work;
    let fork_ref =
        |source: &SessionId, fork: &SessionId| store::ForkRef { source: source.to_string(), fork: fork.to_string() };
    match work {
        LongWork::Delete(c) => Work::Delete(session_ref(&c.session_id)),
        LongWork::DeleteEntries(session_id) => Work::DeleteEntries(session_ref(session_id)),
        LongWork::Import(c) => Work::Import(import_to_proto(c)),
        LongWork::Free { leftover, records } => Work::Free(proto::Free {
            session_id: leftover.session_id.to_string(),
            home: leftover.home.map(|home| Bytes::copy_from_slice(&home.0.to_be_bytes())),
            records: *records,
        }),
        LongWork::BeginFork(c) => Work::BeginFork(fork_to_proto(c)),
        LongWork::ContinueFork { source, fork, records } => {
            Work::ContinueFork(proto::ContinueFork { fork: Some(fork_ref(source, fork)), records: *records })
        }
        LongWork::GiveUpFork { source, fork } => Work::GiveUpFork(fork_ref(source, fork)),
        LongWork::FreeRecords { leftover, records } => Work::FreeRecords(proto::FreeRecords {
            session_id: leftover.session_id.to_string(),
            generation: leftover.generation,
            records: *records,
        }),
    }
}

fn long_from_proto(work: proto::LongWork) -> Result<LongWork, Unreadable> {
    use proto::long_work::Work;
    let unknown = || Unreadable("long work: this version does not know it; a newer version wrote it".to_owned());
    Ok(match work.work.ok_or_else(unknown)? {
        Work::Delete(c) => LongWork::Delete(DeleteSession { session_id: c.session_id.into() }),
        Work::DeleteEntries(c) => LongWork::DeleteEntries(c.session_id.into()),
        Work::Import(c) => LongWork::Import(Box::new(import_from_proto(c)?)),
        Work::Free(c) => {
            let home = c.home.map(|home| wide(&home, "free.home")).transpose()?.map(Home);
            LongWork::Free { leftover: Leftover { session_id: c.session_id.into(), home }, records: c.records }
        }
        Work::BeginFork(c) => LongWork::BeginFork(fork_from_proto(c)),
        Work::ContinueFork(c) => {
            let fork = c.fork.ok_or_else(|| missing("continue_fork.fork"))?;
            LongWork::ContinueFork { source: fork.source.into(), fork: fork.fork.into(), records: c.records }
        }
        Work::GiveUpFork(c) => LongWork::GiveUpFork { source: c.source.into(), fork: c.fork.into() },
        Work::FreeRecords(c) => LongWork::FreeRecords {
            leftover: RecordLeftover { session_id: c.session_id.into(), generation: c.generation },
            records: c.records,
        },
    })
}

fn store_to_proto(write: &StoreWrite) -> Encoded {
    let (id, change) = match write {
        StoreWrite::Session(id, change) => (id.to_string(), change),
        StoreWrite::PublishEvents(envelopes) => {
            let envelopes = envelopes.iter().map(envelope_to_proto).collect();
            return Encoded::StorePublishEvents(proto::PublishEvents { envelopes });
        }
    };
    match change {
        SessionChange::PutMeta(meta) => {
            Encoded::StorePutMeta(proto::PutMeta { session_id: id, record: meta::encode(meta) })
        }
        SessionChange::DeleteMeta => Encoded::StoreDeleteMeta(proto::SessionRef { session_id: id }),
        SessionChange::PutEntry(entry) => Encoded::StorePutEntry(proto::PutEntry {
            session_id: id,
            entry_id: entry.id.to_string(),
            record: entry::encode(entry),
        }),
        SessionChange::DeleteEntries => Encoded::StoreDeleteEntries(proto::SessionRef { session_id: id }),
        SessionChange::SetLeaf(entry_id) => {
            Encoded::StoreSetLeaf(store::EntryRef { session_id: id, entry_id: entry_id.to_string() })
        }
        SessionChange::DeleteLeaf => Encoded::StoreDeleteLeaf(proto::SessionRef { session_id: id }),
    }
}

fn import_to_proto(import: &ImportEntries) -> proto::Import {
    let if_exists = match import.if_exists {
        IfExists::Refuse => proto::IfExists::Refuse,
        IfExists::Skip => proto::IfExists::Skip,
        IfExists::Replace => proto::IfExists::Replace,
        IfExists::Merge => proto::IfExists::Merge,
    };
    let encode = |entry: &Entry| proto::ImportedEntry { entry_id: entry.id.to_string(), record: entry::encode(entry) };
    proto::Import {
        session_id: import.session_id.to_string(),
        if_exists: if_exists as i32,
        first: import.first,
        entries: import.entries.iter().map(encode).collect(),
        meta: import.finish.as_ref().map(|finish| meta::encode(&finish.meta)),
        leaf: import.finish.as_ref().and_then(|finish| finish.leaf.as_ref().map(EntryId::to_string)),
    }
}

fn import_from_proto(import: proto::Import) -> Result<ImportEntries, Unreadable> {
    let if_exists = match import.if_exists() {
        proto::IfExists::Refuse => IfExists::Refuse,
        proto::IfExists::Skip => IfExists::Skip,
        proto::IfExists::Replace => IfExists::Replace,
        proto::IfExists::Merge => IfExists::Merge,
        proto::IfExists::Unspecified => return Err(missing("import.if_exists")),
    };
    let session_id = SessionId::from(import.session_id);
    let decode = |entry: proto::ImportedEntry| {
        entry::decode(&session_id, &entry.entry_id.into(), &entry.record).map_err(|fault| Unreadable(fault.0))
    };
    let entries = import.entries.into_iter().map(decode).collect::<Result<_, _>>()?;
    let leaf = import.leaf.map(EntryId::from);
    let finish = match import.meta {
        Some(record) => {
            let meta = meta::decode(&session_id, &record).map_err(|fault| Unreadable(fault.0))?;
            Some(FinishImport { meta, leaf })
        }
        None => None,
    };
    Ok(ImportEntries { session_id, if_exists, first: import.first, entries, finish })
}

fn feed_to_proto(order: &FeedOrder) -> Encoded {
    match order {
        FeedOrder::Delivered { attach, position: Position { group, index, ordinal } } => {
            Encoded::Delivered(proto::Delivered {
                attach: attach.clone(),
                group: *group,
                index: *index,
                ordinal: *ordinal,
            })
        }
        FeedOrder::Detached { attach } => Encoded::Detached(proto::Detached { attach: attach.clone() }),
        FeedOrder::Trim { upto } => Encoded::TrimFeed(place_to_proto(*upto)),
    }
}

fn create_to_proto(create: &CreateSession) -> proto::Create {
    proto::Create {
        title: create.title.clone(),
        description: create.description.clone(),
        metadata: create.metadata.as_ref().map(object_to_text),
    }
}

fn append_to_proto(append: &AppendEntry) -> proto::Append {
    let body = match &append.body {
        Body::Message(message) => proto::append::Body::Message(message_to_proto(message)),
        Body::Custom { custom_type, data } => {
            proto::append::Body::Custom(store::CustomBody { custom_type: custom_type.clone(), data: json_text(data) })
        }
    };
    proto::Append {
        session_id: append.session_id.to_string(),
        entry_id: append.entry_id.as_ref().map(EntryId::to_string),
        parent_id: append.parent_id.as_ref().map(EntryId::to_string),
        origin: append.origin.as_ref().map(json_text),
        body: Some(body),
    }
}

fn content_to_proto(content: &NewContent) -> proto::update_message::Content {
    match content {
        NewContent::Full(content) => proto::update_message::Content::Full(json_text(content)),
        NewContent::Patch(patch) => proto::update_message::Content::Patch(proto::Patch {
            base_revision: patch.base_revision,
            base_hash: patch.base_hash,
            head: patch.head,
            tail: patch.tail,
            middle: Bytes::copy_from_slice(&patch.middle),
        }),
    }
}

fn content_from_proto(content: Option<proto::update_message::Content>) -> Result<NewContent, Unreadable> {
    match content {
        Some(proto::update_message::Content::Full(content)) => Ok(NewContent::Full(Json::adopt(&content))),
        Some(proto::update_message::Content::Patch(patch)) => Ok(NewContent::Patch(Patch {
            base_revision: patch.base_revision,
            base_hash: patch.base_hash,
            head: patch.head,
            tail: patch.tail,
            middle: patch.middle.to_vec(),
        })),
        None => Err(Unreadable("an update without content".to_owned())),
    }
}

fn message_to_proto(message: &Message) -> store::MessageBody {
    store::MessageBody { role: role_to_proto(message.role) as i32, json: json_text(&message.body) }
}

fn envelope_to_proto(envelope: &Envelope) -> proto::Envelope {
    proto::Envelope {
        kind: kind_to_proto(envelope.kind) as i32,
        session_id: envelope.session_id.to_string(),
        role: envelope.role.map(|role| role_to_proto(role) as i32),
        payload: json_text(&envelope.payload),
        metadata: envelope.metadata.as_ref().map(object_to_text),
    }
}

fn from_proto(encoded: Encoded) -> Result<Command, Unreadable> {
    Ok(match encoded {
        Encoded::Create(c) => Command::Create(create_from_proto(c)?),
        Encoded::Ensure(c) => Command::Ensure(EnsureSession {
            session_id: c.session_id.into(),
            session: create_from_proto(c.session.ok_or_else(|| missing("ensure.session"))?)?,
        }),
        Encoded::SetMeta(c) => Command::SetMeta(SetMeta {
            session_id: c.session_id.into(),
            title: c.title,
            description: c.description,
            metadata: object(c.metadata)?,
        }),
        Encoded::SetStatus(c) => Command::SetStatus(SetStatus {
            status: status_from_proto(c.status).ok_or_else(|| unknown("status", c.status))?,
            session_id: c.session_id.into(),
            reason: c.reason,
        }),
        Encoded::Delete(c) => Command::Delete(DeleteSession { session_id: c.session_id.into() }),
        Encoded::Append(c) => Command::Append(append_from_proto(c)?),
        Encoded::AppendMany(c) => Command::AppendMany(AppendMany {
            session_id: c.session_id.into(),
            parent_id: c.parent_id.map(EntryId::from),
            origin: json(c.origin),
            messages: c.messages.into_iter().map(message_from_proto).collect::<Result<_, _>>()?,
        }),
        Encoded::UpdateMessage(c) => Command::UpdateMessage(UpdateMessage {
            session_id: c.session_id.into(),
            entry_id: c.entry_id.into(),
            content: content_from_proto(c.content)?,
            details: json(c.details),
            expected_revision: c.expected_revision,
            origin: json(c.origin),
        }),
        Encoded::Fork(c) => Command::Fork(fork_from_proto(c)),
        Encoded::SetActiveLeaf(c) => {
            Command::SetActiveLeaf(SetActiveLeaf { session_id: c.session_id.into(), entry_id: c.entry_id.into() })
        }
        Encoded::Import(c) => Command::Import(import_from_proto(c)?),
        Encoded::LongWork(work) => Command::Long(long_from_proto(work)?),
        Encoded::RaiseLevel(c) => Command::Beside(Beside::Level(RaiseLevel { level: c.level })),
        Encoded::Turn(text) => Command::Beside(Beside::Turn(beside_from_text("turn", &text)?)),
        Encoded::Gateway(text) => Command::Beside(Beside::Gateway(beside_from_text("gateway", &text)?)),
        Encoded::Model(text) => Command::Beside(Beside::Model(beside_from_text("model", &text)?)),
        Encoded::StorePutMeta(c) => {
            let session_id = SessionId::from(c.session_id);
            let meta = meta::decode(&session_id, &c.record).map_err(|fault| Unreadable(fault.0))?;
            session_write(session_id, SessionChange::PutMeta(meta))
        }
        Encoded::StoreDeleteMeta(c) => session_write(c.session_id, SessionChange::DeleteMeta),
        Encoded::StorePutEntry(c) => {
            let session_id = SessionId::from(c.session_id);
            let entry = entry::decode(&session_id, &c.entry_id.into(), &c.record);
            session_write(session_id, SessionChange::PutEntry(entry.map_err(|fault| Unreadable(fault.0))?))
        }
        Encoded::StoreDeleteEntries(c) => session_write(c.session_id, SessionChange::DeleteEntries),
        Encoded::StoreSetLeaf(c) => session_write(c.session_id, SessionChange::SetLeaf(c.entry_id.into())),
        Encoded::StoreDeleteLeaf(c) => session_write(c.session_id, SessionChange::DeleteLeaf),
        Encoded::StorePublishEvents(c) => {
            let envelopes = c.envelopes.into_iter().map(envelope_from_proto).collect::<Result<_, _>>()?;
            Command::Store(StoreWrite::PublishEvents(envelopes))
        }
        Encoded::Delivered(c) => Command::Feed(FeedOrder::Delivered {
            attach: c.attach,
            position: Position { group: c.group, index: c.index, ordinal: c.ordinal },
        }),
        Encoded::Detached(c) => Command::Feed(FeedOrder::Detached { attach: c.attach }),
        Encoded::Within(_) => return Err(Unreadable("command.within: holds another within".to_owned())),
        Encoded::TrimFeed(upto) => Command::Feed(FeedOrder::Trim { upto: place_from_proto(upto) }),
    })
}

fn session_write(session_id: impl Into<SessionId>, change: SessionChange) -> Command {
    Command::Store(StoreWrite::Session(session_id.into(), change))
}

fn create_from_proto(create: proto::Create) -> Result<CreateSession, Unreadable> {
    let metadata = object(create.metadata)?;
    Ok(CreateSession { title: create.title, description: create.description, metadata })
}

fn append_from_proto(append: proto::Append) -> Result<AppendEntry, Unreadable> {
    let body = match append.body.ok_or_else(|| missing("append.body"))? {
        proto::append::Body::Message(message) => Body::Message(message_from_proto(message)?),
        proto::append::Body::Custom(custom) => {
            Body::Custom { custom_type: custom.custom_type, data: Json::adopt(&custom.data) }
        }
    };
    Ok(AppendEntry {
        session_id: append.session_id.into(),
        entry_id: append.entry_id.map(EntryId::from),
        parent_id: append.parent_id.map(EntryId::from),
        origin: json(append.origin),
        body,
    })
}

fn message_from_proto(message: store::MessageBody) -> Result<Message, Unreadable> {
    Ok(Message { role: role(message.role)?, body: Json::adopt(&message.json) })
}

fn envelope_from_proto(envelope: proto::Envelope) -> Result<Envelope, Unreadable> {
    Ok(Envelope {
        kind: kind_from_proto(envelope.kind).ok_or_else(|| unknown("event kind", envelope.kind))?,
        session_id: envelope.session_id.into(),
        role: envelope.role.map(role).transpose()?,
        payload: Json::adopt(&envelope.payload),
        metadata: object(envelope.metadata)?,
    })
}

/// A command about records beside sessions.
fn beside_from_text<T: DeserializeOwned>(group: &str, text: &str) -> Result<T, Unreadable> {
    serde_json::from_str(text)
        .map_err(|error| Unreadable(format!("{group} command: {error}; a newer version may have written it")))
}

fn json_text(json: &Json) -> String {
    json.text().to_owned()
}

fn json(text: Option<String>) -> Option<Json> {
    text.as_deref().map(Json::adopt)
}

fn object(text: Option<String>) -> Result<Option<Object>, Unreadable> {
    object_from_text(text.as_deref()).map_err(|error| Unreadable(format!("metadata: {error}")))
}

/// A 128-bit id.
fn wide(bytes: &Bytes, field: &str) -> Result<u128, Unreadable> {
    let bytes: [u8; 16] =
        bytes.as_ref().try_into().map_err(|_| Unreadable(format!("{field}: {} bytes instead of 16", bytes.len())))?;
    Ok(u128::from_be_bytes(bytes))
}

fn role(role: i32) -> Result<Role, Unreadable> {
    role_from_proto(role).ok_or_else(|| unknown("role", role))
}

fn unknown(field: &str, number: i32) -> Unreadable {
    Unreadable(format!("{field} {number} is unknown"))
}

fn missing(field: &str) -> Unreadable {
    Unreadable(format!("{field} is missing"))
}
