//! `session::store::put-entry`: writes one entry as it is given.

use schemars::JsonSchema;
use serde::Deserialize;

use super::OkResponse;
use crate::machine::apply::store::StoreWrite;
use crate::machine::change::SessionChange;
use crate::machine::entry::{Entry, SessionEntry};
use crate::machine::ids::SessionId;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PutEntryRequest {
    pub session_id: SessionId,
    pub entry: SessionEntry,
}

impl Mutation for PutEntryRequest {
    const ID: &'static str = "session::store::put-entry";
    const DESCRIPTION: &'static str =
        "Internal, for bridges: write one entry as given, moving no leaf and counting nothing; fires nothing.";
    const INTERNAL: bool = true;
    type Response = OkResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        checks::id("session_id", self.session_id.as_str())?;
        let entry = Entry::from(self.entry);
        checks::entry("entry", &entry)?;
        Ok(Command::Store(StoreWrite::Session(self.session_id, SessionChange::PutEntry(entry))))
    }

    fn response(answer: Answer) -> Option<OkResponse> {
        OkResponse::stored(answer)
    }
}
