//! `session::turn::ask`: adds a user message and asks for a turn that answers it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{answered, command};
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, JsonObject};
use crate::machine::message::{AgentMessage, ContentBlock, Message};
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::ask::{AskTurn, CLAIM_WITHIN_MS_MAX};
use crate::machine::turn::driver::Agent;
use crate::machine::turn::record::{AskedEntry, TurnState, Unclaimed};
use crate::machine::{Answer, Command, json::List};
use crate::requests::{Limits, Mutation, checks};

/// A turn asked for here waits this long for a driver, unless the request says otherwise.
const CLAIM_WITHIN_MS: i64 = 600_000;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AskRequest {
    pub session_id: SessionId,
    /// The user's message. It is added to the transcript.
    pub text: String,
    /// The same id again gets the same turn and adds nothing.
    pub client_turn_id: Option<String>,
    pub agent_id: Option<String>,
    pub agent_type: Option<String>,
    pub tenant: Option<String>,
    /// Refuse the turn while another one is under way, instead of queueing it.
    #[serde(default)]
    pub refuse_if_busy: bool,
    /// How long the turn may wait for a driver; ten minutes by default.
    pub claim_within_ms: Option<i64>,
    /// Passed on to the driver.
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub metadata: Option<JsonObject>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct AskResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    /// The entry of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<String>,
    /// It waits behind another turn of the session.
    #[serde(default)]
    pub queued: bool,
    /// The turn was asked for before.
    #[serde(default)]
    pub repeated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub state: Option<TurnState>,
    /// Why there is no turn, such as `TurnInProgress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Mutation for AskRequest {
    const ID: &'static str = "session::turn::ask";
    const DESCRIPTION: &'static str =
        "Add a user message and ask for a turn that answers it; drivers hear of it as session::turn::requested.";
    type Response = AskResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        for (field, id) in [
            ("client_turn_id", &self.client_turn_id),
            ("agent_id", &self.agent_id),
            ("agent_type", &self.agent_type),
            ("tenant", &self.tenant),
        ] {
            id.as_ref().map_or(Ok(()), |id| checks::new_id(field, id))?;
        }
        if self.text.len() > crate::requests::limits::BODY_BYTES_MAX / 4 {
            let max = crate::requests::limits::BODY_BYTES_MAX / 4;
            return Err(checks::invalid(format!("text: {} bytes, at most {max}", self.text.len())));
        }
        if self.claim_within_ms.is_some_and(|ms| !(0..=CLAIM_WITHIN_MS_MAX).contains(&ms)) {
            return Err(checks::invalid(format!("claim_within_ms: give 0 to {CLAIM_WITHIN_MS_MAX}")));
        }
        // The time of a message is its client's; the store stamps the entry.
        let message = Message::new(AgentMessage::User {
            content: List::of(&[ContentBlock::Text { text: self.text.clone() }]),
            timestamp: 0,
        });
        let text = Json::print(&self.text);
        let mut request = crate::machine::turn::events::Fields::new();
        request.insert("text".to_owned(), text.clone());
        request.insert("prompt_text".to_owned(), text);
        if let Some(metadata) = self.metadata {
            request.insert("metadata".to_owned(), metadata.into_json());
        }
        Ok(command(TurnCommand::Ask(Box::new(AskTurn {
            session_id: self.session_id,
            door: "bus".to_owned(),
            turn_id: None,
            asked_by: None,
            key: self.client_turn_id,
            queue: !self.refuse_if_busy,
            agent: Agent { agent_id: self.agent_id, agent_type: self.agent_type, tenant: self.tenant },
            entry: Some(AskedEntry { entry_id: None, message: message.body, origin: None }),
            message_entry_id: None,
            request,
            claim_within_ms: Some(self.claim_within_ms.unwrap_or(CLAIM_WITHIN_MS)),
            unclaimed: Unclaimed::Fail,
        }))))
    }

    fn response(answer: Answer) -> Option<AskResponse> {
        answered(answer)
    }
}
