//! `session::messages`: a page of the path root → leaf, oldest first.

use std::sync::Arc;

use super::cursor;
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::message::Role;
use crate::machine::path;
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::section::{self, Part, Section};
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

/// A page that asks for at least so many entries reads whole sections, and a smaller one reads its entries one by one.
const SECTIONS_FROM: u64 = section::ENTRIES / 2;

#[derive(Debug, Clone, Default)]
pub struct MessagesPage {
    pub parts: Vec<Part>,
    pub next_cursor: Option<String>,
}

impl MessagesPage {
    /// Oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.parts.iter().flat_map(Part::entries)
    }

    fn last(&self) -> Option<&Entry> {
        self.parts.last().and_then(|part| part.entries().last())
    }

    /// Adds the entry at this place of a section.
    fn push(&mut self, section: &Arc<Section>, at: usize) {
        match self.parts.last_mut() {
            Some(last) if last.range.end == at && Arc::ptr_eq(&last.section, section) => last.range.end += 1,
            Some(_) | None => self.parts.push(Part { section: section.clone(), range: at..at + 1 }),
        }
    }
}

/// Pages are equal if their entries are, however these are divided into parts.
impl PartialEq for MessagesPage {
    fn eq(&self, other: &MessagesPage) -> bool {
        self.next_cursor == other.next_cursor && self.entries().eq(other.entries())
    }
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
            None => Ok(MessagesPage::default()),
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
    let mut page = MessagesPage::default();
    // What was looked at, and what of it matched.
    let (mut scanned, mut scanned_bytes, mut found, mut bytes) = (0, 0, 0, 0);
    let mut count = query.limit.saturating_add(1);
    loop {
        let parts = path.next_parts(count as u64)?;
        let Some(last) = parts.last().and_then(|part| part.entries().last()) else { return Ok(page) };
        for Part { section, range } in &parts {
            for (at, entry) in range.clone().zip(&section.entries()[range.clone()]) {
                (scanned, scanned_bytes) = (scanned + 1, scanned_bytes + entry.body.bytes());
                if !query.wants(entry) {
                    continue;
                }
                bytes += entry.body.bytes();
                if found == query.limit || (bytes > PAGE_BYTES_MAX && found > 0) {
                    page.next_cursor = page.last().map(|last| cursor::print_messages(&last.id));
                    return Ok(page);
                }
                found += 1;
                page.push(section, at);
            }
        }
        let spent = scanned > query.limit.saturating_add(SCAN_MAX) || scanned_bytes > PAGE_BYTES_MAX;
        if spent && !path.is_at_end() {
            page.next_cursor = Some(cursor::print_messages(&last.id));
            return Ok(page);
        }
        count = CHUNK_MAX.max(query.limit).min(2 * count);
    }
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

    /// The next entries, in parts. Nothing at the end of the path.
    fn next_parts(&mut self, count: u64) -> Result<Vec<Part>, Fault> {
        if let Some(parts) = self.sections(count)? {
            self.next += parts.iter().map(|part| part.range.len() as u64).sum::<u64>();
            return Ok(parts);
        }
        let chunk = self.next_chunk(count)?.map(|chunk| {
            let range = 0..chunk.len();
            Part { section: Arc::new(Section::of(chunk)), range }
        });
        Ok(chunk.into_iter().collect())
    }

    /// The next entries from sections. `None` if there are few of them, or if a section cannot be had whole.
    fn sections(&self, count: u64) -> Result<Option<Vec<Part>>, Fault> {
        let (None, Some(leaf)) = (&self.walked, &self.leaf.place) else { return Ok(None) };
        if count < SECTIONS_FROM || self.next > leaf.depth || !self.view.keeps_sections() {
            return Ok(None);
        }
        let last = leaf.depth.min(self.next.saturating_add(count - 1));
        let mut end = (section::depths(section::number(last)).end - 1).min(leaf.depth);
        let mut end_id = match path::ancestor_at(self.view, self.session_id, &self.leaf, end)? {
            Some(entry) => entry.id,
            None => return Ok(None),
        };
        let mut parts = Vec::new();
        // From the newest section to the oldest: the first entry of one names the last of the one before.
        loop {
            let Some(section) = self.view.section(self.session_id, &end_id, end)? else { return Ok(None) };
            let first = section::depths(section::number(end)).start;
            let from = self.next.saturating_sub(first) as usize;
            let to = (end.min(last) - first + 1) as usize;
            let before = section.entries().first().and_then(|entry| entry.parent_id.clone());
            parts.push(Part { section, range: from..to });
            if first <= self.next {
                break;
            }
            let Some(before) = before else { return Ok(None) };
            (end, end_id) = (first - 1, before);
        }
        parts.reverse();
        Ok(Some(parts))
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
