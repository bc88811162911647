//! Owns: the ids of sessions, entries and requests, and positions in the event history.
//! Never: generates an id. `stamp.rs` derives ids from a `Stamp`, the same on every replica.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
    };
}

text_id!(
    /// Any Unicode text. Callers may choose it (`session::ensure`), so paths and keys must escape it.
    SessionId
);
text_id!(
    /// Any Unicode text, unique within its session.
    EntryId
);

/// Identifies one proposal across its retries: the time its node issued it (48 bits of milliseconds), then 80 random
/// bits. Time comes first, so that recent ids are adjacent in the store and old ones expire as one range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

impl RequestId {
    /// For proposals that are never retried. Their answers are not recorded.
    pub const NONE: RequestId = RequestId(0);

    pub fn new(issued_ms: i64, random: u128) -> RequestId {
        RequestId((issued_ms.max(0) as u128) << 80 | random & ((1 << 80) - 1))
    }

    pub fn issued_ms(self) -> i64 {
        (self.0 >> 80) as i64
    }
}

/// The position of an event in the feed of one state: the index of the log entry that caused it, and the ordinal of
/// the event within that entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedPlace {
    pub index: u64,
    pub ordinal: u32,
}

impl FeedPlace {
    /// Before every event. No event has index 0: consensus writes the first entry of a log.
    pub const BEGINNING: FeedPlace = FeedPlace { index: 0, ordinal: u32::MAX };

    pub fn in_group(self, group: u32) -> Position {
        Position { group, index: self.index, ordinal: self.ordinal }
    }
}

impl Position {
    pub fn place(self) -> FeedPlace {
        FeedPlace { index: self.index, ordinal: self.ordinal }
    }
}

/// The position of an event in the history of one Raft group: the index of the log entry that caused it, and the
/// ordinal of the event within that entry. Positions order all events of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub group: u32,
    pub index: u64,
    pub ordinal: u32,
}
