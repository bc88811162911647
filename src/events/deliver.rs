//! Owns: the way from a commit's events to attach points: the queue, and dispatch in order.
//! May touch: bindings, filters, positions, the ring. Never: a socket. An attach point takes a delivery without waiting.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::bindings::{Binding, BindingKey, Bindings};
use super::filter::Wanted;
use super::position::ClusterTag;
use super::ring::{Ring, weight};
use super::{Committed, EventSink};
use crate::machine::ids::Position;

/// A matched event on its way to one binding.
pub struct Delivery<'a> {
    pub binding: &'a Binding,
    pub position: Position,
    /// The payload, as JSON text.
    pub data: &'a str,
    /// The metadata sidecar: the binding's own fields and the event's place, as JSON text.
    pub sidecar: String,
}

/// Where deliveries leave the node: the embedded bus, later a watch or an event stream.
pub trait AttachPoint: Send + Sync + 'static {
    /// Must not wait. A subscriber that cannot keep up is the attach point's to cut off.
    fn deliver(&self, delivery: Delivery<'_>);
}

/// Sizes of the feed.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    pub cluster: ClusterTag,
    /// Events kept in memory for subscribers that resume.
    pub ring_bytes_max: usize,
    /// Events that wait for dispatch; past it the publisher dispatches them itself, which slows it down.
    pub queue_bytes_max: usize,
}

impl Default for FeedSettings {
    fn default() -> FeedSettings {
        FeedSettings { cluster: ClusterTag::new("node"), ring_bytes_max: 16 << 20, queue_bytes_max: 16 << 20 }
    }
}

/// The feed of one node: every commit's events pass through here once, in log order.
pub struct Feed {
    settings: FeedSettings,
    /// The cluster that was joined after the feed was made.
    joined: OnceLock<ClusterTag>,
    queue: Mutex<Queue>,
    /// Held while an event is matched and handed out, so that a new binding sees its past and then its future.
    state: Mutex<State>,
    published: Notify,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<(u64, Arc<Committed>)>,
    bytes: usize,
    next_ticket: u64,
}

#[derive(Default)]
struct State {
    bindings: Bindings,
    ring: Ring,
    /// The last event handed out, or where the feed starts: every binding has seen what matched up to here.
    dispatched: Option<Position>,
}

impl Feed {
    pub fn new(settings: FeedSettings) -> Arc<Feed> {
        Arc::new(Feed {
            settings,
            joined: OnceLock::new(),
            queue: Mutex::default(),
            state: Mutex::default(),
            published: Notify::new(),
        })
    }

    /// Tells the feed that every event after `position` will be published to it, so that a subscriber may resume
    /// there although the ring is still empty. Called once, before the first publish.
    pub fn starts_after(&self, position: Position) {
        let mut state = locked(&self.state);
        state.ring.complete_after = Some(position);
        state.dispatched = Some(position);
    }

    /// Names the cluster, for a node that joins one. Counts once, before the first publish.
    pub fn joins(&self, cluster: &str) {
        self.joined.get_or_init(|| ClusterTag::new(cluster));
    }

    pub fn cluster(&self) -> &ClusterTag {
        self.joined.get().unwrap_or(&self.settings.cluster)
    }

    /// The dispatcher: runs until shutdown, then hands out what is left.
    pub async fn dispatch(self: Arc<Self>, shutdown: CancellationToken) {
        // A bounded share per turn keeps one busy feed from starving the other tasks of its thread.
        const TURN: usize = 256;
        loop {
            while self.drain(TURN) {
                tokio::task::yield_now().await;
            }
            tokio::select! {
                () = self.published.notified() => {}
                () = shutdown.cancelled() => break,
            }
        }
        self.drain(usize::MAX);
    }

    /// Makes a binding live: first what it missed since `after`, if it names a position, then everything to come.
    /// One under the same key is replaced without a gap: the new one begins where the old one stands.
    pub fn bind(&self, mut binding: Binding) -> Result<(), String> {
        let mut state = locked(&self.state);
        if state.bindings.contains(&binding.key) {
            binding.after = binding.after.max(state.dispatched);
        }
        let binding = Arc::new(binding);
        match binding.after {
            None => {
                let next = locked(&self.queue).next_ticket;
                state.bindings.insert(binding, next);
            }
            Some(after) => {
                state.ring.check_reaches(after, self.cluster())?;
                for committed in &state.ring.events {
                    if binding.is_past(committed.position) && binding.filter.matches(&committed.event) {
                        self.hand_over(&binding, committed, &mut None);
                    }
                }
                // What is queued was published but not dispatched: the ring does not hold it, so the binding gets it.
                state.bindings.insert(binding, 0);
            }
        }
        Ok(())
    }

    pub fn unbind(&self, key: &BindingKey) -> bool {
        locked(&self.state).bindings.remove(key)
    }

    /// Removes all bindings of a subscriber that is gone. Returns how far they had come.
    pub fn unbind_owner(&self, owner: u64) -> Option<Position> {
        let mut state = locked(&self.state);
        state.bindings.remove_owner(owner);
        state.dispatched
    }

    /// How far the feed has come: the last event handed out, or where it starts.
    pub fn position(&self) -> Option<Position> {
        locked(&self.state).dispatched
    }

    /// Why the feed cannot be resumed after a position, if so.
    pub fn check_resume(&self, after: &str) -> Result<(), String> {
        let after = self.cluster().parse(after)?;
        locked(&self.state).ring.check_reaches(after, self.cluster())
    }

    /// True when nothing after this position is lost.
    pub fn reaches(&self, position: Position) -> bool {
        locked(&self.state).ring.check_reaches(position, self.cluster()).is_ok()
    }

    pub fn change_owner(&self, from: u64, to: u64) {
        locked(&self.state).bindings.change_owner(from, to);
    }

    /// Hands an event to whoever wants it, and forgets it: it tells of a state, not of a commit.
    pub fn tell(&self, committed: &Arc<Committed>) {
        let state = locked(&self.state);
        let mut envelope = None;
        state.bindings.each_match(&committed.event, committed.position, u64::MAX, |binding| {
            self.hand_over(binding, committed, &mut envelope);
        });
    }

    /// Hands out what is published so far, then gives every binding to another feed. Positions of one feed mean
    /// nothing in another, so all begin there with what is published from now on.
    pub fn move_bindings(&self, to: &Feed) {
        self.drain(usize::MAX);
        let moved = locked(&self.state).bindings.take_all();
        let mut state = locked(&to.state);
        let next = locked(&to.queue).next_ticket;
        for binding in moved {
            state.bindings.insert(Arc::new(binding.anew()), next);
        }
    }

    pub fn bindings(&self) -> usize {
        locked(&self.state).bindings.len()
    }

    /// Dispatches up to `most` events. True: there is more.
    fn drain(&self, most: usize) -> bool {
        let mut state = locked(&self.state);
        for _ in 0..most {
            let Some((ticket, committed)) = locked(&self.queue).pop() else { return false };
            let mut envelope = None;
            state.bindings.each_match(&committed.event, committed.position, ticket, |binding| {
                self.hand_over(binding, &committed, &mut envelope);
            });
            state.dispatched = Some(committed.position);
            state.ring.push(committed, self.settings.ring_bytes_max);
        }
        !locked(&self.queue).events.is_empty()
    }

    /// Prints the sidecar and gives the event to the binding's attach point. An envelope is printed once per event.
    fn hand_over(&self, binding: &Binding, committed: &Committed, envelope: &mut Option<String>) {
        let data = match binding.filter.wanted {
            Wanted::Kind(_) => committed.payload().text(),
            Wanted::Everything => envelope.get_or_insert_with(|| print_envelope(committed)),
        };
        let comma = if binding.sidecar_fields.is_empty() { "" } else { "," };
        let sidecar = format!(
            "{{{}{comma}\"session-manager\":{{\"position\":\"{}\",\"seq\":{}}}}}",
            binding.sidecar_fields,
            self.cluster().print(committed.position),
            committed.event.seq,
        );
        binding.to.deliver(Delivery { binding, position: committed.position, data, sidecar });
    }
}

impl EventSink for Feed {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        let behind = {
            let mut queue = locked(&self.queue);
            for committed in events {
                queue.push(committed);
            }
            queue.bytes > self.settings.queue_bytes_max
        };
        if behind {
            self.drain(usize::MAX);
        } else {
            self.published.notify_one();
        }
    }
}

impl Queue {
    fn push(&mut self, committed: Arc<Committed>) {
        self.bytes += weight(&committed.event);
        self.events.push_back((self.next_ticket, committed));
        self.next_ticket += 1;
    }

    fn pop(&mut self) -> Option<(u64, Arc<Committed>)> {
        let (ticket, committed) = self.events.pop_front()?;
        self.bytes -= weight(&committed.event);
        Some((ticket, committed))
    }
}

fn print_envelope(committed: &Committed) -> String {
    let event = &committed.event;
    let metadata = match &event.metadata {
        Some(metadata) => format!(",\"session_metadata\":{}", Value::Object(metadata.clone())),
        None => String::new(),
    };
    format!(
        "{{\"trigger_type\":\"{}\",\"payload\":{}{metadata}}}",
        event.kind().trigger_type(),
        committed.payload().text()
    )
}

/// The data behind these locks is never left half changed by a panic, so a poisoned lock is still good.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::filter::Filter;
    use super::*;
    use crate::machine::event::{Event, EventKind, Happened};
    use crate::machine::json::Json;

    #[derive(Default)]
    struct Seen(Mutex<Vec<(String, Value, Value)>>);

    impl AttachPoint for Seen {
        fn deliver(&self, delivery: Delivery<'_>) {
            let data = serde_json::from_str(delivery.data).unwrap();
            let sidecar = serde_json::from_str(&delivery.sidecar).unwrap();
            locked(&self.0).push((delivery.binding.key.id.to_string(), data, sidecar));
        }
    }

    impl Seen {
        fn indexes(&self) -> Vec<u64> {
            locked(&self.0).iter().map(|(_, data, _)| data["n"].as_u64().unwrap()).collect()
        }
    }

    fn event(index: u64) -> Arc<Committed> {
        let payload = Json::adopt(&format!("{{\"n\":{index}}}"));
        let event = Event {
            session_id: "s".into(),
            seq: index,
            happened: Happened::Published { kind: EventKind::Deleted, role: None, payload },
            metadata: json!({"tenant": "a"}).as_object().cloned(),
        };
        Arc::new(Committed::new(Position { group: 0, index, ordinal: 0 }, event))
    }

    fn binding(to: &Arc<Seen>, trigger_type: &str, after: Option<u64>) -> Binding {
        Binding {
            key: BindingKey { owner: 1, id: trigger_type.into() },
            function_id: "f".into(),
            filter: Filter::parse(trigger_type, &Value::Null).unwrap(),
            sidecar_fields: "\"mine\":1".to_owned(),
            after: after.map(|index| Position { group: 0, index, ordinal: 0 }),
            to: to.clone(),
        }
    }

    fn feed(ring_bytes_max: usize, queue_bytes_max: usize) -> Arc<Feed> {
        Feed::new(FeedSettings { cluster: ClusterTag::new("c"), ring_bytes_max, queue_bytes_max })
    }

    #[test]
    fn a_delivery_carries_the_payload_untouched_and_its_place_beside_it() {
        let (feed, seen) = (feed(1 << 20, 1 << 20), Arc::new(Seen::default()));
        feed.bind(binding(&seen, "session::deleted", None)).unwrap();
        feed.bind(binding(&seen, "session::store::events", None)).unwrap();
        feed.publish(vec![event(4)]);
        feed.drain(usize::MAX);
        let sidecar = json!({"mine": 1, "session-manager": {"position": "c.0.4.0", "seq": 4}});
        let envelope =
            json!({"trigger_type": "session::deleted", "payload": {"n": 4}, "session_metadata": {"tenant": "a"}});
        assert_eq!(
            *locked(&seen.0),
            [
                ("session::deleted".to_owned(), json!({"n": 4}), sidecar.clone()),
                ("session::store::events".to_owned(), envelope, sidecar),
            ]
        );
    }

    #[test]
    fn a_binding_hears_nothing_that_was_published_before_it() {
        let (feed, seen) = (feed(1 << 20, 1 << 20), Arc::new(Seen::default()));
        feed.publish(vec![event(1)]);
        feed.bind(binding(&seen, "session::deleted", None)).unwrap();
        feed.publish(vec![event(2), event(3)]);
        feed.drain(usize::MAX);
        assert_eq!(seen.indexes(), [2, 3]);
    }

    #[test]
    fn a_resumed_binding_gets_what_it_missed_then_the_rest_each_once() {
        let (feed, seen) = (feed(1 << 20, 1 << 20), Arc::new(Seen::default()));
        feed.publish(vec![event(1), event(2), event(3)]);
        feed.drain(usize::MAX);
        feed.publish(vec![event(4)]);
        feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap();
        feed.publish(vec![event(5)]);
        feed.drain(usize::MAX);
        assert_eq!(seen.indexes(), [2, 3, 4, 5]);
    }

    #[test]
    fn a_binding_registered_again_misses_nothing_and_hears_nothing_twice() {
        let (feed, seen) = (feed(1 << 20, 1 << 20), Arc::new(Seen::default()));
        feed.publish(vec![event(1)]);
        feed.drain(usize::MAX);
        feed.bind(binding(&seen, "session::deleted", None)).unwrap();
        feed.publish(vec![event(2)]);
        feed.drain(usize::MAX);
        feed.publish(vec![event(3)]);
        feed.bind(binding(&seen, "session::deleted", None)).unwrap();
        feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap();
        feed.publish(vec![event(4)]);
        feed.drain(usize::MAX);
        assert_eq!(seen.indexes(), [2, 3, 4]);
    }

    #[test]
    fn resuming_beyond_the_ring_is_refused_with_the_oldest_position() {
        let (feed, seen) = (feed(2048, 1 << 20), Arc::new(Seen::default()));
        let error = feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap_err();
        assert!(error.contains("no event is kept yet"), "{error}");
        feed.publish((1..=9).map(event).collect());
        feed.drain(usize::MAX);
        let error = feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap_err();
        assert!(error.starts_with("compacted: cannot resume after c.0.1.0, the oldest is c.0."), "{error}");
        assert_eq!(feed.bindings(), 0);
    }

    #[test]
    fn a_feed_that_knows_where_it_starts_serves_a_resume_from_there() {
        let (feed, seen) = (feed(1 << 20, 1 << 20), Arc::new(Seen::default()));
        feed.starts_after(Position { group: 0, index: 7, ordinal: u32::MAX });
        feed.bind(binding(&seen, "session::deleted", Some(8))).unwrap();
        feed.publish(vec![event(8), event(9)]);
        feed.drain(usize::MAX);
        assert_eq!(seen.indexes(), [9]);
    }

    #[test]
    fn a_publisher_that_is_ahead_of_dispatch_delivers_itself() {
        let (feed, seen) = (feed(1 << 20, 2000), Arc::new(Seen::default()));
        feed.bind(binding(&seen, "session::deleted", None)).unwrap();
        feed.publish(vec![event(1)]);
        assert!(seen.indexes().is_empty());
        feed.publish((2..=6).map(event).collect());
        assert_eq!(seen.indexes(), [1, 2, 3, 4, 5, 6]);
    }
}
