//! Owns: a cache of sections of transcripts that were read recently (`machine/section.rs`). Readers who page through the
//! same transcript find a page in a few lookups, printed already.
//!
//! The lock of the store keeps it correct, as it does for the cache of entries: readers add sections under the shared lock,
//! and a commit that changes an entry removes the sections of its depth under the exclusive lock. An entry never changes
//! its place in the tree, so no other section of its session can hold it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::machine::change::{Change, SessionChange, WorkChange};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::section::{self, Section};

/// About how much memory a kept section takes beside itself.
const OVERHEAD_BYTES: usize = 200;

pub struct SectionCache {
    halves: Mutex<Halves>,
    /// When the young half exceeds this, it becomes the old half.
    half_bytes: usize,
}

/// A section of the old half that is read moves to the young half. When the young half is full it replaces the old one.
#[derive(Default)]
struct Halves {
    young: Half,
    old: Half,
}

#[derive(Default)]
struct Half {
    sessions: HashMap<SessionId, Numbered>,
    bytes: usize,
}

/// The sections of one session by their number. Several paths have sections with the same number.
type Numbered = BTreeMap<u64, Vec<Kept>>;

struct Kept {
    end: EntryId,
    /// `None`: there is no section that ends here, and a reader need not try again.
    section: Option<Arc<Section>>,
}

impl Kept {
    fn weight(&self) -> usize {
        OVERHEAD_BYTES + self.section.as_ref().map_or(0, |section| section.weight())
    }
}

impl Half {
    fn find(&self, session_id: &SessionId, number: u64, end: &EntryId) -> Option<&Kept> {
        self.sessions.get(session_id)?.get(&number)?.iter().find(|kept| kept.end == *end)
    }

    fn take(&mut self, session_id: &SessionId, number: u64, end: &EntryId) -> Option<Kept> {
        let sections = self.sessions.get_mut(session_id)?.get_mut(&number)?;
        let at = sections.iter().position(|kept| kept.end == *end)?;
        let kept = sections.swap_remove(at);
        self.bytes -= kept.weight();
        Some(kept)
    }

    fn add(&mut self, session_id: &SessionId, number: u64, kept: Kept) {
        self.take(session_id, number, &kept.end);
        self.bytes += kept.weight();
        if !self.sessions.contains_key(session_id) {
            self.sessions.insert(session_id.clone(), Numbered::new());
        }
        if let Some(sections) = self.sessions.get_mut(session_id) {
            sections.entry(number).or_default().push(kept);
        }
    }

    fn forget(&mut self, session_id: &SessionId, number: u64) {
        let Some(numbered) = self.sessions.get_mut(session_id) else { return };
        let gone = numbered.remove(&number).unwrap_or_default();
        self.bytes -= gone.iter().map(Kept::weight).sum::<usize>();
        if numbered.is_empty() {
            self.sessions.remove(session_id);
        }
    }

    fn forget_session(&mut self, session_id: &SessionId) {
        let gone = self.sessions.remove(session_id).unwrap_or_default();
        self.bytes -= gone.values().flatten().map(Kept::weight).sum::<usize>();
    }
}

impl SectionCache {
    pub fn new(bytes_max: usize) -> SectionCache {
        SectionCache { halves: Mutex::default(), half_bytes: bytes_max / 2 }
    }

    /// The section that ends with this entry, at this depth. `Some(None)`: there is none.
    pub fn get(&self, session_id: &SessionId, end: &EntryId, depth: u64) -> Option<Option<Arc<Section>>> {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        let number = section::number(depth);
        if let Some(kept) = halves.young.find(session_id, number, end) {
            return Some(kept.section.clone());
        }
        let kept = halves.old.take(session_id, number, end)?;
        let section = kept.section.clone();
        halves.add(session_id, number, kept, self.half_bytes);
        Some(section)
    }

    pub fn put(&self, session_id: &SessionId, end: &EntryId, depth: u64, section: Option<Arc<Section>>) {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = Kept { end: end.clone(), section };
        halves.add(session_id, section::number(depth), kept, self.half_bytes);
    }

    /// Removes what the changes of a commit make old. Needs exclusive access: only a commit removes.
    pub fn forget(&mut self, changes: &[Change]) {
        let halves = self.halves.get_mut().unwrap_or_else(PoisonError::into_inner);
        for half in [&mut halves.young, &mut halves.old] {
            if half.sessions.is_empty() {
                continue;
            }
            for change in changes {
                match change {
                    Change::Session(session_id, SessionChange::PutEntry(entry)) => match &entry.place {
                        Some(place) => half.forget(session_id, section::number(place.depth)),
                        None => half.forget_session(session_id),
                    },
                    Change::Session(session_id, SessionChange::DeleteEntries | SessionChange::DeleteMeta)
                    | Change::Work(WorkChange::Detach { session_id, .. }) => half.forget_session(session_id),
                    Change::Session(
                        _,
                        SessionChange::PutMeta(_) | SessionChange::SetLeaf(_) | SessionChange::DeleteLeaf,
                    )
                    | Change::Work(WorkChange::Free { .. } | WorkChange::PutFork(_) | WorkChange::EndFork { .. })
                    | Change::Answer(_)
                    | Change::Feed(_)
                    | Change::Record(_)
                    | Change::Clock(_) => {}
                }
            }
        }
    }
}

impl Halves {
    fn add(&mut self, session_id: &SessionId, number: u64, kept: Kept, half_bytes: usize) {
        self.young.add(session_id, number, kept);
        if self.young.bytes > half_bytes {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::entry::{Body, Entry, Place};
    use crate::machine::json::Json;

    fn entry(id: &str, place: Option<Place>) -> Entry {
        let body = Body::Custom { custom_type: "c".to_owned(), data: Json::adopt("1") };
        Entry { id: id.into(), parent_id: None, timestamp: 1, revision: 0, origin: None, body, place }
    }

    fn at(depth: u64) -> Option<Place> {
        Some(Place { depth, jump: "j".into(), jump_depth: 0 })
    }

    fn section(id: &str) -> Option<Arc<Section>> {
        Some(Arc::new(Section::of(vec![entry(id, None)])))
    }

    fn has(cache: &SectionCache, session: &str, end: &str, depth: u64) -> bool {
        cache.get(&session.into(), &end.into(), depth).is_some()
    }

    fn bytes(cache: &SectionCache) -> usize {
        let halves = cache.halves.lock().unwrap();
        let weigh = |half: &Half| half.sessions.values().flat_map(BTreeMap::values).flatten().map(Kept::weight).sum();
        for half in [&halves.young, &halves.old] {
            let weight: usize = weigh(half);
            assert_eq!(weight, half.bytes);
        }
        halves.young.bytes + halves.old.bytes
    }

    #[test]
    fn a_section_is_found_until_an_entry_of_its_depths_changes() {
        let last = section::ENTRIES - 1;
        // After each change, the sections that are left.
        for (change, left) in [
            (SessionChange::PutEntry(entry("any", at(3))), vec!["c", "other"]),
            (SessionChange::PutEntry(entry("any", at(last + 1))), vec!["a", "b", "other"]),
            (SessionChange::PutEntry(entry("any", None)), vec!["other"]),
            (SessionChange::DeleteEntries, vec!["other"]),
            (SessionChange::DeleteMeta, vec!["other"]),
            (SessionChange::SetLeaf("x".into()), vec!["a", "b", "c", "other"]),
        ] {
            let mut cache = SectionCache::new(1 << 20);
            let all = [("s", "a", last), ("s", "b", 5), ("s", "c", last + 9), ("t", "other", last)];
            for (session, end, depth) in all {
                cache.put(&session.into(), &end.into(), depth, section(end));
            }
            cache.forget(&[Change::Session("s".into(), change.clone())]);
            let found: Vec<_> =
                all.iter().filter(|(s, end, depth)| has(&cache, s, end, *depth)).map(|(_, end, _)| *end).collect();
            assert_eq!(found, left, "{change:?}");
            bytes(&cache);
        }
    }

    #[test]
    fn that_there_is_no_section_is_known_too() {
        let cache = SectionCache::new(1 << 20);
        assert!(!has(&cache, "s", "a", 3));
        cache.put(&"s".into(), &"a".into(), 3, None);
        assert_eq!(cache.get(&"s".into(), &"a".into(), 3).map(|found| found.is_some()), Some(false));
        cache.put(&"s".into(), &"a".into(), 3, section("a"));
        assert_eq!(cache.get(&"s".into(), &"a".into(), 3).map(|found| found.is_some()), Some(true));
        assert_eq!(bytes(&cache), OVERHEAD_BYTES + section("a").unwrap().weight());
    }

    #[test]
    fn the_bound_holds_and_what_is_read_again_stays() {
        let bytes_max = 64 << 10;
        let cache = SectionCache::new(bytes_max);
        cache.put(&"s".into(), &"hot".into(), 0, section("hot"));
        for n in 0..2000 {
            cache.put(&"s".into(), &n.to_string().as_str().into(), n, section("cold"));
            assert!(has(&cache, "s", "hot", 0), "after {n}");
            // The young half may exceed its limit by one section.
            assert!(bytes(&cache) <= bytes_max + 2000);
        }
        assert!(!has(&cache, "s", "0", 0));
    }
}
