//! Owns: a command about one session of the model while it is decided: its profile, its meta, its new entries and events.
//! All of them are written together at the end.
//! Reads: View. Never: which command it is.

use std::collections::BTreeMap;

use serde_json::Value;

use super::access::{self, Caller, Role, Verdict};
use super::names::store_id;
use super::people::{self, Person};
use super::profile::{Profile, Status, Terms};
use super::records;
use crate::machine::apply::{Draft, append, known, touched};
use crate::machine::change::{Change, FeedChange, SessionChange};
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::{EventKind, Happened};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::path::{Chain, Parent};
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// Events of a session's stream that are kept. Clients that were away for longer read the history.
const EVENTS_KEPT: u64 = 10_000;
/// The size of the events that are kept. Results of tools can be large.
const EVENT_BYTES_KEPT: u64 = 64 << 20;
/// Old events that one command drops at most. It adds fewer (a batch of 256 events of a turn is at most 512 here), so a
/// stream that is full does not grow.
const DROPPED_AT_ONCE: usize = 600;

/// The fields of an event. Their values stay text: they may have numbers that fit no 64 bits.
pub type Fields = BTreeMap<String, Json>;

/// The session that a command names, and who asks.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub agent_id: &'a str,
    pub session_id: &'a str,
    pub caller: &'a Caller,
    pub terms: &'a Terms,
}

/// The person who calls, if a person does, and what that person may do.
pub fn caller_person(view: &dyn View, stamp: &Stamp, asked: &Asked<'_>) -> Result<Option<Person>, Fault> {
    match asked.caller {
        Caller::Admin | Caller::Channel { .. } => Ok(None),
        Caller::User { channel, channel_user_id } => {
            people::meet(view, stamp, asked.agent_id, (channel, channel_user_id), asked.terms.access)
        }
    }
}

/// The refusal of a session that is not there, or that the caller may not see. Both read the same.
pub fn not_found(asked: &Asked<'_>) -> Refusal {
    Refusal::SessionUnknown(SessionId::from(asked.session_id))
}

pub fn outside(namespace: &str) -> Refusal {
    Refusal::RequestInvalid(format!("sessionId: this token is for ids that start with `{namespace}:`"))
}

/// Refuses a session that the caller may not see.
pub fn check_access(
    view: &dyn View,
    asked: &Asked<'_>,
    store_id: &SessionId,
    person: Option<&Person>,
) -> Result<(), Failure> {
    let (role, participates) = match person {
        Some(person) => {
            let participates = match person.role {
                Some(Role::Owner) | None => false,
                Some(Role::User | Role::Guest) => {
                    people::participates(view, store_id, &person.user_id, &person.aliases)?
                }
            };
            (person.role, participates)
        }
        None => (None, false),
    };
    match access::decide(asked.caller, asked.session_id, role, participates) {
        Verdict::Allowed => Ok(()),
        Verdict::NotFound => Err(not_found(asked).into()),
        Verdict::OutsideNamespace => match asked.caller {
            Caller::Channel { namespace } => Err(outside(namespace).into()),
            Caller::Admin | Caller::User { .. } => Err(not_found(asked).into()),
        },
    }
}

pub struct Scene<'a> {
    pub view: &'a dyn View,
    pub stamp: Stamp,
    pub draft: Draft<'a>,
    pub meta: SessionMeta,
    pub profile: Profile,
    /// The profile in the state; `None` for a session that begins with this command.
    before: Option<Profile>,
    /// New entries of the transcript.
    entries: Vec<Entry>,
}

impl<'a> Scene<'a> {
    /// A session that is there and that the caller may see.
    pub fn open(
        view: &'a dyn View,
        stamp: &Stamp,
        asked: &Asked<'_>,
        store_id: &'a SessionId,
    ) -> Result<(Scene<'a>, Option<Person>), Failure> {
        let person = caller_person(view, stamp, asked)?;
        // Before the session is looked up, so that a token outside its namespace always reads the same.
        if let (Caller::Channel { namespace }, false) = (asked.caller, in_namespace(asked)) {
            return Err(outside(namespace).into());
        }
        let profile = records::profile(view, store_id)?.ok_or_else(|| not_found(asked))?;
        check_access(view, asked, store_id, person.as_ref())?;
        let mut scene = Scene::of(view, stamp, store_id, profile)?;
        scene.profile.terms = asked.terms.clone();
        Ok((scene, person))
    }

    /// A session whose profile was read.
    pub fn of(
        view: &'a dyn View,
        stamp: &Stamp,
        store_id: &'a SessionId,
        profile: Profile,
    ) -> Result<Scene<'a>, Failure> {
        let meta = known(view, store_id)?;
        let draft = Draft::new(view, store_id)?;
        let before = Some(profile.clone());
        Ok(Scene { view, stamp: *stamp, draft, meta, profile, before, entries: Vec::new() })
    }

    /// A session that begins. `meta` is its new record.
    pub fn begin(
        view: &'a dyn View,
        stamp: &Stamp,
        store_id: &'a SessionId,
        meta: SessionMeta,
        profile: Profile,
    ) -> Result<Scene<'a>, Failure> {
        let draft = Draft::new(view, store_id)?;
        Ok(Scene { view, stamp: *stamp, draft, meta, profile, before: None, entries: Vec::new() })
    }

    /// Adds an entry below the last one of the transcript.
    pub fn append(&mut self, id: EntryId, timestamp: i64, origin: Option<Json>, body: Body) -> Result<(), Failure> {
        let store_id = self.draft.session_id;
        let parent = match self.entries.last() {
            Some(last) => Some(Parent::from(last.clone())),
            None => append::parent(self.view, store_id, None)?,
        };
        let mut chain = Chain::under(self.view, store_id, parent);
        chain.push(id, timestamp, origin, body)?;
        for entry in chain.finish() {
            self.draft.change(Change::put_entry(store_id, entry.clone()));
            self.draft.report(Happened::MessageAdded(entry.clone()), self.meta.metadata.as_ref());
            self.meta.message_count = self.meta.message_count.saturating_add(u64::from(entry.is_message()));
            self.entries.push(entry);
        }
        Ok(())
    }

    /// Adds a record to the transcript that is no message: an error, an approval, a look back.
    pub fn append_record(&mut self, kind: &str, ordinal: u64, data: Value) -> Result<(), Failure> {
        let body = Body::Custom { custom_type: format!("profile/{kind}"), data: Json::print(&data) };
        self.append(self.stamp.entry_id(ordinal), self.stamp.at_ms, None, body)
    }

    /// What commands of turns have in their hands too.
    pub fn hand(&mut self) -> Hand<'_, 'a> {
        Hand {
            view: self.view,
            stamp: self.stamp,
            draft: &mut self.draft,
            metadata: self.meta.metadata.as_ref(),
            profile: &mut self.profile,
        }
    }

    /// The status of the model, and with it the status that every client of the store sees.
    pub fn set_status(&mut self, status: Status) {
        self.profile.status = status;
        let label = match status {
            Status::Running | Status::AwaitingApproval => SessionStatus::Working,
            Status::Inactive => SessionStatus::Done,
            Status::Idle => SessionStatus::Idle,
        };
        self.set_label(label, None);
    }

    pub fn set_label(&mut self, status: SessionStatus, reason: Option<String>) {
        let previous = self.meta.status;
        if previous == status {
            return;
        }
        self.meta.status = status;
        self.meta.status_reason = reason.clone();
        let changed = Happened::StatusChanged { status, previous, reason, timestamp: self.stamp.at_ms };
        self.draft.report(changed, self.meta.metadata.as_ref());
    }

    /// The session's title, description or metadata changed.
    pub fn report_meta(&mut self) {
        let updated = Happened::MetaUpdated {
            title: self.meta.title.clone(),
            description: self.meta.description.clone(),
            metadata: self.meta.metadata.clone(),
            timestamp: self.stamp.at_ms,
        };
        self.draft.report(updated, self.meta.metadata.as_ref());
    }

    pub fn add_participant(&mut self, person: &Person) -> Result<(), Failure> {
        let session_id = self.draft.session_id;
        if !people::participates(self.view, session_id, &person.user_id, &person.aliases)? {
            let key = records::participants_key(session_id).with(person.user_id.as_str());
            self.draft.change(Change::put_record(key, Json::adopt("{}")));
        }
        Ok(())
    }

    /// Takes over what a command about turns does to the same session, decided against the same state. The events of the
    /// session's sequence follow those that are here already.
    pub fn absorb(&mut self, outcome: Outcome) {
        for change in outcome.changes {
            match change {
                Change::Session(_, SessionChange::PutMeta(meta)) => {
                    self.meta.status = meta.status;
                    self.meta.status_reason = meta.status_reason;
                }
                Change::Feed(FeedChange::SetSeq(..)) | Change::Clock(_) => {}
                other => self.draft.change(other),
            }
        }
        for mut event in outcome.events {
            if event.seq > 0 {
                self.draft.seq += 1;
                event.seq = self.draft.seq;
            }
            self.draft.events.push(event);
        }
    }

    /// Closes the command: everything that changed is written.
    pub fn answer(mut self, answer: Value) -> Result<Outcome, Failure> {
        self.trim()?;
        write_profile(&mut self.draft, self.before.as_ref(), &self.profile);
        if let Some(leaf) = self.entries.last() {
            self.draft.change(Change::set_leaf(self.draft.session_id, leaf.id.clone()));
        }
        let meta = match self.before {
            Some(_) => touched(self.meta, &self.stamp),
            None => self.meta,
        };
        self.draft.change(Change::put_meta(meta));
        Ok(self.draft.answer(&self.stamp, Answer::Value(Json::print(&answer))))
    }

    fn trim(&mut self) -> Result<(), Failure> {
        trim(self.view, &mut self.draft, &mut self.profile)
    }
}

pub fn in_namespace(asked: &Asked<'_>) -> bool {
    match asked.caller {
        Caller::Channel { namespace } => super::names::is_in_namespace(asked.session_id, namespace),
        Caller::Admin | Caller::User { .. } => true,
    }
}

/// Writes a profile, and its place in the list of its agent.
pub fn write_profile(draft: &mut Draft<'_>, before: Option<&Profile>, profile: &Profile) {
    if before == Some(profile) {
        return;
    }
    let place = records::activity_of(profile);
    let old_place = before.map(records::activity_of);
    if old_place.as_ref() != Some(&place) {
        if let Some(old) = old_place {
            draft.change(Change::delete_record(old));
        }
        draft.change(Change::put_record(place, Json::adopt("{}")));
    }
    let key = records::profile_key(draft.session_id);
    draft.change(Change::put_record(key, Json::print(profile)));
}

/// A profile that a command changes, with the draft that its changes go to. Commands of turns change profiles too.
pub struct Hand<'s, 'd> {
    pub view: &'s dyn View,
    pub stamp: Stamp,
    pub draft: &'s mut Draft<'d>,
    pub metadata: Option<&'s Object>,
    pub profile: &'s mut Profile,
}

impl Hand<'_, '_> {
    /// Gives an event the next number of the session's stream, keeps it, and tells subscribers.
    pub fn stream(&mut self, kind: &str, fields: Fields, correlation: Option<&str>) {
        let profile = &mut *self.profile;
        profile.counted.event_id += 1;
        let event_id = profile.counted.event_id;
        let mut event = fields;
        event.insert("type".to_owned(), Json::print(&kind));
        event.insert("sessionId".to_owned(), Json::print(&profile.session_id));
        event.insert("eventId".to_owned(), Json::print(&event_id.to_string()));
        if let Some(correlation) = correlation {
            event.insert("correlationId".to_owned(), Json::print(&correlation));
        }
        let text = Json::print(&event);
        profile.event_bytes += text.text().len() as u64;
        let key = records::events_key(self.draft.session_id).with(event_id);
        let payload = Fields::from([
            ("agent_id".to_owned(), Json::print(&profile.agent_id)),
            ("session_id".to_owned(), Json::print(&profile.session_id)),
            ("event_id".to_owned(), Json::print(&event_id)),
            ("event".to_owned(), text.clone()),
        ]);
        self.draft.change(Change::put_record(key, text));
        // Deltas are kept in the stream of the session and not a second time in the change feed.
        let kept = !matches!(kind, "text_delta" | "thinking_delta");
        self.draft.note(EventKind::ProfileEvent, Json::print(&payload), kept, self.metadata);
    }
}

/// Drops the oldest events of a stream that is too long, a few with every command.
pub fn trim(view: &dyn View, draft: &mut Draft<'_>, profile: &mut Profile) -> Result<(), Failure> {
    let length = (profile.counted.event_id + 1).saturating_sub(profile.oldest_event_id);
    if length <= EVENTS_KEPT && profile.event_bytes <= EVENT_BYTES_KEPT {
        return Ok(());
    }
    let mut excess = length.saturating_sub(EVENTS_KEPT);
    let stored = view.records(&records::events_key(draft.session_id), None, DROPPED_AT_ONCE)?;
    for (key, event) in stored {
        if excess == 0 && profile.event_bytes <= EVENT_BYTES_KEPT {
            break;
        }
        let Some(event_id) = key.number(1) else { continue };
        excess = excess.saturating_sub(1);
        profile.oldest_event_id = event_id + 1;
        profile.event_bytes = profile.event_bytes.saturating_sub(event.text().len() as u64);
        draft.change(Change::delete_record(key));
    }
    Ok(())
}

/// The id in the store of the session that a command names.
pub fn id_of(asked: &Asked<'_>) -> SessionId {
    store_id(asked.agent_id, asked.session_id)
}
