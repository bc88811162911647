//! Owns: the bytes of a stamped command, in the log and on the wire. One codec pair.
//! Never: look inside a JSON body. Bytes of another version or damaged ones are a typed error, never a panic.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use super::record::Unreadable;
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::append_many::AppendMany;
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::delete::DeleteSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::apply::feed::FeedOrder;
use crate::machine::apply::fork::ForkSession;
use crate::machine::apply::set_active_leaf::SetActiveLeaf;
use crate::machine::apply::set_meta::SetMeta;
use crate::machine::apply::set_status::SetStatus;
use crate::machine::apply::store::{Envelope, StoreWrite};
use crate::machine::apply::update_message::{NewContent, UpdateMessage};
use crate::machine::entry::Body;
use crate::machine::event::EventKind;
use crate::machine::ids::{EntryId, FeedPlace, Position, RequestId, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::message::{Message, Role};
use crate::machine::patch::Patch;
use crate::machine::session::SessionStatus;
use crate::machine::stamp::Stamp;
use crate::machine::{Command, Stamped};
use crate::proto::log as proto;
use crate::proto::log::stamped_command::Command as Spelled;
use crate::storage::records;

/// A stamped command together with its bytes: encoded once where it is proposed, shared from there on.
#[derive(Clone)]
pub struct Order(Arc<Inner>);

struct Inner {
    stamped: Stamped,
    encoded: Bytes,
}

impl Order {
    pub fn new(stamped: Stamped) -> Order {
        let encoded = encode(&stamped);
        Order(Arc::new(Inner { stamped, encoded }))
    }

    /// Reads the bytes another `Order` was encoded to.
    pub fn read(encoded: Bytes) -> Result<Order, Unreadable> {
        let stamped = decode(encoded.clone())?;
        Ok(Order(Arc::new(Inner { stamped, encoded })))
    }

    /// The command alone, without a copy where nobody else holds the order.
    pub fn into_stamped(self) -> Stamped {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.stamped.clone(), |inner| inner.stamped)
    }

    pub fn stamped(&self) -> &Stamped {
        &self.0.stamped
    }

    pub fn encoded(&self) -> &Bytes {
        &self.0.encoded
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
    let spelled = proto::StampedCommand {
        at_ms: stamped.stamp.at_ms,
        seed: Bytes::copy_from_slice(&stamped.stamp.seed.to_be_bytes()),
        request_id: Bytes::copy_from_slice(&stamped.request_id.0.to_be_bytes()),
        repeated: stamped.repeated,
        command: Some(spell(&stamped.command)),
    };
    spelled.encode_to_vec().into()
}

fn decode(bytes: Bytes) -> Result<Stamped, Unreadable> {
    let spelled = proto::StampedCommand::decode(bytes).map_err(|error| Unreadable(format!("command: {error}")))?;
    let command = spelled
        .command
        .ok_or_else(|| Unreadable("command: none this version knows; it was written by a newer one".to_owned()))?;
    Ok(Stamped {
        stamp: Stamp { at_ms: spelled.at_ms, seed: wide(&spelled.seed, "seed")? },
        request_id: RequestId(wide(&spelled.request_id, "request_id")?),
        repeated: spelled.repeated,
        command: understand(command)?,
    })
}

fn spell(command: &Command) -> Spelled {
    match command {
        Command::Create(c) => Spelled::Create(spell_create(c)),
        Command::Ensure(c) => Spelled::Ensure(proto::Ensure {
            session_id: c.session_id.to_string(),
            session: Some(spell_create(&c.session)),
        }),
        Command::SetMeta(c) => Spelled::SetMeta(proto::SetMeta {
            session_id: c.session_id.to_string(),
            title: c.title.clone(),
            description: c.description.clone(),
            metadata: c.metadata.as_ref().map(object_text),
        }),
        Command::SetStatus(c) => Spelled::SetStatus(proto::SetStatus {
            session_id: c.session_id.to_string(),
            status: spell_status(c.status) as i32,
            reason: c.reason.clone(),
        }),
        Command::Delete(c) => Spelled::Delete(proto::Delete { session_id: c.session_id.to_string() }),
        Command::Append(c) => Spelled::Append(spell_append(c)),
        Command::AppendMany(c) => Spelled::AppendMany(proto::AppendMany {
            session_id: c.session_id.to_string(),
            parent_id: c.parent_id.as_ref().map(EntryId::to_string),
            origin: c.origin.as_ref().map(json_text),
            messages: c.messages.iter().map(spell_message).collect(),
        }),
        Command::UpdateMessage(c) => Spelled::UpdateMessage(proto::UpdateMessage {
            session_id: c.session_id.to_string(),
            entry_id: c.entry_id.to_string(),
            content: Some(spell_content(&c.content)),
            details: c.details.as_ref().map(json_text),
            expected_revision: c.expected_revision,
            origin: c.origin.as_ref().map(json_text),
        }),
        Command::Fork(c) => Spelled::Fork(proto::Fork {
            session_id: c.session_id.to_string(),
            entry_id: c.entry_id.to_string(),
            title: c.title.clone(),
        }),
        Command::SetActiveLeaf(c) => Spelled::SetActiveLeaf(proto::SetActiveLeaf {
            session_id: c.session_id.to_string(),
            entry_id: c.entry_id.to_string(),
        }),
        Command::Store(write) => spell_store(write),
        Command::Feed(order) => spell_feed(order),
    }
}

fn spell_store(write: &StoreWrite) -> Spelled {
    let session = |id: &SessionId| proto::SessionRef { session_id: id.to_string() };
    match write {
        StoreWrite::PutMeta(meta) => Spelled::StorePutMeta(proto::PutMeta {
            session_id: meta.session_id.to_string(),
            record: records::print_meta(meta),
        }),
        StoreWrite::DeleteMeta(id) => Spelled::StoreDeleteMeta(session(id)),
        StoreWrite::PutEntry(id, entry) => Spelled::StorePutEntry(proto::PutEntry {
            session_id: id.to_string(),
            entry_id: entry.id.to_string(),
            record: records::print_entry(entry),
        }),
        StoreWrite::DeleteEntries(id) => Spelled::StoreDeleteEntries(session(id)),
        StoreWrite::SetLeaf(id, entry_id) => {
            Spelled::StoreSetLeaf(proto::EntryRef { session_id: id.to_string(), entry_id: entry_id.to_string() })
        }
        StoreWrite::DeleteLeaf(id) => Spelled::StoreDeleteLeaf(session(id)),
        StoreWrite::PublishEvents(envelopes) => Spelled::StorePublishEvents(proto::PublishEvents {
            envelopes: envelopes.iter().map(spell_envelope).collect(),
        }),
    }
}

fn spell_feed(order: &FeedOrder) -> Spelled {
    match order {
        FeedOrder::Delivered { attach, position: Position { group, index, ordinal } } => {
            Spelled::Delivered(proto::Delivered {
                attach: attach.clone(),
                group: *group,
                index: *index,
                ordinal: *ordinal,
            })
        }
        FeedOrder::Detached { attach } => Spelled::Detached(proto::Detached { attach: attach.clone() }),
        FeedOrder::Trim { upto } => Spelled::TrimFeed(proto::TrimFeed { index: upto.index, ordinal: upto.ordinal }),
    }
}

fn spell_create(create: &CreateSession) -> proto::Create {
    proto::Create {
        title: create.title.clone(),
        description: create.description.clone(),
        metadata: create.metadata.as_ref().map(object_text),
    }
}

fn spell_append(append: &AppendEntry) -> proto::Append {
    let body = match &append.body {
        Body::Message(message) => proto::append::Body::Message(spell_message(message)),
        Body::Custom { custom_type, data } => {
            proto::append::Body::Custom(proto::Custom { custom_type: custom_type.clone(), data: json_text(data) })
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

fn spell_content(content: &NewContent) -> proto::update_message::Content {
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

fn understand_content(content: Option<proto::update_message::Content>) -> Result<NewContent, Unreadable> {
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

fn spell_message(message: &Message) -> proto::Message {
    proto::Message { role: spell_role(message.role) as i32, body: json_text(&message.body) }
}

fn spell_envelope(envelope: &Envelope) -> proto::Envelope {
    proto::Envelope {
        kind: spell_kind(envelope.kind) as i32,
        session_id: envelope.session_id.to_string(),
        role: envelope.role.map(|role| spell_role(role) as i32),
        payload: json_text(&envelope.payload),
        metadata: envelope.metadata.as_ref().map(object_text),
    }
}

fn understand(spelled: Spelled) -> Result<Command, Unreadable> {
    Ok(match spelled {
        Spelled::Create(c) => Command::Create(understand_create(c)?),
        Spelled::Ensure(c) => Command::Ensure(EnsureSession {
            session_id: c.session_id.into(),
            session: understand_create(c.session.ok_or_else(|| missing("ensure.session"))?)?,
        }),
        Spelled::SetMeta(c) => Command::SetMeta(SetMeta {
            session_id: c.session_id.into(),
            title: c.title,
            description: c.description,
            metadata: object(c.metadata)?,
        }),
        Spelled::SetStatus(c) => Command::SetStatus(SetStatus {
            status: understand_status(c.status)?,
            session_id: c.session_id.into(),
            reason: c.reason,
        }),
        Spelled::Delete(c) => Command::Delete(DeleteSession { session_id: c.session_id.into() }),
        Spelled::Append(c) => Command::Append(understand_append(c)?),
        Spelled::AppendMany(c) => Command::AppendMany(AppendMany {
            session_id: c.session_id.into(),
            parent_id: c.parent_id.map(EntryId::from),
            origin: json(c.origin),
            messages: c.messages.into_iter().map(understand_message).collect::<Result<_, _>>()?,
        }),
        Spelled::UpdateMessage(c) => Command::UpdateMessage(UpdateMessage {
            session_id: c.session_id.into(),
            entry_id: c.entry_id.into(),
            content: understand_content(c.content)?,
            details: json(c.details),
            expected_revision: c.expected_revision,
            origin: json(c.origin),
        }),
        Spelled::Fork(c) => {
            Command::Fork(ForkSession { session_id: c.session_id.into(), entry_id: c.entry_id.into(), title: c.title })
        }
        Spelled::SetActiveLeaf(c) => {
            Command::SetActiveLeaf(SetActiveLeaf { session_id: c.session_id.into(), entry_id: c.entry_id.into() })
        }
        Spelled::StorePutMeta(c) => {
            let meta = records::parse_meta(&c.session_id.into(), &c.record).map_err(|fault| Unreadable(fault.0))?;
            Command::Store(StoreWrite::PutMeta(meta))
        }
        Spelled::StoreDeleteMeta(c) => Command::Store(StoreWrite::DeleteMeta(c.session_id.into())),
        Spelled::StorePutEntry(c) => {
            let session_id = SessionId::from(c.session_id);
            let entry = records::parse_entry(&session_id, &c.entry_id.into(), &c.record);
            Command::Store(StoreWrite::PutEntry(session_id, entry.map_err(|fault| Unreadable(fault.0))?))
        }
        Spelled::StoreDeleteEntries(c) => Command::Store(StoreWrite::DeleteEntries(c.session_id.into())),
        Spelled::StoreSetLeaf(c) => Command::Store(StoreWrite::SetLeaf(c.session_id.into(), c.entry_id.into())),
        Spelled::StoreDeleteLeaf(c) => Command::Store(StoreWrite::DeleteLeaf(c.session_id.into())),
        Spelled::StorePublishEvents(c) => {
            let envelopes = c.envelopes.into_iter().map(understand_envelope).collect::<Result<_, _>>()?;
            Command::Store(StoreWrite::PublishEvents(envelopes))
        }
        Spelled::Delivered(c) => Command::Feed(FeedOrder::Delivered {
            attach: c.attach,
            position: Position { group: c.group, index: c.index, ordinal: c.ordinal },
        }),
        Spelled::Detached(c) => Command::Feed(FeedOrder::Detached { attach: c.attach }),
        Spelled::TrimFeed(c) => {
            Command::Feed(FeedOrder::Trim { upto: FeedPlace { index: c.index, ordinal: c.ordinal } })
        }
    })
}

fn understand_create(create: proto::Create) -> Result<CreateSession, Unreadable> {
    let metadata = object(create.metadata)?;
    Ok(CreateSession { title: create.title, description: create.description, metadata })
}

fn understand_append(append: proto::Append) -> Result<AppendEntry, Unreadable> {
    let body = match append.body.ok_or_else(|| missing("append.body"))? {
        proto::append::Body::Message(message) => Body::Message(understand_message(message)?),
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

fn understand_message(message: proto::Message) -> Result<Message, Unreadable> {
    Ok(Message { role: understand_role(message.role)?, body: Json::adopt(&message.body) })
}

fn understand_envelope(envelope: proto::Envelope) -> Result<Envelope, Unreadable> {
    Ok(Envelope {
        kind: understand_kind(envelope.kind)?,
        session_id: envelope.session_id.into(),
        role: envelope.role.map(understand_role).transpose()?,
        payload: Json::adopt(&envelope.payload),
        metadata: object(envelope.metadata)?,
    })
}

fn spell_status(status: SessionStatus) -> proto::Status {
    match status {
        SessionStatus::Idle => proto::Status::Idle,
        SessionStatus::Working => proto::Status::Working,
        SessionStatus::Done => proto::Status::Done,
        SessionStatus::Error => proto::Status::Error,
    }
}

fn understand_status(status: i32) -> Result<SessionStatus, Unreadable> {
    match proto::Status::try_from(status) {
        Ok(proto::Status::Idle) => Ok(SessionStatus::Idle),
        Ok(proto::Status::Working) => Ok(SessionStatus::Working),
        Ok(proto::Status::Done) => Ok(SessionStatus::Done),
        Ok(proto::Status::Error) => Ok(SessionStatus::Error),
        Ok(proto::Status::Unspecified) | Err(_) => Err(Unreadable(format!("status {status} is unknown"))),
    }
}

fn spell_role(role: Role) -> proto::Role {
    match role {
        Role::User => proto::Role::User,
        Role::Assistant => proto::Role::Assistant,
        Role::FunctionResult => proto::Role::FunctionResult,
        Role::Custom => proto::Role::Custom,
    }
}

fn understand_role(role: i32) -> Result<Role, Unreadable> {
    match proto::Role::try_from(role) {
        Ok(proto::Role::User) => Ok(Role::User),
        Ok(proto::Role::Assistant) => Ok(Role::Assistant),
        Ok(proto::Role::FunctionResult) => Ok(Role::FunctionResult),
        Ok(proto::Role::Custom) => Ok(Role::Custom),
        Ok(proto::Role::Unspecified) | Err(_) => Err(Unreadable(format!("role {role} is unknown"))),
    }
}

fn spell_kind(kind: EventKind) -> proto::EventKind {
    match kind {
        EventKind::Created => proto::EventKind::Created,
        EventKind::MessageAdded => proto::EventKind::MessageAdded,
        EventKind::MessageUpdated => proto::EventKind::MessageUpdated,
        EventKind::StatusChanged => proto::EventKind::StatusChanged,
        EventKind::MetaUpdated => proto::EventKind::MetaUpdated,
        EventKind::Deleted => proto::EventKind::Deleted,
    }
}

fn understand_kind(kind: i32) -> Result<EventKind, Unreadable> {
    match proto::EventKind::try_from(kind) {
        Ok(proto::EventKind::Created) => Ok(EventKind::Created),
        Ok(proto::EventKind::MessageAdded) => Ok(EventKind::MessageAdded),
        Ok(proto::EventKind::MessageUpdated) => Ok(EventKind::MessageUpdated),
        Ok(proto::EventKind::StatusChanged) => Ok(EventKind::StatusChanged),
        Ok(proto::EventKind::MetaUpdated) => Ok(EventKind::MetaUpdated),
        Ok(proto::EventKind::Deleted) => Ok(EventKind::Deleted),
        Ok(proto::EventKind::Unspecified) | Err(_) => Err(Unreadable(format!("event kind {kind} is unknown"))),
    }
}

fn json_text(json: &Json) -> String {
    json.text().to_owned()
}

fn object_text(object: &Object) -> String {
    json_text(&Json::print(object))
}

fn json(text: Option<String>) -> Option<Json> {
    text.as_deref().map(Json::adopt)
}

fn object(text: Option<String>) -> Result<Option<Object>, Unreadable> {
    let parsed = text.as_deref().map(serde_json::from_str).transpose();
    parsed.map_err(|error| Unreadable(format!("metadata: {error}")))
}

fn wide(bytes: &Bytes, field: &str) -> Result<u128, Unreadable> {
    let bytes: [u8; 16] = bytes
        .as_ref()
        .try_into()
        .map_err(|_| Unreadable(format!("{field}: {} bytes where 16 are needed", bytes.len())))?;
    Ok(u128::from_be_bytes(bytes))
}

fn missing(field: &str) -> Unreadable {
    Unreadable(format!("{field} is missing"))
}
