//! The people of the gateway, and what it changes besides turns.
//!
//! Owns: the roles of a tenant's members (`role`), their records (`member`), archived sessions (`archive`),
//! requests for drivers of other nodes (`relay`), answers of drivers that a session keeps (`answered`).
//! Never: who presents which credentials, or a wire.

pub mod answered;
pub mod archive;
pub mod member;
pub mod relay;
pub mod role;

pub use role::MemberRole;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::command::Outcome;
use super::ids::SessionId;
use super::json::Json;
use super::refusal::Failure;
use super::stamp::Stamp;
use super::turn::events::Fields;
use super::turn::record::{Stream, Turn, read};
use super::view::View;
use member::Actor;

/// A command of the gateway. In the log it is the JSON text of this value: add variants and optional fields, change none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayCommand {
    /// A user opened a connection. The first one of a tenant owns it.
    Arrive {
        tenant: String,
        user: String,
        email: Option<String>,
    },
    SetRole {
        tenant: String,
        by: Actor,
        user: String,
        role: MemberRole,
    },
    RemoveMember {
        tenant: String,
        by: Actor,
        user: String,
    },
    Archive {
        session_id: SessionId,
        archived: bool,
    },
    /// A request for a driver that is connected to another node, or its answer.
    Relay {
        tenant: String,
        payload: Json,
    },
    /// A driver's answer that is an event of the session's stream.
    Answered {
        session_id: SessionId,
        name: String,
        fields: Fields,
    },
}

impl GatewayCommand {
    pub fn name(&self) -> &'static str {
        match self {
            GatewayCommand::Arrive { .. } => "gateway arrive",
            GatewayCommand::SetRole { .. } => "gateway set-role",
            GatewayCommand::RemoveMember { .. } => "gateway remove-member",
            GatewayCommand::Archive { .. } => "gateway archive",
            GatewayCommand::Relay { .. } => "gateway relay",
            GatewayCommand::Answered { .. } => "gateway answered",
        }
    }

    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            GatewayCommand::Archive { session_id, .. } | GatewayCommand::Answered { session_id, .. } => {
                Some(session_id)
            }
            GatewayCommand::Arrive { .. }
            | GatewayCommand::SetRole { .. }
            | GatewayCommand::RemoveMember { .. }
            | GatewayCommand::Relay { .. } => None,
        }
    }

    /// Whether only nodes propose it: the door says which tenant a user belongs to.
    pub fn is_internal(&self) -> bool {
        self.session_id().is_none()
    }
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &GatewayCommand) -> Result<Outcome, Failure> {
    match command {
        GatewayCommand::Arrive { tenant, user, email } => member::arrive(view, stamp, tenant, user, email.as_deref()),
        GatewayCommand::SetRole { tenant, by, user, role } => member::set_role(view, stamp, tenant, by, user, *role),
        GatewayCommand::RemoveMember { tenant, by, user } => member::remove(view, stamp, tenant, by, user),
        GatewayCommand::Archive { session_id, archived } => archive::apply(view, stamp, session_id, *archived),
        GatewayCommand::Relay { tenant, payload } => Ok(relay::apply(stamp, tenant, payload)),
        GatewayCommand::Answered { session_id, name, fields } => answered::apply(view, stamp, session_id, name, fields),
    }
}

/// A question of the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayQuery {
    Member {
        tenant: String,
        user: String,
    },
    Members {
        tenant: String,
        after: Option<String>,
        limit: usize,
    },
    /// What the agents of some sessions are doing: one answer per session, null without a stream.
    States(Vec<SessionId>),
    /// The event with which a turn started; null if it has not.
    Started {
        session_id: SessionId,
        turn_id: String,
    },
}

impl GatewayQuery {
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            GatewayQuery::Started { session_id, .. } => Some(session_id),
            GatewayQuery::Member { .. } | GatewayQuery::Members { .. } | GatewayQuery::States(_) => None,
        }
    }
}

pub fn query(view: &dyn View, query: &GatewayQuery) -> Result<Json, Failure> {
    match query {
        GatewayQuery::Member { tenant, user } => member::look_up(view, tenant, user),
        GatewayQuery::Members { tenant, after, limit } => member::list(view, tenant, after.as_deref(), *limit),
        GatewayQuery::States(sessions) => states(view, sessions),
        GatewayQuery::Started { session_id, turn_id } => started(view, session_id, turn_id),
    }
}

/// Sessions that one query asks about.
pub const STATES_MAX: usize = 500;

fn states(view: &dyn View, sessions: &[SessionId]) -> Result<Json, Failure> {
    let mut states = Vec::with_capacity(sessions.len().min(STATES_MAX));
    for session_id in sessions.iter().take(STATES_MAX) {
        let stream = Stream::read(view, session_id)?;
        states.push(stream.map(|stream| json!({ "state": stream.state, "lastActivityAt": stream.last_activity_at })));
    }
    Ok(Json::print(&states))
}

fn started(view: &dyn View, session_id: &SessionId, turn_id: &str) -> Result<Json, Failure> {
    let seq: Option<u64> = read(view, &Turn::mark_key(session_id, turn_id, "turn_started"))?;
    let event = match seq {
        Some(seq) => view.record(&Stream::journal_key(session_id, seq))?,
        None => None,
    };
    Ok(event.unwrap_or_else(|| Json::adopt("null")))
}
