//! `session::ensure`: creates a session with the caller's id unless it exists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::create::CreateRequest;
use super::{Limits, Mutation, checks};
use crate::machine::apply::ensure::EnsureSession;
use crate::machine::ids::SessionId;
use crate::machine::json::JsonObject;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct EnsureRequest {
    /// The id of the session.
    pub session_id: SessionId,
    /// Used only if the session is created.
    pub title: Option<String>,
    /// Used only if the session is created.
    pub description: Option<String>,
    /// Used only if the session is created.
    pub metadata: Option<JsonObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EnsureResponse {
    pub session_id: SessionId,
    pub meta: SessionMeta,
    /// Whether this call created the session.
    pub created: bool,
}

impl Mutation for EnsureRequest {
    const ID: &'static str = "session::ensure";
    const DESCRIPTION: &'static str =
        "Create a session with the given id unless it exists (fires session::created); otherwise read it.";
    type Response = EnsureResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let EnsureRequest { session_id, title, description, metadata } = self;
        checks::new_id("session_id", session_id.as_str())?;
        let session = CreateRequest { title, description, metadata }.session()?;
        Ok(Command::Ensure(EnsureSession { session_id, session }))
    }

    fn response(answer: Answer) -> Option<EnsureResponse> {
        let Answer::Ensured { meta, created } = answer else { return None };
        Some(EnsureResponse { session_id: meta.session_id.clone(), meta, created })
    }
}
