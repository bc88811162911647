//! Owns: the table of bindings, indexed so that an event looks only at bindings of its kind and session.
//! Never: delivery, the wire.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::deliver::AttachPoint;
use super::filter::{Filter, Wanted};
use crate::machine::event::{Event, EventKind};
use crate::machine::ids::{Position, SessionId};

/// Who registered a binding (a number of the attach point's choice) and under which id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BindingKey {
    pub owner: u64,
    pub id: Arc<str>,
}

/// One subscription: where matching events go and what rides along.
pub struct Binding {
    pub key: BindingKey,
    pub function_id: Arc<str>,
    pub filter: Filter,
    /// The binding's own metadata as printed fields without braces, `"a":1`, ready to be joined with the position.
    pub sidecar_fields: String,
    /// Events at or before this position were seen by the subscriber already.
    pub after: Option<Position>,
    pub to: Arc<dyn AttachPoint>,
}

/// A binding with the moment it became live: events published earlier are none of its business.
struct Row {
    binding: Arc<Binding>,
    live_from: u64,
}

/// Rows that share a list are kept in the order they were registered.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
enum List {
    Session(EventKind, SessionId),
    Kind(EventKind),
    Everything,
}

#[derive(Default)]
pub struct Bindings {
    lists: BTreeMap<List, Vec<Row>>,
    places: HashMap<BindingKey, List>,
}

impl Bindings {
    /// Adds a binding, in place of an older one under the same key.
    pub fn insert(&mut self, binding: Arc<Binding>, live_from: u64) {
        self.remove(&binding.key);
        let list = List::of(&binding.filter);
        self.places.insert(binding.key.clone(), list.clone());
        self.lists.entry(list).or_default().push(Row { binding, live_from });
    }

    pub fn remove(&mut self, key: &BindingKey) -> bool {
        let Some(list) = self.places.remove(key) else { return false };
        self.retain(&list, |row| row.binding.key != *key);
        true
    }

    pub fn contains(&self, key: &BindingKey) -> bool {
        self.places.contains_key(key)
    }

    /// Removes all bindings of a subscriber that is gone.
    pub fn remove_owner(&mut self, owner: u64) {
        let lists = &mut self.lists;
        self.places.retain(|key, list| {
            if key.owner != owner {
                return true;
            }
            if let Some(rows) = lists.get_mut(list) {
                rows.retain(|row| row.binding.key.owner != owner);
                if rows.is_empty() {
                    lists.remove(list);
                }
            }
            false
        });
    }

    /// Gives the bindings of one subscriber to another, which took over its identity.
    pub fn change_owner(&mut self, from: u64, to: u64) {
        let moved: Vec<BindingKey> = self.places.keys().filter(|key| key.owner == from).cloned().collect();
        for key in moved {
            let Some(list) = self.places.remove(&key) else { continue };
            let new_key = BindingKey { owner: to, id: key.id.clone() };
            let rows = self.lists.get_mut(&list).into_iter().flatten();
            for row in rows.filter(|row| row.binding.key == key) {
                let old = &row.binding;
                row.binding = Arc::new(Binding {
                    key: new_key.clone(),
                    function_id: old.function_id.clone(),
                    filter: old.filter.clone(),
                    sidecar_fields: old.sidecar_fields.clone(),
                    after: old.after,
                    to: old.to.clone(),
                });
            }
            self.places.insert(new_key, list);
        }
    }

    /// Takes out everything, in the order of its lists.
    pub fn take_all(&mut self) -> Vec<Arc<Binding>> {
        self.places.clear();
        std::mem::take(&mut self.lists).into_values().flatten().map(|row| row.binding).collect()
    }

    /// Calls `visit` for every binding that wants this event. `ticket` is the event's place in the order of publishing.
    pub fn each_match(&self, event: &Event, position: Position, ticket: u64, mut visit: impl FnMut(&Binding)) {
        let kind = event.kind();
        for list in [List::Session(kind, event.session_id.clone()), List::Kind(kind), List::Everything] {
            for row in self.lists.get(&list).into_iter().flatten() {
                let live = ticket >= row.live_from && row.binding.is_past(position);
                if live && row.binding.filter.matches(event) {
                    visit(&row.binding);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn retain(&mut self, list: &List, keep: impl Fn(&Row) -> bool) {
        if let Some(rows) = self.lists.get_mut(list) {
            rows.retain(keep);
            if rows.is_empty() {
                self.lists.remove(list);
            }
        }
    }
}

impl Binding {
    /// The same subscription in a feed whose positions are others.
    pub fn anew(&self) -> Binding {
        Binding {
            key: self.key.clone(),
            function_id: self.function_id.clone(),
            filter: self.filter.clone(),
            sidecar_fields: self.sidecar_fields.clone(),
            after: None,
            to: self.to.clone(),
        }
    }

    /// False for events the subscriber has seen, by its own word. Positions compare within one group only.
    pub fn is_past(&self, position: Position) -> bool {
        self.after.is_none_or(|after| after.group != position.group || position > after)
    }
}

impl List {
    fn of(filter: &Filter) -> List {
        match (filter.wanted, &filter.session_id) {
            (Wanted::Everything, _) => List::Everything,
            (Wanted::Kind(kind), Some(session_id)) => List::Session(kind, session_id.clone()),
            (Wanted::Kind(kind), None) => List::Kind(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::deliver::Delivery;
    use super::*;
    use crate::machine::event::Happened;
    use crate::machine::json::Json;

    struct Nowhere;

    impl AttachPoint for Nowhere {
        fn deliver(&self, _: Delivery<'_>) {}
    }

    fn binding(owner: u64, id: &str, trigger_type: &str, config: Value) -> Arc<Binding> {
        Arc::new(Binding {
            key: BindingKey { owner, id: id.into() },
            function_id: "f".into(),
            filter: Filter::parse(trigger_type, &config).unwrap(),
            sidecar_fields: String::new(),
            after: None,
            to: Arc::new(Nowhere),
        })
    }

    fn matched(bindings: &Bindings, kind: EventKind, session: &str) -> Vec<String> {
        let event = Event {
            session_id: session.into(),
            seq: 1,
            happened: Happened::Published { kind, role: None, payload: Json::adopt("{}") },
            metadata: None,
        };
        let mut ids = Vec::new();
        let position = Position { group: 0, index: 1, ordinal: 0 };
        bindings.each_match(&event, position, 5, |binding| ids.push(binding.key.id.to_string()));
        ids
    }

    #[test]
    fn every_matching_binding_is_found_once_whatever_list_it_stands_in() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(1, "one", "session::deleted", json!({"session_id": "s"})), 0);
        bindings.insert(binding(1, "all", "session::deleted", json!({})), 0);
        bindings.insert(binding(2, "store", "session::store::events", json!(null)), 0);
        bindings.insert(binding(2, "other", "session::created", json!(null)), 0);
        bindings.insert(binding(2, "later", "session::deleted", json!({})), 6);
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["one", "all", "store"]);
        assert_eq!(matched(&bindings, EventKind::Deleted, "t"), ["all", "store"]);
        assert_eq!(matched(&bindings, EventKind::Created, "s"), ["other", "store"]);
    }

    #[test]
    fn a_binding_registered_again_replaces_itself() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(1, "b", "session::deleted", json!({})), 0);
        bindings.insert(binding(1, "b", "session::created", json!({})), 0);
        assert_eq!(bindings.len(), 1);
        assert!(matched(&bindings, EventKind::Deleted, "s").is_empty());
        assert_eq!(matched(&bindings, EventKind::Created, "s"), ["b"]);
    }

    #[test]
    fn bindings_follow_their_owner_and_leave_with_it() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(1, "a", "session::deleted", json!({})), 0);
        bindings.insert(binding(2, "b", "session::deleted", json!({"session_id": "s"})), 0);
        bindings.change_owner(1, 3);
        assert!(!bindings.remove(&BindingKey { owner: 1, id: "a".into() }));
        bindings.remove_owner(2);
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["a"]);
        bindings.remove_owner(3);
        assert!(bindings.is_empty() && bindings.lists.is_empty());
    }
}
