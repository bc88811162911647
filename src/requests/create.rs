//! `session::create`: a new session under an id of our choosing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::create::CreateSession;
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct CreateRequest {
    /// What to call the session; empty when left out.
    pub title: Option<String>,
    /// What the session is about; empty when left out.
    pub description: Option<String>,
    /// App-defined facts, such as an owner, that lists and bindings can filter on.
    pub metadata: Option<Object>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CreateResponse {
    pub session_id: SessionId,
    pub meta: SessionMeta,
}

impl CreateRequest {
    /// The record a new session starts with; `session::ensure` begins sessions alike.
    pub(super) fn session(self) -> Result<CreateSession, Refusal> {
        let CreateRequest { title, description, metadata } = self;
        checks::text("title", title.as_deref())?;
        checks::text("description", description.as_deref())?;
        checks::metadata("metadata", metadata.as_ref())?;
        Ok(CreateSession { title: title.unwrap_or_default(), description: description.unwrap_or_default(), metadata })
    }
}

impl Mutation for CreateRequest {
    const ID: &'static str = "session::create";
    const DESCRIPTION: &'static str = "Start a session under a new id, idle and empty; fires session::created.";
    type Response = CreateResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        Ok(Command::Create(self.session()?))
    }

    fn response(answer: Answer) -> Option<CreateResponse> {
        let Answer::Created { meta } = answer else { return None };
        Some(CreateResponse { session_id: meta.session_id.clone(), meta })
    }
}
