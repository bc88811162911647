//! A fork of a long path: one command begins it, many copy, the last one shows it. The copies follow the source while
//! they are made, so the fork shows the source as it is at that last command.

use serde_json::Value;

use super::{BYTES_MAX, detached};
use crate::machine::apply::create::{CreateSession, new_session};
use crate::machine::apply::fork::ForkSession;
use crate::machine::apply::{Draft, known};
use crate::machine::change::{Change, WorkChange};
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::Happened;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::long::{PendingFork, Steps};
use crate::machine::path::{self, Chain, Parent};
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// Long forks under way at a time. Every update of a message looks at them.
const FORKS_MAX: usize = 16;

/// Entries that are read at a time: their bodies may be large.
const SLICE: u64 = 32;

pub fn begin(view: &dyn View, stamp: &Stamp, command: &ForkSession) -> Result<Outcome, Failure> {
    known(view, &command.session_id)?;
    placed_leaf(view, &command.session_id, &command.entry_id)?;
    if view.forks()?.len() >= FORKS_MAX {
        let why = format!("{FORKS_MAX} forks of long sessions are under way: fork again when one of them has ended");
        return Err(Refusal::RequestInvalid(why).into());
    }
    let pending = PendingFork {
        source: command.session_id.clone(),
        fork: stamp.session_id(),
        entry_id: command.entry_id.clone(),
        title: command.title.clone(),
        stamp: *stamp,
        copied: 0,
        messages: 0,
        moved_at: stamp.at_ms,
    };
    let answer = begun(&pending);
    let changes = vec![Change::Work(WorkChange::PutFork(pending)), Change::Clock(stamp.at_ms)];
    Ok(Outcome { answer: Ok(answer), changes, events: Vec::new() })
}

fn begun(pending: &PendingFork) -> Answer {
    Answer::ForkBegun { source: pending.source.clone(), fork: pending.fork.clone() }
}

/// Copies some entries. The last of these commands shows the fork.
pub fn go_on(
    view: &dyn View,
    stamp: &Stamp,
    source: &SessionId,
    fork: &SessionId,
    records: u32,
) -> Result<Outcome, Failure> {
    let Some(mut pending) = view.forks_of(source)?.into_iter().find(|pending| pending.fork == *fork) else {
        return ended_before(view, source, fork);
    };
    let meta = known(view, source)?;
    let (leaf, depth) = placed_leaf(view, source, &pending.entry_id)?;
    let upto = pending.copied.saturating_add(u64::from(records.clamp(1, Steps::RECORDS_MAX))).min(depth + 1);
    let last = match pending.copied.checked_sub(1) {
        Some(last) => view.entry(fork, &pending.copy_id(last))?,
        None => None,
    };
    let mut chain = Chain::under(view, fork, last.map(Parent::from));
    let mut bytes = 0;
    while pending.copied < upto && bytes < BYTES_MAX {
        let count = SLICE.min(upto - pending.copied);
        let slice = path::slice(view, source, &leaf, pending.copied, count, BYTES_MAX)?;
        let lost = || Fault(format!("session {source}: the path to entry {} has a gap", leaf.id));
        for entry in slice.filter(|slice| !slice.is_empty()).ok_or_else(lost)? {
            bytes += entry.body.bytes();
            let body = copied_body(view, &pending, &leaf, &entry)?;
            pending.messages += u64::from(entry.is_message());
            chain.push(pending.copy_id(pending.copied), entry.timestamp, entry.origin, body)?;
            pending.copied += 1;
        }
    }
    let mut draft = Draft::new(view, fork)?;
    for copy in chain.finish() {
        draft.change(Change::put_entry(fork, copy));
    }
    if pending.copied <= depth {
        pending.moved_at = stamp.at_ms;
        let answer = begun(&pending);
        draft.change(Change::Work(WorkChange::PutFork(pending)));
        return Ok(draft.answer(stamp, answer));
    }
    let meta = SessionMeta {
        message_count: pending.messages,
        forked_from: Some(source.clone()),
        ..new_session(fork, stamp, &given(&pending, meta))
    };
    draft.change(Change::put_meta(meta.clone()));
    draft.change(Change::set_leaf(fork, pending.copy_id(depth)));
    draft.change(Change::Work(WorkChange::EndFork { source: source.clone(), fork: fork.clone(), shown: true }));
    draft.report(Happened::created(&meta), meta.metadata.as_ref());
    Ok(draft.answer(stamp, Answer::Forked { meta }))
}

fn given(pending: &PendingFork, source: SessionMeta) -> CreateSession {
    CreateSession {
        title: pending.title.clone().unwrap_or(source.title),
        description: source.description,
        metadata: source.metadata,
    }
}

/// The fork is not under way: another proposer finished it, or it was ended.
fn ended_before(view: &dyn View, source: &SessionId, fork: &SessionId) -> Result<Outcome, Failure> {
    if let Some(meta) = view.meta(fork)? {
        return Ok(Outcome::unchanged(Answer::Forked { meta }));
    }
    known(view, source)?;
    let why = format!("the fork of session {:?} was given up before its end: fork again", source.as_str());
    Err(Refusal::RequestInvalid(why).into())
}

/// Ends a fork that nobody waits for. What it copied is freed later.
pub fn give_up(view: &dyn View, stamp: &Stamp, source: &SessionId, fork: &SessionId) -> Result<Outcome, Failure> {
    let pending = view.forks_of(source)?.into_iter().find(|pending| pending.fork == *fork);
    let Some(pending) = pending else { return Ok(Outcome::unchanged(Answer::Stored)) };
    let mut changes = Vec::from(ended(stamp, &pending));
    changes.push(Change::Clock(stamp.at_ms));
    Ok(Outcome { answer: Ok(Answer::Stored), changes, events: Vec::new() })
}

/// The changes that end a fork without showing it.
pub(super) fn ended(stamp: &Stamp, pending: &PendingFork) -> [Change; 2] {
    let (source, fork) = (pending.source.clone(), pending.fork.clone());
    [Change::Work(WorkChange::EndFork { source, fork, shown: false }), detached(stamp, &pending.fork)]
}

/// An entry of a source changes: what was copied of it changes too.
pub fn follow(view: &dyn View, session_id: &SessionId, changed: &Entry) -> Result<Vec<Change>, Fault> {
    let mut changes = Vec::new();
    for mut pending in view.forks_of(session_id)? {
        let Some(place) = changed.place.as_ref().filter(|place| place.depth < pending.copied) else { continue };
        let Some(leaf) = view.entry(session_id, &pending.entry_id)? else { continue };
        if !is_on_path(view, session_id, &leaf, changed)? {
            continue;
        }
        let Some(copy) = view.entry(&pending.fork, &pending.copy_id(place.depth))? else { continue };
        let body = copied_body(view, &pending, &leaf, changed)?;
        let (timestamp, origin) = (changed.timestamp, changed.origin.clone());
        let new = Entry { timestamp, origin, body, ..copy.clone() };
        // A raw write may turn a message into a custom entry.
        if new.is_message() != copy.is_message() {
            pending.messages = pending.messages + u64::from(new.is_message()) - u64::from(copy.is_message());
            changes.push(Change::Work(WorkChange::PutFork(pending.clone())));
        }
        changes.push(Change::put_entry(&pending.fork, new));
    }
    Ok(changes)
}

fn is_on_path(view: &dyn View, session_id: &SessionId, leaf: &Entry, entry: &Entry) -> Result<bool, Fault> {
    let Some(place) = &entry.place else { return Ok(false) };
    let there = path::ancestor_at(view, session_id, leaf, place.depth)?;
    Ok(there.is_some_and(|there| there.id == entry.id))
}

/// The entry that is forked from, and its depth.
fn placed_leaf(view: &dyn View, source: &SessionId, entry_id: &EntryId) -> Result<(Entry, u64), Failure> {
    let unknown = || Refusal::EntryUnknown { session_id: source.clone(), entry_id: entry_id.clone() };
    let leaf = view.entry(source, entry_id)?.ok_or_else(unknown)?;
    let placeless = || {
        let why = "was written before its ancestors, and its path is too long to be forked at once";
        Refusal::RequestInvalid(format!("entry {:?} {why}", entry_id.as_str()))
    };
    let depth = leaf.place.as_ref().ok_or_else(placeless)?.depth;
    Ok((leaf, depth))
}

/// A compaction record names the entry where its tail starts. In the copy it must name the copied entry.
fn copied_body(view: &dyn View, pending: &PendingFork, leaf: &Entry, entry: &Entry) -> Result<Body, Fault> {
    let Body::Custom { custom_type, data } = &entry.body else { return Ok(entry.body.clone()) };
    if custom_type != "compaction" {
        return Ok(entry.body.clone());
    }
    let mut data = data.value();
    if let Some(Value::String(tail)) = data.get_mut("tail_start_entry_id")
        && let Some(named) = view.entry(&pending.source, &EntryId::from(tail.as_str()))?
        && is_on_path(view, &pending.source, leaf, &named)?
        && let Some(place) = &named.place
    {
        *tail = pending.copy_id(place.depth).as_str().to_owned();
    }
    Ok(Body::Custom { custom_type: custom_type.clone(), data: Json::print(&data) })
}
