//! `session::store::put-meta`: writes a session's record as it is given.

use schemars::JsonSchema;
use serde::Deserialize;

use super::OkResponse;
use crate::machine::apply::store::StoreWrite;
use crate::machine::change::SessionChange;
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct PutMetaRequest {
    pub meta: SessionMeta,
}

impl Mutation for PutMetaRequest {
    const ID: &'static str = "session::store::put-meta";
    const DESCRIPTION: &'static str = "Internal, for bridges: write a session's record as given; fires nothing.";
    const INTERNAL: bool = true;
    type Response = OkResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let meta = self.meta;
        checks::meta("meta", &meta)?;
        Ok(Command::Store(StoreWrite::Session(meta.session_id.clone(), SessionChange::PutMeta(meta))))
    }

    fn response(answer: Answer) -> Option<OkResponse> {
        OkResponse::stored(answer)
    }
}
