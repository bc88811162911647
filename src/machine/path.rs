//! Owns: the line from a root to an entry: where a new entry stands on it, any ancestor of it, any slice of it.
//! Reads: View. Never: a walk over the whole path where a place is known.
//!
//! Every placed entry keeps its depth and one jump pointer to an ancestor, chosen by the skew-binary rule (Myers,
//! "An applicative random-access stack", 1983): an entry whose parent's jump and that jump's jump span equal
//! distances jumps over both, any other entry jumps to its parent. An ancestor at a given depth is then at most
//! O(log depth) reads away, so a page of a transcript costs the page, at any length.

use std::collections::{BTreeSet, VecDeque};

use super::entry::{Body, Entry, Place};
use super::ids::{EntryId, SessionId};
use super::json::Json;
use super::refusal::Fault;
use super::view::View;

/// Entries being hung one below the other under an existing parent (or as a new root).
pub struct Chain<'a, V: View + ?Sized> {
    view: &'a V,
    session_id: &'a SessionId,
    parent: Option<Entry>,
    added: Vec<Entry>,
}

impl<'a, V: View + ?Sized> Chain<'a, V> {
    pub fn under(view: &'a V, session_id: &'a SessionId, parent: Option<Entry>) -> Chain<'a, V> {
        Chain { view, session_id, parent, added: Vec::new() }
    }

    /// Hangs the next entry below the last one.
    pub fn push(&mut self, id: EntryId, timestamp: i64, origin: Option<Json>, body: Body) -> Result<(), Fault> {
        let parent = self.added.last().or(self.parent.as_ref());
        let place = match parent {
            None => Some(root_place(&id)),
            Some(parent) => self.place_below(parent)?,
        };
        let parent_id = parent.map(|parent| parent.id.clone());
        self.added.push(Entry { id, parent_id, timestamp, revision: 0, origin, body, place });
        Ok(())
    }

    pub fn finish(self) -> Vec<Entry> {
        self.added
    }

    fn place_below(&self, parent: &Entry) -> Result<Option<Place>, Fault> {
        let Some(place) = &parent.place else { return Ok(None) };
        let jump = match place.jump == parent.id {
            true => None,
            false => self.find(place)?,
        };
        Ok(place_below(parent, jump.as_ref()))
    }

    /// The entry a place jumps to: among those just added, or in the state.
    fn find(&self, place: &Place) -> Result<Option<Entry>, Fault> {
        let first = self.added.first().and_then(|entry| entry.place.as_ref()).map(|place| place.depth);
        if let Some(first) = first.filter(|first| place.jump_depth >= *first) {
            return Ok(self.added.get((place.jump_depth - first) as usize).cloned());
        }
        match &self.parent {
            Some(parent) if parent.id == place.jump => Ok(Some(parent.clone())),
            _ => self.view.entry(self.session_id, &place.jump),
        }
    }
}

fn root_place(id: &EntryId) -> Place {
    Place { depth: 0, jump: id.clone(), jump_depth: 0 }
}

/// The place of a child of `parent`; `jump` is the entry the parent jumps to (`None` for a root).
fn place_below(parent: &Entry, jump: Option<&Entry>) -> Option<Place> {
    let place = parent.place.as_ref()?;
    let depth = place.depth + 1;
    if let Some(over) = jump.and_then(|jump| jump.place.as_ref())
        && place.depth - place.jump_depth == place.jump_depth - over.jump_depth
    {
        return Some(Place { depth, jump: over.jump.clone(), jump_depth: over.jump_depth });
    }
    Some(Place { depth, jump: parent.id.clone(), jump_depth: place.depth })
}

/// The place of a raw entry: known when it is a root or its parent is placed.
pub fn place_of<V: View + ?Sized>(view: &V, session_id: &SessionId, entry: &Entry) -> Result<Option<Place>, Fault> {
    let Some(parent_id) = &entry.parent_id else { return Ok(Some(root_place(&entry.id))) };
    let Some(parent) = view.entry(session_id, parent_id)? else { return Ok(None) };
    let Some(place) = &parent.place else { return Ok(None) };
    let jump = match place.jump == parent.id {
        true => None,
        false => view.entry(session_id, &place.jump)?,
    };
    Ok(place_below(&parent, jump.as_ref()))
}

/// The ancestor of `entry` (or itself) at `depth`; `None` when it has no place or is not that deep.
pub fn ancestor_at<V: View + ?Sized>(
    view: &V,
    session_id: &SessionId,
    entry: &Entry,
    depth: u64,
) -> Result<Option<Entry>, Fault> {
    let mut here = entry.clone();
    loop {
        let Some(place) = &here.place else { return Ok(None) };
        if place.depth == depth {
            return Ok(Some(here));
        }
        if place.depth < depth {
            return Ok(None);
        }
        let next = match (place.jump_depth >= depth, &here.parent_id) {
            (true, _) => place.jump.clone(),
            (false, Some(parent_id)) => parent_id.clone(),
            (false, None) => return Ok(None),
        };
        let Some(next) = view.entry(session_id, &next)? else { return Ok(None) };
        here = next;
    }
}

/// Up to `count` entries of the path root → `leaf` that start at `first` (a depth), oldest first; fewer when their
/// bodies exceed `bytes_max`, but at least one. `None` when the leaf has no place; then the path has to be walked.
pub fn slice<V: View + ?Sized>(
    view: &V,
    session_id: &SessionId,
    leaf: &Entry,
    first: u64,
    count: u64,
    bytes_max: usize,
) -> Result<Option<Vec<Entry>>, Fault> {
    let Some(leaf_place) = &leaf.place else { return Ok(None) };
    if first > leaf_place.depth || count == 0 {
        return Ok(Some(Vec::new()));
    }
    let last = leaf_place.depth.min(first.saturating_add(count - 1));
    let Some(mut here) = ancestor_at(view, session_id, leaf, last)? else { return Ok(None) };
    let mut entries: VecDeque<Entry> = VecDeque::new();
    let mut bytes = 0;
    for depth in (first..=last).rev() {
        let parent_id = here.parent_id.clone();
        bytes += here.body.bytes();
        entries.push_front(here);
        // The walk goes from the newest to the oldest, and the oldest are wanted: the newest make room.
        while bytes > bytes_max && entries.len() > 1 {
            bytes -= entries.pop_back().map_or(0, |newest| newest.body.bytes());
        }
        if depth == first {
            break;
        }
        let parent = match parent_id {
            Some(parent_id) => view.entry(session_id, &parent_id)?,
            None => None,
        };
        let Some(parent) = parent else { return Ok(None) };
        here = parent;
    }
    Ok(Some(entries.into()))
}

/// The whole path root → `leaf`, oldest first, by walking. Ends where an ancestor is missing or would repeat, which
/// only raw writes can bring about.
pub fn walk<V: View + ?Sized>(view: &V, session_id: &SessionId, leaf: &Entry) -> Result<Vec<Entry>, Fault> {
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    let mut here = Some(leaf.clone());
    while let Some(entry) = here {
        if !seen.insert(entry.id.clone()) {
            break;
        }
        here = match &entry.parent_id {
            Some(parent_id) => view.entry(session_id, parent_id)?,
            None => None,
        };
        entries.push(entry);
    }
    entries.reverse();
    Ok(entries)
}
