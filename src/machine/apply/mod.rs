//! Owns: what each command does. One file per command; `apply` is the only way in.
//! Reads: View. Never: time, randomness, IO. Synchronous and total: every command gets an outcome, on every replica
//! the same.

pub mod append;
pub mod append_many;
pub mod create;
pub mod delete;
pub mod ensure;
pub mod feed;
pub mod fork;
mod repeats;
pub mod set_active_leaf;
pub mod set_meta;
pub mod set_status;
pub mod store;
pub mod update_message;

use super::command::{Answer, Command, Outcome, Stamped};
use super::event::{Event, Happened};
use super::ids::SessionId;
use super::json::Object;
use super::law;
use super::refusal::{Failure, Fault, Refusal};
use super::session::SessionMeta;
use super::stamp::Stamp;
use super::view::{Change, View};

/// Decides one command against the state. Changes nothing itself.
pub fn apply<V: View + ?Sized>(view: &V, stamped: &Stamped) -> Result<Outcome, Fault> {
    // The clock of the state keeps time from running backwards when a new leader's clock is behind.
    let at_ms = stamped.stamp.at_ms.max(view.clock_ms()?);
    let stamp = Stamp { at_ms, ..stamped.stamp };
    if let Some(outcome) = repeats::first_outcome(view, at_ms, stamped)? {
        return Ok(outcome);
    }
    let decided = match &stamped.command {
        Command::Create(command) => create::apply(view, &stamp, command),
        Command::Ensure(command) => ensure::apply(view, &stamp, command),
        Command::SetMeta(command) => set_meta::apply(view, &stamp, command),
        Command::SetStatus(command) => set_status::apply(view, &stamp, command),
        Command::Delete(command) => delete::apply(view, &stamp, command),
        Command::Append(command) => append::apply(view, &stamp, command),
        Command::AppendMany(command) => append_many::apply(view, &stamp, command),
        Command::UpdateMessage(command) => update_message::apply(view, &stamp, command),
        Command::Fork(command) => fork::apply(view, &stamp, command),
        Command::SetActiveLeaf(command) => set_active_leaf::apply(view, &stamp, command),
        Command::Store(command) => store::apply(view, &stamp, command),
        Command::Feed(order) => feed::apply(view, &stamp, order),
    };
    let outcome = match decided {
        Ok(outcome) => outcome,
        Err(Failure::Refused(refusal)) => Outcome::refused(refusal),
        Err(Failure::Broken(fault)) => return Err(fault),
    };
    let outcome = repeats::remembered(view, at_ms, stamped, outcome)?;
    if cfg!(debug_assertions) {
        check_laws(view, stamped, &outcome)?;
    }
    Ok(outcome)
}

fn check_laws<V: View + ?Sized>(view: &V, stamped: &Stamped, outcome: &Outcome) -> Result<(), Fault> {
    let laws = || {
        law::refusal_changes_nothing(outcome)?;
        law::events_come_from_changes(outcome)?;
        if !matches!(stamped.command, Command::Store(_)) {
            law::updated_at_never_goes_back(view, outcome)?;
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

/// The changes and events of one command about one session, as they are put together.
struct Draft<'a> {
    session_id: &'a SessionId,
    seq: u64,
    changes: Vec<Change>,
    events: Vec<Event>,
}

impl<'a> Draft<'a> {
    fn new<V: View + ?Sized>(view: &V, session_id: &'a SessionId) -> Result<Draft<'a>, Fault> {
        Ok(Draft { session_id, seq: view.seq(session_id)?, changes: Vec::new(), events: Vec::new() })
    }

    fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    fn report(&mut self, happened: Happened, metadata: Option<&Object>) {
        self.seq += 1;
        let metadata = metadata.cloned();
        self.events.push(Event { session_id: self.session_id.clone(), seq: self.seq, happened, metadata });
    }

    /// Closes the draft: keeps the event sequence and moves the clock.
    fn answer(mut self, stamp: &Stamp, answer: Answer) -> Outcome {
        if !self.events.is_empty() {
            self.changes.push(Change::SetSeq(self.session_id.clone(), self.seq));
        }
        self.changes.push(Change::SetClock(stamp.at_ms));
        Outcome { answer: Ok(answer), changes: self.changes, events: self.events }
    }
}

fn known<V: View + ?Sized>(view: &V, session_id: &SessionId) -> Result<SessionMeta, Failure> {
    Ok(view.meta(session_id)?.ok_or_else(|| Refusal::SessionUnknown(session_id.clone()))?)
}

/// The meta of a session that is being changed now.
fn touched(meta: SessionMeta, stamp: &Stamp) -> SessionMeta {
    SessionMeta { updated_at: meta.updated_at.max(stamp.at_ms), ..meta }
}
