//! The laws of the log's encoding: records read back as written, golden bytes stay, anything else is refused.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;

use super::command::Order;
use super::record::{Entry, LogId, Membership, Payload, Peer};
use crate::machine::apply::append::AppendEntry;
use crate::machine::apply::append_many::AppendMany;
use crate::machine::apply::beside::Beside;
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
use crate::machine::entry::Body;
use crate::machine::event::EventKind;
use crate::machine::gateway::member::Actor;
use crate::machine::gateway::{GatewayCommand, MemberRole};
use crate::machine::ids::{FeedPlace, Position, RequestId};
use crate::machine::json::{Json, Object};
use crate::machine::level::RaiseLevel;
use crate::machine::long::{Home, Leftover};
use crate::machine::message::{Message, Role};
use crate::machine::patch::Patch;
use crate::machine::scope::Scope;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::stamp::Stamp;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::driver::AttachDriver;
use crate::machine::{Command, Stamped};
use crate::proto::log as proto;

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

fn object() -> impl Strategy<Value = Object> {
    proptest::collection::btree_map(text(), any::<i32>(), 0..3)
        .prop_map(|map| map.into_iter().map(|(key, number)| (key, json!(number))).collect())
}

fn json_text() -> impl Strategy<Value = Json> {
    text().prop_map(|text| Json::print(&json!({ "text": text })))
}

fn role() -> impl Strategy<Value = Role> {
    prop::sample::select(vec![Role::User, Role::Assistant, Role::FunctionResult, Role::Custom])
}

fn message() -> impl Strategy<Value = Message> {
    (role(), json_text()).prop_map(|(role, body)| Message { role, body })
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        message().prop_map(Body::Message),
        (text(), json_text()).prop_map(|(custom_type, data)| Body::Custom { custom_type, data }),
    ]
}

fn create() -> impl Strategy<Value = CreateSession> {
    (text(), text(), prop::option::of(object())).prop_map(|(title, description, metadata)| CreateSession {
        title,
        description,
        metadata,
    })
}

fn status() -> impl Strategy<Value = SessionStatus> {
    use SessionStatus::*;
    prop::sample::select(vec![Idle, Working, Done, Error])
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let kind = prop::sample::select(EventKind::ALL.to_vec());
    (kind, text(), prop::option::of(role()), json_text(), prop::option::of(object())).prop_map(
        |(kind, session_id, role, payload, metadata)| Envelope {
            kind,
            session_id: session_id.into(),
            role,
            payload,
            metadata,
        },
    )
}

fn meta() -> impl Strategy<Value = SessionMeta> {
    (text(), create(), status(), any::<i64>()).prop_map(|(id, given, status, time)| SessionMeta {
        session_id: id.into(),
        title: given.title,
        description: given.description,
        status,
        status_reason: None,
        message_count: 7,
        metadata: given.metadata,
        forked_from: None,
        created_at: time,
        updated_at: time,
    })
}

fn entry() -> impl Strategy<Value = crate::machine::entry::Entry> {
    (text(), any::<i64>(), body()).prop_map(|(id, timestamp, body)| crate::machine::entry::Entry {
        id: id.into(),
        parent_id: None,
        timestamp,
        revision: 3,
        origin: None,
        body,
        place: None,
    })
}

fn import() -> impl Strategy<Value = ImportEntries> {
    let modes = [IfExists::Refuse, IfExists::Skip, IfExists::Replace, IfExists::Merge];
    let mode = proptest::sample::select(modes.to_vec());
    let entries = proptest::collection::vec(entry(), 0..3);
    (meta(), mode, any::<bool>(), entries, any::<bool>(), prop::option::of(text())).prop_map(
        |(meta, if_exists, first, entries, is_last, leaf)| ImportEntries {
            session_id: meta.session_id.clone(),
            if_exists,
            first,
            entries,
            finish: is_last.then(|| FinishImport { meta, leaf: leaf.map(Into::into) }),
        },
    )
}

fn store_write() -> impl Strategy<Value = StoreWrite> {
    prop_oneof![
        meta().prop_map(|meta| StoreWrite::Session(meta.session_id.clone(), SessionChange::PutMeta(meta))),
        text().prop_map(|id| StoreWrite::Session(id.into(), SessionChange::DeleteMeta)),
        (text(), entry()).prop_map(|(id, entry)| StoreWrite::Session(id.into(), SessionChange::PutEntry(entry))),
        text().prop_map(|id| StoreWrite::Session(id.into(), SessionChange::DeleteEntries)),
        (text(), text())
            .prop_map(|(id, entry_id)| StoreWrite::Session(id.into(), SessionChange::SetLeaf(entry_id.into()))),
        text().prop_map(|id| StoreWrite::Session(id.into(), SessionChange::DeleteLeaf)),
        proptest::collection::vec(envelope(), 0..3).prop_map(StoreWrite::PublishEvents),
    ]
}

fn long_work() -> impl Strategy<Value = LongWork> {
    prop_oneof![
        text().prop_map(|id| LongWork::Delete(DeleteSession { session_id: id.into() })),
        text().prop_map(|id| LongWork::DeleteEntries(id.into())),
        import().prop_map(|import| LongWork::Import(Box::new(import))),
        (text(), any::<Option<u128>>(), any::<u32>()).prop_map(|(id, home, records)| {
            LongWork::Free { leftover: Leftover { session_id: id.into(), home: home.map(Home) }, records }
        }),
        (text(), text(), prop::option::of(text())).prop_map(|(id, entry_id, title)| {
            LongWork::BeginFork(ForkSession { session_id: id.into(), entry_id: entry_id.into(), title })
        }),
        (text(), text(), any::<u32>()).prop_map(|(source, fork, records)| {
            LongWork::ContinueFork { source: source.into(), fork: fork.into(), records }
        }),
        (text(), any::<u32>(), any::<u32>()).prop_map(|(id, generation, records)| {
            LongWork::FreeRecords { leftover: RecordLeftover { session_id: id.into(), generation }, records }
        }),
        (text(), text()).prop_map(|(source, fork)| LongWork::GiveUpFork { source: source.into(), fork: fork.into() }),
    ]
}

fn gateway_command() -> impl Strategy<Value = GatewayCommand> {
    let role = || proptest::sample::select(MemberRole::ALL.to_vec());
    let actor = (text(), role()).prop_map(|(user, role)| Actor { user, role });
    prop_oneof![
        (text(), text(), proptest::option::of(text())).prop_map(|(tenant, user, email)| GatewayCommand::Arrive {
            tenant,
            user,
            email
        }),
        (text(), actor, text(), role()).prop_map(|(tenant, by, user, role)| GatewayCommand::SetRole {
            tenant,
            by,
            user,
            role
        }),
        (text(), any::<bool>()).prop_map(|(session_id, archived)| GatewayCommand::Archive {
            session_id: session_id.as_str().into(),
            archived,
        }),
        (text(), text()).prop_map(|(session_id, name)| GatewayCommand::Answered {
            session_id: session_id.as_str().into(),
            fields: [(name.clone(), Json::print(&name))].into(),
            name,
        }),
    ]
}

fn turn_command() -> impl Strategy<Value = TurnCommand> {
    prop_oneof![
        (text(), prop::option::of(proptest::collection::vec(text(), 0..3))).prop_map(|(driver_id, agent_ids)| {
            let (agent_types, tenants) = (agent_ids.clone(), None);
            let families = std::collections::BTreeMap::from([("files".to_owned(), driver_id.clone())]);
            let (session_id, metadata) = (Some(driver_id.as_str().into()), Default::default());
            TurnCommand::Attach(AttachDriver {
                driver_id,
                agent_ids,
                agent_types,
                tenants,
                session_id,
                metadata,
                families,
                node: None,
            })
        }),
        (text(), prop::option::of(text())).prop_map(|(driver_id, node)| TurnCommand::Detach { driver_id, node }),
    ]
}

fn append() -> impl Strategy<Value = AppendEntry> {
    (text(), prop::option::of(text()), prop::option::of(text()), prop::option::of(json_text()), body()).prop_map(
        |(session_id, entry_id, parent_id, origin, body)| AppendEntry {
            session_id: session_id.into(),
            entry_id: entry_id.map(Into::into),
            parent_id: parent_id.map(Into::into),
            origin,
            body,
        },
    )
}

fn content() -> impl Strategy<Value = NewContent> {
    prop_oneof![
        json_text().prop_map(NewContent::Full),
        any::<(u64, u64, u64, u64, Vec<u8>)>().prop_map(|(base_revision, base_hash, head, tail, middle)| {
            NewContent::Patch(Patch { base_revision, base_hash, head, tail, middle })
        }),
    ]
}

fn update() -> impl Strategy<Value = UpdateMessage> {
    (text(), text(), content(), prop::option::of(json_text()), any::<Option<u64>>()).prop_map(
        |(session_id, entry_id, content, details, expected_revision)| UpdateMessage {
            session_id: session_id.into(),
            entry_id: entry_id.into(),
            content,
            origin: details.clone(),
            details,
            expected_revision,
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        create().prop_map(Command::Create),
        (text(), create()).prop_map(|(id, session)| Command::Ensure(EnsureSession { session_id: id.into(), session })),
        (text(), prop::option::of(text()), prop::option::of(object())).prop_map(|(id, title, metadata)| {
            let description = title.clone();
            Command::SetMeta(SetMeta { session_id: id.into(), title, description, metadata })
        }),
        (text(), status(), prop::option::of(text())).prop_map(|(id, status, reason)| {
            Command::SetStatus(SetStatus { session_id: id.into(), status, reason })
        }),
        text().prop_map(|id| Command::Delete(DeleteSession { session_id: id.into() })),
        append().prop_map(Command::Append),
        (text(), prop::option::of(text()), proptest::collection::vec(message(), 0..3)).prop_map(
            |(id, parent, messages)| {
                let parent_id = parent.map(Into::into);
                Command::AppendMany(AppendMany { session_id: id.into(), parent_id, origin: None, messages })
            }
        ),
        update().prop_map(Command::UpdateMessage),
        (text(), text(), prop::option::of(text())).prop_map(|(id, entry_id, title)| {
            Command::Fork(ForkSession { session_id: id.into(), entry_id: entry_id.into(), title })
        }),
        (text(), text()).prop_map(|(id, entry_id)| {
            Command::SetActiveLeaf(SetActiveLeaf { session_id: id.into(), entry_id: entry_id.into() })
        }),
        import().prop_map(Command::Import),
        long_work().prop_map(Command::Long),
        turn_command().prop_map(|command| Command::Beside(Beside::Turn(command))),
        any::<u32>().prop_map(|level| Command::Beside(Beside::Level(RaiseLevel { level }))),
        gateway_command().prop_map(|command| Command::Beside(Beside::Gateway(command))),
        store_write().prop_map(Command::Store),
        (text(), any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(attach, group, index, ordinal)| {
            Command::Feed(FeedOrder::Delivered { attach, position: Position { group, index, ordinal } })
        }),
        text().prop_map(|attach| Command::Feed(FeedOrder::Detached { attach })),
        (any::<u64>(), any::<u32>())
            .prop_map(|(index, ordinal)| Command::Feed(FeedOrder::Trim { upto: FeedPlace { index, ordinal } })),
    ]
}

proptest! {
    #[test]
    fn every_stamped_command_reads_back_as_written(
        command in command(), at_ms in any::<i64>(), seed in any::<u128>(), request_id in any::<u128>(),
        is_retry: bool, owner in proptest::option::of("[a-z]{1,4}"),
    ) {
        let scope = owner.map(|owner| Arc::new(Scope::new(serde_json::json!({ "owner": owner })).unwrap()));
        let stamped = Stamped { stamp: Stamp { at_ms, seed }, request_id: RequestId(request_id), is_retry, scope, command };
        let order = Order::new(stamped.clone());
        let back = Order::read(order.encoded().clone()).unwrap();
        prop_assert_eq!(back.stamped(), &stamped);
    }

    #[test]
    fn every_entry_reads_back_as_written(
        term in any::<u64>(), leader in any::<u64>(), index in any::<u64>(), voters in prop::collection::btree_set(0u64..9, 0..4),
    ) {
        let id = LogId::new(term, leader, index);
        let members = voters.iter().map(|node| (*node, Peer { address: format!("n{node}:1"), instance: format!("i{node}"), name: format!("pod-{node}") })).collect();
        let membership = Membership { configs: vec![voters], members };
        for payload in [Payload::Blank, Payload::Membership(membership)] {
            let entry = Entry { id, payload };
            let bytes = Bytes::from(entry.to_proto().encode_to_vec());
            prop_assert_eq!(Entry::from_proto(proto::Entry::decode(bytes).unwrap()).unwrap(), entry);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = Order::read(bytes.clone().into());
        if let Ok(encoded) = proto::Entry::decode(Bytes::from(bytes)) {
            let _ = Entry::from_proto(encoded);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn golden() -> Entry {
    let command = Command::Append(AppendEntry {
        session_id: "s".into(),
        entry_id: Some("e".into()),
        parent_id: None,
        origin: Some(Json::adopt("{}")),
        body: Body::Message(Message { role: Role::Assistant, body: Json::adopt("{\"x\":1}") }),
    });
    let order = Order::new(Stamped {
        stamp: Stamp { at_ms: 5, seed: 1 },
        request_id: RequestId(2),
        is_retry: false,
        scope: None,
        command,
    });
    Entry { id: LogId::new(3, 1, 300), payload: Payload::Command(order) }
}

#[test]
fn the_bytes_of_an_entry_stay_as_they_are() {
    assert_eq!(
        hex(&golden().to_proto().encode_to_vec()),
        "0803100118ac022a3f080a1210000000000000000000000000000000011a10000000000000000000000000000000027a170a017312\
         016522027b7d2a0b080212077b2278223a317d"
    );
}

#[test]
fn a_command_of_a_newer_version_is_refused_not_skipped() {
    let newer = proto::StampedCommand { at_ms: 1, ..Default::default() };
    let why = Order::read(newer.encode_to_vec().into()).unwrap_err();
    assert!(why.0.contains("newer"), "{why}");
}

#[test]
fn a_voter_that_is_no_member_is_refused() {
    let encoded = proto::Membership { configs: vec![proto::Voters { nodes: vec![4] }], members: Vec::new() };
    assert!(Membership::from_proto(encoded).unwrap_err().0.contains("voter 4"));
}
