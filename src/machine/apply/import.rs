//! `session::import`: writes the entries of a document as they are given, batch by batch, and last the session's record.
//!
//! Until the record is written the session does not exist for readers, so that a half-imported one is never seen. Every
//! batch may be sent again: entries that are there already are left alone. An import that was broken off is finished by
//! running it again.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beside;
use super::long::{self, Removal};
use super::{Draft, touched};
use crate::machine::change::{Change, SessionChange};
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::Happened;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::message::AgentMessage;
use crate::machine::path;
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// What to do when the session exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IfExists {
    #[default]
    Refuse,
    /// Change nothing.
    Skip,
    /// Delete it first, and with it what a broken-off import left behind.
    Replace,
    /// Add the entries it lacks.
    Merge,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ImportEntries {
    pub session_id: SessionId,
    pub if_exists: IfExists,
    /// The first batch of its import: what is replaced is deleted here.
    pub first: bool,
    /// Parents come before their children.
    pub entries: Vec<Entry>,
    /// The last batch of its import.
    pub finish: Option<FinishImport>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FinishImport {
    pub meta: SessionMeta,
    pub leaf: Option<EntryId>,
}

/// What one batch came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Imported {
    /// The entries are written; the session comes with the last batch.
    Staged,
    /// The session is there.
    Finished,
    /// It was there already, just so.
    Unchanged,
    /// A session with this id exists and was left alone.
    Skipped,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &ImportEntries) -> Result<Outcome, Failure> {
    write(view, stamp, command, Removal::Now)
}

/// `removal`: how the entries of a replaced session go.
pub(super) fn write(
    view: &dyn View,
    stamp: &Stamp,
    command: &ImportEntries,
    removal: Removal,
) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    let existing = view.meta(session_id)?;
    if is_done(view, command, existing.as_ref())? {
        return Ok(Outcome::unchanged(Answer::Imported { added: 0, imported: Imported::Unchanged }));
    }
    match (existing, command.if_exists) {
        (Some(_), IfExists::Skip) => Ok(Outcome::unchanged(Answer::Imported { added: 0, imported: Imported::Skipped })),
        (Some(meta), IfExists::Merge) => merge(view, stamp, command, meta),
        (Some(meta), IfExists::Replace) if command.first => create(view, stamp, command, removal, Some(&meta)),
        (Some(_), IfExists::Refuse | IfExists::Replace) => {
            let why = format!(
                "session {:?} exists already: choose if_exists \"skip\", \"merge\" or \"replace\"",
                session_id.as_str()
            );
            Err(Refusal::RequestInvalid(why).into())
        }
        (None, IfExists::Refuse | IfExists::Skip | IfExists::Replace | IfExists::Merge) => {
            create(view, stamp, command, removal, None)
        }
    }
}

/// Whether a batch says nothing new about a session that exists. So a retry after an unknown outcome is answered.
fn is_done(view: &dyn View, command: &ImportEntries, existing: Option<&SessionMeta>) -> Result<bool, Fault> {
    let Some(existing) = existing else { return Ok(false) };
    // Later batches of a replacement may differ: what is there has to go first.
    if command.if_exists == IfExists::Replace && command.finish.is_none() {
        return Ok(false);
    }
    let same_end = match &command.finish {
        Some(finish) => *existing == finish.meta && view.leaf(&command.session_id)? == finish.leaf,
        None => true,
    };
    if !same_end {
        return Ok(false);
    }
    for entry in &command.entries {
        let stored = view.entry(&command.session_id, &entry.id)?;
        if !stored.is_some_and(|stored| is_same(&stored, entry)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Equal in all but the place, which the machine finds itself, and the spelling: a program that rewrote the document, or
/// a client that sends entries as objects, may have reordered keys.
fn is_same(stored: &Entry, given: &Entry) -> bool {
    let (a, b) = (stored, given);
    let is_same_origin = || match (&a.origin, &b.origin) {
        (Some(a), Some(b)) => a == b || a.value() == b.value(),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    (&a.parent_id, a.timestamp, a.revision) == (&b.parent_id, b.timestamp, b.revision)
        && is_same_origin()
        && is_same_body(&a.body, &b.body)
}

fn is_same_body(stored: &Body, given: &Body) -> bool {
    if stored == given {
        return true;
    }
    match (stored, given) {
        (Body::Message(stored), Body::Message(given)) => {
            let fields = |body: &Json| serde_json::to_value(body.parse::<AgentMessage>().ok()?).ok();
            let stored = fields(&stored.body);
            stored.is_some() && stored == fields(&given.body)
        }
        (Body::Custom { custom_type, data }, Body::Custom { custom_type: given_type, data: given }) => {
            custom_type == given_type && data.value() == given.value()
        }
        (Body::Message(_), Body::Custom { .. }) | (Body::Custom { .. }, Body::Message(_)) => false,
    }
}

/// Entries being added to a session, over those it has.
struct Added<'a> {
    view: &'a dyn View,
    session_id: &'a SessionId,
    /// Nothing that is stored counts: the session is being replaced.
    replaced: bool,
    new: BTreeMap<EntryId, Entry>,
    /// The ids of `new`, in the order they came.
    order: Vec<EntryId>,
}

impl Added<'_> {
    fn find(&self, id: &EntryId) -> Result<Option<Entry>, Fault> {
        match self.new.get(id) {
            Some(entry) => Ok(Some(entry.clone())),
            None if self.replaced => Ok(None),
            None => self.view.entry(self.session_id, id),
        }
    }

    /// Takes the entries that are not there yet. `keep`: what is there stays, whatever the batch says of it.
    fn take(&mut self, entries: &[Entry], keep: bool) -> Result<(), Failure> {
        for entry in entries {
            match self.find(&entry.id)? {
                Some(stored) if keep || is_same(&stored, entry) => continue,
                Some(_) => {
                    let why = format!(
                        "entry {:?} is stored already and says something else: choose if_exists \"replace\"",
                        entry.id.as_str()
                    );
                    return Err(Refusal::RequestInvalid(why).into());
                }
                None => {}
            }
            if let Some(parent_id) = &entry.parent_id
                && self.find(parent_id)?.is_none()
            {
                let (session_id, parent_id) = (self.session_id.clone(), parent_id.clone());
                return Err(Refusal::ParentUnknown { session_id, parent_id }.into());
            }
            let place = path::place_among(entry, |id| self.find(id))?;
            self.order.push(entry.id.clone());
            self.new.insert(entry.id.clone(), Entry { place, ..entry.clone() });
        }
        Ok(())
    }

    fn known_leaf(&self, leaf: Option<&EntryId>) -> Result<(), Failure> {
        let Some(leaf) = leaf else { return Ok(()) };
        match self.find(leaf)? {
            Some(_) => Ok(()),
            None => {
                let (session_id, entry_id) = (self.session_id.clone(), leaf.clone());
                Err(Refusal::EntryUnknown { session_id, entry_id }.into())
            }
        }
    }

    /// Whether `leaf` goes on from `old`: the transcript grew and did not branch.
    fn continues(&self, old: &EntryId, leaf: &EntryId) -> Result<bool, Fault> {
        let mut here = self.find(leaf)?;
        while let Some(entry) = &here {
            if entry.id == *old {
                return Ok(true);
            }
            if !self.new.contains_key(&entry.id) {
                break;
            }
            here = match &entry.parent_id {
                Some(parent_id) => self.find(parent_id)?,
                None => None,
            };
        }
        let (Some(stored), Some(old)) = (here, self.view.entry(self.session_id, old)?) else { return Ok(false) };
        let Some(place) = &old.place else { return Ok(false) };
        let ancestor = path::ancestor_at(self.view, self.session_id, &stored, place.depth)?;
        Ok(ancestor.is_some_and(|ancestor| ancestor.id == old.id))
    }

    fn into_entries(mut self) -> Vec<Entry> {
        let order = std::mem::take(&mut self.order);
        order.iter().filter_map(|id| self.new.remove(id)).collect()
    }
}

/// A session that does not exist yet, or that is being replaced.
fn create(
    view: &dyn View,
    stamp: &Stamp,
    command: &ImportEntries,
    removal: Removal,
    old: Option<&SessionMeta>,
) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    let replaced = command.first && command.if_exists == IfExists::Replace;
    let mut added = Added { view, session_id, replaced, new: BTreeMap::new(), order: Vec::new() };
    added.take(&command.entries, false)?;
    if let Some(finish) = &command.finish {
        added.known_leaf(finish.leaf.as_ref())?;
    }
    let entries = added.into_entries();
    let count = entries.len() as u64;
    let mut draft = Draft::new(view, session_id)?;
    if replaced {
        draft.changes.extend(long::remove_entries(view, stamp, session_id, removal)?);
        draft.change(Change::Session(session_id.clone(), SessionChange::DeleteLeaf));
    }
    if let Some(old) = old {
        draft.change(Change::Session(session_id.clone(), SessionChange::DeleteMeta));
        draft.changes.extend(beside::drop_session(view, session_id)?);
        draft.report(Happened::Deleted { timestamp: stamp.at_ms }, old.metadata.as_ref());
        // The new session's events are numbered from one.
        draft.seq = 0;
    }
    for entry in entries {
        draft.change(Change::put_entry(session_id, entry));
    }
    let Some(finish) = &command.finish else {
        return Ok(draft.answer(stamp, Answer::Imported { added: count, imported: Imported::Staged }));
    };
    let meta = SessionMeta { session_id: session_id.clone(), ..finish.meta.clone() };
    draft.change(Change::put_meta(meta.clone()));
    if let Some(leaf) = &finish.leaf {
        draft.change(Change::set_leaf(session_id, leaf.clone()));
    }
    draft.report(Happened::created(&meta), meta.metadata.as_ref());
    Ok(draft.answer(stamp, Answer::Imported { added: count, imported: Imported::Finished }))
}

/// Adds what an existing session lacks. The leaf moves only where the imported transcript goes on from it.
fn merge(view: &dyn View, stamp: &Stamp, command: &ImportEntries, meta: SessionMeta) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    let mut added = Added { view, session_id, replaced: false, new: BTreeMap::new(), order: Vec::new() };
    added.take(&command.entries, true)?;
    let told_leaf = command.finish.as_ref().and_then(|finish| finish.leaf.as_ref());
    added.known_leaf(told_leaf)?;
    let leaf = match (view.leaf(session_id)?, told_leaf) {
        (None, told) => told.cloned(),
        (Some(old), Some(told)) if old != *told && added.continues(&old, told)? => Some(told.clone()),
        (Some(_), Some(_) | None) => None,
    };
    let entries = added.into_entries();
    let imported = if command.finish.is_some() { Imported::Finished } else { Imported::Staged };
    let answer = Answer::Imported { added: entries.len() as u64, imported };
    if entries.is_empty() && leaf.is_none() {
        return Ok(Outcome::unchanged(answer));
    }
    let messages = entries.iter().filter(|entry| entry.is_message()).count() as u64;
    let mut draft = Draft::new(view, session_id)?;
    for entry in entries {
        draft.change(Change::put_entry(session_id, entry.clone()));
        draft.report(Happened::MessageAdded(entry), meta.metadata.as_ref());
    }
    if let Some(leaf) = leaf {
        draft.change(Change::set_leaf(session_id, leaf));
    }
    let message_count = meta.message_count.saturating_add(messages);
    draft.change(Change::put_meta(SessionMeta { message_count, ..touched(meta, stamp) }));
    Ok(draft.answer(stamp, answer))
}
