//! `session::identity::channel-of-token`: which channel a token belongs to.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ask, found};
use crate::machine::json::Json;
use crate::machine::model::ModelQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Found, Query};
use crate::requests::{Limits, Question, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ChannelOfTokenRequest {
    /// `sha256:` and the digest of the token.
    pub digest: String,
}

impl Question for ChannelOfTokenRequest {
    const ID: &'static str = "session::identity::channel-of-token";
    const DESCRIPTION: &'static str =
        "Read the agent and the channel of a token by its SHA-256 digest; null if there is none.";
    type Response = Json;

    fn query(self, _limits: &Limits) -> Result<Query, Refusal> {
        checks::new_id("digest", &self.digest)?;
        Ok(ask(ModelQuery::Token { digest: self.digest }))
    }

    fn response(answer: Found) -> Option<Json> {
        found(answer)
    }
}
