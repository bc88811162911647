//! `session::store::publish-events`: delivers events of another instance to the subscribers of this one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::apply::store::{Envelope, StoreWrite};
use crate::machine::event::EventKind;
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, JsonObject};
use crate::machine::message::Role;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::body::Batch;
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PublishEventsRequest {
    /// The events of one mutation at the other instance, in order.
    #[schemars(with = "Vec<EventEnvelope>")]
    pub events: Batch<Json>,
}

/// An event from another instance, with the session metadata that filters need.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct EventEnvelope {
    /// One of the six public trigger types.
    pub trigger_type: String,
    /// The payload for handlers of that trigger type.
    pub payload: Json,
    /// The metadata of the session at the time of the event.
    pub session_metadata: Option<JsonObject>,
}

/// What the feed reads in a payload.
#[derive(Deserialize)]
struct Facts {
    session_id: String,
    message: Option<Json>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PublishEventsResponse {
    /// Number of well-formed envelopes that were accepted and delivered. Malformed ones are skipped.
    pub published: usize,
}

/// Reads one envelope. `None` for a malformed one.
fn envelope(text: &Json) -> Option<Envelope> {
    let EventEnvelope { trigger_type, payload, session_metadata } = text.parse().ok()?;
    let kind = EventKind::from_trigger_type(&trigger_type).filter(|kind| kind.is_published())?;
    let facts: Facts = payload.parse().ok()?;
    checks::id("session_id", &facts.session_id).ok()?;
    // A payload may carry a message without a role, or something else under that name.
    let role = match facts.message.as_ref().and_then(|message| message.field("role")) {
        None => None,
        Some(role) => Some(serde_json::from_str::<Role>(role).ok()?),
    };
    let metadata = checks::metadata("session_metadata", session_metadata).ok()?;
    let payload = checks::body("payload", payload).ok()?;
    Some(Envelope { kind, session_id: SessionId::from(facts.session_id), role, payload, metadata })
}

impl Mutation for PublishEventsRequest {
    const ID: &'static str = "session::store::publish-events";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: deliver the events of a mutation at another instance to subscribers here.";
    const INTERNAL: bool = true;
    type Response = PublishEventsResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let mut envelopes = Vec::new();
        let mut bytes = 0;
        for text in self.events.items("events")? {
            bytes += text.text().len();
            checks::batch_bytes("events", bytes)?;
            envelopes.extend(envelope(&text));
        }
        Ok(Command::Store(StoreWrite::PublishEvents(envelopes)))
    }

    fn response(answer: Answer) -> Option<PublishEventsResponse> {
        let Answer::Published { published } = answer else { return None };
        Some(PublishEventsResponse { published: usize::try_from(published).ok()? })
    }
}
