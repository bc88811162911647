//! Ending a turn: its reply closes, open requests and commands end without effect, the next turn of the queue begins.

use super::ask;
use super::choose;
use super::events::Fields;
use super::order;
use super::record::{State, TurnError, TurnState, Waiting};
use super::reply;
use super::work::Work;
use crate::machine::json::Json;
use crate::machine::message::StopReason;
use crate::machine::refusal::Failure;

/// How a turn ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With more fields of the driver's event.
    Done {
        final_text: String,
        fields: Fields,
    },
    Failed {
        error: TurnError,
        fields: Fields,
    },
    Stopped,
}

impl End {
    pub fn failed(code: &str, message: &str) -> End {
        let error = TurnError { code: code.to_owned(), message: message.to_owned() };
        End::Failed { error, fields: Fields::new() }
    }
}

/// Ends a turn. Returns the number of the event that says so.
pub fn finish(work: &mut Work<'_>, turn_id: &str, end: End) -> Result<Option<u64>, Failure> {
    let Some(mut turn) = work.read_turn(turn_id)?.filter(|turn| !turn.state.is_over()) else { return Ok(None) };
    let was_claimed = turn.driver_id.is_some();
    let mut fields = Fields::new();
    let (name, state) = match end {
        End::Done { final_text, fields: given } => {
            reply::complete(work, &mut turn, &final_text)?;
            reply::close(work, &mut turn, StopReason::End, None)?;
            fields = given;
            fields.insert("finalText".to_owned(), Json::print(&final_text));
            ("turn_complete", TurnState::Done)
        }
        End::Failed { error, fields: given } => {
            reply::close(work, &mut turn, StopReason::Error, Some(&error.message))?;
            fields = given;
            fields.insert("message".to_owned(), Json::print(&error.message));
            fields.insert("code".to_owned(), Json::print(&error.code));
            turn.error = Some(error);
            ("turn_error", TurnState::Failed)
        }
        End::Stopped => {
            reply::close(work, &mut turn, StopReason::Aborted, None)?;
            ("stop_acknowledged", TurnState::Stopped)
        }
    };
    turn.state = state;
    turn.ended_at = Some(work.now());
    turn.lease_until = None;
    turn.claim_by = None;
    turn.stopping = None;
    turn.tools.clear();
    choose::give_back(work, &mut turn);
    void_requests(work, turn_id);
    order::forget_all(work)?;
    work.delete(Waiting::key(turn_id));
    if work.stream.current.as_deref() == Some(turn_id) {
        work.stream.current = None;
    }
    work.stream.queue.retain(|queued| queued != turn_id);
    work.stream.last_activity_at = Some(work.now());
    let message = turn.error.as_ref().map(|error| error.message.clone());
    let seq = work.publish_stream(name, Some(turn_id), fields);
    if let Some(seq) = seq {
        work.mark(turn_id, name, seq);
    }
    work.put_turn(turn);
    settle(work, state, was_claimed, message.as_deref())?;
    ask::next_in_queue(work)?;
    Ok(seq)
}

/// The state of the stream after a turn.
fn settle(work: &mut Work<'_>, ended: TurnState, was_claimed: bool, message: Option<&str>) -> Result<(), Failure> {
    let from = work.stream.state;
    match ended {
        TurnState::Failed if from.may_become(State::Error) => work.become_state(State::Error, message),
        TurnState::Done if from.may_become(State::Ready) => work.become_state(State::Ready, Some("turn_complete")),
        TurnState::Stopped if was_claimed && from.may_become(State::Ready) => {
            work.become_state(State::Ready, Some("user_stopped"))
        }
        // Nobody had taken it: there is nothing that would be ready.
        TurnState::Stopped if from == State::Activating => work.become_state(State::Inactive, Some("user_stopped")),
        TurnState::Queued
        | TurnState::Claimed
        | TurnState::Running
        | TurnState::Waiting
        | TurnState::Done
        | TurnState::Failed
        | TurnState::Stopped => Ok(()),
    }
}

fn void_requests(work: &mut Work<'_>, turn_id: &str) {
    work.stream.requests.retain(|request| request.turn_id != turn_id);
}
