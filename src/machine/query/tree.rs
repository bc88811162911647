//! `session::tree`: the entries of a session without their bodies, in the order of their ids, page by page. It shows where
//! a conversation branches.

use super::cursor;
use crate::machine::entry::Entry;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::view::View;

/// The bodies that one page reads. They are not returned, so a page with large ones is short instead of slow.
const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq)]
pub struct TreeQuery {
    pub session_id: SessionId,
    pub cursor: Option<String>,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TreePage {
    pub entries: Vec<Entry>,
    pub active_leaf: Option<EntryId>,
    pub next_cursor: Option<String>,
}

pub fn query(view: &dyn View, query: &TreeQuery) -> Result<TreePage, Failure> {
    let session_id = &query.session_id;
    if view.meta(session_id)?.is_none() {
        return Err(Refusal::SessionUnknown(session_id.clone()).into());
    }
    let after = query.cursor.as_ref().map(|text| cursor::parse_tree(text)).transpose()?;
    let entries = view.entries_after(session_id, after.as_ref(), query.limit, PAGE_BYTES_MAX)?;
    let next_cursor = match entries.last() {
        Some(last) if !view.entries_after(session_id, Some(&last.id), 1, 0)?.is_empty() => {
            Some(cursor::print_tree(&last.id))
        }
        Some(_) | None => None,
    };
    Ok(TreePage { entries, active_leaf: view.leaf(session_id)?, next_cursor })
}
