//! Owns: what is due at a time. Due times are records of the state. The leader proposes `Fire` when one is over; a new
//! leader finds what is overdue. Firing deletes the record, so each fires once. It has no effect if its reason no longer
//! exists. A due time that moved is not rewritten with every move: when the old one fires, it is set again.

use serde::{Deserialize, Serialize};

use super::claim::{self, LEASE_MS};
use super::driver::{self, DriverRecord};
use super::finish::{self, End};
use super::order;
use super::record::{State, Stream, Turn, TurnState, Unclaimed};
use super::work::Work;
use super::{TurnCommand, ask, choose};
use crate::machine::apply::beside::Beside;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Command, Outcome};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::model::ModelCommand;
use crate::machine::refusal::{Failure, Fault};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// What is due. A new kind is one line here, one in each `match`, and the command that fires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DueKind {
    /// A turn must have been claimed.
    Claim,
    /// The driver that was asked first must have taken a turn.
    AskOthers,
    /// A driver must have been heard of.
    Lease,
    /// A driver must have been seen.
    Driver,
    /// A driver must have acknowledged a stop.
    Stop,
    /// A command that is not acknowledged is told again.
    Repeat,
    /// Nothing came to a session of the model for a while after a turn.
    ModelIdle,
    /// Nothing came to a session of the model for days.
    ModelInactive,
    /// A worker must have taken a checkpoint, or must have ended it.
    ModelCheckpoint,
    /// A person must have decided about a tool call.
    ModelApproval,
}

impl DueKind {
    const ALL: [DueKind; 10] = [
        DueKind::Claim,
        DueKind::AskOthers,
        DueKind::Lease,
        DueKind::Driver,
        DueKind::Stop,
        DueKind::Repeat,
        DueKind::ModelIdle,
        DueKind::ModelInactive,
        DueKind::ModelCheckpoint,
        DueKind::ModelApproval,
    ];

    /// Part of the key in the state: never change one.
    fn name(self) -> &'static str {
        match self {
            DueKind::Claim => "claim",
            DueKind::AskOthers => "ask-others",
            DueKind::Lease => "lease",
            DueKind::Driver => "driver",
            DueKind::Stop => "stop",
            DueKind::Repeat => "repeat",
            DueKind::ModelIdle => "model-idle",
            DueKind::ModelInactive => "model-inactive",
            DueKind::ModelCheckpoint => "model-checkpoint",
            DueKind::ModelApproval => "model-approval",
        }
    }
}

/// Something that is due at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Due {
    pub at_ms: i64,
    pub kind: DueKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The turn, the command or the driver.
    pub id: String,
}

impl Due {
    pub fn key(&self) -> RecordKey {
        let session_id = self.session_id.as_ref().map_or("", SessionId::as_str);
        RecordKey::of_cluster(Space::Due).with(self.at_ms).with(self.kind.name()).with(session_id).with(&*self.id)
    }

    pub fn put(&self) -> Change {
        Change::put_record(self.key(), Json::adopt("{}"))
    }

    fn of_key(key: &RecordKey) -> Option<Due> {
        let kind = DueKind::ALL.into_iter().find(|kind| Some(kind.name()) == key.text(1))?;
        let session_id = key.text(2).filter(|id| !id.is_empty()).map(SessionId::from);
        Some(Due { at_ms: i64::try_from(key.number(0)?).ok()?, kind, session_id, id: key.text(3)?.to_owned() })
    }

    /// The command that fires it.
    fn command(self) -> Command {
        match self.kind {
            DueKind::Claim
            | DueKind::AskOthers
            | DueKind::Lease
            | DueKind::Driver
            | DueKind::Stop
            | DueKind::Repeat => Command::Beside(Beside::Turn(TurnCommand::Fire(self))),
            DueKind::ModelIdle | DueKind::ModelInactive | DueKind::ModelCheckpoint | DueKind::ModelApproval => {
                Command::Beside(Beside::Model(ModelCommand::Due(self)))
            }
        }
    }
}

/// The command that the leader owes the state now.
pub fn next(view: &dyn View, now_ms: i64) -> Result<Option<Command>, Fault> {
    // More than one, so that a kind which this version does not know stands in nobody's way.
    let first = view.records(&RecordKey::of_cluster(Space::Due), None, 16)?;
    let over = first.iter().filter_map(|(key, _)| Due::of_key(key)).find(|due| due.at_ms <= now_ms);
    Ok(over.map(Due::command))
}

/// When what a command fires was due. `None` for other commands.
pub fn at_ms(command: &Command) -> Option<i64> {
    match command {
        Command::Beside(Beside::Turn(TurnCommand::Fire(due)) | Beside::Model(ModelCommand::Due(due))) => {
            Some(due.at_ms)
        }
        _other => None,
    }
}

/// Fires what is due. Nothing happens if it fired already.
pub fn fire(view: &dyn View, stamp: &Stamp, due: &Due) -> Result<Outcome, Failure> {
    let void = || Answer::Value(Json::adopt("{\"fired\":false}"));
    // A leader whose clock is behind the state's never fires too early: apply has raised the stamp.
    if view.record(&due.key())?.is_none() || due.at_ms > stamp.at_ms {
        return Ok(Outcome::unchanged(void()));
    }
    if due.kind == DueKind::Driver {
        return driver::overdue(view, stamp, due);
    }
    let gone = |answer| Outcome {
        answer: Ok(answer),
        changes: vec![Change::delete_record(due.key()), Change::Clock(stamp.at_ms)],
        events: Vec::new(),
    };
    let Some(session_id) = &due.session_id else { return Ok(gone(void())) };
    if view.meta(session_id)?.is_none() || Stream::read(view, session_id)?.is_none() {
        return Ok(gone(void()));
    }
    match fire_in_session(view, stamp, due, session_id) {
        // What cannot be done now cannot be done later: it must not stand in the way of everything else that is due.
        Err(Failure::Refused(_)) => Ok(gone(void())),
        fired => fired,
    }
}

fn fire_in_session(view: &dyn View, stamp: &Stamp, due: &Due, session_id: &SessionId) -> Result<Outcome, Failure> {
    let mut work = Work::open(view, stamp, session_id)?;
    work.delete(due.key());
    let fired = match due.kind {
        DueKind::Claim => unclaimed(&mut work, &due.id)?,
        DueKind::AskOthers => choose::ask_others(&mut work, &due.id)?,
        DueKind::Lease => lease_over(&mut work, &due.id)?,
        DueKind::Stop => order::stop_overdue(&mut work, &due.id)?,
        DueKind::Repeat => order::repeat(&mut work, &due.id)?,
        DueKind::Driver
        | DueKind::ModelIdle
        | DueKind::ModelInactive
        | DueKind::ModelCheckpoint
        | DueKind::ModelApproval => false,
    };
    work.finish(&serde_json::json!({ "fired": fired }))
}

fn unclaimed(work: &mut Work<'_>, turn_id: &str) -> Result<bool, Failure> {
    let Some(turn) = work.read_turn(turn_id)? else { return Ok(false) };
    if turn.state != TurnState::Queued || turn.claim_by.is_none_or(|by| by > work.now()) {
        return Ok(false);
    }
    if turn.offered && turn.unclaimed == Unclaimed::Withdraw {
        ask::withdraw(work, turn)?;
        return Ok(true);
    }
    let message = "no driver has taken the turn in time";
    finish::finish(work, turn_id, End::failed("AGENT_ERROR", message))?;
    Ok(true)
}

fn lease_over(work: &mut Work<'_>, turn_id: &str) -> Result<bool, Failure> {
    let now = work.now();
    let Some(turn) = work.read_turn(turn_id)? else { return Ok(false) };
    let Some(until) = turn.lease_until.filter(|_| !turn.state.is_over()) else { return Ok(false) };
    if until > now {
        work.due(until, DueKind::Lease, turn_id);
        return Ok(false);
    }
    let seconds = LEASE_MS / 1000;
    let message = format!("the driver was not heard of for {seconds} s, so the turn is given up");
    finish::finish(work, turn_id, End::failed("AGENT_DISCONNECTED", &message))?;
    Ok(true)
}

/// How a driver was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// Its node saw it leave, or nobody watched it.
    Alone,
    /// Its node ended without a word about it.
    WithItsNode,
}

/// The turns of a driver that is gone fail, and its idle sessions become inactive. A session whose driver was lost with
/// its node is left ready for the next turn.
pub(super) fn sessions_of_gone_driver(
    view: &dyn View,
    stamp: &Stamp,
    driver_id: &str,
    session_id: &SessionId,
    loss: Loss,
) -> Result<Option<Outcome>, Failure> {
    if view.meta(session_id)?.is_none() {
        return Ok(None);
    }
    let mut work = Work::open(view, stamp, session_id)?;
    if work.stream.driver_id.as_deref() != Some(driver_id) {
        return Ok(None);
    }
    let current = work.stream.current.clone();
    let turn = match current {
        Some(turn_id) => work.read_turn(&turn_id)?,
        None => None,
    };
    match turn.filter(|turn| turn.driver_id.as_deref() == Some(driver_id) && !turn.state.is_over()) {
        Some(Turn { turn_id, .. }) => {
            let message = "the driver of the turn is gone";
            finish::finish(&mut work, &turn_id, End::failed("AGENT_DISCONNECTED", message))?;
            // Another turn of the queue may have begun by now.
            if loss == Loss::WithItsNode && work.stream.state == State::Error {
                work.become_state(State::Inactive, Some("recovered"))?;
            }
        }
        None => claim::deactivate(&mut work, "agent_disconnected")?,
    }
    work.stream.driver_id = None;
    work.finish(&serde_json::json!({ "fired": true })).map(Some)
}

/// Whether an attached driver is still there, by the time of the state.
pub fn is_attached(record: &DriverRecord, now_ms: i64) -> bool {
    record.seen_until > now_ms && !record.detached
}
