//! Commands about records beside sessions. Each group of them has an enum of its own, and is one JSON text in the log.
//! A new group is one variant here, one field in `proto/log.proto` and one line per direction in `storage/log/command.rs`.

use serde::Serialize;

use crate::machine::change::Change;
use crate::machine::command::Outcome;
use crate::machine::gateway::{self, GatewayCommand};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::level::{self, RaiseLevel};
use crate::machine::model::{self, ModelCommand};
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::turn::{self, TurnCommand};
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub enum Beside {
    Turn(TurnCommand),
    Level(RaiseLevel),
    Gateway(GatewayCommand),
    Model(ModelCommand),
}

impl Beside {
    /// The name of the group and of the command, for logs and traces.
    pub fn name(&self) -> &'static str {
        match self {
            Beside::Turn(command) => command.name(),
            Beside::Level(_) => "raise-level",
            Beside::Gateway(command) => command.name(),
            Beside::Model(command) => command.name(),
        }
    }

    /// The session that the command names, if it names one.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            Beside::Turn(command) => command.session_id(),
            Beside::Level(_) => None,
            Beside::Gateway(command) => command.session_id(),
            Beside::Model(_) => None,
        }
    }

    /// Whether only nodes propose it. The command of a caller with a scope is never such a one.
    pub fn is_internal(&self) -> bool {
        match self {
            Beside::Turn(command) => command.is_internal(),
            Beside::Level(_) => true,
            Beside::Gateway(command) => command.is_internal(),
            // People and roles belong to the whole cluster, which a scope does not see.
            Beside::Model(_) => true,
        }
    }
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &Beside) -> Result<Outcome, Failure> {
    match command {
        Beside::Turn(command) => turn::apply(view, stamp, command),
        Beside::Level(command) => level::apply(view, stamp, command),
        Beside::Gateway(command) => gateway::apply(view, stamp, command),
        Beside::Model(command) => model::apply(view, stamp, command),
    }
}

/// The changes that delete the records beside a session, with those that only lead to it. None for most sessions, so
/// that what a deletion writes stays as it was before there were such records.
pub fn drop_session(view: &dyn View, session_id: &SessionId) -> Result<Vec<Change>, Fault> {
    if !view.has_records(session_id)? {
        return Ok(Vec::new());
    }
    let mut changes = turn::forget_session(view, session_id)?;
    changes.extend(model::forget(view, session_id)?);
    changes.push(Change::drop_records(session_id));
    Ok(changes)
}

/// The refusal of an adapter that has no place for such records.
pub fn not_here(adapter: &str) -> Refusal {
    Refusal::RequestInvalid(format!(
        "turns, journals and profiles need a node whose adapter is `raft`; this one is `{adapter}`"
    ))
}

/// The text of a command in the log.
pub fn print<T: Serialize>(command: &T) -> Json {
    Json::print(command)
}
