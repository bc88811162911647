//! `session::fork`: copies the path root → entry into a new, independent session.

use std::collections::BTreeMap;

use super::create::{CreateSession, new_session};
use super::{Draft, known};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::event::Happened;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::path::{self, Chain};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct ForkSession {
    pub session_id: SessionId,
    pub entry_id: EntryId,
    /// The source's title when `None`.
    pub title: Option<String>,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &ForkSession) -> Result<Outcome, Failure> {
    let source = known(view, &command.session_id)?;
    let unknown =
        || Refusal::EntryUnknown { session_id: command.session_id.clone(), entry_id: command.entry_id.clone() };
    let leaf = view.entry(&command.session_id, &command.entry_id)?.ok_or_else(unknown)?;
    let path = path::walk(view, &command.session_id, &leaf)?;
    let copy_of: BTreeMap<EntryId, EntryId> =
        (0..).zip(&path).map(|(ordinal, entry)| (entry.id.clone(), stamp.entry_id(ordinal))).collect();

    let session_id = stamp.session_id();
    let mut chain = Chain::under(view, &session_id, None);
    for entry in &path {
        let body = copied_body(entry, &copy_of);
        chain.push(copy_of[&entry.id].clone(), entry.timestamp, entry.origin.clone(), body)?;
    }
    let copies = chain.finish();

    let mut draft = Draft::new(view, &session_id)?;
    let given = CreateSession {
        title: command.title.clone().unwrap_or(source.title),
        description: source.description,
        metadata: source.metadata,
    };
    let meta = SessionMeta {
        message_count: copies.iter().filter(|entry| entry.is_message()).count() as u64,
        forked_from: Some(command.session_id.clone()),
        ..new_session(&session_id, stamp, &given)
    };
    let leaf_id = copy_of[&command.entry_id].clone();
    draft.change(Change::put_meta(meta.clone()));
    for copy in copies {
        draft.change(Change::put_entry(&session_id, copy));
    }
    draft.change(Change::set_leaf(&session_id, leaf_id));
    draft.report(Happened::created(&meta), meta.metadata.as_ref());
    Ok(draft.answer(stamp, Answer::Forked { meta }))
}

/// A compaction record names the entry where its tail starts. In the copy it must name the copied entry.
fn copied_body(entry: &Entry, copy_of: &BTreeMap<EntryId, EntryId>) -> Body {
    let Body::Custom { custom_type, data } = &entry.body else { return entry.body.clone() };
    if custom_type != "compaction" {
        return entry.body.clone();
    }
    let data = data.with_field("tail_start_entry_id", |tail| {
        let tail: EntryId = serde_json::from_str(tail).ok()?;
        copy_of.get(&tail).map(Json::print)
    });
    Body::Custom { custom_type: custom_type.clone(), data }
}
