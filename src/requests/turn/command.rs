//! `session::turn::command`: what a person wants of the agent of a session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answered;
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, JsonObject};
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::events::Fields;
use crate::machine::turn::order::{Order, OrderTurn};
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// Ends the turn under way.
    Stop,
    /// Adds a message to the turn under way: `content`.
    Steer,
    /// Answers a question: `request_id` and `answers`.
    Answer,
    /// Decides about a permission: `request_id` and `approved`.
    Approve,
    SetMode,
    SetProfile,
    SetSettings,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct CommandRequest {
    pub session_id: SessionId,
    pub command: Wanted,
    pub content: Option<String>,
    pub request_id: Option<String>,
    pub approved: Option<bool>,
    pub reason: Option<String>,
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub answers: Option<JsonObject>,
    pub mode: Option<String>,
    pub profile: Option<String>,
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub settings: Option<JsonObject>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct CommandResponse {
    /// The command that the driver of the turn gets, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steer_id: Option<String>,
    /// Why nothing was done, such as `NoActiveTurn` or `RequestNotFound`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl CommandRequest {
    fn order(self) -> Result<Order, Refusal> {
        let missing = |field: &str, what: &str| checks::invalid(format!("{field} is missing: give {what}"));
        let request_id = || self.request_id.clone().ok_or_else(|| missing("request_id", "the id of the request"));
        Ok(match self.command {
            Wanted::Stop => Order::Stop {},
            Wanted::Steer => {
                let content = self.content.ok_or_else(|| missing("content", "the text of the message"))?;
                Order::Steer { content, steer_id: None }
            }
            Wanted::Answer => {
                let answers = self.answers.as_ref().ok_or_else(|| missing("answers", "an object of answers"))?;
                let fields = Fields::from([("answers".to_owned(), Json::adopt(answers.text()))]);
                Order::Answer { request_id: request_id()?, event: None, fields }
            }
            Wanted::Approve => {
                let approved = self.approved.ok_or_else(|| missing("approved", "true or false"))?;
                Order::Approve { request_id: request_id()?, approved, reason: self.reason, fields: Fields::new() }
            }
            Wanted::SetMode => Order::SetMode { mode: self.mode.ok_or_else(|| missing("mode", "a mode"))? },
            Wanted::SetProfile => {
                Order::SetProfile { profile: self.profile.ok_or_else(|| missing("profile", "a profile"))? }
            }
            Wanted::SetSettings => {
                let settings = self.settings.ok_or_else(|| missing("settings", "an object"))?;
                Order::SetSettings { settings: settings.into_json() }
            }
        })
    }
}

impl Mutation for CommandRequest {
    const ID: &'static str = "session::turn::send-command";
    const DESCRIPTION: &'static str =
        "Stop, steer or answer the turn of a session, or set its mode, profile or settings; its driver hears of it.";
    type Response = CommandResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        for (field, text) in [
            ("content", &self.content),
            ("reason", &self.reason),
            ("request_id", &self.request_id),
            ("mode", &self.mode),
            ("profile", &self.profile),
        ] {
            checks::text(field, text.as_deref())?;
        }
        let json = [("answers", &self.answers), ("settings", &self.settings)];
        for (field, value) in json {
            checks::text(field, value.as_ref().map(JsonObject::text))?;
        }
        let session_id = self.session_id.clone();
        Ok(super::command(TurnCommand::Order(OrderTurn { session_id, by: None, order: self.order()? })))
    }

    fn response(answer: Answer) -> Option<CommandResponse> {
        answered(answer)
    }
}
