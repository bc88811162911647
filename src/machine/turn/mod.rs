//! Turns and drivers: a turn is one run of an agent in a session, a driver is a program that runs agents.
//!
//! Owns: the records of turns, streams, journals and drivers, and what each command does to them. Pure, as the rest of
//! the machine.

pub mod driver;

use serde::{Deserialize, Serialize};

use super::change::Change;
use super::command::Outcome;
use super::ids::SessionId;
use super::json::Json;
use super::refusal::{Failure, Fault};
use super::stamp::Stamp;
use super::view::View;
use driver::{AttachDriver, DriverRecord};

/// A command about turns. In the log it is the JSON text of this value: add variants and optional fields, change none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnCommand {
    Attach(AttachDriver),
    Detach { driver_id: String },
}

impl TurnCommand {
    pub fn name(&self) -> &'static str {
        match self {
            TurnCommand::Attach(_) => "turn attach",
            TurnCommand::Detach { .. } => "turn detach",
        }
    }

    /// The session that the command names.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            TurnCommand::Attach(_) | TurnCommand::Detach { .. } => None,
        }
    }

    /// Whether only nodes propose it.
    pub fn is_internal(&self) -> bool {
        match self {
            TurnCommand::Attach(_) | TurnCommand::Detach { .. } => false,
        }
    }
}

/// A question about turns.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnQuery {
    /// The drivers that are attached.
    Drivers,
}

impl TurnQuery {
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            TurnQuery::Drivers => None,
        }
    }
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &TurnCommand) -> Result<Outcome, Failure> {
    match command {
        TurnCommand::Attach(attach) => driver::attach(view, stamp, attach),
        TurnCommand::Detach { driver_id } => driver::detach(view, stamp, driver_id),
    }
}

pub fn query(view: &dyn View, query: &TurnQuery) -> Result<Json, Failure> {
    match query {
        TurnQuery::Drivers => Ok(Json::print(&DriverRecord::all(view)?)),
    }
}

/// The changes that delete the records of the cluster that lead to a session.
pub fn forget_session(_view: &dyn View, _session_id: &SessionId) -> Result<Vec<Change>, Fault> {
    Ok(Vec::new())
}
