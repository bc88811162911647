//! `session::messages`: a page of the path root → leaf, oldest first.

use super::cursor;
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::message::Role;
use crate::machine::path;
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::view::View;

/// The bodies of one page together. Even with one more body of the largest size, a page fits a frame of 64 MiB.
const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The entries that one call looks at beyond a full page. If few of them match, the page is short and has a cursor.
const SCAN_MAX: usize = 1000;

/// The entries that are read at a time while few of them match.
const CHUNK_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub struct MessagesQuery {
    pub session_id: SessionId,
    /// Read the path to this entry instead of the active leaf.
    pub from_entry_id: Option<EntryId>,
    /// Only messages with these roles, and no custom entries.
    pub roles: Option<Vec<Role>>,
    pub include_custom: bool,
    pub cursor: Option<String>,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MessagesPage {
    pub entries: Vec<Entry>,
    pub next_cursor: Option<String>,
}

impl MessagesQuery {
    fn wants(&self, entry: &Entry) -> bool {
        match (&entry.body, &self.roles) {
            (Body::Message(message), Some(roles)) => roles.contains(&message.role),
            (Body::Message(_), None) => true,
            (Body::Custom { .. }, Some(_)) => false,
            (Body::Custom { .. }, None) => self.include_custom,
        }
    }
}

pub fn query(view: &dyn View, query: &MessagesQuery) -> Result<MessagesPage, Failure> {
    let session_id = &query.session_id;
    if view.meta(session_id)?.is_none() {
        return Err(Refusal::SessionUnknown(session_id.clone()).into());
    }
    let after = query.cursor.as_ref().map(|text| cursor::parse_messages(text)).transpose()?;
    let Some(leaf) = leaf(view, session_id, query.from_entry_id.as_ref())? else {
        return match after {
            Some(_) => Err(left_the_path().into()),
            None => Ok(MessagesPage { entries: Vec::new(), next_cursor: None }),
        };
    };
    let mut path = Path::to(view, session_id, leaf)?;
    if let Some(entry_id) = after {
        path.skip_past(&entry_id)?;
    }
    page(query, &mut path)
}

/// The last entry of the path: the asked one, or else the active leaf.
pub(super) fn leaf(view: &dyn View, session_id: &SessionId, asked: Option<&EntryId>) -> Result<Option<Entry>, Failure> {
    match asked {
        Some(entry_id) => {
            let unknown = || Refusal::EntryUnknown { session_id: session_id.clone(), entry_id: entry_id.clone() };
            Ok(Some(view.entry(session_id, entry_id)?.ok_or_else(unknown)?))
        }
        None => match view.leaf(session_id)? {
            Some(entry_id) => Ok(view.entry(session_id, &entry_id)?),
            None => Ok(None),
        },
    }
}

fn page(query: &MessagesQuery, path: &mut Path<'_>) -> Result<MessagesPage, Failure> {
    let mut entries: Vec<Entry> = Vec::new();
    // What was looked at, and what of it matched.
    let (mut scanned, mut scanned_bytes, mut bytes) = (0, 0, 0);
    let mut count = query.limit.saturating_add(1);
    while let Some(chunk) = path.next_chunk(count as u64)? {
        let mut last = None;
        for entry in chunk {
            (scanned, scanned_bytes) = (scanned + 1, scanned_bytes + entry.body.bytes());
            last = Some(entry.id.clone());
            if !query.wants(&entry) {
                continue;
            }
            bytes += entry.body.bytes();
            if entries.len() == query.limit || (bytes > PAGE_BYTES_MAX && !entries.is_empty()) {
                let next_cursor = entries.last().map(|last| cursor::print_messages(&last.id));
                return Ok(MessagesPage { entries, next_cursor });
            }
            entries.push(entry);
        }
        let spent = scanned > query.limit.saturating_add(SCAN_MAX) || scanned_bytes > PAGE_BYTES_MAX;
        if spent && !path.is_at_end() {
            return Ok(MessagesPage { entries, next_cursor: last.map(|last| cursor::print_messages(&last)) });
        }
        count = CHUNK_MAX.max(query.limit).min(2 * count);
    }
    Ok(MessagesPage { entries, next_cursor: None })
}

fn left_the_path() -> Refusal {
    Refusal::CursorInvalid("the cursor's entry is not on the path any more: start without a cursor".to_owned())
}

/// A path that is read in chunks: by depth if the leaf has a place, otherwise from one walk.
pub(super) struct Path<'a> {
    view: &'a dyn View,
    session_id: &'a SessionId,
    leaf: Entry,
    /// The depth (after a walk: the rank) of the next entry to read.
    next: u64,
    walked: Option<Vec<Entry>>,
}

impl<'a> Path<'a> {
    pub(super) fn to(view: &'a dyn View, session_id: &'a SessionId, leaf: Entry) -> Result<Path<'a>, Fault> {
        let walked = match leaf.place {
            Some(_) => None,
            None => Some(path::walk(view, session_id, &leaf)?),
        };
        Ok(Path { view, session_id, leaf, next: 0, walked })
    }

    /// Continues after the entry of a cursor, which must be on this path.
    pub(super) fn skip_past(&mut self, entry_id: &EntryId) -> Result<(), Failure> {
        let rank = match &self.walked {
            Some(walked) => walked.iter().position(|entry| entry.id == *entry_id).map(|rank| rank as u64),
            None => self.depth_on_path(entry_id)?,
        };
        self.next = rank.ok_or_else(left_the_path)? + 1;
        Ok(())
    }

    fn depth_on_path(&self, entry_id: &EntryId) -> Result<Option<u64>, Fault> {
        let Some(entry) = self.view.entry(self.session_id, entry_id)? else { return Ok(None) };
        let Some(place) = &entry.place else { return Ok(None) };
        let ancestor = path::ancestor_at(self.view, self.session_id, &self.leaf, place.depth)?;
        Ok(ancestor.filter(|ancestor| ancestor.id == *entry_id).map(|_| place.depth))
    }

    /// Continues at this depth.
    pub(super) fn start_at(&mut self, depth: u64) {
        self.next = depth;
    }

    /// The number of its entries.
    pub(super) fn length(&self) -> u64 {
        match (&self.walked, &self.leaf.place) {
            (Some(walked), _) => walked.len() as u64,
            (None, Some(place)) => place.depth + 1,
            (None, None) => 0,
        }
    }

    /// Whether the last chunk reached the leaf.
    fn is_at_end(&self) -> bool {
        self.next >= self.length()
    }

    pub(super) fn next_chunk(&mut self, count: u64) -> Result<Option<Vec<Entry>>, Fault> {
        let chunk: Vec<Entry> = match &self.walked {
            Some(walked) => walked.iter().skip(self.next as usize).take(count as usize).cloned().collect(),
            None => match path::slice(self.view, self.session_id, &self.leaf, self.next, count, PAGE_BYTES_MAX)? {
                Some(chunk) => chunk,
                None => {
                    // A raw delete removed an ancestor after the leaf was placed: walk what remains.
                    self.walked = Some(path::walk(self.view, self.session_id, &self.leaf)?);
                    return self.next_chunk(count);
                }
            },
        };
        self.next += chunk.len() as u64;
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }
}
