//! `session::store::set-active-leaf`: writes where a session's transcript ends.

use schemars::JsonSchema;
use serde::Deserialize;

use super::OkResponse;
use crate::machine::apply::store::StoreWrite;
use crate::machine::change::SessionChange;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PutActiveLeafRequest {
    pub session_id: SessionId,
    pub entry_id: EntryId,
}

impl Mutation for PutActiveLeafRequest {
    const ID: &'static str = "session::store::set-active-leaf";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: write where a session's transcript ends, unchecked; fires nothing.";
    const INTERNAL: bool = true;
    type Response = OkResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        checks::id("entry_id", self.entry_id.as_str())?;
        Ok(Command::Store(StoreWrite::Session(self.session_id, SessionChange::SetLeaf(self.entry_id))))
    }

    fn response(answer: Answer) -> Option<OkResponse> {
        OkResponse::stored(answer)
    }
}
