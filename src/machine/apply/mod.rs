//! Owns: what each command does. One file per command; `apply` is the only entry point.
//! Reads: View. Never: time, randomness, IO. Every command gets an outcome, the same on every replica.

pub mod append;
pub mod append_many;
pub mod beside;
pub mod create;
pub mod delete;
pub mod ensure;
pub mod feed_order;
pub mod fork;
pub mod import;
pub mod long;
mod retries;
pub mod set_active_leaf;
pub mod set_meta;
pub mod set_status;
pub mod store;
pub mod update_message;
mod within;

use super::change::{Change, FeedChange};
use super::command::{Answer, Command, Outcome, Stamped};
use super::event::{Event, EventKind, Happened};
use super::ids::SessionId;
use super::json::{Json, Object};
use super::law;
use super::refusal::{Failure, Fault, Refusal};
use super::session::SessionMeta;
use super::stamp::Stamp;
use super::view::View;
use long::LongWork;

/// Decides one command against the state. Returns the changes and does not make them.
pub fn apply(view: &dyn View, stamped: &Stamped) -> Result<Outcome, Fault> {
    // The clock of a new leader may be behind that of the old one: time must not run backwards.
    let at_ms = stamped.stamp.at_ms.max(view.clock_ms()?);
    let stamp = Stamp { at_ms, ..stamped.stamp };
    if let Some(outcome) = retries::known_outcome(view, at_ms, stamped)? {
        return Ok(outcome);
    }
    let decided = match &stamped.scope {
        None => decide(view, &stamp, &stamped.command),
        Some(scope) => within::apply(view, &stamp, scope, &stamped.command),
    };
    let outcome = match decided {
        Ok(outcome) => outcome,
        Err(Failure::Refused(refusal)) => Outcome::refused(refusal),
        Err(Failure::Broken(fault)) => return Err(fault),
    };
    let outcome = retries::record_answer(view, at_ms, stamped, outcome)?;
    if cfg!(debug_assertions) {
        check_laws(view, stamped, &outcome)?;
    }
    Ok(outcome)
}

/// Decides a command against the state that its caller sees.
fn decide(view: &dyn View, stamp: &Stamp, command: &Command) -> Result<Outcome, Failure> {
    match command {
        Command::Create(command) => create::apply(view, stamp, command),
        Command::Ensure(command) => ensure::apply(view, stamp, command),
        Command::SetMeta(command) => set_meta::apply(view, stamp, command),
        Command::SetStatus(command) => set_status::apply(view, stamp, command),
        Command::Delete(command) => delete::apply(view, stamp, command),
        Command::Append(command) => append::apply(view, stamp, command),
        Command::AppendMany(command) => append_many::apply(view, stamp, command),
        Command::UpdateMessage(command) => update_message::apply(view, stamp, command),
        Command::Fork(command) => fork::apply(view, stamp, command),
        Command::SetActiveLeaf(command) => set_active_leaf::apply(view, stamp, command),
        Command::Import(command) => import::apply(view, stamp, command),
        Command::Store(command) => store::apply(view, stamp, command),
        Command::Feed(order) => feed_order::apply(view, stamp, order),
        Command::Long(work) => long::apply(view, stamp, work),
        Command::Beside(command) => beside::apply(view, stamp, command),
    }
}

fn check_laws(view: &dyn View, stamped: &Stamped, outcome: &Outcome) -> Result<(), Fault> {
    let laws = || {
        law::refusal_changes_nothing(outcome)?;
        law::events_come_from_changes(outcome)?;
        // An import writes what a document says, and may replace a session as a whole.
        let is_raw = matches!(
            stamped.command,
            Command::Store(_) | Command::Import(_) | Command::Long(LongWork::Import(_) | LongWork::DeleteEntries(_))
        );
        if !is_raw {
            law::updated_at_moves_with_every_change(view, outcome)?;
            law::entries_keep_their_place(view, outcome)?;
        }
        Ok(())
    };
    match laws() {
        Ok(()) => Ok(()),
        Err(law::LawError::Fault(fault)) => Err(fault),
        Err(law::LawError::Broken(broken)) => panic!("law broken by {:?}: {broken}", stamped.command),
    }
}

/// Collects the changes and events of one command about one session.
pub(super) struct Draft<'a> {
    pub session_id: &'a SessionId,
    pub seq: u64,
    pub changes: Vec<Change>,
    pub events: Vec<Event>,
}

impl<'a> Draft<'a> {
    pub fn new(view: &dyn View, session_id: &'a SessionId) -> Result<Draft<'a>, Fault> {
        Ok(Draft { session_id, seq: view.seq(session_id)?, changes: Vec::new(), events: Vec::new() })
    }

    pub fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub fn report(&mut self, happened: Happened, metadata: Option<&Object>) {
        self.seq += 1;
        let metadata = metadata.cloned();
        self.events.push(Event { session_id: self.session_id.clone(), seq: self.seq, happened, metadata });
    }

    /// Reports an event beside the published ones: it has no sequence number. If it is not `kept`, it reaches the
    /// subscribers of this moment and is not stored.
    pub fn note(&mut self, kind: EventKind, payload: Json, kept: bool, metadata: Option<&Object>) {
        let happened = Happened::Noted { kind, payload, kept };
        self.events.push(Event { session_id: self.session_id.clone(), seq: 0, happened, metadata: metadata.cloned() });
    }

    /// Closes the draft: stores the session's event sequence and sets the clock.
    pub fn answer(mut self, stamp: &Stamp, answer: Answer) -> Outcome {
        if self.events.iter().any(|event| event.seq > 0) {
            self.changes.push(Change::Feed(FeedChange::SetSeq(self.session_id.clone(), Some(self.seq))));
        }
        self.changes.push(Change::Clock(stamp.at_ms));
        Outcome { answer: Ok(answer), changes: self.changes, events: self.events }
    }
}

/// The session's record; refuses when there is none.
pub(super) fn known(view: &dyn View, session_id: &SessionId) -> Result<SessionMeta, Failure> {
    Ok(view.meta(session_id)?.ok_or_else(|| Refusal::SessionUnknown(session_id.clone()))?)
}

/// The record of a session that is changed now, with its time of update. It moves with every change, also within one
/// millisecond and while clocks are behind, so that the most recently changed session stays first in a list.
pub(super) fn touched(meta: SessionMeta, stamp: &Stamp) -> SessionMeta {
    SessionMeta { updated_at: meta.updated_at.saturating_add(1).max(stamp.at_ms), ..meta }
}
