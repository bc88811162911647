//! Owns: the places of the entry that was written last in a session and of the entries before it that the next append asks
//! for. An append needs the place of its parent and of the entry that its parent jumps to, and no content.
//! Never: an entry itself, or a place that the state does not hold.

use crate::machine::entry::{Entry, Place};
use crate::machine::ids::EntryId;

/// Oldest first. Each entry jumps to the one before it in this list, so the list is as long as the chain of jumps: about
/// twice the logarithm of the depth.
#[derive(Debug, Clone, Default)]
pub struct Spine(Vec<(EntryId, Place)>);

impl Spine {
    /// Follows an entry that is written. Whatever is kept afterwards is still true of the state.
    pub fn put(&mut self, entry: &Entry) {
        if let Some(at) = self.find(&entry.id) {
            // An update of the content changes no place. A raw write may change it.
            if entry.place.as_ref() == Some(&self.0[at].1) {
                return;
            }
            self.0.truncate(at);
        }
        let Some(place) = &entry.place else { return };
        let kept = self.find(&place.jump).map_or(0, |at| at + 1);
        self.0.truncate(kept);
        self.0.push((entry.id.clone(), place.clone()));
    }

    /// The place of an entry, if it is kept here.
    pub fn place(&self, entry_id: &EntryId) -> Option<&Place> {
        self.find(entry_id).map(|at| &self.0[at].1)
    }

    fn find(&self, entry_id: &EntryId) -> Option<usize> {
        self.0.iter().rposition(|(id, _)| id == entry_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::entry::Body;
    use crate::machine::json::Json;

    fn entry(id: &str, parent: Option<&Entry>, over: Option<&Entry>) -> Entry {
        let place = match (parent, over) {
            (None, _) => Place { depth: 0, jump: id.into(), jump_depth: 0 },
            (Some(parent), None) => {
                let depth = parent.place.as_ref().unwrap().depth;
                Place { depth: depth + 1, jump: parent.id.clone(), jump_depth: depth }
            }
            (Some(parent), Some(over)) => {
                let jump_depth = over.place.as_ref().unwrap().depth;
                Place { depth: parent.place.as_ref().unwrap().depth + 1, jump: over.id.clone(), jump_depth }
            }
        };
        let body = Body::Custom { custom_type: "c".to_owned(), data: Json::adopt("1") };
        let parent_id = parent.map(|parent| parent.id.clone());
        Entry { id: id.into(), parent_id, timestamp: 1, revision: 0, origin: None, body, place: Some(place) }
    }

    fn ids(spine: &Spine) -> Vec<&str> {
        spine.0.iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn it_holds_the_chain_of_jumps_from_the_last_entry() {
        let mut spine = Spine::default();
        let a = entry("a", None, None);
        let b = entry("b", Some(&a), None);
        let c = entry("c", Some(&b), None);
        let d = entry("d", Some(&c), Some(&a));
        for entry in [&a, &b, &c] {
            spine.put(entry);
        }
        assert_eq!(ids(&spine), ["a", "b", "c"]);
        spine.put(&d);
        assert_eq!(ids(&spine), ["a", "d"], "d jumps over b and c");
        assert_eq!(spine.place(&d.id), d.place.as_ref());
        assert_eq!(spine.place(&b.id), None);
    }

    #[test]
    fn an_update_changes_nothing_and_a_changed_place_is_not_kept() {
        let mut spine = Spine::default();
        let a = entry("a", None, None);
        let b = entry("b", Some(&a), None);
        let c = entry("c", Some(&b), None);
        [&a, &b, &c].into_iter().for_each(|entry| spine.put(entry));
        spine.put(&Entry { revision: 1, ..b.clone() });
        assert_eq!(ids(&spine), ["a", "b", "c"]);
        spine.put(&Entry { place: None, ..b.clone() });
        assert_eq!(ids(&spine), ["a"]);
        assert_eq!(spine.place(&b.id), None);
        // The entry that it jumps to is not known here.
        spine.put(&c);
        assert_eq!(ids(&spine), ["c"]);
    }
}
