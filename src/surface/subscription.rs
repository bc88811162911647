//! Owns: what a binding of our events asks for, read from what it was registered with, whichever bus it came over: the
//! filter, the fields that ride along, and where to resume.
//! Never: the table of bindings, a wire.

use serde_json::Value;

use crate::events::deliver::Feed;
use crate::events::filter::Filter;
use crate::events::position::OLDEST;
use crate::machine::ids::Position;
use crate::machine::json::Object;
use crate::surface::sidecar::NAME;

const BESIDE_A_DELIVERY: [&str; 4] = ["position", "seq", "lagged", "compacted"];

/// What a binding asks for.
pub struct Subscription {
    pub filter: Filter,
    /// Its own metadata as printed fields without braces, ready to be joined with an event's place.
    pub sidecar_fields: String,
    /// The position it names to resume from.
    pub after: Option<Position>,
}

impl Subscription {
    /// An error is for the subscriber to read: it names the field and what would be right.
    pub fn read(
        feed: &Feed,
        trigger_type: &str,
        function_id: &str,
        config: &Value,
        metadata: Option<Value>,
    ) -> Result<Subscription, String> {
        let filter = Filter::parse(trigger_type, config)?;
        if is_reserved(function_id) {
            return Err(format!("`{function_id}` is served by this node and cannot be bound to its events"));
        }
        let mut metadata = match metadata {
            None => Object::new(),
            Some(Value::Object(metadata)) => metadata,
            Some(_) => return Err("`metadata` of a binding must be an object".to_owned()),
        };
        let after = resume_point(feed, metadata.remove(NAME))?;
        let printed = Value::Object(metadata).to_string();
        Ok(Subscription { filter, sidecar_fields: printed[1..printed.len() - 1].to_owned(), after })
    }
}

/// Names this node answers to: no worker may take them.
pub fn is_reserved(id: &str) -> bool {
    id.starts_with("session::")
}

fn resume_point(feed: &Feed, ours: Option<Value>) -> Result<Option<Position>, String> {
    let after = match ours {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(mut ours)) => {
            let after = ours.remove("after");
            // What rides beside a delivery may be passed on; anything else is a slip of the pen.
            if let Some(unknown) = ours.keys().find(|name| !BESIDE_A_DELIVERY.contains(&name.as_str())) {
                return Err(format!("`metadata.{NAME}.{unknown}` is not known: it takes `after`"));
            }
            after
        }
        Some(_) => return Err(format!("`metadata.{NAME}` must be an object, such as {{\"after\": …}}")),
    };
    match after {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            let position = if text == OLDEST { feed.oldest() } else { feed.cluster().parse(&text) };
            position.map(Some).map_err(|why| format!("`metadata.{NAME}.after`: {why}"))
        }
        Some(_) => Err(format!("`metadata.{NAME}.after` must be a string, the position of an event")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::events::deliver::FeedSettings;

    fn read(metadata: Value) -> Result<Subscription, String> {
        let feed = Feed::new(FeedSettings::default());
        Subscription::read(&feed, "session::deleted", "f", &json!({}), Some(metadata))
    }

    #[test]
    fn a_slip_of_the_pen_is_refused_by_name_and_what_rode_beside_a_delivery_is_not() {
        let refused = read(json!({"session-manager": {"aftr": "oldest"}})).err().expect("it is refused");
        assert_eq!(refused, "`metadata.session-manager.aftr` is not known: it takes `after`");
        let beside = json!({"position": "c.0.1.0", "seq": 1, "lagged": true, "compacted": "c.0.0.0"});
        let subscription = read(json!({"mine": 1, "session-manager": beside})).expect("it is taken");
        assert_eq!((subscription.sidecar_fields.as_str(), subscription.after), ("\"mine\":1", None));
    }
}
