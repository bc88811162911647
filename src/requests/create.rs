//! `session::create`: creates a session with a generated id.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::create::CreateSession;
use crate::machine::ids::SessionId;
use crate::machine::json::JsonObject;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct CreateRequest {
    /// The title; by default empty.
    pub title: Option<String>,
    /// The description; by default empty.
    pub description: Option<String>,
    /// Data of the application, such as an owner. Lists and subscriptions can filter on it.
    pub metadata: Option<JsonObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CreateResponse {
    pub session_id: SessionId,
    pub meta: SessionMeta,
}

impl CreateRequest {
    /// Checks the fields of a new session. `session::ensure` uses it too.
    pub(super) fn session(self) -> Result<CreateSession, Refusal> {
        let CreateRequest { title, description, metadata } = self;
        checks::text("title", title.as_deref())?;
        checks::text("description", description.as_deref())?;
        let metadata = checks::metadata("metadata", metadata)?;
        Ok(CreateSession { title: title.unwrap_or_default(), description: description.unwrap_or_default(), metadata })
    }
}

impl Mutation for CreateRequest {
    const ID: &'static str = "session::create";
    const DESCRIPTION: &'static str = "Create an empty, idle session with a new id; fires session::created.";
    type Response = CreateResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        Ok(Command::Create(self.session()?))
    }

    fn response(answer: Answer) -> Option<CreateResponse> {
        let Answer::Created { meta } = answer else { return None };
        Some(CreateResponse { session_id: meta.session_id.clone(), meta })
    }
}
