//! Owns: how many connections of all nodes follow each session.
//! Never: who they are.
//!
//! A node tells the others its own counts through the log when they change, and every few seconds that it is there. The
//! counts of a node that is not heard of are forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::Gateway;
use crate::events::filter::{Filter, Kinds};
use crate::events::stream::{Item, Stream};
use crate::machine::event::EventKind;
use crate::machine::gateway::relay::RELAYS;
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::surface::locked;

/// Changes of this time are told together.
const COLLECT: Duration = Duration::from_millis(200);
/// A node with followers is heard of this often.
const HERE_EVERY: Duration = Duration::from_secs(5);
/// A node that was not heard of for so long has no followers any more.
const GONE_AFTER: Duration = Duration::from_secs(12);
/// A node that cannot tell its counts tries again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Sessions in one command.
const TOLD_MAX: usize = 500;

/// The counts of this node and what others told.
pub struct Audience {
    /// The name of this start of this node.
    node: String,
    counts: Mutex<Counts>,
    changed: Notify,
}

#[derive(Default)]
struct Counts {
    own: BTreeMap<String, usize>,
    /// Sessions whose count the others do not know yet.
    untold: BTreeSet<String>,
    others: BTreeMap<String, Other>,
    /// The others are to tell all of their counts.
    asks: bool,
}

struct Other {
    heard: Instant,
    counts: BTreeMap<String, usize>,
}

impl Default for Audience {
    fn default() -> Audience {
        let counts = Counts { asks: true, ..Counts::default() };
        Audience { node: Uuid::new_v4().to_string(), counts: Mutex::new(counts), changed: Notify::new() }
    }
}

impl Audience {
    /// A connection of this node follows a session.
    pub fn joined(&self, session: &str) {
        let mut counts = locked(&self.counts);
        *counts.own.entry(session.to_owned()).or_default() += 1;
        counts.untold.insert(session.to_owned());
        self.changed.notify_one();
    }

    pub fn left(&self, session: &str) {
        let mut counts = locked(&self.counts);
        if let Some(count) = counts.own.get_mut(session) {
            *count -= 1;
            if *count == 0 {
                counts.own.remove(session);
            }
            counts.untold.insert(session.to_owned());
            self.changed.notify_one();
        }
    }

    /// How many connections follow a session, on all nodes.
    pub fn of(&self, session: &str) -> usize {
        let mut counts = locked(&self.counts);
        counts.others.retain(|_, other| other.heard.elapsed() < GONE_AFTER);
        let others: usize = counts.others.values().filter_map(|other| other.counts.get(session)).sum();
        counts.own.get(session).copied().unwrap_or(0) + others
    }

    /// What is to be told now. `None` if the others know everything and nobody follows anything here.
    fn news(&self) -> Option<Value> {
        let mut counts = locked(&self.counts);
        let Counts { own, untold, asks, .. } = &mut *counts;
        if own.is_empty() && untold.is_empty() && !*asks {
            return None;
        }
        let sessions: Vec<String> = untold.iter().take(TOLD_MAX).cloned().collect();
        let mut told = Map::new();
        for session in sessions {
            untold.remove(&session);
            told.insert(session.clone(), Value::from(own.get(&session).copied().unwrap_or(0)));
        }
        Some(json!({ "audience": { "node": self.node, "counts": told, "asks": std::mem::take(asks) } }))
    }

    /// What could not be told is told later.
    fn take_back(&self, news: &Value) {
        let mut counts = locked(&self.counts);
        let told = &news["audience"];
        counts.asks |= told["asks"] == true;
        counts.untold.extend(told["counts"].as_object().into_iter().flat_map(Map::keys).cloned());
    }

    fn hear(&self, told: &Value) {
        let Some(node) = told["node"].as_str().filter(|node| *node != self.node) else { return };
        let mut counts = locked(&self.counts);
        let Counts { own, untold, others, .. } = &mut *counts;
        others.retain(|_, other| other.heard.elapsed() < GONE_AFTER);
        let other =
            others.entry(node.to_owned()).or_insert_with(|| Other { heard: Instant::now(), counts: BTreeMap::new() });
        other.heard = Instant::now();
        for (session, count) in told["counts"].as_object().into_iter().flatten() {
            match count.as_u64().unwrap_or(0) as usize {
                0 => drop(other.counts.remove(session)),
                count => drop(other.counts.insert(session.clone(), count)),
            }
        }
        if told["asks"] == true {
            untold.extend(own.keys().cloned());
            self.changed.notify_one();
        }
    }

    /// Something that others told was lost.
    fn ask_again(&self) {
        locked(&self.counts).asks = true;
        self.changed.notify_one();
    }
}

/// Tells the other nodes the counts of this one.
pub async fn tell(gateway: Weak<Gateway>) {
    loop {
        let Some(audience) = gateway.upgrade().map(|gateway| gateway.audience.clone()) else { return };
        // What is due is told at the latest then, and that this node is there.
        let _ = timeout(HERE_EVERY, audience.changed.notified()).await;
        sleep(COLLECT).await;
        let Some(gateway) = gateway.upgrade() else { return };
        let Some(news) = audience.news() else { continue };
        if let Err(error) = gateway.tell_nodes("", &news).await {
            tracing::debug!(%error, "the followers of this node are not told; trying again");
            audience.take_back(&news);
            sleep(RETRY_AFTER).await;
            audience.changed.notify_one();
        } else if !locked(&audience.counts).untold.is_empty() {
            audience.changed.notify_one();
        }
    }
}

/// Hears the counts of the other nodes.
pub async fn listen(audience: Arc<Audience>, relays: Stream) {
    loop {
        match relays.next().await {
            Item::Event(committed, _) => {
                if let Some(told) = committed.payload().field("audience")
                    && let Ok(told) = serde_json::from_str(told)
                {
                    audience.hear(&told);
                }
            }
            Item::Lagged | Item::Skipped(..) | Item::Compacted(..) => audience.ask_again(),
        }
    }
}

/// What the nodes tell each other.
pub fn filter() -> Filter {
    Filter::of_stream(Kinds::of([EventKind::StreamEvent]), Some(SessionId::from(RELAYS)), None, Object::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one node tells, the other hears.
    fn exchange(from: &Audience, to: &Audience) {
        while let Some(news) = from.news() {
            to.hear(&news["audience"]);
            if locked(&from.counts).untold.is_empty() {
                return;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_followers_of_all_nodes_count_until_their_node_is_not_heard_of() {
        let (one, two) = (Audience::default(), Audience::default());
        for audience in [&one, &one, &two] {
            audience.joined("s");
        }
        assert_eq!((one.of("s"), two.of("s")), (2, 1));
        exchange(&one, &two);
        exchange(&two, &one);
        assert_eq!((one.of("s"), two.of("s"), one.of("t")), (3, 3, 0));
        one.left("s");
        exchange(&one, &two);
        assert_eq!(two.of("s"), 2);
        // A node that starts later asks, and what was lost is told again.
        let three = Audience::default();
        let question = three.news().expect("it asks");
        one.hear(&question["audience"]);
        exchange(&one, &three);
        assert_eq!(three.of("s"), 1);
        tokio::time::advance(GONE_AFTER).await;
        assert_eq!((two.of("s"), three.of("s")), (1, 0));
        // Nothing is told when nobody follows anything.
        two.left("s");
        assert!(two.news().is_some() && two.news().is_none());
        two.left("never joined");
        assert!(two.news().is_none());
    }

    #[test]
    fn what_could_not_be_told_is_told_later_and_many_sessions_in_several_commands() {
        let audience = Audience::default();
        for session in 0..=TOLD_MAX {
            audience.joined(&format!("{session:04}"));
        }
        let first = audience.news().unwrap();
        audience.take_back(&first);
        assert_eq!(audience.news().unwrap(), first);
        let last = audience.news().unwrap();
        assert_eq!(last["audience"]["counts"].as_object().unwrap().len(), 1);
    }
}
