//! `session::path`: a window of the path root → leaf, by depth. It opens a long transcript at its end, and scrolls both
//! ways. One window reads a bounded number of entries and bytes.

use super::messages::{self, Path};
use crate::machine::entry::Entry;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::view::View;

#[derive(Debug, Clone, PartialEq)]
pub struct WindowQuery {
    pub session_id: SessionId,
    /// The last entry of the path; `None` for the active leaf.
    pub from_entry_id: Option<EntryId>,
    /// The depth of the first entry; `None` for the end of the path.
    pub first: Option<u64>,
    pub limit: usize,
    /// Cut every string of the bodies after this many characters.
    pub strings_max: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    pub entries: Vec<Entry>,
    /// The depth of the first entry.
    pub first: u64,
    /// The number of entries of the whole path.
    pub length: u64,
    /// The last entry of the path.
    pub leaf: Option<EntryId>,
}

pub fn query(view: &dyn View, query: &WindowQuery) -> Result<Window, Failure> {
    let session_id = &query.session_id;
    if view.meta(session_id)?.is_none() {
        return Err(Refusal::SessionUnknown(session_id.clone()).into());
    }
    let Some(leaf) = messages::leaf(view, session_id, query.from_entry_id.as_ref())? else {
        return Ok(Window { entries: Vec::new(), first: 0, length: 0, leaf: None });
    };
    let leaf_id = leaf.id.clone();
    let mut path = Path::to(view, session_id, leaf)?;
    let length = path.length();
    let first = query.first.unwrap_or_else(|| length.saturating_sub(query.limit as u64));
    path.start_at(first);
    let mut entries = path.next_chunk(query.limit as u64)?.unwrap_or_default();
    if let Some(chars_max) = query.strings_max {
        entries.iter_mut().for_each(|entry| entry.body.shorten(chars_max));
    }
    Ok(Window { entries, first, length, leaf: Some(leaf_id) })
}
