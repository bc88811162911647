//! Owns: the main's feed as it arrives at a bridge. Passes each event on to this node's subscribers exactly once, even
//! when connections break and events are sent again. All events of an edge come from here, also those of its own calls.
//! Never: filters; each binding of this node has its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use tracing::{error, warn};

use super::error::BridgeError;
use super::handshake::MainInfo;
use crate::events::position::ClusterTag;
use crate::events::{Committed, EventSink};
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::ids::{Position, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::message::Role;

/// How many received positions are kept for dedup. A bus in between may reorder events, so the feed is resumed this
/// many events before the newest one, and events that were received already are dropped.
const RECEIVED_MAX: usize = 256;

/// Called once, with the name of the main's cluster and the position where its feed starts.
pub type OnFirstConnect = Arc<dyn Fn(&str, Option<Position>) + Send + Sync>;

pub struct MainFeed {
    sink: Arc<dyn EventSink>,
    on_first_connect: Option<OnFirstConnect>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The cluster that the positions belong to; `None` if the main's events have no positions.
    cluster: Option<ClusterTag>,
    /// Every event up to this position was received, or is older than this bridge.
    floor: Option<Position>,
    /// Received positions after the floor.
    received: BTreeSet<Position>,
    /// What the main left out because later updates replaced it, by the received position that told so. Another main may
    /// still have it in full and send it, which would be out of order.
    left_out: BTreeMap<Position, LeftOut>,
    /// The last index that was given to an event without a position.
    last_index: u64,
}

struct LeftOut {
    session_id: SessionId,
    seqs: RangeInclusive<u64>,
}

/// An event as it travels between instances.
#[derive(Deserialize)]
struct Envelope {
    trigger_type: String,
    payload: Value,
    session_metadata: Option<Object>,
}

impl MainFeed {
    /// Events without a position get the indexes after `last_index`.
    pub fn new(sink: Arc<dyn EventSink>, last_index: u64, on_first_connect: Option<OnFirstConnect>) -> MainFeed {
        MainFeed { sink, on_first_connect, state: Mutex::new(State { last_index, ..State::default() }) }
    }

    /// Starts at the main's current position, if its feed has positions.
    pub fn start(&self, info: Option<&MainInfo>) -> Result<(), BridgeError> {
        let Some(info) = info else { return Ok(()) };
        let cluster = ClusterTag::new(&info.cluster);
        let position = parse(Some(&cluster), info.position.as_deref())?;
        if let Some(on_first_connect) = &self.on_first_connect {
            on_first_connect(&info.cluster, position);
        }
        let mut state = self.state();
        state.cluster = Some(cluster);
        state.floor = position;
        Ok(())
    }

    /// The position after which the feed must be resumed.
    pub fn resume_after(&self) -> Option<String> {
        let state = self.state();
        state.cluster.as_ref().zip(state.floor).map(|(cluster, floor)| cluster.print(floor))
    }

    /// The position after which this main's feed is resumed. If the main has deleted events that were not received, the
    /// subscribers of this node are notified of the gap, and the feed resumes with the oldest event the main still has.
    pub fn resume_from(&self, info: Option<&MainInfo>) -> Result<Option<String>, BridgeError> {
        if let Some((info, gap)) = info.and_then(|info| Some((info, info.gap.as_ref()?))) {
            let mut state = self.state();
            let oldest = info.oldest.as_deref().or(info.position.as_deref());
            let oldest = parse(state.cluster.as_ref(), oldest)?;
            let newest_received = state.newest_received();
            state.floor = oldest;
            state.received.retain(|received| Some(*received) > oldest);
            state.left_out.retain(|told_at, _| Some(*told_at) > oldest);
            if let Some(oldest) = oldest.filter(|_| newest_received < oldest) {
                error!(
                    gap,
                    "events were missed and the main no longer has them; subscribers should read the state again"
                );
                self.sink.jumped(oldest);
            }
        }
        Ok(self.resume_after())
    }

    /// Whether an event at or before this position of the main is still missing here.
    pub fn is_behind(&self, main_position: Option<&str>) -> bool {
        let state = self.state();
        parse(state.cluster.as_ref(), main_position).unwrap_or(None) > state.newest_received()
    }

    /// Takes one event. Events that were received before are dropped.
    pub fn receive(&self, envelope: Value, metadata: Option<Value>) {
        let event = match read_event(envelope) {
            Ok(event) => event,
            Err(error) => {
                warn!(%error, "an event of the main was dropped");
                return;
            }
        };
        let place = metadata.as_ref().and_then(|metadata| metadata.get("session-manager"));
        let position = place.and_then(|place| place.get("position")?.as_str());
        let seq = place.and_then(|place| place.get("seq")?.as_u64()).unwrap_or(0);
        let left_out = place.and_then(|place| read_range(place.get("skipped")?));
        // Published under the lock, so that two connections cannot publish out of order.
        let mut state = self.state();
        if let Some(position) = state.accept(position, &event.session_id, seq) {
            if let Some(seqs) = left_out {
                state.left_out.insert(position, LeftOut { session_id: event.session_id.clone(), seqs });
            }
            self.sink.publish(vec![Arc::new(Committed::new(position, Event { seq, ..event }))]);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the state half changed, so a poisoned lock is still usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn newest_received(&self) -> Option<Position> {
        self.received.last().copied().max(self.floor)
    }

    /// The position of a new event; `None` for a duplicate.
    fn accept(&mut self, position: Option<&str>, session_id: &SessionId, seq: u64) -> Option<Position> {
        let position = match parse(self.cluster.as_ref(), position) {
            Ok(Some(position)) => position,
            Ok(None) => {
                self.last_index += 1;
                return Some(Position { group: 0, index: self.last_index, ordinal: 0 });
            }
            Err(error) => {
                warn!(%error, "an event of the main was dropped");
                return None;
            }
        };
        let told = |left_out: &LeftOut| left_out.session_id == *session_id && left_out.seqs.contains(&seq);
        if self.floor.is_some_and(|floor| position <= floor)
            || self.left_out.range(position..).any(|(_, left_out)| told(left_out))
            || !self.received.insert(position)
        {
            return None;
        }
        if self.received.len() > RECEIVED_MAX {
            self.floor = self.received.pop_first();
            self.left_out.retain(|told_at, _| Some(*told_at) > self.floor);
        }
        Some(position)
    }
}

/// `None`: the main's feed has no positions.
fn parse(cluster: Option<&ClusterTag>, position: Option<&str>) -> Result<Option<Position>, BridgeError> {
    let Some((cluster, position)) = cluster.zip(position) else { return Ok(None) };
    cluster.parse(position).map(Some).map_err(|why| BridgeError::InvalidPosition(why.to_string()))
}

/// The sequence numbers that were left out before an event, as its metadata says.
fn read_range(range: &Value) -> Option<RangeInclusive<u64>> {
    Some(range.get("first")?.as_u64()?..=range.get("last")?.as_u64()?)
}

/// The event in an envelope. The envelope does not contain its sequence number.
fn read_event(envelope: Value) -> Result<Event, BridgeError> {
    let unreadable = |error: serde_json::Error| BridgeError::UnreadableEvent(error.to_string());
    let Envelope { trigger_type, payload, session_metadata } = serde_json::from_value(envelope).map_err(unreadable)?;
    let kind = EventKind::from_trigger_type(&trigger_type)
        .filter(|kind| kind.is_published())
        .ok_or_else(|| BridgeError::UnreadableEvent(format!("there is no event type {trigger_type:?}")))?;
    let session_id = payload.get("session_id").and_then(Value::as_str);
    let session_id =
        session_id.ok_or_else(|| BridgeError::UnreadableEvent("its payload has no session_id".to_owned()))?;
    let session_id = SessionId::from(session_id);
    let role = payload.pointer("/message/role").map(Role::deserialize).transpose().map_err(unreadable)?;
    let happened = Happened::Published { kind, role, payload: Json::print(&payload) };
    Ok(Event { session_id, seq: 0, happened, metadata: session_metadata })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Published(Mutex<Vec<(u64, u64)>>, Mutex<Option<u64>>);

    impl EventSink for Published {
        fn publish(&self, events: Vec<Arc<Committed>>) {
            let places = events.iter().map(|event| (event.position.index, event.event.seq));
            self.0.lock().unwrap().extend(places);
        }

        fn jumped(&self, to: Position) {
            *self.1.lock().unwrap() = Some(to.index);
        }
    }

    impl Published {
        /// The position before which events were lost.
        fn lost(&self) -> Option<u64> {
            *self.1.lock().unwrap()
        }

        fn indexes(&self) -> Vec<u64> {
            self.0.lock().unwrap().iter().map(|(index, _)| *index).collect()
        }
    }

    fn receive(feed: &MainFeed, index: u64) {
        let envelope = json!({ "trigger_type": "session::deleted", "payload": { "session_id": "s" } });
        let metadata = json!({ "session-manager": { "position": format!("c.0.{index}.0"), "seq": index } });
        feed.receive(envelope, Some(metadata));
    }

    fn feed() -> (Arc<Published>, MainFeed) {
        let published = Arc::new(Published::default());
        (published.clone(), MainFeed::new(published, 0, None))
    }

    #[test]
    fn each_event_is_published_once_even_if_it_is_sent_again() {
        let (published, feed) = feed();
        feed.start(Some(&MainInfo::example(Some(10), None))).unwrap();
        assert_eq!(feed.resume_after().as_deref(), Some("c.0.10.0"));
        for index in [9, 10, 11, 13, 12, 11, 13] {
            receive(&feed, index);
        }
        assert_eq!(published.indexes(), [11, 13, 12]);
        // A bus may reorder events, so the feed is resumed before the received ones.
        assert_eq!(feed.resume_after().as_deref(), Some("c.0.10.0"));
        (11..1000).for_each(|index| receive(&feed, index));
        assert_eq!(published.indexes().len(), 989);
        let floor = 999 - RECEIVED_MAX as u64;
        assert_eq!(feed.resume_after(), Some(format!("c.0.{floor}.0")));
        (1..1001).for_each(|index| receive(&feed, index));
        assert_eq!(published.indexes().len(), 990);
    }

    #[test]
    fn what_one_main_left_out_is_not_published_later_because_another_has_it() {
        let (published, feed) = feed();
        feed.start(Some(&MainInfo::example(Some(10), None))).unwrap();
        let envelope =
            |session: &str| json!({ "trigger_type": "session::deleted", "payload": { "session_id": session } });
        let place = json!({ "position": "c.0.14.0", "seq": 14, "skipped": { "first": 12, "last": 13 } });
        receive(&feed, 11);
        feed.receive(envelope("s"), Some(json!({ "session-manager": place })));
        (11..=15).for_each(|index| receive(&feed, index));
        assert_eq!(published.indexes(), [11, 14, 15]);
        // Another session has numbers of its own.
        let place = json!({ "position": "c.0.12.1", "seq": 12 });
        feed.receive(envelope("t"), Some(json!({ "session-manager": place })));
        assert_eq!(published.indexes(), [11, 14, 15, 12]);
        // It is forgotten when the feed is resumed after it.
        (16..1000).for_each(|index| receive(&feed, index));
        assert!(feed.state().left_out.is_empty());
    }

    #[test]
    fn a_feed_that_misses_an_event_of_the_main_is_behind() {
        let (_, feed) = feed();
        feed.start(Some(&MainInfo::example(Some(10), None))).unwrap();
        assert!(!feed.is_behind(None) && !feed.is_behind(Some("c.0.10.0")));
        assert!(feed.is_behind(Some("c.0.11.0")));
        receive(&feed, 11);
        assert!(!feed.is_behind(Some("c.0.11.0")));
    }

    #[test]
    fn a_gap_in_the_main_s_feed_is_reported_and_the_rest_is_published() {
        let (published, feed) = feed();
        feed.start(Some(&MainInfo::example(Some(10), None))).unwrap();
        let after = feed.resume_from(Some(&MainInfo::example(Some(50), Some("compacted")))).unwrap();
        assert_eq!(after.as_deref(), Some("c.0.45.0"));
        assert_eq!(published.lost(), Some(45));
        (40..=51).for_each(|index| receive(&feed, index));
        assert_eq!(published.indexes(), [46, 47, 48, 49, 50, 51]);
    }

    #[test]
    fn events_that_were_received_before_the_main_deleted_them_are_not_a_gap() {
        let (published, feed) = feed();
        feed.start(Some(&MainInfo::example(Some(10), None))).unwrap();
        (11..=48).for_each(|index| receive(&feed, index));
        let after = feed.resume_from(Some(&MainInfo::example(Some(50), Some("compacted")))).unwrap();
        assert_eq!(after.as_deref(), Some("c.0.45.0"));
        assert_eq!(published.lost(), None);
        (46..=50).for_each(|index| receive(&feed, index));
        assert_eq!(published.indexes(), (11..=50).collect::<Vec<_>>());
    }

    #[test]
    fn events_without_a_position_get_one_and_unreadable_events_are_dropped() {
        let (published, feed) = feed();
        feed.start(None).unwrap();
        let envelope = json!({ "trigger_type": "session::created", "payload": { "session_id": "s" } });
        feed.receive(envelope.clone(), None);
        for unreadable in [json!(5), json!({ "trigger_type": "x", "payload": {} }), json!({ "payload": envelope })] {
            feed.receive(unreadable, None);
        }
        feed.receive(envelope, Some(json!({ "tenant": 1 })));
        assert_eq!(*published.0.lock().unwrap(), [(1, 0), (2, 0)]);
        assert_eq!(feed.resume_after(), None);
    }
}
