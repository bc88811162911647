//! The functions of the session model, one file per function.
//!
//! Owns: what they share: who calls, which session is meant, and the bounds of texts.

functions! {
    /// The functions of the session model.
    MODEL:
    mutation open::OpenRequest,
    mutation post::PostRequest,
    mutation approve::ApproveRequest,
    mutation checkpoint::CheckpointRequest,
    mutation deactivate::DeactivateRequest,
    question get::GetProfileRequest,
    question list::ListProfilesRequest,
    question history::HistoryRequest,
    question events::EventsRequest,
    mutation delete::DeleteProfileRequest,
    mutation set_description::SetDescriptionRequest,
    mutation set_working_memory::SetWorkingMemoryRequest,
    mutation claim_checkpoint::ClaimCheckpointRequest,
    mutation end_checkpoint::CheckpointResultRequest,
    mutation link::LinkRequest,
    mutation unlink::UnlinkRequest,
    mutation merge::MergeRequest,
    mutation set_role::SetRoleRequest,
    mutation set_channel_token::SetChannelTokenRequest,
    question resolve::ResolveRequest,
    question channel_of_token::ChannelOfTokenRequest,
}

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Limits, checks};
use crate::machine::apply::beside::Beside;
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::model::access::Caller;
use crate::machine::model::command::Address;
use crate::machine::model::names::store_id;
use crate::machine::model::query::{ModelQuery, Place};
use crate::machine::query::beside::BesideQuery;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command, Found, Query};

/// A person or an adapter on whose behalf a call is made. Without it, the call is made by an admin.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct CallerRequest {
    /// The channel, such as `telegram`.
    pub channel: String,
    /// The person's id in the channel. Without it, the adapter of the channel calls: it sees the sessions of its channel.
    pub channel_user_id: Option<String>,
}

impl CallerRequest {
    fn caller(asked: Option<CallerRequest>) -> Result<Caller, Refusal> {
        let Some(CallerRequest { channel, channel_user_id }) = asked else { return Ok(Caller::Admin) };
        checks::new_id("caller.channel", &channel)?;
        match channel_user_id {
            Some(channel_user_id) => {
                checks::new_id("caller.channel_user_id", &channel_user_id)?;
                Ok(Caller::User { channel, channel_user_id })
            }
            None => Ok(Caller::Channel { namespace: channel }),
        }
    }
}

/// The ids of a session. Together they are an id of the store, so that both are bounded.
fn check_ids(agent_id: &str, session_id: &str) -> Result<(), Refusal> {
    checks::new_id("agent_id", agent_id)?;
    checks::new_id("session_id", session_id)?;
    checks::id("agent_id and session_id together", store_id(agent_id, session_id).as_str())
}

fn address(
    agent_id: String,
    session_id: String,
    caller: Option<CallerRequest>,
    limits: &Limits,
) -> Result<Address, Refusal> {
    check_ids(&agent_id, &session_id)?;
    let caller = CallerRequest::caller(caller)?;
    Ok(Address { agent_id, session_id, caller, terms: limits.model.clone() })
}

fn place(agent_id: String, session_id: String, caller: Option<CallerRequest>) -> Result<Place, Refusal> {
    check_ids(&agent_id, &session_id)?;
    Ok(Place { agent_id, session_id, caller: CallerRequest::caller(caller)? })
}

fn propose(command: ModelCommand) -> Command {
    Command::Beside(Beside::Model(command))
}

fn ask(query: ModelQuery) -> Query {
    Query::Beside(BesideQuery::Model(query))
}

/// The answer as the machine printed it.
fn answered(answer: Answer) -> Option<Json> {
    match answer {
        Answer::Value(value) => Some(value),
        _other => None,
    }
}

fn found(found: Found) -> Option<Json> {
    match found {
        Found::Value(value) => Some(value),
        _other => None,
    }
}

/// An identity of a channel.
fn check_identity(channel: &str, channel_user_id: &str) -> Result<(), Refusal> {
    checks::new_id("channel", channel)?;
    checks::new_id("channel_user_id", channel_user_id)
}
