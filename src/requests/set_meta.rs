//! `session::set-meta`: changes title, description or metadata. A field that is missing or null keeps its value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::set_meta::SetMeta;
use crate::machine::ids::SessionId;
use crate::machine::json::JsonObject;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SetMetaRequest {
    pub session_id: SessionId,
    /// The new title; leave out to keep the old one.
    pub title: Option<String>,
    /// The new description; leave out to keep the old one.
    pub description: Option<String>,
    /// The new metadata. It replaces the whole old object; leave out to keep it.
    pub metadata: Option<JsonObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SetMetaResponse {
    pub meta: SessionMeta,
}

impl Mutation for SetMetaRequest {
    const ID: &'static str = "session::set-meta";
    const DESCRIPTION: &'static str =
        "Replace a session's title, description or metadata, each where given; fires session::meta-updated.";
    type Response = SetMetaResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let SetMetaRequest { session_id, title, description, metadata } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::text("title", title.as_deref())?;
        checks::text("description", description.as_deref())?;
        let metadata = checks::metadata("metadata", metadata)?;
        Ok(Command::SetMeta(SetMeta { session_id, title, description, metadata }))
    }

    fn response(answer: Answer) -> Option<SetMetaResponse> {
        let Answer::MetaSet { meta } = answer else { return None };
        Some(SetMetaResponse { meta })
    }
}
