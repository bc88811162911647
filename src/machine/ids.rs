//! Owns: the names of things (sessions, entries, requests) and of places in the log.
//! Never: mint. `Stamp` carries what was minted; `stamp.rs` derives ids from it, the same on every replica.

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
    /// Any Unicode text. Callers may choose it (`session::ensure`), so it never becomes a path or a key unescaped.
    SessionId
);
text_id!(
    /// Any Unicode text, unique within its session.
    EntryId
);

/// Where an event stands in the history of one Raft group: the log entry that caused it, and its rank among the
/// events of that entry. Positions order all events of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub group: u32,
    pub index: u64,
    pub ordinal: u32,
}
