//! `session::fork`: creates a session as a copy of a path of another one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Limits, Mutation, checks};
use crate::machine::apply::fork::ForkSession;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Answer, Command};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ForkRequest {
    /// The session to copy from.
    pub session_id: SessionId,
    /// The last entry to copy. All entries from the root to it are copied, with new ids.
    pub entry_id: EntryId,
    /// The title of the new session; by default that of the source.
    pub title: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ForkResponse {
    /// The new session. Its `forked_from` names the source.
    pub session_id: SessionId,
    pub meta: SessionMeta,
}

impl Mutation for ForkRequest {
    const ID: &'static str = "session::fork";
    const DESCRIPTION: &'static str =
        "Copy the path from the root to an entry into a new, independent session; fires session::created.";
    type Response = ForkResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let ForkRequest { session_id, entry_id, title } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::id("entry_id", entry_id.as_str())?;
        checks::text("title", title.as_deref())?;
        Ok(Command::Fork(ForkSession { session_id, entry_id, title }))
    }

    fn response(answer: Answer) -> Option<ForkResponse> {
        let Answer::Forked { meta } = answer else { return None };
        Some(ForkResponse { session_id: meta.session_id.clone(), meta })
    }
}
