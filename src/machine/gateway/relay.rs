//! Owns: requests of front-ends for drivers that are connected to another node, and their answers. Both pass through the
//! log, so that every node hears them, and neither is stored.

use serde_json::{Value, json};

use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, Object};
use crate::machine::stamp::Stamp;

/// The events are of no session. No session has such an id, because ids have no control characters.
pub const RELAYS: &str = "\u{1}relays";

/// Tells every node. Subscribers with the tenant's scope hear it too.
pub fn apply(stamp: &Stamp, tenant: &str, payload: &Json) -> Outcome {
    let metadata = Object::from_iter([("tenantId".to_owned(), Value::from(tenant))]);
    let event = Event {
        session_id: SessionId::from(RELAYS),
        seq: 0,
        happened: Happened::Noted { kind: EventKind::StreamEvent, payload: payload.clone(), kept: false },
        metadata: Some(metadata),
    };
    let answer = Answer::Value(Json::print(&json!({ "told": true })));
    Outcome { answer: Ok(answer), changes: vec![Change::Clock(stamp.at_ms)], events: vec![event] }
}
