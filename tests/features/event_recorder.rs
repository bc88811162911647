//! Owns: the events of a scenario's node. The recorder gets every committed event, and passes it on to the product's
//! feed, which delivers it to the named subscribers whose filters match.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use session_manager::events::bindings::{Binding, BindingKey};
use session_manager::events::delivery::{AttachPoint, Delivery, Handed};
use session_manager::events::feed::{Feed, FeedSettings};
use session_manager::events::stored::StoredFeed;
use session_manager::events::{Committed, EventSink};
use session_manager::machine::Command;
use session_manager::machine::apply::store::{Envelope, StoreWrite};
use session_manager::machine::event::{Event, EventKind};
use session_manager::machine::ids::{Position, SessionId};
use session_manager::machine::json::Json;
use session_manager::surface::subscription::Subscription;

/// Events of this session are markers: a marker that arrived shows that all earlier events arrived too.
const MARKER: &str = "(marker)";

/// One event as it was published.
#[derive(Debug, Clone)]
pub struct RecordedEvent {
    pub kind: String,
    pub payload: Value,
}

/// Records every event of the node and passes it on to the feed.
pub struct EventRecorder {
    record: Mutex<Record>,
    feed: Mutex<Arc<Feed>>,
    deliveries: Arc<Deliveries>,
}

#[derive(Default)]
struct Record {
    events: Vec<RecordedEvent>,
    markers: u64,
    last_position: Option<Position>,
    /// The sequence number the next event of a session must carry.
    seqs: BTreeMap<SessionId, u64>,
    broken: Vec<String>,
}

/// The deliveries of each subscriber, by name.
#[derive(Default)]
struct Deliveries {
    by_name: Mutex<BTreeMap<String, Vec<Value>>>,
}

impl EventRecorder {
    pub fn new() -> Arc<EventRecorder> {
        Arc::new(EventRecorder {
            record: Mutex::default(),
            feed: Mutex::new(inline_feed()),
            deliveries: Arc::default(),
        })
    }

    /// The node restarts: subscribers are gone, and the order of positions is checked anew.
    pub fn restart(&self) {
        let mut record = self.record.lock().unwrap();
        record.last_position = None;
        record.seqs.clear();
        *self.feed.lock().unwrap() = inline_feed();
    }

    /// Sets where the feed reads older events from.
    pub fn reads_from(&self, history: Arc<dyn StoredFeed>) {
        self.feed.lock().unwrap().reads_from(&history);
    }

    /// Binds as a client of the bus does, with its config and its metadata.
    pub fn subscribe(
        self: &Arc<EventRecorder>,
        name: &str,
        trigger_type: &str,
        config: &Value,
        metadata: Option<Value>,
    ) -> Result<(), String> {
        let feed = Arc::clone(&self.feed.lock().unwrap());
        let id = format!("{name} on {trigger_type} with {config} and {metadata:?}");
        let wanted =
            Subscription::read(&feed, trigger_type, name, config, metadata).map_err(|error| error.to_string())?;
        self.deliveries.by_name.lock().unwrap().entry(name.to_owned()).or_default();
        feed.bind(Binding {
            key: BindingKey { owner: 1, id: id.into() },
            function_id: name.into(),
            filter: wanted.filter,
            sidecar_fields: wanted.sidecar_fields,
            after: wanted.after,
            to: Arc::clone(&self.deliveries) as Arc<dyn AttachPoint>,
        })
        .map_err(|error| error.to_string())
    }

    /// The command that publishes a marker. All events of earlier commands come before it.
    pub fn marker() -> Command {
        let envelope = Envelope {
            kind: EventKind::Deleted,
            session_id: SessionId::from(MARKER),
            role: None,
            payload: Json::print(&json!({ "session_id": MARKER })),
            metadata: None,
        };
        Command::Store(StoreWrite::PublishEvents(vec![envelope]))
    }

    pub fn markers(&self) -> u64 {
        self.record.lock().unwrap().markers
    }

    /// Waits until more than `seen` markers arrived. Every event that was committed before them arrived too.
    pub async fn wait_for_marker(&self, seen: u64) {
        for _ in 0..5_000 {
            if self.markers() > seen {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("the event of a committed command was never published");
    }

    /// Takes all events since the last call. Fails if an event broke the order of positions or sequence numbers.
    pub fn take(&self) -> Vec<RecordedEvent> {
        let mut record = self.record.lock().unwrap();
        assert!(record.broken.is_empty(), "{}", record.broken.join("\n"));
        std::mem::take(&mut record.events)
    }

    pub fn take_deliveries(&self, name: &str) -> Vec<Value> {
        let mut deliveries = self.deliveries.by_name.lock().unwrap();
        std::mem::take(deliveries.get_mut(name).unwrap_or_else(|| panic!("no subscriber {name:?}")))
    }
}

impl EventSink for EventRecorder {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        let feed = Arc::clone(&self.feed.lock().unwrap());
        feed.publish(events.clone());
        let mut record = self.record.lock().unwrap();
        for committed in events {
            record.add(&committed);
        }
    }
}

impl Record {
    fn add(&mut self, committed: &Committed) {
        let event = &committed.event;
        if self.last_position.is_some_and(|last| last >= committed.position) {
            self.broken.push(format!("position {:?} after {:?}", committed.position, self.last_position));
        }
        self.last_position = Some(committed.position);
        if event.session_id.as_str() == MARKER {
            self.markers += 1;
            return;
        }
        if event.kind().is_published() {
            self.check_seq(event);
        }
        let kind = event.kind().trigger_type().to_owned();
        self.events.push(RecordedEvent { kind, payload: committed.payload().value() });
    }

    /// Numbers are dense per session, and start over after a deletion. After a restart any first number is accepted.
    fn check_seq(&mut self, event: &Event) {
        if let Some(expected) = self.seqs.get(&event.session_id)
            && *expected != event.seq
        {
            self.broken.push(format!("session {}: event {} instead of {expected}", event.session_id, event.seq));
        }
        let next = if event.kind() == EventKind::Deleted { 1 } else { event.seq + 1 };
        self.seqs.insert(event.session_id.clone(), next);
    }
}

impl AttachPoint for Deliveries {
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        let data: Value = serde_json::from_str(delivery.data).expect("a payload is JSON");
        let sidecar: Value = serde_json::from_str(&delivery.sidecar()).expect("a sidecar is JSON");
        let session = data.get("session_id").or_else(|| data.pointer("/payload/session_id"));
        if session.and_then(Value::as_str) == Some(MARKER) {
            return Handed::Taken;
        }
        let mut by_name = self.by_name.lock().unwrap();
        let deliveries = by_name.get_mut(&*delivery.binding.function_id).expect("a delivery has its subscriber");
        deliveries.push(json!({ "data": data, "sidecar": sidecar }));
        Handed::Taken
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A feed without a queue: publishing delivers at once, so tests need not wait.
fn inline_feed() -> Arc<Feed> {
    Feed::new(FeedSettings { queue_bytes_max: 0, ..FeedSettings::default() })
}
