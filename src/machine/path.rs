//! Owns: the path from a root to an entry: the place of a new entry on it, the ancestor at a depth, a slice of it.
//! Reads: View. Never: a walk over the whole path where a place is known.
//!
//! Every placed entry has its depth and one jump pointer to an ancestor, chosen by the skew-binary rule (Myers,
//! "An applicative random-access stack", 1983). If the jump of the parent and the jump after it span equal distances,
//! the entry jumps over both; otherwise it jumps to its parent. An ancestor at a given depth is then at most
//! O(log depth) reads away. So the cost of one page does not depend on the length of the transcript.

use std::collections::{BTreeSet, VecDeque};

use super::entry::{Body, Entry, Place};
use super::ids::{EntryId, SessionId};
use super::json::Json;
use super::refusal::Fault;
use super::view::View;

/// New entries, each the child of the one before, under an existing parent (or as a new root).
pub struct Chain<'a> {
    view: &'a dyn View,
    session_id: &'a SessionId,
    parent: Option<Parent>,
    added: Vec<Entry>,
}

/// The entry that a new one is put below.
pub struct Parent {
    pub id: EntryId,
    pub place: Option<Place>,
}

impl From<Entry> for Parent {
    fn from(entry: Entry) -> Parent {
        Parent { id: entry.id, place: entry.place }
    }
}

impl<'a> Chain<'a> {
    pub fn under(view: &'a dyn View, session_id: &'a SessionId, parent: Option<Parent>) -> Chain<'a> {
        Chain { view, session_id, parent, added: Vec::new() }
    }

    /// Adds an entry as the child of the last one.
    pub fn push(&mut self, id: EntryId, timestamp: i64, origin: Option<Json>, body: Body) -> Result<(), Fault> {
        let parent = match (self.added.last(), &self.parent) {
            (Some(last), _) => Some((&last.id, &last.place)),
            (None, Some(parent)) => Some((&parent.id, &parent.place)),
            (None, None) => None,
        };
        let place = match parent {
            None => Some(root_place(&id)),
            Some((parent_id, Some(place))) => Some(self.place_below(parent_id, place)?),
            Some((_, None)) => None,
        };
        let parent_id = parent.map(|(parent_id, _)| parent_id.clone());
        self.added.push(Entry { id, parent_id, timestamp, revision: 0, origin, body, place });
        Ok(())
    }

    pub fn finish(self) -> Vec<Entry> {
        self.added
    }

    fn place_below(&self, parent_id: &EntryId, place: &Place) -> Result<Place, Fault> {
        let over = match place.jump == *parent_id {
            true => None,
            false => self.place_after(place)?,
        };
        Ok(place_below(parent_id, place, over.as_ref()))
    }

    /// The place of the entry that a place jumps to: one just added, or one in the state.
    fn place_after(&self, place: &Place) -> Result<Option<Place>, Fault> {
        let first = self.added.first().and_then(|entry| entry.place.as_ref()).map(|place| place.depth);
        if let Some(first) = first.filter(|first| place.jump_depth >= *first) {
            return Ok(self.added.get((place.jump_depth - first) as usize).and_then(|entry| entry.place.clone()));
        }
        match &self.parent {
            Some(parent) if parent.id == place.jump => Ok(parent.place.clone()),
            Some(_) | None => Ok(self.view.place(self.session_id, &place.jump)?.flatten()),
        }
    }
}

fn root_place(id: &EntryId) -> Place {
    Place { depth: 0, jump: id.clone(), jump_depth: 0 }
}

/// The place of a child of the entry at `place`; `over` is the place of the entry that its parent jumps to (`None` for a
/// root).
fn place_below(parent_id: &EntryId, place: &Place, over: Option<&Place>) -> Place {
    let depth = place.depth + 1;
    match over.filter(|over| place.depth - place.jump_depth == place.jump_depth - over.jump_depth) {
        Some(over) => Place { depth, jump: over.jump.clone(), jump_depth: over.jump_depth },
        None => Place { depth, jump: parent_id.clone(), jump_depth: place.depth },
    }
}

/// The place of a raw entry: known if it is a root or its parent has a place.
pub fn place_of(view: &dyn View, session_id: &SessionId, entry: &Entry) -> Result<Option<Place>, Fault> {
    place_among(entry, |id| view.entry(session_id, id))
}

/// The same for an entry whose ancestors `find` knows.
pub fn place_among(
    entry: &Entry,
    find: impl Fn(&EntryId) -> Result<Option<Entry>, Fault>,
) -> Result<Option<Place>, Fault> {
    let Some(parent_id) = &entry.parent_id else { return Ok(Some(root_place(&entry.id))) };
    let Some(parent) = find(parent_id)? else { return Ok(None) };
    let Some(place) = &parent.place else { return Ok(None) };
    let over = match place.jump == parent.id {
        true => None,
        false => find(&place.jump)?.and_then(|jump| jump.place),
    };
    Ok(Some(place_below(&parent.id, place, over.as_ref())))
}

/// The ancestor of `entry` (or itself) at `depth`; `None` if it has no place or is less deep.
pub fn ancestor_at(view: &dyn View, session_id: &SessionId, entry: &Entry, depth: u64) -> Result<Option<Entry>, Fault> {
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

/// Up to `count` entries of the path root → `leaf`, beginning at depth `first`, oldest first. Fewer if their bodies
/// exceed `bytes_max`, but at least one. `None` if the leaf has no place: the caller then walks the path.
pub fn slice(
    view: &dyn View,
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
    let (mut bytes, mut read) = (0, 0_usize);
    for depth in (first..=last).rev() {
        // Bodies are so large that most of them would be read for nothing: ask for fewer entries.
        if read > bytes_max.saturating_mul(4) && depth > first {
            return slice(view, session_id, leaf, first, (count / 8).max(1), bytes_max);
        }
        let parent_id = here.parent_id.clone();
        read += here.body.bytes();
        bytes += here.body.bytes();
        entries.push_front(here);
        // The loop reads from newest to oldest, but the oldest are wanted: drop the newest.
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

/// The whole path root → `leaf`, oldest first, by visiting every parent. Ends early if an ancestor is missing or
/// occurs twice, which only raw writes can cause.
pub fn walk(view: &dyn View, session_id: &SessionId, leaf: &Entry) -> Result<Vec<Entry>, Fault> {
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
