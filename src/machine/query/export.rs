//! `session::export`: a page of a session's whole tree: the path to the active leaf first, oldest first, then the
//! entries of the other branches in the order of their ids. One page reads a bounded number of entries and bytes.

use std::collections::BTreeSet;

use super::cursor::{self, ExportPoint};
use super::messages::Path;
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::message::Role;
use crate::machine::path;
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::toolpath::export::Options;
use crate::machine::toolpath::{PATH_ENTRY, step};
use crate::machine::view::View;

/// Bodies of one page together. A step shows its entry twice, and a page with one more body of the largest size must
/// still fit a frame of 64 MiB.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq)]
pub struct ExportQuery {
    pub session_id: SessionId,
    pub options: Options,
    pub cursor: Option<String>,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ExportPage {
    pub session_id: SessionId,
    /// How much of it is to be told, as it was asked.
    pub options: Options,
    /// What the session is; only on the first page.
    pub opening: Option<Opening>,
    /// The entry that keeps what a foreign document said about its path.
    pub document: Option<Entry>,
    pub steps: Vec<ExportedStep>,
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Opening {
    pub meta: SessionMeta,
    pub leaf: Option<EntryId>,
    /// The step the path ends at: the leaf, or the step whose result the leaf is.
    pub head: Option<EntryId>,
}

/// An entry with what its step tells about its neighbours.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportedStep {
    pub entry: Entry,
    pub parent: Option<EntryId>,
    pub results: Vec<Entry>,
}

pub fn query(view: &dyn View, query: &ExportQuery) -> Result<ExportPage, Failure> {
    let session_id = &query.session_id;
    let meta = view.meta(session_id)?.ok_or_else(|| Refusal::SessionUnknown(session_id.clone()))?;
    let document = view.entry(session_id, &EntryId::from(PATH_ENTRY))?.filter(step::is_path_entry);
    let mut export = Export { view, session_id, steps: Vec::new(), bytes: 0, limit: query.limit };
    let (opening, from) = match &query.cursor {
        Some(text) => (None, cursor::parse_export(text)?),
        None => {
            let leaf = view.leaf(session_id)?;
            let head = export.visible_id(leaf.as_ref())?;
            (Some(Opening { meta, leaf: leaf.clone(), head }), ExportPoint { leaf, on_path: true, after: None })
        }
    };
    let next = match from.on_path {
        true => match export.path(&from)? {
            // A page that has room left goes on with the branches.
            branches if !branches.on_path && export.steps.len() < query.limit => export.branches(&branches)?,
            next => Some(next),
        },
        false => export.branches(&from)?,
    };
    let next_cursor = next.as_ref().map(cursor::print_export);
    let (session_id, options) = (session_id.clone(), query.options.clone());
    Ok(ExportPage { session_id, options, opening, document, steps: export.steps, next_cursor })
}

/// A page as it is put together.
struct Export<'a> {
    view: &'a dyn View,
    session_id: &'a SessionId,
    steps: Vec<ExportedStep>,
    bytes: usize,
    limit: usize,
}

impl Export<'_> {
    /// The path to the leaf, from where the page before ended. Gives the start of the next page.
    fn path(&mut self, from: &ExportPoint) -> Result<ExportPoint, Failure> {
        let branches = ExportPoint { on_path: false, after: None, ..from.clone() };
        let leaf = match &from.leaf {
            Some(leaf) => self.view.entry(self.session_id, leaf)?,
            None => None,
        };
        let Some(leaf) = leaf else { return Ok(branches) };
        let mut path = Path::to(self.view, self.session_id, leaf)?;
        if let Some(after) = &from.after {
            path.skip_past(after)?;
        }
        let mut ahead: Vec<Entry> = Vec::new();
        let (mut at, mut scanned) = (0, 0);
        let mut last = from.after.clone();
        loop {
            if at == ahead.len() {
                match path.next_chunk(self.limit as u64 + 1)? {
                    Some(chunk) => (ahead, at) = (chunk, 0),
                    None => return Ok(branches),
                }
            }
            let entry = ahead[at].clone();
            // Entries without a step count too: a page scans no more of them than it could show.
            if self.is_full(&entry) || scanned > 4 * self.limit {
                return Ok(ExportPoint { after: last, ..from.clone() });
            }
            (at, scanned) = (at + 1, scanned + 1);
            last = Some(entry.id.clone());
            if is_hidden(&entry) {
                continue;
            }
            let results = match step::has_calls(&entry) {
                true => self.results(&entry, Some((&mut path, &mut ahead, at)))?,
                false => Vec::new(),
            };
            self.push(entry, results)?;
        }
    }

    /// The entries off the path.
    fn branches(&mut self, from: &ExportPoint) -> Result<Option<ExportPoint>, Failure> {
        let leaf = match &from.leaf {
            Some(leaf) => self.view.entry(self.session_id, leaf)?,
            None => None,
        };
        let limit = self.limit.saturating_sub(self.steps.len()).max(1);
        let bytes_max = PAGE_BYTES_MAX.saturating_sub(self.bytes);
        let scanned = self.view.entries_after(self.session_id, from.after.as_ref(), limit, bytes_max)?;
        let Some(last) = scanned.last().map(|entry| entry.id.clone()) else { return Ok(None) };
        let on_path = self.on_path(leaf.as_ref(), &scanned)?;
        for entry in scanned {
            if is_hidden(&entry) || on_path.contains(&entry.id) {
                continue;
            }
            let results = match step::foreign(&entry).is_some() {
                true => self.results(&entry, None)?,
                false => Vec::new(),
            };
            self.push(entry, results)?;
        }
        let is_last = self.view.entries_after(self.session_id, Some(&last), 1, 0)?.is_empty();
        Ok((!is_last).then(|| ExportPoint { after: Some(last), ..from.clone() }))
    }

    /// Which of the entries stand on the path to the leaf. They are asked for from the deepest to the shallowest, so that
    /// each search starts where the last one ended.
    fn on_path(&self, leaf: Option<&Entry>, entries: &[Entry]) -> Result<BTreeSet<EntryId>, Fault> {
        let mut found = BTreeSet::new();
        let Some(leaf) = leaf else { return Ok(found) };
        if leaf.place.is_none() {
            let walked = path::walk(self.view, self.session_id, leaf)?;
            return Ok(walked.into_iter().map(|entry| entry.id).collect());
        }
        let mut placed: Vec<(u64, &EntryId)> =
            entries.iter().filter_map(|entry| Some((entry.place.as_ref()?.depth, &entry.id))).collect();
        placed.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
        let mut here = leaf.clone();
        for (depth, id) in placed {
            if here.place.as_ref().is_some_and(|place| place.depth < depth) {
                continue;
            }
            let Some(ancestor) = path::ancestor_at(self.view, self.session_id, &here, depth)? else { break };
            if ancestor.id == *id {
                found.insert(id.clone());
            }
            here = ancestor;
        }
        Ok(found)
    }

    /// The answers to an entry's calls: those imported with it, and the function results that follow it on the path
    /// before somebody speaks again.
    fn results(
        &self,
        entry: &Entry,
        following: Option<(&mut Path<'_>, &mut Vec<Entry>, usize)>,
    ) -> Result<Vec<Entry>, Fault> {
        let mut results = Vec::new();
        if step::foreign(entry).is_some() {
            for id in step::result_ids(entry) {
                let imported = self.view.entry(self.session_id, &id)?;
                results.extend(
                    imported.filter(|result| step::synthetic_owner(result).as_deref() == Some(entry.id.as_str())),
                );
            }
        }
        let Some((path, ahead, mut at)) = following else { return Ok(results) };
        let end = at + step::ANSWERS_WITHIN;
        while at < end {
            if at == ahead.len() {
                match path.next_chunk(64)? {
                    Some(mut chunk) => ahead.append(&mut chunk),
                    None => break,
                }
            }
            let Body::Message(message) = &ahead[at].body else {
                at += 1;
                continue;
            };
            match message.role {
                Role::FunctionResult if step::synthetic_owner(&ahead[at]).is_none() => results.push(ahead[at].clone()),
                Role::FunctionResult | Role::Custom => {}
                Role::User | Role::Assistant => break,
            }
            at += 1;
        }
        Ok(results)
    }

    fn push(&mut self, entry: Entry, results: Vec<Entry>) -> Result<(), Fault> {
        let parent = self.visible_id(entry.parent_id.as_ref())?;
        self.bytes += size(&entry) + results.iter().map(size).sum::<usize>();
        self.steps.push(ExportedStep { entry, parent, results });
        Ok(())
    }

    /// The id of the step that shows an entry: its own, or that of the step whose result it is.
    fn visible_id(&self, id: Option<&EntryId>) -> Result<Option<EntryId>, Fault> {
        let Some(id) = id else { return Ok(None) };
        // Most entries are no results, and their ids tell.
        if !step::may_be_result(id.as_str()) {
            return Ok(Some(id.clone()));
        }
        let entry = self.view.entry(self.session_id, id)?;
        let owner = entry.as_ref().and_then(step::synthetic_owner).map(EntryId::from);
        Ok(Some(owner.unwrap_or_else(|| id.clone())))
    }

    fn is_full(&self, next: &Entry) -> bool {
        let is_long = self.steps.len() >= self.limit;
        is_long || (!self.steps.is_empty() && self.bytes + size(next) > PAGE_BYTES_MAX)
    }
}

/// Entries that have no step of their own.
fn is_hidden(entry: &Entry) -> bool {
    step::is_path_entry(entry) || step::synthetic_owner(entry).is_some()
}

fn size(entry: &Entry) -> usize {
    entry.body.bytes() + entry.origin.as_ref().map_or(0, |origin| origin.text().len())
}
