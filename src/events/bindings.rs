//! Owns: the table of bindings, indexed so that an event looks only at bindings of its kind and session, and by
//! subscriber, with how far each has come.
//! Never: delivery, the wire.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::deliver::{AttachPoint, Notice};
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
#[derive(Clone)]
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

/// A binding in the table.
pub struct Bound {
    pub binding: Binding,
    place: Mutex<BoundPlace>,
    standing: Arc<Standing>,
}

/// How far a binding has come.
#[derive(Clone, Copy)]
struct BoundPlace {
    /// What happens up to here is none of its business, or was handed to it from the kept feed. What is published is
    /// published once, so nothing else is needed to hand it over once, in whatever order it comes.
    floor: Option<Position>,
    /// The last event that was handed to it, or the floor.
    seen: Option<Position>,
}

/// Whether a subscriber takes events as they happen. One that is behind is served from the kept feed instead.
#[derive(Default)]
struct Standing {
    behind: AtomicBool,
    /// Whether there is something it must be told with its next event.
    untold: AtomicBool,
    notice: Mutex<Notice>,
}

impl Standing {
    fn note(&self, change: impl FnOnce(&mut Notice)) {
        change(&mut self.notice.lock().unwrap_or_else(PoisonError::into_inner));
        self.untold.store(true, Ordering::Relaxed);
    }

    fn notice(&self) -> Notice {
        if !self.untold.load(Ordering::Relaxed) {
            return Notice::default();
        }
        *self.notice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) {
        if self.untold.swap(false, Ordering::Relaxed) {
            *self.notice.lock().unwrap_or_else(PoisonError::into_inner) = Notice::default();
        }
    }
}

/// A subscriber: everything bound under one number.
#[derive(Default)]
pub struct Owner {
    pub bounds: BTreeMap<Arc<str>, Arc<Bound>>,
    standing: Arc<Standing>,
    /// While it is behind: everything up to here was handed to it.
    pub cursor: Option<Position>,
    /// Rises whenever the cursor is set back or a binding is added, so that a reader under way notices.
    pub turn: u64,
    /// Whether somebody reads the feed for it.
    pub read_for: bool,
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
    lists: BTreeMap<List, Vec<Arc<Bound>>>,
    owners: HashMap<u64, Owner>,
    count: usize,
}

impl Bound {
    fn place(&self) -> MutexGuard<'_, BoundPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn seen(&self) -> Option<Position> {
        self.place().seen
    }

    /// Nothing up to here will be read for it again. Never goes back.
    pub fn see(&self, position: Position) {
        let mut place = self.place();
        place.seen = place.seen.max(Some(position));
    }

    /// Everything up to here was read for it.
    fn joins(&self, position: Position) {
        self.see(position);
        let mut place = self.place();
        place.floor = place.floor.max(Some(position));
    }

    /// What its subscriber must be told with the next event, whichever of its bindings that is for.
    pub fn notice(&self) -> Notice {
        self.standing.notice()
    }

    /// An event was handed to it, with the notice.
    pub fn take(&self, position: Position) {
        self.see(position);
        self.standing.told();
    }

    /// True for an event of the kept feed that it was not handed and wants.
    pub fn wants(&self, event: &Event, position: Position) -> bool {
        self.seen().is_none_or(|seen| position > seen) && self.binding.filter.matches(event)
    }

    /// True for an event that happens now and that it wants.
    fn wants_now(&self, event: &Event, position: Position) -> bool {
        self.place().floor.is_none_or(|floor| position > floor) && self.binding.filter.matches(event)
    }
}

impl Owner {
    pub fn is_behind(&self) -> bool {
        self.standing.behind.load(Ordering::Relaxed)
    }

    /// It was too slow, and is to be told so.
    pub fn lags(&self) {
        self.standing.note(|notice| notice.lagged = true);
    }

    /// Events are lost to it, and it is to be told so: all after this one are kept.
    pub fn loses(&mut self, oldest: Position) {
        self.cursor = Some(oldest);
        self.standing.note(|notice| notice.compacted = Some(oldest));
    }

    /// Whether events are lost to it without its knowledge.
    pub fn has_untold_loss(&self) -> bool {
        self.standing.notice().compacted.is_some()
    }

    /// From now on the feed is read for it, after this position.
    pub fn fall_behind(&mut self, cursor: Position) {
        self.standing.behind.store(true, Ordering::Relaxed);
        self.cursor = Some(cursor);
        self.turn += 1;
    }

    /// From now on it takes events as they happen again.
    pub fn catch_up(&mut self) {
        if let Some(cursor) = self.cursor.take() {
            self.bounds.values().for_each(|bound| bound.joins(cursor));
        }
        self.standing.behind.store(false, Ordering::Relaxed);
        self.read_for = false;
    }
}

impl Bindings {
    /// Adds a binding that has seen everything up to `seen`, in place of an older one under the same key.
    pub fn insert(&mut self, binding: Binding, seen: Option<Position>) {
        self.remove(&binding.key);
        let owner = self.owners.entry(binding.key.owner).or_default();
        // A page that was read before this binding was there may leave out what it wants.
        owner.turn += 1;
        let bound = Arc::new(Bound {
            place: Mutex::new(BoundPlace { floor: seen, seen }),
            standing: owner.standing.clone(),
            binding,
        });
        owner.bounds.insert(bound.binding.key.id.clone(), bound.clone());
        for list in List::of(&bound.binding.filter) {
            self.lists.entry(list).or_default().push(bound.clone());
        }
        self.count += 1;
    }

    /// Removes a binding. Its subscriber stays known: it may bind again, and goes on from where it stands.
    pub fn remove(&mut self, key: &BindingKey) -> Option<Arc<Bound>> {
        let bound = self.owners.get_mut(&key.owner)?.bounds.remove(&key.id)?;
        self.unlist(&bound);
        Some(bound)
    }

    pub fn get(&self, key: &BindingKey) -> Option<&Arc<Bound>> {
        self.owners.get(&key.owner)?.bounds.get(&key.id)
    }

    /// Removes all bindings of a subscriber that is gone.
    pub fn remove_owner(&mut self, owner: u64) -> Option<Owner> {
        let owner = self.owners.remove(&owner)?;
        for bound in owner.bounds.values() {
            self.unlist(bound);
        }
        Some(owner)
    }

    fn unlist(&mut self, bound: &Arc<Bound>) {
        self.count -= 1;
        for list in List::of(&bound.binding.filter) {
            if let Some(rows) = self.lists.get_mut(&list) {
                rows.retain(|row| !Arc::ptr_eq(row, bound));
                if rows.is_empty() {
                    self.lists.remove(&list);
                }
            }
        }
    }

    /// Takes everything out.
    pub fn take_all(&mut self) -> Vec<Arc<Bound>> {
        self.lists.clear();
        self.count = 0;
        std::mem::take(&mut self.owners).into_values().flat_map(|owner| owner.bounds.into_values()).collect()
    }

    pub fn owner(&mut self, owner: u64) -> Option<&mut Owner> {
        self.owners.get_mut(&owner)
    }

    pub fn owners(&mut self) -> impl Iterator<Item = (u64, &mut Owner)> {
        self.owners.iter_mut().map(|(number, owner)| (*number, owner))
    }

    /// Calls `visit` for every binding that wants this event and takes events as they happen.
    pub fn each_match(&self, event: &Event, position: Position, mut visit: impl FnMut(&Arc<Bound>)) {
        let kind = event.kind();
        for list in [List::Session(kind, event.session_id.clone()), List::Kind(kind), List::Everything] {
            for bound in self.lists.get(&list).into_iter().flatten() {
                if !bound.standing.behind.load(Ordering::Relaxed) && bound.wants_now(event, position) {
                    visit(bound);
                }
            }
        }
    }

    /// Calls `visit` for every binding whose filter an event passes, however far it has come.
    pub fn each_wanting(&self, event: &Event, mut visit: impl FnMut(&Arc<Bound>)) {
        let kind = event.kind();
        for list in [List::Session(kind, event.session_id.clone()), List::Kind(kind), List::Everything] {
            let wanting = self.lists.get(&list).into_iter().flatten();
            wanting.filter(|bound| bound.binding.filter.matches(event)).for_each(&mut visit);
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl List {
    /// The lists a binding stands in. An event looks at one list per filter it could match, so it finds a binding once.
    fn of(filter: &Filter) -> Vec<List> {
        let of_kind = |kind| match &filter.session_id {
            Some(session_id) => List::Session(kind, session_id.clone()),
            None => List::Kind(kind),
        };
        match filter.wanted {
            Wanted::Everything => vec![List::Everything],
            Wanted::Kind(kind) => vec![of_kind(kind)],
            Wanted::Kinds(kinds) => kinds.iter().map(of_kind).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use serde_json::{Value, json};

    use super::super::deliver::{Delivery, Handed};
    use super::*;
    use crate::machine::event::Happened;
    use crate::machine::json::Json;

    struct Nowhere;

    impl AttachPoint for Nowhere {
        fn deliver(&self, _: Delivery<'_>) -> Handed {
            Handed::Taken
        }

        fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    fn binding(owner: u64, id: &str, trigger_type: &str, config: Value) -> Binding {
        Binding {
            key: BindingKey { owner, id: id.into() },
            function_id: "f".into(),
            filter: Filter::parse(trigger_type, &config).unwrap(),
            sidecar_fields: String::new(),
            after: None,
            to: Arc::new(Nowhere),
        }
    }

    fn at(index: u64) -> Position {
        Position { group: 0, index, ordinal: 0 }
    }

    fn matched(bindings: &Bindings, kind: EventKind, session: &str) -> Vec<String> {
        let event = Event {
            session_id: session.into(),
            seq: 1,
            happened: Happened::Published { kind, role: None, payload: Json::adopt("{}") },
            metadata: None,
        };
        let mut ids = Vec::new();
        bindings.each_match(&event, at(5), |bound| ids.push(bound.binding.key.id.to_string()));
        ids
    }

    #[test]
    fn every_matching_binding_is_found_once_whatever_list_it_stands_in() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(1, "one", "session::deleted", json!({"session_id": "s"})), None);
        bindings.insert(binding(1, "all", "session::deleted", json!({})), Some(at(4)));
        bindings.insert(binding(2, "store", "session::store::events", json!(null)), None);
        bindings.insert(binding(2, "other", "session::created", json!(null)), None);
        bindings.insert(binding(2, "later", "session::deleted", json!({})), Some(at(5)));
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["one", "all", "store"]);
        assert_eq!(matched(&bindings, EventKind::Deleted, "t"), ["all", "store"]);
        assert_eq!(matched(&bindings, EventKind::Created, "s"), ["other", "store"]);
    }

    #[test]
    fn a_binding_registered_again_replaces_itself() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(1, "b", "session::deleted", json!({})), None);
        bindings.insert(binding(1, "b", "session::created", json!({})), None);
        assert_eq!(bindings.len(), 1);
        assert!(matched(&bindings, EventKind::Deleted, "s").is_empty());
        assert_eq!(matched(&bindings, EventKind::Created, "s"), ["b"]);
    }

    #[test]
    fn bindings_leave_with_their_owner_and_rest_while_it_is_behind() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(1, "a", "session::deleted", json!({})), None);
        bindings.insert(binding(2, "b", "session::deleted", json!({"session_id": "s"})), None);
        bindings.owner(1).unwrap().fall_behind(at(1));
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["b"]);
        bindings.owner(1).unwrap().catch_up();
        bindings.remove_owner(2);
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["a"]);
        bindings.remove_owner(1);
        assert!(bindings.is_empty() && bindings.lists.is_empty());
    }
}
