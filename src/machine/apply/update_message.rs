//! `session::update-message`: replaces a message's content. An expected revision prevents lost updates.

use super::{Draft, known, long, touched};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::Happened;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::{Json, List};
use crate::machine::message::{ContentBlock, Message, Role};
use crate::machine::patch::Patch;
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct UpdateMessage {
    pub session_id: SessionId,
    pub entry_id: EntryId,
    pub content: NewContent,
    /// JSON text; only for function results and custom messages.
    pub details: Option<Json>,
    pub expected_revision: Option<u64>,
    pub origin: Option<Json>,
}

/// The new content, as JSON text of its blocks. The request was validated before.
#[derive(Debug, Clone, PartialEq)]
pub enum NewContent {
    Full(Json),
    /// Only the difference to the content of one revision.
    Patch(Patch),
}

impl UpdateMessage {
    /// The same command with a patch instead of the whole content; `None` if a patch would not be smaller.
    /// Apply answers `BaseMoved` if the message changed in the meantime. The proposer then sends the whole content.
    pub fn shrunk(&self, view: &dyn View) -> Result<Option<UpdateMessage>, Fault> {
        let NewContent::Full(content) = &self.content else { return Ok(None) };
        let Some(entry) = view.entry(&self.session_id, &self.entry_id)? else { return Ok(None) };
        let Body::Message(message) = &entry.body else { return Ok(None) };
        let base = message.content();
        let patch = base.and_then(|base| Patch::between(entry.revision, base.text(), content.text()));
        Ok(patch.map(|patch| UpdateMessage { content: NewContent::Patch(patch), ..self.clone() }))
    }
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &UpdateMessage) -> Result<Outcome, Failure> {
    let (session_id, entry_id) = (&command.session_id, &command.entry_id);
    let meta = known(view, session_id)?;
    let unknown = || Refusal::EntryUnknown { session_id: session_id.clone(), entry_id: entry_id.clone() };
    let entry = view.entry(session_id, entry_id)?.ok_or_else(unknown)?;
    let Body::Message(message) = &entry.body else {
        return Err(Refusal::NotAMessage(entry_id.clone()).into());
    };
    if command.details.is_some() && matches!(message.role, Role::User | Role::Assistant) {
        return Err(Refusal::DetailsNotSupported(entry_id.clone()).into());
    }
    if command.expected_revision.is_some_and(|expected| expected != entry.revision) {
        return Ok(Outcome::unchanged(Answer::Updated { updated: false, revision: entry.revision }));
    }

    // Requests are validated before they are proposed. If a text does not parse here, every replica refuses it.
    let unreadable =
        |what: &str| Refusal::RequestInvalid(format!("entry {:?}: {what} cannot be read", entry_id.as_str()));
    let text = match &command.content {
        NewContent::Full(content) => content.clone(),
        NewContent::Patch(patch) => match patched(patch, &entry, message) {
            Some(text) => Json::adopt(&text),
            None => return Ok(Outcome::unchanged(Answer::BaseMoved)),
        },
    };
    let content: List<ContentBlock> = text.parse().map_err(|_| unreadable("content"))?;
    drop(text);
    let message =
        message.with_content(content, command.details.clone()).ok_or_else(|| unreadable("the stored message"))?;
    // Only a raw write can set the largest revision. There is no next one, so every replica refuses.
    let last = || Refusal::RequestInvalid(format!("entry {:?}: no revision follows {}", entry_id.as_str(), u64::MAX));
    let revision = entry.revision.checked_add(1).ok_or_else(last)?;
    let mut draft = Draft::new(view, session_id)?;
    let body = Body::Message(message.clone());
    let entry = Entry { revision, body, ..entry };
    draft.changes.extend(long::fork::follow(view, session_id, &entry)?);
    draft.change(Change::put_entry(session_id, entry));
    let updated = Happened::MessageUpdated {
        entry_id: entry_id.clone(),
        message,
        revision,
        origin: command.origin.clone(),
        timestamp: stamp.at_ms,
    };
    draft.report(updated, meta.metadata.as_ref());
    draft.change(Change::put_meta(touched(meta, stamp)));
    Ok(draft.answer(stamp, Answer::Updated { updated: true, revision }))
}

fn patched(patch: &Patch, entry: &Entry, message: &Message) -> Option<String> {
    if patch.base_revision != entry.revision {
        return None;
    }
    patch.onto(message.content()?.text())
}
