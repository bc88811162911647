//! `session::store::publish-events`: events another instance minted, to be fanned out here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::apply::store::{Envelope, StoreWrite};
use crate::machine::event::EventKind;
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::machine::message::Role;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PublishEventsRequest {
    /// What a mutation at the other instance brought about, in order.
    pub events: Vec<EventEnvelope>,
}

/// An event on its way between instances, with what filters need to know about its session.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct EventEnvelope {
    /// One of the six public trigger types.
    pub trigger_type: String,
    /// What handlers of that trigger type receive.
    pub payload: Value,
    /// The session's metadata when the event happened.
    pub session_metadata: Option<Object>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PublishEventsResponse {
    /// How many events were taken on; the request is refused as a whole when one is malformed.
    pub published: usize,
}

impl EventEnvelope {
    /// The checked envelope; `at` is its path in the request, for the words of an error.
    fn envelope(self, at: &str) -> Result<Envelope, Refusal> {
        let EventEnvelope { trigger_type, payload, session_metadata } = self;
        let kind = EventKind::from_trigger_type(&trigger_type).ok_or_else(|| {
            let known = EventKind::ALL.map(EventKind::trigger_type).join(", ");
            checks::invalid(format!("{at}.trigger_type: {:?} is none of {known}", checks::shortened(&trigger_type)))
        })?;
        let session_id = payload
            .get("session_id")
            .and_then(Value::as_str)
            .ok_or_else(|| checks::invalid(format!("{at}.payload.session_id must be a string")))?;
        checks::id(&format!("{at}.payload.session_id"), session_id)?;
        checks::metadata(&format!("{at}.session_metadata"), session_metadata.as_ref())?;
        let role = match payload.pointer("/message/role") {
            None => None,
            Some(role) => Some(Role::deserialize(role).map_err(|error| {
                checks::invalid(format!("{at}.payload.message.role: {}", checks::shortened(&error.to_string())))
            })?),
        };
        let session_id = SessionId::from(session_id);
        let payload = checks::body(&format!("{at}.payload"), &payload)?;
        Ok(Envelope { kind, session_id, role, payload, metadata: session_metadata })
    }
}

impl Mutation for PublishEventsRequest {
    const ID: &'static str = "session::store::publish-events";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: fan out events that another instance's mutation brought about.";
    const INTERNAL: bool = true;
    type Response = PublishEventsResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::batch("events", self.events.len())?;
        let mut envelopes = Vec::with_capacity(self.events.len());
        let mut bytes = 0;
        for (at, event) in self.events.into_iter().enumerate() {
            let envelope = event.envelope(&format!("events[{at}]"))?;
            bytes += envelope.payload.text().len();
            checks::batch_bytes("events", bytes)?;
            envelopes.push(envelope);
        }
        Ok(Command::Store(StoreWrite::PublishEvents(envelopes)))
    }

    fn response(answer: Answer) -> Option<PublishEventsResponse> {
        let Answer::Published { published } = answer else { return None };
        Some(PublishEventsResponse { published: usize::try_from(published).ok()? })
    }
}
