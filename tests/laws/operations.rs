//! Owns: the random steps of `sequences`: commands with ids that may not exist, and reads page by page.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use session_manager::machine::message::Role;
use session_manager::machine::session::SessionStatus;
use session_manager::machine::view::ListOrder;

/// A choice that is resolved when its step runs: small numbers name an id of the pools above, which may be unknown;
/// larger ones name something that exists.
pub type Pick = u8;

#[derive(Debug, Clone)]
pub enum Op {
    Create {
        metadata: Option<Map<String, Value>>,
    },
    Ensure {
        session: Pick,
        metadata: Option<Map<String, Value>>,
    },
    SetMeta {
        session: Pick,
        title: Option<String>,
        metadata: Option<Map<String, Value>>,
    },
    SetStatus {
        session: Pick,
        status: SessionStatus,
        reason: Option<String>,
    },
    Delete {
        session: Pick,
        long: bool,
    },
    /// Copies some entries of a fork under way, or gives it up.
    Continue {
        fork: Pick,
        records: u32,
        give_up: bool,
    },
    /// Does what the leader owes the state.
    Chore {
        records: u32,
    },
    Append {
        session: Pick,
        entry: Option<Pick>,
        parent: Option<Pick>,
        body: u8,
    },
    AppendMany {
        session: Pick,
        parent: Option<Pick>,
        roles: Vec<u8>,
    },
    Update {
        session: Pick,
        entry: Pick,
        expected: Option<u64>,
        details: bool,
    },
    Fork {
        session: Pick,
        entry: Pick,
        title: Option<String>,
        long: bool,
    },
    SetLeaf {
        session: Pick,
        entry: Pick,
    },
    RawMeta {
        session: Pick,
        status: SessionStatus,
        times: (i64, i64),
        count: u64,
        metadata: Option<Map<String, Value>>,
    },
    RawEntry {
        session: Pick,
        entry: Pick,
        parent: Option<Pick>,
        revision: u64,
        body: u8,
    },
    RawLeaf {
        session: Pick,
        entry: Pick,
    },
    RawDelete {
        session: Pick,
        what: u8,
    },
    Publish {
        session: Pick,
        kinds: Vec<u8>,
    },
    /// Reads the next page of one of the two open transcript readers, or opens a new one.
    ReadMessages {
        reader: bool,
        anew: bool,
        session: Pick,
        from: Option<Pick>,
        roles: Option<Vec<Role>>,
        custom: bool,
    },
    /// The same for the two open list readers.
    ReadList {
        reader: bool,
        anew: bool,
        order: ListOrder,
        status: Option<SessionStatus>,
        filter: Option<Map<String, Value>>,
    },
}

fn metadata() -> impl Strategy<Value = Option<Map<String, Value>>> {
    let long = "k".repeat(600);
    let value = select(vec![
        json!(1),
        json!(1.0),
        json!(-0.0),
        json!(null),
        json!("1"),
        json!({ "b": [1, { "c": null }], "a": "🦀" }),
        json!(long),
    ]);
    let key = select(vec!["team", "🦀", "", "team\0"]).prop_map(str::to_owned);
    prop_oneof![
        1 => Just(None),
        3 => prop::collection::btree_map(key, value, 0..3).prop_map(|map| Some(map.into_iter().collect())),
    ]
}

fn status() -> impl Strategy<Value = SessionStatus> {
    select(vec![SessionStatus::Idle, SessionStatus::Working, SessionStatus::Done, SessionStatus::Error])
}

fn words() -> impl Strategy<Value = Option<String>> {
    select(vec![None, Some(String::new()), Some("Title".to_owned()), Some("t\u{0}\"🦀\n".to_owned())])
}

fn time() -> impl Strategy<Value = i64> {
    select(vec![0, 1, 5, 1_000, 1_003, -1, i64::MIN, i64::MAX])
}

fn count() -> impl Strategy<Value = u64> {
    select(vec![0, 1, 7, u64::MAX])
}

pub fn op() -> impl Strategy<Value = Op> {
    let parent = || prop_oneof![3 => Just(None), 2 => any::<Pick>().prop_map(Some)];
    let order = select(vec![ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc]);
    let role = select(vec![Role::User, Role::Assistant, Role::FunctionResult, Role::Custom]);
    let roles = prop::option::weighted(0.3, prop::collection::vec(role, 0..3));
    let p = any::<Pick>;
    prop_oneof![
        3 => metadata().prop_map(|metadata| Op::Create { metadata }),
        6 => (p(), metadata()).prop_map(|(session, metadata)| Op::Ensure { session, metadata }),
        3 => (p(), words(), metadata()).prop_map(|(session, title, metadata)| Op::SetMeta { session, title, metadata }),
        3 => (p(), status(), words()).prop_map(|(session, status, reason)| Op::SetStatus { session, status, reason }),
        2 => (p(), any::<bool>()).prop_map(|(session, long)| Op::Delete { session, long }),
        6 => (p(), 1..4u32, prop::bool::weighted(0.1))
            .prop_map(|(fork, records, give_up)| Op::Continue { fork, records, give_up }),
        3 => (1..4u32).prop_map(|records| Op::Chore { records }),
        14 => (p(), prop::option::of(p()), parent(), any::<u8>())
            .prop_map(|(session, entry, parent, body)| Op::Append { session, entry, parent, body }),
        4 => (p(), parent(), prop::collection::vec(any::<u8>(), 0..5))
            .prop_map(|(session, parent, roles)| Op::AppendMany { session, parent, roles }),
        6 => (p(), p(), prop::option::of(0..3u64), any::<bool>())
            .prop_map(|(session, entry, expected, details)| Op::Update { session, entry, expected, details }),
        4 => (p(), p(), words(), any::<bool>())
            .prop_map(|(session, entry, title, long)| Op::Fork { session, entry, title, long }),
        3 => (p(), p()).prop_map(|(session, entry)| Op::SetLeaf { session, entry }),
        2 => (p(), status(), (time(), time()), count(), metadata())
            .prop_map(|(session, status, times, count, metadata)| Op::RawMeta { session, status, times, count, metadata }),
        4 => (p(), p(), parent(), count(), any::<u8>())
            .prop_map(|(session, entry, parent, revision, body)| Op::RawEntry { session, entry, parent, revision, body }),
        1 => (p(), p()).prop_map(|(session, entry)| Op::RawLeaf { session, entry }),
        1 => (p(), any::<u8>()).prop_map(|(session, what)| Op::RawDelete { session, what }),
        1 => (p(), prop::collection::vec(any::<u8>(), 0..4)).prop_map(|(session, kinds)| Op::Publish { session, kinds }),
        6 => (any::<bool>(), prop::bool::weighted(0.4), p(), prop::option::weighted(0.3, p()), roles, any::<bool>())
            .prop_map(|(reader, anew, session, from, roles, custom)| {
                Op::ReadMessages { reader, anew, session, from, roles, custom }
            }),
        4 => (any::<bool>(), prop::bool::weighted(0.4), order, prop::option::of(status()), metadata())
            .prop_map(|(reader, anew, order, status, filter)| Op::ReadList { reader, anew, order, status, filter }),
    ]
}
