//! Owns: the keys of records beside sessions: JSON values that are no part of the published shapes (turns, journals,
//! profiles, members). Any feature may store some here without a change of the storage.
//! Never: what a value means, or how a store encodes a key.

use std::cmp::Ordering;
use std::sync::Arc;

use super::ids::SessionId;

/// What a record is about. The numbers are on disk: never change one. A new space is one line here and one in `ALL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// (session, turn) → a turn.
    Turn = 1,
    /// (session) → the state of the session's stream: gateway state, counters, the turns in order, open requests.
    Stream = 2,
    /// (session, seq) → an event that is kept for replay.
    Journal = 3,
    /// (session, command) → a command to a driver that is not acknowledged yet.
    Order = 4,
    /// (turn) → the session of the turn.
    TurnOf = 5,
    /// (turn) → a turn that waits for a driver.
    Waiting = 6,
    /// (time, …) → what is due then.
    Due = 7,
    /// (driver) → an attached driver.
    Driver = 8,
    /// (session) → the profile of the session model.
    Profile = 9,
    /// (session, …) → records of the session model beside the profile.
    Model = 10,
    /// Users, identities, roles and channel tokens.
    Identity = 11,
    /// (tenant, user) → a member of a tenant.
    Member = 12,
    /// Records of the gateway that belong to no session.
    Gateway = 13,
    /// (driver, session) → the session had its last turn with this driver.
    DriverSession = 14,
    /// Facts about the cluster itself: its level.
    Cluster = 15,
    /// (driver, session) → the driver has the unfinished turn of the session, or is asked for it first.
    DriverTurn = 16,
}

impl Space {
    pub const ALL: [Space; 16] = [
        Space::Turn,
        Space::Stream,
        Space::Journal,
        Space::Order,
        Space::TurnOf,
        Space::Waiting,
        Space::Due,
        Space::Driver,
        Space::Profile,
        Space::Model,
        Space::Identity,
        Space::Member,
        Space::Gateway,
        Space::DriverSession,
        Space::Cluster,
        Space::DriverTurn,
    ];

    /// Whether a caller with a scope may look up its records that belong to no session. Those of a session it sees
    /// exactly if it sees the session. These spaces only lead to sessions, which are then checked, or are only counted.
    pub fn is_shown_to_scopes(self) -> bool {
        match self {
            Space::TurnOf | Space::Waiting | Space::Driver | Space::DriverTurn => true,
            Space::Turn
            | Space::Stream
            | Space::Journal
            | Space::Order
            | Space::Due
            | Space::Profile
            | Space::Model
            | Space::Identity
            | Space::Member
            | Space::Gateway
            | Space::DriverSession
            | Space::Cluster => false,
        }
    }
}

/// One part of a key. Numbers sort before texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Number(u64),
    /// Any Unicode text.
    Text(Arc<str>),
}

impl From<&str> for Part {
    fn from(text: &str) -> Part {
        Part::Text(text.into())
    }
}

impl From<u64> for Part {
    fn from(number: u64) -> Part {
        Part::Number(number)
    }
}

/// A time sorts as a number. Nothing is due before 1970.
impl From<i64> for Part {
    fn from(time_ms: i64) -> Part {
        Part::Number(time_ms.max(0) as u64)
    }
}

/// The key of one record, or, with fewer parts, of all records under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordKey {
    /// The session that the record belongs to: it is deleted with it. `None`: it belongs to the cluster.
    pub session_id: Option<SessionId>,
    pub space: Space,
    pub parts: Vec<Part>,
}

impl RecordKey {
    pub fn of_session(session_id: &SessionId, space: Space) -> RecordKey {
        RecordKey { session_id: Some(session_id.clone()), space, parts: Vec::new() }
    }

    pub fn of_cluster(space: Space) -> RecordKey {
        RecordKey { session_id: None, space, parts: Vec::new() }
    }

    /// The same key with one more part.
    pub fn with(mut self, part: impl Into<Part>) -> RecordKey {
        self.parts.push(part.into());
        self
    }

    pub fn text(&self, at: usize) -> Option<&str> {
        match self.parts.get(at)? {
            Part::Text(text) => Some(text),
            Part::Number(_) => None,
        }
    }

    pub fn number(&self, at: usize) -> Option<u64> {
        match self.parts.get(at)? {
            Part::Number(number) => Some(*number),
            Part::Text(_) => None,
        }
    }
}

/// The order of the keys in a store.
impl Ord for RecordKey {
    fn cmp(&self, other: &RecordKey) -> Ordering {
        let whole = |key: &RecordKey| (key.session_id.is_none(), key.session_id.clone(), key.space);
        whole(self).cmp(&whole(other)).then_with(|| self.parts.cmp(&other.parts))
    }
}

impl PartialOrd for RecordKey {
    fn partial_cmp(&self, other: &RecordKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Records of a deleted session that wait to be freed. A session that is made anew has the next generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordLeftover {
    pub session_id: SessionId,
    pub generation: u32,
}

/// Records that a deletion removes at once. More are freed by later commands.
pub const DROP_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_space_has_a_number_of_its_own() {
        for (rank, space) in (1..).zip(Space::ALL) {
            assert_eq!(space as u8, rank, "{space:?}");
        }
    }

    #[test]
    fn a_key_reads_back_its_parts() {
        let key = RecordKey::of_session(&"s".into(), Space::Journal).with(7u64).with("x");
        assert_eq!((key.number(0), key.text(1), key.text(0), key.number(2)), (Some(7), Some("x"), None, None));
        assert_eq!(RecordKey::of_cluster(Space::Due).with(-5i64).number(0), Some(0));
    }
}
