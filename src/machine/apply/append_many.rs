//! `session::append-many`: adds a chain of messages, all of them or none.

use super::append::{parent, store_chain};
use super::known;
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::Body;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::message::Message;
use crate::machine::path::Chain;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct AppendMany {
    pub session_id: SessionId,
    /// Parent of the first message; the active leaf when `None`.
    pub parent_id: Option<EntryId>,
    pub origin: Option<Json>,
    pub messages: Vec<Message>,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &AppendMany) -> Result<Outcome, Failure> {
    let session_id = &command.session_id;
    if command.messages.is_empty() {
        return Err(Refusal::EmptyBatch.into());
    }
    let meta = known(view, session_id)?;
    let parent = parent(view, session_id, command.parent_id.as_ref())?;
    let mut chain = Chain::under(view, session_id, parent);
    for (ordinal, message) in (0..).zip(&command.messages) {
        let body = Body::Message(message.clone());
        chain.push(stamp.entry_id(ordinal), stamp.at_ms, command.origin.clone(), body)?;
    }
    store_chain(view, stamp, meta, chain.finish(), |entries| Answer::AppendedMany {
        entry_ids: entries.iter().map(|entry| entry.id.clone()).collect(),
    })
}
