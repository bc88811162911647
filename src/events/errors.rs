//! Owns: why a subscription is refused. Every text is a sentence for the subscriber: it names the field and the fix.
//! Never: how a door spells an error (`surface/errors.rs`).

use std::fmt;

use super::position::OLDEST;

/// Why a subscriber cannot resume after a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeError {
    /// The text is not a position.
    Malformed { text: String },
    /// The position belongs to another cluster.
    OtherCluster { text: String, cluster: String, here: String },
    /// The position belongs to another group of this cluster.
    OtherGroup { after: String, group: u32, here: u32 },
    /// This node has not reached the position, and neither has the cluster.
    Future { after: String, newest: String },
    /// Events after the position are no longer stored. Everything after `oldest` is.
    Compacted { after: String, oldest: String },
    /// This node has not stored an event yet, so nothing says what came after the position.
    NothingStored { after: String },
    /// Whether the position can be resumed is not known now. A retry may succeed.
    Unavailable(String),
}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResumeError::Malformed { text } => write!(
                f,
                "`{text}` is not a position: expected <cluster>.<group>.<index>.<ordinal>, as events carry it, or \
                 `{OLDEST}`"
            ),
            ResumeError::OtherCluster { text, cluster, here } => {
                write!(f, "position `{text}` belongs to cluster `{cluster}`, this is `{here}`")
            }
            ResumeError::OtherGroup { after, group, here } => {
                write!(f, "position `{after}` belongs to group {group}, this node serves group {here}")
            }
            ResumeError::Future { after, newest } => {
                write!(f, "position `{after}` is from the future: the newest here is {newest}")
            }
            ResumeError::Compacted { after, oldest } => write!(
                f,
                "compacted: cannot resume after {after}, the oldest is {oldest}; read the state and resume after \
                 {oldest}, or begin without a position"
            ),
            ResumeError::NothingStored { after } => write!(
                f,
                "compacted: cannot resume after {after}, no event is kept yet; read the state and begin without a \
                 position"
            ),
            ResumeError::Unavailable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ResumeError {}

/// Why the config of a binding is no filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterError {
    UnknownTriggerType {
        trigger_type: String,
    },
    NotAnObject {
        trigger_type: String,
        found: &'static str,
    },
    /// The trigger type has no such filter. `allowed` lists those it has.
    UnknownField {
        trigger_type: String,
        field: String,
        allowed: &'static [&'static str],
    },
    WrongType {
        trigger_type: String,
        field: &'static str,
        expected: &'static str,
        found: &'static str,
    },
    UnknownRole {
        trigger_type: String,
        /// As JSON text.
        role: String,
    },
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::UnknownTriggerType { trigger_type } => {
                write!(f, "trigger type `{trigger_type}` is not served here")
            }
            FilterError::NotAnObject { trigger_type, found } => {
                write!(f, "config of `{trigger_type}` must be an object, not {found}")
            }
            FilterError::UnknownField { trigger_type, field, allowed } => {
                write!(f, "config field `{field}` is not a filter of `{trigger_type}`: ")?;
                match allowed {
                    [] => f.write_str("it takes no filters"),
                    [only] => write!(f, "it takes only `{only}`"),
                    [first, rest @ ..] => {
                        write!(f, "it takes `{first}`")?;
                        rest.iter().try_for_each(|one| write!(f, ", `{one}`"))
                    }
                }
            }
            FilterError::WrongType { trigger_type, field, expected, found } => {
                write!(f, "config field `{field}` of `{trigger_type}` must be {expected}, not {found}")
            }
            FilterError::UnknownRole { trigger_type, role } => write!(
                f,
                "config field `roles` of `{trigger_type}` holds {role}, which is no role: \
                 use user, assistant, function_result or custom"
            ),
        }
    }
}

impl std::error::Error for FilterError {}
