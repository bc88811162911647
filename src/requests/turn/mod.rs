//! `session::turn::*`: turns for clients and drivers, one file per function.

functions! {
    /// Functions about turns and drivers.
    TURNS:
    mutation ask::AskRequest,
    mutation claim::ClaimRequest,
    mutation emit::EmitRequest,
    mutation ack::AckRequest,
    mutation command::CommandRequest,
    mutation attach::AttachRequest,
    mutation detach::DetachRequest,
    question pending::PendingRequest,
    question state::StateRequest,
    question events::EventsRequest,
    question drivers::DriversRequest,
}

use serde::de::DeserializeOwned;

use crate::machine::apply::beside::Beside;
use crate::machine::query::beside::BesideQuery;
use crate::machine::refusal::Refusal;
use crate::machine::turn::{TurnCommand, TurnQuery};
use crate::machine::{Answer, Command, Found, Query};
use crate::requests::{Printed, checks};

fn command(command: TurnCommand) -> Command {
    Command::Beside(Beside::Turn(command))
}

fn query(query: TurnQuery) -> Query {
    Query::Beside(BesideQuery::Turn(query))
}

fn answered<T: DeserializeOwned>(answer: Answer) -> Option<T> {
    let Answer::Value(value) = answer else { return None };
    value.parse().ok()
}

fn found<T: DeserializeOwned>(found: Found) -> Option<T> {
    let Found::Value(value) = found else { return None };
    value.parse().ok()
}

/// The text as it is: it was printed by the machine.
fn found_text(found: Found) -> Option<Printed> {
    let Found::Value(value) = found else { return None };
    Some(value.text().to_owned().into())
}

fn driver_id(id: &str) -> Result<(), Refusal> {
    crate::machine::turn::driver::check_driver_id(id)
}

fn turn_id(id: &str) -> Result<(), Refusal> {
    checks::new_id("turn_id", id)
}

fn names(field: &str, names: Option<&Vec<String>>) -> Result<(), Refusal> {
    /// More agents than one driver runs.
    const NAMES_MAX: usize = 256;
    let Some(names) = names else { return Ok(()) };
    if names.len() > NAMES_MAX {
        return Err(checks::invalid(format!("{field}: at most {NAMES_MAX} names")));
    }
    names.iter().try_for_each(|name| checks::id(field, name))
}
