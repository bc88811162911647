//! Turns and drivers: a turn is one run of an agent in a session, a driver is a program that runs agents.
//!
//! Owns: the records of turns, streams, journals and drivers (`record`, `driver`, `events`), what each command does to
//! them (`ask`, `choose`, `claim`, `emit`, `order`, `finish`, `due`), and what can be asked about them (`read`). A larger command
//! uses `work::Work` to do the same as a part of itself. Pure, as the rest of the machine.

pub mod ask;
pub mod choose;
pub mod claim;
pub mod driver;
pub mod due;
pub mod emit;
pub mod events;
pub mod finish;
pub mod order;
pub mod read;
pub mod record;
pub mod reply;
pub mod spelling;
pub mod work;

use serde::{Deserialize, Serialize};

use super::command::Outcome;
use super::ids::SessionId;
use super::refusal::{Failure, Refusal};
use super::stamp::Stamp;
use super::view::View;
use ask::AskTurn;
pub use ask::forget_session;
use driver::AttachDriver;
use due::Due;
use emit::Emit;
use order::{AckOrder, OrderTurn};
pub use read::{TurnQuery, query};
use record::Turn;

/// A command about turns. In the log it is the JSON text of this value: add variants and optional fields, change none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnCommand {
    Attach(AttachDriver),
    Detach {
        driver_id: String,
        /// Only if this one told of it last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    },
    Ask(Box<AskTurn>),
    Claim {
        turn_id: String,
        driver_id: String,
    },
    Emit(Emit),
    Order(OrderTurn),
    Ack(AckOrder),
    /// Only the leader proposes it.
    Fire(Due),
}

impl TurnCommand {
    pub fn name(&self) -> &'static str {
        match self {
            TurnCommand::Attach(_) => "turn attach",
            TurnCommand::Detach { .. } => "turn detach",
            TurnCommand::Ask(_) => "turn ask",
            TurnCommand::Claim { .. } => "turn claim",
            TurnCommand::Emit(_) => "turn emit",
            TurnCommand::Order(_) => "turn order",
            TurnCommand::Ack(_) => "turn ack",
            TurnCommand::Fire(_) => "turn due",
        }
    }

    /// The session that the command names.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            TurnCommand::Ask(ask) => Some(&ask.session_id),
            TurnCommand::Order(order) => Some(&order.session_id),
            TurnCommand::Fire(due) => due.session_id.as_ref(),
            TurnCommand::Attach(_)
            | TurnCommand::Detach { .. }
            | TurnCommand::Claim { .. }
            | TurnCommand::Emit(_)
            | TurnCommand::Ack(_) => None,
        }
    }

    /// Whether only nodes propose it.
    pub fn is_internal(&self) -> bool {
        matches!(self, TurnCommand::Fire(_))
    }
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &TurnCommand) -> Result<Outcome, Failure> {
    match command {
        TurnCommand::Attach(attach) => driver::attach(view, stamp, attach),
        TurnCommand::Detach { driver_id, node } => driver::detach(view, stamp, driver_id, node.as_deref()),
        TurnCommand::Ask(ask) => ask::apply(view, stamp, ask),
        TurnCommand::Claim { turn_id, driver_id } => claim::apply(view, stamp, turn_id, driver_id),
        TurnCommand::Emit(emit) => emit::apply(view, stamp, emit),
        TurnCommand::Order(order) => order::apply(view, stamp, order),
        TurnCommand::Ack(ack) => order::acknowledge(view, stamp, ack),
        TurnCommand::Fire(due) => due::fire(view, stamp, due),
    }
}

/// The session of a turn. A session that the caller does not see has no turns, in the same words.
fn session_of(view: &dyn View, turn_id: &str) -> Result<SessionId, Failure> {
    let session_id = Turn::session_of(view, turn_id)?.ok_or_else(|| unknown_turn(turn_id))?;
    if view.meta(&session_id)?.is_none() {
        return Err(unknown_turn(turn_id).into());
    }
    Ok(session_id)
}

fn unknown_turn(turn_id: &str) -> Refusal {
    Refusal::RequestInvalid(format!("turn_id: there is no turn {turn_id:?}; it may have been withdrawn or forgotten"))
}
