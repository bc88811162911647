//! Owns: parsing what a binding of our events asks for, on the embedded bus and on an engine alike: its filter, its
//! metadata, and the position to resume after.
//! Never: the table of bindings, a wire.

use std::fmt;

use serde_json::Value;

use super::sidecar::NAME;
use crate::events::errors::{FilterError, ResumeError};
use crate::events::feed::Feed;
use crate::events::filter::Filter;
use crate::machine::ids::Position;
use crate::machine::json::Object;

/// Fields that come with a delivery. A client may send them back; they are ignored.
const DELIVERY_FIELDS: [&str; 5] = ["position", "seq", "lagged", "compacted", "skipped"];

/// What a binding asks for.
pub struct Subscription {
    pub filter: Filter,
    /// Its own metadata as JSON fields without braces, ready to be joined with an event's position.
    pub sidecar_fields: String,
    /// The position to resume after.
    pub after: Option<Position>,
}

/// Why a binding is refused. The text is for the subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindError {
    /// The config is no JSON that can be parsed.
    Config(String),
    /// The text of a field is too long to be parsed.
    TooLong {
        field: &'static str,
        bytes: usize,
        max: usize,
    },
    /// The metadata is no JSON that can be parsed.
    Metadata(String),
    Filter(FilterError),
    /// The function belongs to this node and cannot be bound to its events.
    ReservedFunction(String),
    MetadataNotAnObject,
    /// A field under our name in the metadata is unknown.
    UnknownField(String),
    ResumeNotAnObject,
    AfterNotAString,
    /// The text of `after` is not a position that can be resumed.
    After(ResumeError),
    /// The position cannot be resumed.
    Resume(ResumeError),
    /// The role of the subscriber does not allow it. Holds the sentence.
    Forbidden(String),
    /// A reload replaced the data while the position was looked up.
    DataReplaced,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Config(why) => write!(f, "config cannot be read: {why}"),
            BindError::TooLong { field, bytes, max } => {
                write!(f, "`{field}` has {bytes} bytes, at most {max} are allowed")
            }
            BindError::Metadata(why) => write!(f, "`metadata` cannot be read: {why}"),
            BindError::Filter(error) => error.fmt(f),
            BindError::ReservedFunction(id) => {
                write!(f, "`{id}` is served by this node and cannot be bound to its events")
            }
            BindError::MetadataNotAnObject => f.write_str("`metadata` of a binding must be an object"),
            BindError::UnknownField(field) => write!(f, "`metadata.{NAME}.{field}` is not known: it takes `after`"),
            BindError::ResumeNotAnObject => {
                write!(f, "`metadata.{NAME}` must be an object, such as {{\"after\": …}}")
            }
            BindError::AfterNotAString => {
                write!(f, "`metadata.{NAME}.after` must be a string, the position of an event")
            }
            BindError::After(error) => write!(f, "`metadata.{NAME}.after`: {error}"),
            BindError::Resume(error) => error.fmt(f),
            BindError::Forbidden(why) => f.write_str(why),
            BindError::DataReplaced => write!(
                f,
                "`metadata.{NAME}.after`: the data was replaced while the position was looked up; the position belongs \
                 to the old data"
            ),
        }
    }
}

impl std::error::Error for BindError {}

impl Subscription {
    pub fn read(
        feed: &Feed,
        trigger_type: &str,
        function_id: &str,
        config: &Value,
        metadata: Option<Value>,
    ) -> Result<Subscription, BindError> {
        let filter = Filter::parse(trigger_type, config).map_err(BindError::Filter)?;
        if is_reserved(function_id) {
            return Err(BindError::ReservedFunction(function_id.to_owned()));
        }
        let mut metadata = match metadata {
            None => Object::new(),
            Some(Value::Object(metadata)) => metadata,
            Some(_) => return Err(BindError::MetadataNotAnObject),
        };
        let after = resume_point(feed, metadata.remove(NAME))?;
        let printed = Value::Object(metadata).to_string();
        Ok(Subscription { filter, sidecar_fields: printed[1..printed.len() - 1].to_owned(), after })
    }
}

/// True for names that this node serves and that no client may register.
pub fn is_reserved(id: &str) -> bool {
    id.starts_with("session::")
}

fn resume_point(feed: &Feed, ours: Option<Value>) -> Result<Option<Position>, BindError> {
    let after = match ours {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(mut ours)) => {
            let after = ours.remove("after");
            if let Some(unknown) = ours.keys().find(|name| !DELIVERY_FIELDS.contains(&name.as_str())) {
                return Err(BindError::UnknownField(unknown.clone()));
            }
            after
        }
        Some(_) => return Err(BindError::ResumeNotAnObject),
    };
    match after {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => feed.parse_position(&text).map(Some).map_err(BindError::After),
        Some(_) => Err(BindError::AfterNotAString),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::events::feed::FeedSettings;

    fn read(metadata: Value) -> Result<Subscription, BindError> {
        let feed = Feed::new(FeedSettings::default());
        Subscription::read(&feed, "session::deleted", "f", &json!({}), Some(metadata))
    }

    #[test]
    fn a_misspelt_field_is_refused_by_name_and_the_fields_of_a_delivery_are_not() {
        let refused = read(json!({"session-manager": {"aftr": "oldest"}})).err().expect("it is refused");
        assert_eq!(refused.to_string(), "`metadata.session-manager.aftr` is not known: it takes `after`");
        let beside = json!({"position": "c.0.1.0", "seq": 1, "lagged": true, "compacted": "c.0.0.0"});
        let subscription = read(json!({"mine": 1, "session-manager": beside})).expect("it is accepted");
        assert_eq!((subscription.sidecar_fields.as_str(), subscription.after), ("\"mine\":1", None));
    }
}
