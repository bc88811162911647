//! Owns: `Work`, what one command does to a session and the records beside it: entries, stream, turns, journal, status
//! and events. All of it is written by `finish`, once each, so that one log entry does all or nothing.
//! Reads: View. Never: time, randomness, IO.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::due::{Due, DueKind};
use super::events::{Class, EventName, Fields};
use super::record::{State, Stream, Turn, read};
use super::reply;
use crate::machine::apply::long::fork;
use crate::machine::apply::{Draft, known, touched};
use crate::machine::beside::{RecordKey, Space};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::{EventKind, Happened};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::message::Message;
use crate::machine::model::follow::{self, Heard};
use crate::machine::path;
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// The most that a session's journal keeps, keys not counted. The oldest events go first.
pub const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Journal records that one command drops at most. It adds fewer, so a full journal never grows.
const TRIM_MAX: usize = 512;

/// A session in the hands of one command.
pub struct Work<'a> {
    pub view: &'a dyn View,
    pub stamp: &'a Stamp,
    pub meta: SessionMeta,
    pub stream: Stream,
    /// The stream as it is stored.
    stored: Option<Stream>,
    turns: BTreeMap<String, (Turn, Option<Turn>)>,
    /// New and changed entries, in the order of their first change.
    order: Vec<EntryId>,
    entries: BTreeMap<EntryId, (Entry, bool)>,
    leaf: Option<EntryId>,
    leaf_moved: bool,
    added_messages: u64,
    /// Changes of other records, in order.
    pub changes: Vec<Change>,
    notes: Vec<Note>,
    /// What was published, for the session model.
    told: Vec<Heard>,
    journal_added: u64,
    /// Marks of this command: turn, name, number.
    marks: BTreeMap<(String, String), u64>,
    old_status: (crate::machine::session::SessionStatus, Option<String>),
}

struct Note {
    kind: EventKind,
    payload: Json,
    kept: bool,
}

impl<'a> Work<'a> {
    /// Refuses a session that does not exist, or that the caller does not see.
    pub fn open(view: &'a dyn View, stamp: &'a Stamp, session_id: &SessionId) -> Result<Work<'a>, Failure> {
        let meta = known(view, session_id)?;
        let stored = Stream::read(view, session_id)?;
        let stream = stored.clone().unwrap_or_else(|| Stream {
            state: State::of_status(meta.status),
            oldest_seq: 1,
            ..Stream::default()
        });
        let leaf = view.leaf(session_id)?;
        let old_status = (meta.status, meta.status_reason.clone());
        Ok(Work {
            view,
            stamp,
            meta,
            stream,
            stored,
            turns: BTreeMap::new(),
            order: Vec::new(),
            entries: BTreeMap::new(),
            leaf,
            leaf_moved: false,
            added_messages: 0,
            changes: Vec::new(),
            notes: Vec::new(),
            told: Vec::new(),
            journal_added: 0,
            marks: BTreeMap::new(),
            old_status,
        })
    }

    pub fn session_id(&self) -> &SessionId {
        &self.meta.session_id
    }

    pub fn now(&self) -> i64 {
        self.stamp.at_ms
    }

    /// A turn of this session, to be changed.
    pub fn turn(&mut self, turn_id: &str) -> Result<Option<&mut Turn>, Fault> {
        if !self.turns.contains_key(turn_id) {
            let Some(turn) = Turn::read(self.view, &self.meta.session_id, turn_id)? else { return Ok(None) };
            self.turns.insert(turn_id.to_owned(), (turn.clone(), Some(turn)));
        }
        Ok(self.turns.get_mut(turn_id).map(|(turn, _)| turn))
    }

    /// A copy of a turn.
    pub fn read_turn(&mut self, turn_id: &str) -> Result<Option<Turn>, Fault> {
        Ok(self.turn(turn_id)?.map(|turn| turn.clone()))
    }

    pub fn put_turn(&mut self, turn: Turn) {
        match self.turns.get_mut(&turn.turn_id) {
            Some((known, _)) => *known = turn,
            None => drop(self.turns.insert(turn.turn_id.clone(), (turn, None))),
        }
    }

    /// Writes nothing about a turn that this command deletes.
    pub fn forget_turn(&mut self, turn_id: &str) {
        self.turns.remove(turn_id);
    }

    pub fn put<T: Serialize>(&mut self, key: RecordKey, value: &T) {
        self.changes.push(Change::put_record(key, Json::print(value)));
    }

    pub fn delete(&mut self, key: RecordKey) {
        self.changes.push(Change::delete_record(key));
    }

    pub fn due(&mut self, at_ms: i64, kind: DueKind, id: &str) {
        let due = Due { at_ms, kind, session_id: Some(self.session_id().clone()), id: id.to_owned() };
        self.changes.push(due.put());
    }

    /// An entry as this command leaves it.
    pub fn entry(&self, entry_id: &EntryId) -> Result<Option<Entry>, Fault> {
        match self.entries.get(entry_id) {
            Some((entry, _)) => Ok(Some(entry.clone())),
            None => self.view.entry(self.session_id(), entry_id),
        }
    }

    /// Adds an entry under the active leaf and makes it the leaf. An id that exists makes this a no-op.
    pub fn append(&mut self, entry_id: EntryId, origin: Option<Json>, body: Body) -> Result<bool, Fault> {
        if self.entry(&entry_id)?.is_some() {
            return Ok(false);
        }
        let parent_id = self.leaf.clone();
        let mut entry =
            Entry { id: entry_id.clone(), parent_id, timestamp: self.now(), revision: 0, origin, body, place: None };
        entry.place = path::place_among(&entry, |id| self.entry(id))?;
        self.added_messages += u64::from(entry.is_message());
        self.leaf = Some(entry_id.clone());
        self.leaf_moved = true;
        self.order.push(entry_id.clone());
        self.entries.insert(entry_id, (entry, true));
        Ok(true)
    }

    /// Replaces the message of an entry. `false` if there is no such entry any more: a raw write may remove it.
    pub fn update(&mut self, entry_id: &EntryId, message: Message) -> Result<bool, Fault> {
        let Some(entry) = self.entry(entry_id)? else { return Ok(false) };
        let is_known = self.entries.contains_key(entry_id);
        let is_new = self.entries.get(entry_id).is_some_and(|(_, new)| *new);
        // One command is one revision, however often it changes the entry.
        let revision = if is_known { entry.revision } else { entry.revision.saturating_add(1) };
        if !is_known {
            self.order.push(entry_id.clone());
        }
        let entry = Entry { revision, body: Body::Message(message), ..entry };
        self.entries.insert(entry_id.clone(), (entry, is_new));
        Ok(true)
    }

    /// Moves the session's stream to another state; refuses a step that is not legal. Setting the same state again does
    /// nothing.
    pub fn become_state(&mut self, next: State, reason: Option<&str>) -> Result<(), Failure> {
        let from = self.stream.state;
        if from == next {
            return Ok(());
        }
        if !from.may_become(next) {
            let why = format!("session_state: {} cannot follow {}", next.name(), from.name());
            return Err(Refusal::RequestInvalid(why).into());
        }
        self.stream.state = next;
        self.stream.reason = reason.map(str::to_owned);
        let mut fields = Fields::from([("state".to_owned(), Json::print(&next))]);
        if let Some(reason) = reason {
            fields.insert("reason".to_owned(), Json::print(&reason));
        }
        self.publish_stream("session_state", None, fields);
        self.set_status(next, reason);
        Ok(())
    }

    fn set_status(&mut self, state: State, reason: Option<&str>) {
        self.meta.status = state.status();
        self.meta.status_reason = match state {
            State::Error => reason.map(str::to_owned),
            State::Inactive
            | State::Activating
            | State::Ready
            | State::Running
            | State::Waiting
            | State::Deactivating => None,
        };
    }

    /// Publishes one event of the stream: gives it its number and keeps it if its name says so. Returns the number;
    /// `None` for a name without one.
    pub fn publish_stream(&mut self, name: &str, turn_id: Option<&str>, mut fields: Fields) -> Option<u64> {
        let class = EventName::find(name).map_or(Class::Unnumbered, |event| event.class);
        let seq = match class {
            Class::Kept | Class::Ephemeral => {
                self.stream.head_seq += 1;
                Some(self.stream.head_seq)
            }
            Class::Unnumbered => None,
        };
        fields.insert("type".to_owned(), Json::print(&name));
        fields.insert("sessionId".to_owned(), Json::print(self.session_id()));
        fields.insert("ts".to_owned(), Json::print(&self.now()));
        if let Some(turn_id) = turn_id {
            fields.insert("turnId".to_owned(), Json::print(&turn_id));
        }
        if let Some(seq) = seq {
            fields.insert("seq".to_owned(), Json::print(&seq));
        }
        let event = Json::print(&fields);
        if follow::is_of_model(self.meta.metadata.as_ref()) {
            let message_entry_id =
                turn_id.and_then(|id| self.turns.get(id)).and_then(|(turn, _)| turn.message_entry_id.clone());
            let (name, turn_id) = (name.to_owned(), turn_id.map(str::to_owned));
            self.told.push(Heard { name, turn_id, message_entry_id, fields });
        }
        let kept = class == Class::Kept;
        if let Some(seq) = seq.filter(|_| kept) {
            self.journal_added += event.text().len() as u64;
            let key = Stream::journal_key(self.session_id(), seq);
            self.changes.push(Change::put_record(key, event.clone()));
        }
        let payload = StreamPayload { session_id: self.session_id(), turn_id, seq, kept, event: &event };
        let payload = Json::print(&payload);
        self.notes.push(Note { kind: EventKind::StreamEvent, payload, kept });
        seq
    }

    /// Publishes an event of another kind.
    pub fn note(&mut self, kind: EventKind, payload: Json, kept: bool) {
        self.notes.push(Note { kind, payload, kept });
    }

    /// Writes everything. If nothing changed, nothing is written.
    pub fn finish(mut self, answer: &impl Serialize) -> Result<Outcome, Failure> {
        let answer = Answer::Value(Json::print(answer));
        self.trim_journal()?;
        let told = self.heard()?;
        for heard in &told {
            if let Some((entry_id, body)) = follow::record_of(self.meta.metadata.as_ref(), heard) {
                self.append(entry_id, None, body)?;
            }
        }
        let new_replies =
            self.entries.values().filter(|(entry, is_new)| *is_new && reply::is_reply(entry)).count() as u64;
        let is_busy = self.stream.current.is_some() || !self.stream.queue.is_empty();
        let session_id = self.meta.session_id.clone();
        let (status, reason) = (self.meta.status, self.meta.status_reason.clone());
        let status_moved = status != self.old_status.0;
        let entries_changed = !self.order.is_empty();
        let stream_changed = self.stored.as_ref() != Some(&self.stream)
            && (self.stored.is_some()
                || !self.turns.is_empty()
                || self.stream.head_seq > 0
                || !self.changes.is_empty());
        let turns: Vec<Turn> =
            self.turns.into_values().filter(|(now, old)| old.as_ref() != Some(now)).map(|(now, _)| now).collect();
        if !entries_changed
            && !status_moved
            && !stream_changed
            && turns.is_empty()
            && self.changes.is_empty()
            && self.notes.is_empty()
        {
            return Ok(Outcome::unchanged(answer));
        }
        let mut draft = Draft::new(self.view, &session_id)?;
        draft.changes = std::mem::take(&mut self.changes);
        if stream_changed {
            draft.change(Change::put_record(Stream::key(&session_id), Json::print(&self.stream)));
        }
        for turn in turns {
            draft.change(Change::put_record(Turn::key(&session_id, &turn.turn_id), Json::print(&turn)));
        }
        let metadata = self.meta.metadata.clone();
        for note in self.notes {
            draft.note(note.kind, note.payload, note.kept, metadata.as_ref());
        }
        let batch = follow::Batch { events: &told, new_replies, is_busy };
        follow::follow(self.view, self.stamp, &mut draft, metadata.as_ref(), &batch)?;
        for entry_id in &self.order {
            let Some((entry, is_new)) = self.entries.remove(entry_id) else { continue };
            if !is_new {
                draft.changes.extend(fork::follow(self.view, &session_id, &entry)?);
            }
            draft.change(Change::put_entry(&session_id, entry.clone()));
            draft.report(reported(entry, is_new, self.stamp.at_ms), metadata.as_ref());
        }
        if let Some(leaf) = self.leaf.filter(|_| self.leaf_moved) {
            draft.change(Change::set_leaf(&session_id, leaf));
        }
        if status_moved {
            let changed = Happened::StatusChanged {
                status,
                previous: self.old_status.0,
                reason: reason.clone(),
                timestamp: self.stamp.at_ms,
            };
            draft.report(changed, metadata.as_ref());
        }
        if entries_changed || status_moved || reason != self.old_status.1 {
            let message_count = self.meta.message_count.saturating_add(self.added_messages);
            draft.change(Change::put_meta(SessionMeta { message_count, ..touched(self.meta, self.stamp) }));
        }
        Ok(draft.answer(self.stamp, answer))
    }

    /// What was published, with the texts that drivers may leave out.
    fn heard(&mut self) -> Result<Vec<Heard>, Fault> {
        let mut told = std::mem::take(&mut self.told);
        for heard in &mut told {
            let missing = follow::missing_text(heard);
            let Some((turn_id, field)) = heard.turn_id.clone().zip(missing) else { continue };
            let Some(turn) = self.read_turn(&turn_id)? else { continue };
            let said = match (turn.says_all, turn.replies.last()) {
                (true, _) => reply::so_far(&turn, |entry_id| self.entry(entry_id))?,
                (false, Some(last)) => self.entry(last)?.map(|entry| reply::texts(&entry.body)).unwrap_or_default(),
                (false, None) => continue,
            };
            heard.fields.insert(field.name.to_owned(), Json::print(&field.of(said)));
        }
        Ok(told)
    }

    /// Drops the oldest events of a journal that is too large.
    fn trim_journal(&mut self) -> Result<(), Fault> {
        self.stream.journal_bytes += self.journal_added;
        if self.stream.journal_bytes <= JOURNAL_BYTES_MAX {
            return Ok(());
        }
        let under = RecordKey::of_session(self.session_id(), Space::Journal);
        for (key, event) in self.view.records(&under, None, TRIM_MAX)? {
            if self.stream.journal_bytes <= JOURNAL_BYTES_MAX {
                break;
            }
            self.stream.journal_bytes = self.stream.journal_bytes.saturating_sub(event.text().len() as u64);
            self.stream.oldest_seq = key.number(0).unwrap_or(0) + 1;
            self.delete(key);
        }
        Ok(())
    }

    /// Notes the number of an event that must not count twice.
    pub fn mark(&mut self, turn_id: &str, mark: &str, seq: u64) {
        self.marks.insert((turn_id.to_owned(), mark.to_owned()), seq);
        self.put(Turn::mark_key(self.session_id(), turn_id, mark), &seq);
    }

    /// The number that an event got when it came first, if it must not count twice.
    pub fn marked(&self, turn_id: &str, mark: &str) -> Result<Option<u64>, Fault> {
        if let Some(seq) = self.marks.get(&(turn_id.to_owned(), mark.to_owned())) {
            return Ok(Some(*seq));
        }
        read(self.view, &Turn::mark_key(self.session_id(), turn_id, mark))
    }
}

fn reported(entry: Entry, is_new: bool, at_ms: i64) -> Happened {
    match &entry.body {
        Body::Message(message) if !is_new => Happened::MessageUpdated {
            entry_id: entry.id.clone(),
            message: message.clone(),
            revision: entry.revision,
            origin: entry.origin.clone(),
            timestamp: at_ms,
        },
        Body::Message(_) | Body::Custom { .. } => Happened::MessageAdded(entry),
    }
}

/// The payload of `session::stream::event`.
#[derive(Serialize)]
struct StreamPayload<'a> {
    session_id: &'a SessionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    kept: bool,
    event: &'a Json,
}

/// An answer that says why a door's request is refused. The doors have names for it that are no codes of the store.
pub fn refused(name: &str, why: &str) -> serde_json::Value {
    json!({ "refused": name, "message": why })
}
