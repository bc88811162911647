//! Owns: a main's feed as it arrives at a bridge: each event once, whatever connections break, handed on to this node's
//! own subscribers. A mutation made anywhere is heard here and only here.
//! Never: filters; each binding of this node has its own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use tracing::{error, warn};

use super::introduce::Introduction;
use crate::events::position::ClusterTag;
use crate::events::{Committed, EventSink};
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::ids::{Position, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::message::Role;

/// Events whose positions are remembered one by one. A bus in between may bring events in another order, so a feed is
/// resumed this many events back, and what was heard already is dropped.
const HEARD_MAX: usize = 256;

/// Told once whose feed it is and where it begins.
pub type OnMain = Arc<dyn Fn(&str, Option<Position>) + Send + Sync>;

pub struct Follower {
    sink: Arc<dyn EventSink>,
    on_main: Option<OnMain>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where the positions come from; `None` as long as the main gives none.
    cluster: Option<ClusterTag>,
    /// Everything up to here was heard, or happened before this bridge came.
    floor: Option<Position>,
    /// What was heard beyond the floor.
    heard: BTreeSet<Position>,
    /// The last index given to an event that came without a position.
    last_index: u64,
}

/// An event on its way between instances.
#[derive(Deserialize)]
struct Envelope {
    trigger_type: String,
    payload: Value,
    session_metadata: Option<Object>,
}

impl Follower {
    /// Events without a position are given one after `last_index`.
    pub fn new(sink: Arc<dyn EventSink>, last_index: u64, on_main: Option<OnMain>) -> Follower {
        Follower { sink, on_main, state: Mutex::new(State { last_index, ..State::default() }) }
    }

    /// The feed begins: with the main's position, if it has positions.
    pub fn begin(&self, introduction: Option<&Introduction>) -> Result<(), String> {
        let Some(introduction) = introduction else { return Ok(()) };
        let cluster = ClusterTag::new(&introduction.cluster);
        let position = introduction.position.as_ref().map(|position| cluster.parse(position)).transpose()?;
        if let Some(on_main) = &self.on_main {
            on_main(&introduction.cluster, position);
        }
        let mut state = self.lock();
        state.cluster = Some(cluster);
        state.floor = position;
        Ok(())
    }

    /// Where the feed would have to be resumed.
    pub fn resume_after(&self) -> Option<String> {
        let state = self.lock();
        state.cluster.as_ref().zip(state.floor).map(|(cluster, floor)| cluster.print(floor))
    }

    /// Where the feed is resumed at a main that introduced itself. What it no longer has is lost, and said so to everybody
    /// who listens here; what it still has is heard.
    pub fn resume_from(&self, introduction: Option<&Introduction>) -> Result<Option<String>, String> {
        if let Some((introduction, gap)) = introduction.and_then(|found| Some((found, found.gap.as_ref()?))) {
            let mut state = self.lock();
            let oldest = introduction.oldest.as_ref().or(introduction.position.as_ref());
            let oldest =
                state.cluster.as_ref().zip(oldest).map(|(cluster, oldest)| cluster.parse(oldest)).transpose()?;
            let furthest = state.heard.last().copied().max(state.floor);
            state.floor = oldest;
            state.heard.retain(|heard| Some(*heard) > oldest);
            if let Some(oldest) = oldest.filter(|_| furthest < oldest) {
                error!(gap, "events were missed and cannot be heard any more; subscribers should read the state again");
                self.sink.jumped(oldest);
            }
        }
        Ok(self.resume_after())
    }

    /// Whether an event the main had told of some time ago has still not arrived.
    pub fn is_behind(&self, told: Option<&str>) -> bool {
        let state = self.lock();
        let told = state.cluster.as_ref().zip(told).and_then(|(cluster, told)| cluster.parse(told).ok());
        told > state.heard.last().copied().max(state.floor)
    }

    /// Takes one event. Those heard before are dropped.
    pub fn hear(&self, envelope: Value, sidecar: Option<Value>) {
        let event = match event(envelope) {
            Ok(event) => event,
            Err(why) => {
                warn!(why, "the main sent an event that cannot be read");
                return;
            }
        };
        let place = sidecar.as_ref().and_then(|sidecar| sidecar.get("session-manager"));
        let position = place.and_then(|place| place.get("position")?.as_str());
        let seq = place.and_then(|place| place.get("seq")?.as_u64()).unwrap_or(0);
        // Published under the lock, so that no other connection's event comes between.
        let mut state = self.lock();
        if let Some(position) = state.place(position) {
            self.sink.publish(vec![Arc::new(Committed::new(position, Event { seq, ..event }))]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Never left half changed by a panic, so a poisoned lock is still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The position of a new event; `None` for one that was heard.
    fn place(&mut self, told: Option<&str>) -> Option<Position> {
        let Some((cluster, told)) = self.cluster.as_ref().zip(told) else {
            self.last_index += 1;
            return Some(Position { group: 0, index: self.last_index, ordinal: 0 });
        };
        let position = match cluster.parse(told) {
            Ok(position) => position,
            Err(why) => {
                warn!(why, "the main sent an event of another history");
                return None;
            }
        };
        if self.floor.is_some_and(|floor| position <= floor) || !self.heard.insert(position) {
            return None;
        }
        if self.heard.len() > HEARD_MAX {
            self.floor = self.heard.pop_first();
        }
        Some(position)
    }
}

/// The event an envelope holds, without its place.
fn event(envelope: Value) -> Result<Event, String> {
    let Envelope { trigger_type, payload, session_metadata } =
        serde_json::from_value(envelope).map_err(|error| error.to_string())?;
    let kind = EventKind::from_trigger_type(&trigger_type).ok_or_else(|| format!("no event {trigger_type:?}"))?;
    let session_id = payload.get("session_id").and_then(Value::as_str).ok_or("its payload names no session")?;
    let session_id = SessionId::from(session_id);
    let role =
        payload.pointer("/message/role").map(Role::deserialize).transpose().map_err(|error| error.to_string())?;
    let happened = Happened::Published { kind, role, payload: Json::print(&payload) };
    Ok(Event { session_id, seq: 0, happened, metadata: session_metadata })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(u64, u64)>>, Mutex<Option<u64>>);

    impl EventSink for Heard {
        fn publish(&self, events: Vec<Arc<Committed>>) {
            let places = events.iter().map(|event| (event.position.index, event.event.seq));
            self.0.lock().unwrap().extend(places);
        }

        fn jumped(&self, to: Position) {
            *self.1.lock().unwrap() = Some(to.index);
        }
    }

    impl Heard {
        /// Up to where events were lost.
        fn lost(&self) -> Option<u64> {
            *self.1.lock().unwrap()
        }

        fn indexes(&self) -> Vec<u64> {
            self.0.lock().unwrap().iter().map(|(index, _)| *index).collect()
        }
    }

    fn told(position: Option<u64>, gap: Option<&str>) -> Introduction {
        Introduction {
            instance: "main".to_owned(),
            cluster: "c".to_owned(),
            position: position.map(|index| format!("c.0.{index}.0")),
            oldest: position.map(|index| format!("c.0.{}.0", index - 5)),
            gap: gap.map(str::to_owned),
            now_ms: 0,
        }
    }

    fn hear(follower: &Follower, index: u64) {
        let envelope = json!({ "trigger_type": "session::deleted", "payload": { "session_id": "s" } });
        let sidecar = json!({ "session-manager": { "position": format!("c.0.{index}.0"), "seq": index } });
        follower.hear(envelope, Some(sidecar));
    }

    fn follower() -> (Arc<Heard>, Follower) {
        let heard = Arc::new(Heard::default());
        (heard.clone(), Follower::new(heard, 0, None))
    }

    #[test]
    fn each_event_is_handed_on_once_whatever_is_sent_again() {
        let (heard, follower) = follower();
        follower.begin(Some(&told(Some(10), None))).unwrap();
        assert_eq!(follower.resume_after().as_deref(), Some("c.0.10.0"));
        for index in [9, 10, 11, 13, 12, 11, 13] {
            hear(&follower, index);
        }
        assert_eq!(heard.indexes(), [11, 13, 12]);
        // A bus may have brought a later event first, so the feed is resumed before them all.
        assert_eq!(follower.resume_after().as_deref(), Some("c.0.10.0"));
        (11..1000).for_each(|index| hear(&follower, index));
        assert_eq!(heard.indexes().len(), 989);
        let floor = 999 - HEARD_MAX as u64;
        assert_eq!(follower.resume_after(), Some(format!("c.0.{floor}.0")));
        (1..1001).for_each(|index| hear(&follower, index));
        assert_eq!(heard.indexes().len(), 990);
    }

    #[test]
    fn a_feed_that_does_not_bring_what_the_main_has_told_of_is_behind() {
        let (_, follower) = follower();
        follower.begin(Some(&told(Some(10), None))).unwrap();
        assert!(!follower.is_behind(None) && !follower.is_behind(Some("c.0.10.0")));
        assert!(follower.is_behind(Some("c.0.11.0")));
        hear(&follower, 11);
        assert!(!follower.is_behind(Some("c.0.11.0")));
    }

    #[test]
    fn what_the_main_no_longer_has_is_passed_over_and_what_it_has_is_heard() {
        let (heard, follower) = follower();
        follower.begin(Some(&told(Some(10), None))).unwrap();
        let after = follower.resume_from(Some(&told(Some(50), Some("compacted")))).unwrap();
        assert_eq!(after.as_deref(), Some("c.0.45.0"));
        assert_eq!(heard.lost(), Some(45));
        (40..=51).for_each(|index| hear(&follower, index));
        assert_eq!(heard.indexes(), [46, 47, 48, 49, 50, 51]);
    }

    #[test]
    fn a_main_that_keeps_less_than_was_heard_has_nothing_lost() {
        let (heard, follower) = follower();
        follower.begin(Some(&told(Some(10), None))).unwrap();
        (11..=48).for_each(|index| hear(&follower, index));
        let after = follower.resume_from(Some(&told(Some(50), Some("compacted")))).unwrap();
        assert_eq!(after.as_deref(), Some("c.0.45.0"));
        assert_eq!(heard.lost(), None);
        (46..=50).for_each(|index| hear(&follower, index));
        assert_eq!(heard.indexes(), (11..=50).collect::<Vec<_>>());
    }

    #[test]
    fn events_without_a_position_get_one_of_their_own_and_unreadable_ones_are_dropped() {
        let (heard, follower) = follower();
        follower.begin(None).unwrap();
        let envelope = json!({ "trigger_type": "session::created", "payload": { "session_id": "s" } });
        follower.hear(envelope.clone(), None);
        for unreadable in [json!(5), json!({ "trigger_type": "x", "payload": {} }), json!({ "payload": envelope })] {
            follower.hear(unreadable, None);
        }
        follower.hear(envelope, Some(json!({ "tenant": 1 })));
        assert_eq!(*heard.0.lock().unwrap(), [(1, 0), (2, 0)]);
        assert_eq!(follower.resume_after(), None);
    }
}
