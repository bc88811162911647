//! Owns: the table of bindings with their progress, indexed by event kind and session (for dispatch) and by subscriber.
//! Never: delivery, a wire.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::delivery::{AttachPoint, Notice};
use super::filter::{Filter, Wanted};
use super::locked;
use crate::machine::event::{Event, EventKind};
use crate::machine::ids::{Position, SessionId};

/// The subscriber that registered a binding (a number chosen by the attach point) and the binding's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BindingKey {
    pub owner: u64,
    pub id: Arc<str>,
}

/// One subscription: its filter, where matching events go, and the metadata each delivery carries.
#[derive(Clone)]
pub struct Binding {
    pub key: BindingKey,
    pub function_id: Arc<str>,
    pub filter: Filter,
    /// The binding's own metadata as JSON fields without braces (`"a":1`), ready to be joined with the position.
    pub sidecar_fields: String,
    /// The subscriber has received every event up to this position.
    pub after: Option<Position>,
    pub to: Arc<dyn AttachPoint>,
}

/// A binding in the table.
pub struct Bound {
    pub binding: Binding,
    /// Its place in the order of registration.
    number: u64,
    progress: Mutex<Progress>,
    standing: Arc<Standing>,
}

/// How far a binding has come.
#[derive(Clone, Copy)]
struct Progress {
    /// Skip live events at or below this position: they are older than the binding or were delivered during catch-up.
    /// Each event is published once, so this check alone prevents duplicates, even when events arrive out of order.
    floor: Option<Position>,
    /// Position of the last delivered event, or the floor.
    seen: Option<Position>,
}

/// Whether a subscriber receives live events. One that is behind reads the stored feed instead.
#[derive(Default)]
struct Standing {
    behind: AtomicBool,
    /// True while `notice` has to be sent with the next event. Saves the lock in the usual case.
    has_notice: AtomicBool,
    notice: Mutex<Notice>,
}

impl Standing {
    fn note(&self, change: impl FnOnce(&mut Notice)) {
        change(&mut locked(&self.notice));
        self.has_notice.store(true, Ordering::Relaxed);
    }

    fn notice(&self) -> Notice {
        if !self.has_notice.load(Ordering::Relaxed) {
            return Notice::default();
        }
        *locked(&self.notice)
    }

    fn notice_sent(&self) {
        if self.has_notice.swap(false, Ordering::Relaxed) {
            *locked(&self.notice) = Notice::default();
        }
    }
}

/// A subscriber: all bindings registered under one number.
#[derive(Default)]
pub struct Owner {
    pub bounds: BTreeMap<Arc<str>, Arc<Bound>>,
    standing: Arc<Standing>,
    /// While it is behind: it received everything up to this position.
    pub cursor: Option<Position>,
    /// Incremented when the cursor moves back or a binding is added. A reader discards a page of an older turn.
    pub turn: u64,
    /// Whether a reader task exists for it.
    pub read_for: bool,
}

/// The key of one index list. A list keeps its bindings in the order of registration.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
enum List {
    Session(EventKind, SessionId),
    Kind(EventKind),
    Everything,
}

#[derive(Default)]
pub struct Bindings {
    /// By number: a subscriber may leave at any time, whatever else is in its lists.
    lists: BTreeMap<List, BTreeMap<u64, Arc<Bound>>>,
    owners: HashMap<u64, Owner>,
    /// Those that say which driver they belong to. The node asks for them every second, and they are few.
    drivers: BTreeMap<u64, Arc<Bound>>,
    count: usize,
    next_number: u64,
}

impl Bound {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        locked(&self.progress)
    }

    pub fn seen(&self) -> Option<Position> {
        self.progress().seen
    }

    /// Everything up to here counts as delivered. Never moves back.
    pub fn see(&self, position: Position) {
        let mut progress = self.progress();
        progress.seen = progress.seen.max(Some(position));
    }

    /// Catch-up ended at this position: live events start after it.
    fn goes_live(&self, position: Position) {
        self.see(position);
        let mut progress = self.progress();
        progress.floor = progress.floor.max(Some(position));
    }

    /// The notice for its subscriber's next event, whichever binding receives it.
    pub fn notice(&self) -> Notice {
        self.standing.notice()
    }

    /// Records that an event was delivered, together with the notice.
    pub fn take(&self, position: Position) {
        self.see(position);
        self.standing.notice_sent();
    }

    /// True for a stored event that matches and was not delivered yet.
    pub fn wants(&self, event: &Event, position: Position) -> bool {
        self.seen().is_none_or(|seen| position > seen) && self.binding.filter.matches(event)
    }

    /// True for a live event that matches.
    fn wants_now(&self, event: &Event, position: Position) -> bool {
        self.progress().floor.is_none_or(|floor| position > floor) && self.binding.filter.matches(event)
    }
}

impl Owner {
    pub fn is_behind(&self) -> bool {
        self.standing.behind.load(Ordering::Relaxed)
    }

    /// The next event carries the notice that the subscriber was too slow.
    pub fn lags(&self) {
        self.standing.note(|notice| notice.lagged = true);
    }

    /// Events were lost: continue after the oldest stored position, and send a notice with the next event.
    pub fn loses(&mut self, oldest: Position) {
        self.cursor = Some(oldest);
        self.standing.note(|notice| notice.compacted = Some(oldest));
    }

    /// True when events were lost and the notice was not sent yet.
    pub fn has_untold_loss(&self) -> bool {
        self.standing.notice().compacted.is_some()
    }

    /// From now on it reads the stored feed, after this position.
    pub fn fall_behind(&mut self, cursor: Position) {
        self.standing.behind.store(true, Ordering::Relaxed);
        self.cursor = Some(cursor);
        self.turn += 1;
    }

    /// From now on it receives live events.
    pub fn go_live(&mut self) {
        if let Some(cursor) = self.cursor.take() {
            self.bounds.values().for_each(|bound| bound.goes_live(cursor));
            self.bounds.values().for_each(|bound| bound.binding.to.caught_up());
        }
        self.standing.behind.store(false, Ordering::Relaxed);
        self.read_for = false;
    }
}

impl Bindings {
    /// Adds a binding that received everything up to `seen`. It replaces one with the same key.
    pub fn insert(&mut self, binding: Binding, seen: Option<Position>) {
        self.remove(&binding.key);
        let owner = self.owners.entry(binding.key.owner).or_default();
        // A page that was read without this binding may lack events that it matches.
        owner.turn += 1;
        let bound = Arc::new(Bound {
            progress: Mutex::new(Progress { floor: seen, seen }),
            standing: owner.standing.clone(),
            number: self.next_number,
            binding,
        });
        self.next_number += 1;
        owner.bounds.insert(bound.binding.key.id.clone(), bound.clone());
        for list in List::of(&bound.binding.filter) {
            self.lists.entry(list).or_default().insert(bound.number, bound.clone());
        }
        if bound.binding.filter.names_driver() {
            self.drivers.insert(bound.number, bound.clone());
        }
        self.count += 1;
    }

    /// Removes a binding. Its subscriber stays in the table, so that a new binding continues from its progress.
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
        self.drivers.remove(&bound.number);
        for list in List::of(&bound.binding.filter) {
            if let Some(rows) = self.lists.get_mut(&list) {
                rows.remove(&bound.number);
                if rows.is_empty() {
                    self.lists.remove(&list);
                }
            }
        }
    }

    /// Removes and returns all bindings.
    pub fn take_all(&mut self) -> Vec<Arc<Bound>> {
        self.lists.clear();
        self.drivers.clear();
        self.count = 0;
        std::mem::take(&mut self.owners).into_values().flat_map(|owner| owner.bounds.into_values()).collect()
    }

    pub fn owner(&mut self, owner: u64) -> Option<&mut Owner> {
        self.owners.get_mut(&owner)
    }

    /// The bindings of drivers, without a look at the others.
    pub fn of_drivers(&self) -> impl Iterator<Item = &Arc<Bound>> {
        self.drivers.values()
    }

    pub fn all_owners(&self) -> impl Iterator<Item = &Owner> {
        self.owners.values()
    }

    pub fn owners(&mut self) -> impl Iterator<Item = (u64, &mut Owner)> {
        self.owners.iter_mut().map(|(number, owner)| (*number, owner))
    }

    /// Calls `visit` for every live binding that matches this event.
    pub fn each_match(&self, event: &Event, position: Position, mut visit: impl FnMut(&Arc<Bound>)) {
        self.each_candidate(event, |bound| {
            if !bound.standing.behind.load(Ordering::Relaxed) && bound.wants_now(event, position) {
                visit(bound);
            }
        });
    }

    /// Calls `visit` for every binding whose filter matches, regardless of its progress.
    pub fn each_wanting(&self, event: &Event, mut visit: impl FnMut(&Arc<Bound>)) {
        self.each_candidate(event, |bound| {
            if bound.binding.filter.matches(event) {
                visit(bound);
            }
        });
    }

    /// Calls `visit` for the bindings of the event's kind and session.
    fn each_candidate(&self, event: &Event, mut visit: impl FnMut(&Arc<Bound>)) {
        let kind = event.kind();
        for list in [List::Session(kind, event.session_id.clone()), List::Kind(kind), List::Everything] {
            self.lists.get(&list).into_iter().flat_map(BTreeMap::values).for_each(&mut visit);
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
    /// The lists that contain a binding. Dispatch looks at one list per kind of filter, so it finds each binding once.
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

    use super::super::delivery::{Delivery, Handed};
    use super::super::feed::{Feed, FeedSettings};
    use super::super::position::ClusterTag;
    use super::super::{Committed, EventSink};
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

    /// The node asks for its drivers every second. A look at all bindings would hold up every event for so long.
    #[test]
    fn the_bindings_of_drivers_are_found_without_a_look_at_others() {
        let mut bindings = Bindings::default();
        let driver = |bindings: &Bindings| {
            Vec::from_iter(bindings.of_drivers().filter_map(|bound| bound.binding.filter.driver()))
        };
        for id in 0..100 {
            bindings.insert(binding(1, &id.to_string(), "session::deleted", json!({})), None);
        }
        assert_eq!(bindings.of_drivers().count(), 0);
        for owner in [2, 3] {
            bindings.insert(binding(owner, "d", "session::turn::requested", json!({"driver_id": "x"})), None);
            bindings.insert(binding(owner, "anonymous", "session::turn::requested", json!({})), None);
        }
        assert_eq!((bindings.of_drivers().count(), driver(&bindings).len()), (2, 2));
        bindings.insert(binding(2, "d", "session::turn::requested", json!({})), None);
        bindings.remove_owner(3);
        assert_eq!(bindings.of_drivers().count(), 0);
        bindings.insert(binding(4, "d", "session::turn::requested", json!({"driver_id": "x"})), None);
        bindings.take_all();
        assert_eq!(bindings.of_drivers().count(), 0);
    }

    /// With a pass over the list for each binding this would take ten billion steps.
    #[test]
    fn an_owner_with_many_bindings_leaves_in_one_pass() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(2, "stays", "session::deleted", json!({})), None);
        for id in 0..100_000 {
            bindings.insert(binding(1, &id.to_string(), "session::deleted", json!({})), None);
        }
        assert_eq!(bindings.remove_owner(1).map(|owner| owner.bounds.len()), Some(100_000));
        assert_eq!(bindings.len(), 1);
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["stays"]);
    }

    /// With a pass over the list for each owner this would take a billion steps.
    #[test]
    fn many_owners_leave_without_a_look_at_the_bindings_of_others() {
        let mut bindings = Bindings::default();
        for owner in 0..10_000 {
            for id in 0..20 {
                bindings.insert(binding(owner, &id.to_string(), "session::deleted", json!({})), None);
            }
        }
        for owner in 0..10_000 {
            assert!(bindings.remove_owner(owner).is_some());
        }
        assert!(bindings.is_empty() && bindings.lists.is_empty());
    }

    /// With a look at the earlier ones for each binding this would take billions of steps.
    #[test]
    fn a_subscriber_with_many_bindings_adds_one_without_a_look_at_the_others() {
        let cluster = ClusterTag::new("c");
        let feed = Feed::new(FeedSettings { cluster, queue_bytes_max: 0, ..FeedSettings::default() });
        let happened = Happened::Published { kind: EventKind::Deleted, role: None, payload: Json::adopt("{}") };
        let event = Event { session_id: "s".into(), seq: 1, happened, metadata: None };
        feed.publish(vec![Arc::new(Committed::new(at(1), event))]);
        for id in 0..100_000 {
            let config = json!({"session_id": "t"});
            feed.bind(binding(1, &id.to_string(), "session::deleted", config)).unwrap();
        }
        assert_eq!(feed.unbind_owner(1).len(), 100_000);
    }

    #[test]
    fn bindings_leave_with_their_owner_and_rest_while_it_is_behind() {
        let mut bindings = Bindings::default();
        bindings.insert(binding(1, "a", "session::deleted", json!({})), None);
        bindings.insert(binding(2, "b", "session::deleted", json!({"session_id": "s"})), None);
        bindings.owner(1).unwrap().fall_behind(at(1));
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["b"]);
        bindings.owner(1).unwrap().go_live();
        bindings.remove_owner(2);
        assert_eq!(matched(&bindings, EventKind::Deleted, "s"), ["a"]);
        bindings.remove_owner(1);
        assert!(bindings.is_empty() && bindings.lists.is_empty());
    }
}
