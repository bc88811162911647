//! `session::identity::set-channel-token`: sets the token of a channel by its digest.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answered, propose};
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct SetChannelTokenRequest {
    pub agent_id: String,
    /// The channel: the token reaches sessions whose ids start with it and a colon.
    pub namespace: String,
    /// `sha256:` and the digest of the token in hexadecimal. A token itself never enters the log.
    pub digest: Option<String>,
}

impl Mutation for SetChannelTokenRequest {
    const ID: &'static str = "session::identity::set-channel-token";
    const DESCRIPTION: &'static str =
        "Set the token of a channel at an agent by its SHA-256 digest; null takes it away.";
    type Response = Json;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        let SetChannelTokenRequest { agent_id, namespace, digest } = self;
        checks::new_id("agent_id", &agent_id)?;
        checks::new_id("namespace", &namespace)?;
        if namespace.contains(':') {
            return Err(checks::invalid("namespace: give the name of the channel without a colon"));
        }
        if digest.as_deref().is_some_and(|digest| !is_digest(digest)) {
            return Err(checks::invalid("digest: give `sha256:` and 64 hexadecimal digits in lower case"));
        }
        Ok(propose(ModelCommand::SetChannelToken { agent_id, namespace, digest }))
    }

    fn response(answer: Answer) -> Option<Json> {
        answered(answer)
    }
}

fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}
