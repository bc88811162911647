//! Owns: the way from a commit's events to attach points: the queue, dispatch in order, and who takes part in it.
//! May touch: bindings, filters, positions, the ring. Never: a socket. An attach point takes a delivery without waiting;
//! a subscriber that has no room is left to `resume.rs`, which reads the kept feed for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bindings::{Binding, BindingKey, Bindings, Bound};
use super::filter::Wanted;
use super::history::{self, History};
use super::position::ClusterTag;
use super::ring::{Ring, weight};
use super::{Committed, EventSink};
use crate::machine::ids::{FeedPlace, Position};

/// How long a stuck subscriber may hold up those who are told of other data after it.
const TELL_MAX: Duration = Duration::from_secs(5);

/// A matched event on its way to one binding.
pub struct Delivery<'a> {
    pub binding: &'a Binding,
    pub committed: &'a Arc<Committed>,
    /// The payload, as JSON text; empty where the attach point prints it itself.
    pub data: &'a str,
    /// What else the subscriber must know.
    pub notice: Notice,
    cluster: &'a ClusterTag,
}

/// Said with the first event after it happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notice {
    /// It was too slow, and gets the kept feed since: updates that were replaced meanwhile are left out.
    pub lagged: bool,
    /// It was so slow that events were dropped; it gets those after this one.
    pub compacted: Option<Position>,
}

impl Delivery<'_> {
    /// Whose positions these are.
    pub fn cluster(&self) -> &ClusterTag {
        self.cluster
    }

    /// The metadata sidecar: the binding's own fields and the event's place, as JSON text.
    pub fn sidecar(&self) -> String {
        let fields = &self.binding.sidecar_fields;
        let comma = if fields.is_empty() { "" } else { "," };
        let lagged = if self.notice.lagged { ",\"lagged\":true" } else { "" };
        let compacted = match self.notice.compacted {
            Some(oldest) => format!(",\"compacted\":\"{}\"", self.cluster.print(oldest)),
            None => String::new(),
        };
        format!(
            "{{{fields}{comma}\"session-manager\":{{\"position\":\"{}\",\"seq\":{}{lagged}{compacted}}}}}",
            self.cluster.print(self.committed.position),
            self.committed.event.seq,
        )
    }
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    Taken,
    /// There is no room; nothing was taken. The subscriber gets it from the kept feed, at its own pace.
    Full,
}

/// Where deliveries leave the node: the embedded bus, a watch or an event stream.
pub trait AttachPoint: Send + Sync + 'static {
    /// Must not wait.
    fn deliver(&self, delivery: Delivery<'_>) -> Handed;

    /// Whether it prints payloads when they leave. What waits in memory then waits without its text.
    fn prints_itself(&self) -> bool {
        false
    }

    /// Resolves when there may be room again for this binding, or when it does not matter any more.
    fn room(&self, binding: &Binding) -> BoxFuture<'static, ()>;
}

/// Where a subscriber stood when it was let go: nothing up to there is to be handed to it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    pub stands: Position,
    /// Where each of its bindings stood: further, where others read what they missed.
    pub seen: BTreeMap<Arc<str>, Position>,
}

/// Sizes of the feed.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    pub cluster: ClusterTag,
    pub group: u32,
    /// Events kept in memory, so that a subscriber that was away for a moment need not ask the state.
    pub ring_bytes_max: usize,
    /// Events that wait for dispatch; past it the publisher dispatches them itself, which slows it down.
    pub queue_bytes_max: usize,
}

impl Default for FeedSettings {
    fn default() -> FeedSettings {
        FeedSettings { cluster: ClusterTag::new("node"), group: 0, ring_bytes_max: 16 << 20, queue_bytes_max: 16 << 20 }
    }
}

/// The feed of one node: every commit's events pass through here once, in log order.
pub struct Feed {
    settings: FeedSettings,
    /// The cluster that was joined after the feed was made.
    joined: OnceLock<ClusterTag>,
    /// The state behind the events. The state publishes to the feed, so the feed must not keep it alive.
    history: RwLock<Option<Weak<dyn History>>>,
    queue: Mutex<Queue>,
    /// Held while an event is matched and handed out, so that a new binding sees its past and then its future.
    pub(super) state: Mutex<State>,
    published: Notify,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Arc<Committed>>,
    bytes: usize,
    /// The last event that was published.
    last: Option<Position>,
}

#[derive(Default)]
pub(super) struct State {
    pub bindings: Bindings,
    pub ring: Ring,
    /// The last event handed out: every binding that is not behind has seen what matched up to here.
    pub dispatched: Option<Position>,
    /// Subscribers that fell behind and that nobody reads for yet.
    pub unread: Vec<u64>,
}

impl Feed {
    pub fn new(settings: FeedSettings) -> Arc<Feed> {
        Arc::new(Feed {
            settings,
            joined: OnceLock::new(),
            history: RwLock::default(),
            queue: Mutex::default(),
            state: Mutex::default(),
            published: Notify::new(),
        })
    }

    /// Names the state that keeps the feed. Without one, only the most recent events can be asked for.
    pub fn reads_from(&self, history: &Arc<dyn History>) {
        *self.history.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(history));
    }

    pub(super) fn history(&self) -> Option<Arc<dyn History>> {
        self.history.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }

    /// Tells the feed that every event after `position` will be published to it. Called once, before the first publish.
    pub fn starts_after(&self, position: Position) {
        let mut state = locked(&self.state);
        state.ring = Ring::starting_after(position);
        state.dispatched = Some(position);
        locked(&self.queue).last = Some(position);
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
        let mut readers = JoinSet::new();
        loop {
            let more = self.drain(TURN);
            for owner in std::mem::take(&mut locked(&self.state).unread) {
                readers.spawn(self.clone().read_for(owner));
            }
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            while readers.try_join_next().is_some() {}
            tokio::select! {
                () = self.published.notified() => {}
                () = shutdown.cancelled() => break,
            }
        }
        self.drain(usize::MAX);
    }

    /// Makes a binding live: first what it missed since `after`, if it names a position, then everything to come.
    /// One under the same key is replaced without a gap: the new one goes on where the old one stands.
    pub fn bind(&self, binding: Binding) -> Result<(), String> {
        if let Some(after) = binding.after {
            self.check(after)?;
        }
        self.resume(binding);
        Ok(())
    }

    /// The same for a subscriber that did not choose the position: if that is too far back it gets what is kept, and is
    /// told what it missed.
    pub fn resume(&self, mut binding: Binding) {
        let number = binding.key.owner;
        let named = binding.after;
        let mut state = locked(&self.state);
        let stands = state.settle(number);
        if let Some(old) = state.bindings.get(&binding.key) {
            let (seen, begun) = (old.seen(), old.binding.after);
            if named <= seen {
                binding.after = begun;
                state.bindings.insert(binding, seen);
                return;
            }
        }
        let is_behind = state.bindings.owner(number).is_some_and(|owner| owner.is_behind());
        let Some(after) = named else {
            // Before the owner's place as well: what was published and not handed out yet is none of its business.
            let now = Some(self.now());
            binding.after = now;
            state.bindings.insert(binding, now);
            return;
        };
        state.bindings.insert(binding, Some(after));
        let missed_nothing = stands.is_some_and(|stands| after >= stands);
        if !missed_nothing || is_behind {
            state.fall_behind(number, after);
            drop(state);
            // Where publishers deliver, there may be no dispatcher that would read.
            if self.settings.queue_bytes_max == 0 {
                self.read_at_once(number);
            }
            self.published.notify_one();
        }
    }

    /// Where a subscriber stands that has seen everything so far.
    pub fn now(&self) -> Position {
        let beginning = FeedPlace { index: 0, ordinal: 0 };
        let applied = || self.history().map_or(beginning, |history| history.applied());
        let last = locked(&self.queue).last;
        last.unwrap_or_else(|| applied().in_group(self.settings.group))
    }

    /// `Err` says why nobody can go on after this position here.
    fn check(&self, after: Position) -> Result<(), String> {
        if after.group != self.settings.group {
            let (asked, group) = (self.cluster().print(after), self.settings.group);
            return Err(format!("position `{asked}` belongs to group {}, this node serves group {group}", after.group));
        }
        let Some(history) = self.history() else {
            return locked(&self.state).ring.check_reaches(after, self.cluster());
        };
        if let Some(newest) = self.ahead(after) {
            let (asked, newest) = (self.cluster().print(after), self.cluster().print(newest));
            return Err(format!("position `{asked}` is from the future: the newest here is {newest}"));
        }
        match history::oldest(&*history)?.in_group(after.group) {
            oldest if oldest > after => Err(history::compacted(self.cluster(), after, oldest)),
            _reached => Ok(()),
        }
    }

    /// Where this node stands, if that is before the position.
    pub fn ahead(&self, after: Position) -> Option<Position> {
        let newest = self.history()?.applied().in_group(self.settings.group);
        (after.index > newest.index).then_some(newest)
    }

    /// A position this node has not come to may be known elsewhere: waits until the node knows what everybody knows.
    pub async fn catch_up(&self, after: Position) -> Result<(), String> {
        if self.ahead(after).is_none() {
            return Ok(());
        }
        let history = self.history().ok_or("the node is stopping")?;
        history.catch_up().await.map_err(|why| format!("position `{}`: {why}", self.cluster().print(after)))
    }

    /// The position from which everything that is kept is read.
    pub fn oldest(&self) -> Result<Position, String> {
        let group = self.settings.group;
        let Some(history) = self.history() else {
            let ring = &locked(&self.state).ring;
            return Ok(ring.complete_after.unwrap_or(Position { group, index: 0, ordinal: 0 }));
        };
        Ok(history::oldest(&*history)?.in_group(group))
    }

    /// How far the feed has come: the last event that was handed out, or the last one that is kept.
    pub fn position(&self) -> Option<Position> {
        let history = self.history();
        // Where no event is kept yet, the place the state has come to. Asked first, so that what comes meanwhile is after it.
        let stands = history.as_ref().map(|history| history.applied());
        let dispatched = locked(&self.state).dispatched;
        let kept = || history::newest(&**history.as_ref()?);
        dispatched.or_else(|| kept().or(stands).map(|place| place.in_group(self.settings.group)))
    }

    /// Why the feed cannot be resumed after a position, if so.
    pub fn check_resume(&self, after: &str) -> Result<(), String> {
        self.check(self.cluster().parse(after)?)
    }

    /// Hands out what is published so far, then gives every binding to another feed. Positions of one feed mean
    /// nothing in another, so all begin there with what is published from now on.
    pub fn move_bindings(&self, to: &Feed) {
        self.drain(usize::MAX);
        let moved = locked(&self.state).bindings.take_all();
        let now = Some(to.now());
        let mut state = locked(&to.state);
        for bound in moved {
            let binding = Binding { after: now, ..bound.binding.clone() };
            state.bindings.insert(binding, now);
        }
    }

    /// Hands an event to whoever wants it, and forgets it: it tells of a state, not of a commit, so no position counts.
    /// A subscriber without room is waited for, within bounds.
    pub async fn tell(&self, committed: &Arc<Committed>) {
        let mut wanted = Vec::new();
        locked(&self.state).bindings.each_wanting(&committed.event, |bound| wanted.push(bound.clone()));
        let mut envelope = None;
        for bound in wanted {
            let handing = async {
                while self.hand_over(&bound, committed, &mut envelope, Notice::default()) == Handed::Full {
                    bound.binding.to.room(&bound.binding).await;
                }
            };
            if tokio::time::timeout(TELL_MAX, handing).await.is_err() {
                tracing::warn!(subscriber = bound.binding.key.owner, "a stuck subscriber was not told of other data");
            }
        }
    }

    pub fn unbind(&self, key: &BindingKey) -> bool {
        locked(&self.state).bindings.remove(key).is_some()
    }

    /// Removes all bindings of a subscriber that is gone. Returns where each of them began.
    pub fn unbind_owner(&self, owner: u64) -> BTreeMap<Arc<str>, Position> {
        let owner = locked(&self.state).bindings.remove_owner(owner).unwrap_or_default();
        owner.bounds.into_iter().filter_map(|(id, bound)| Some((id, bound.binding.after?))).collect()
    }

    /// True when nothing after this position is lost.
    pub fn reaches(&self, position: Position) -> bool {
        self.check(position).is_ok()
    }

    /// Gives the bindings of one subscriber to another, which took over its identity. What the old one was handed may
    /// have been lost on its way: the new one goes on after `confirmed`, or from the beginning of each binding.
    pub fn change_owner(&self, from: u64, to: u64, confirmed: Option<Position>) {
        let mut state = locked(&self.state);
        let Some(owner) = state.bindings.remove_owner(from) else { return };
        state.settle(to);
        let mut oldest = None;
        for bound in owner.bounds.values() {
            let mut binding = bound.binding.clone();
            binding.key.owner = to;
            let seen = confirmed.max(binding.after);
            binding.after = seen;
            oldest = if oldest.is_none() { seen } else { seen.min(oldest) };
            state.bindings.insert(binding, seen);
        }
        if let Some(oldest) = oldest {
            state.fall_behind(to, oldest);
            self.published.notify_one();
        }
    }

    pub fn bindings(&self) -> usize {
        locked(&self.state).bindings.len()
    }

    /// The last event that was handed to a subscriber that is not behind, or that was none of its business.
    pub fn stands(&self, owner: u64) -> Option<Position> {
        locked(&self.state).stands(owner)
    }

    /// Removes all bindings of a subscriber that goes on elsewhere. `None`: it is not known where it stood.
    pub fn release(&self, owner: u64) -> Option<Released> {
        let mut state = locked(&self.state);
        let stands = state.stands(owner);
        state.settle(owner);
        let owner = state.bindings.remove_owner(owner)?;
        let seen = owner.bounds.into_iter().filter_map(|(id, bound)| Some((id, bound.seen()?)));
        Some(Released { stands: stands?, seen: seen.collect() })
    }

    /// Dispatches up to `most` events. True: there is more.
    fn drain(&self, most: usize) -> bool {
        let mut state = locked(&self.state);
        for _ in 0..most {
            let Some(committed) = locked(&self.queue).pop() else { return false };
            self.dispatch_one(&mut state, committed);
        }
        !locked(&self.queue).events.is_empty()
    }

    fn dispatch_one(&self, state: &mut State, committed: Arc<Committed>) {
        let mut envelope = None;
        let mut full = Vec::new();
        state.bindings.each_match(&committed.event, committed.position, |bound| {
            match self.hand_over(bound, &committed, &mut envelope, bound.notice()) {
                Handed::Taken => bound.take(committed.position),
                Handed::Full => full.push((bound.binding.key.owner, bound.binding.after)),
            }
        });
        for (number, begun) in full {
            state.settle(number);
            if let Some(cursor) = state.dispatched.or(begun) {
                state.fall_behind(number, cursor);
            }
            if let Some(owner) = state.bindings.owner(number) {
                owner.lags();
            }
            tracing::debug!(subscriber = number, "a subscriber is slow; it gets its events from the kept feed");
            self.published.notify_one();
        }
        state.dispatched = Some(committed.position);
        state.ring.push(committed, self.settings.ring_bytes_max);
    }

    /// Gives the event to the binding's attach point. An envelope is printed once per event.
    pub(super) fn hand_over(
        &self,
        bound: &Bound,
        committed: &Arc<Committed>,
        envelope: &mut Option<String>,
        notice: Notice,
    ) -> Handed {
        let binding = &bound.binding;
        let data = match binding.filter.wanted {
            Wanted::Kind(_) | Wanted::Kinds(_) if binding.to.prints_itself() => "",
            Wanted::Kind(_) | Wanted::Kinds(_) => committed.payload().text(),
            Wanted::Everything => envelope.get_or_insert_with(|| print_envelope(committed)),
        };
        binding.to.deliver(Delivery { binding, committed, data, notice, cluster: self.cluster() })
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

    /// Everybody is behind now: the events between were never published here, but the new state keeps them.
    fn jumped(&self, to: Position) {
        let mut state = locked(&self.state);
        while let Some(committed) = locked(&self.queue).pop() {
            self.dispatch_one(&mut state, committed);
        }
        let (dispatched, mut left) = (state.dispatched, Vec::new());
        for (number, owner) in state.bindings.owners() {
            let begun = owner.bounds.values().filter_map(|bound| bound.binding.after).min();
            if let (false, Some(cursor)) = (owner.is_behind(), dispatched.or(begun)) {
                left.push((number, cursor));
            }
        }
        for (number, cursor) in left {
            state.settle(number);
            state.fall_behind(number, cursor);
        }
        state.ring = Ring::starting_after(to);
        state.dispatched = state.dispatched.max(Some(to));
        let mut queue = locked(&self.queue);
        queue.last = queue.last.max(Some(to));
        self.published.notify_one();
    }
}

impl State {
    fn stands(&mut self, number: u64) -> Option<Position> {
        let dispatched = self.dispatched;
        let owner = self.bindings.owner(number)?;
        if owner.has_untold_loss() {
            // Who took this for its place would never be told that events are lost to it.
            return None;
        }
        // A binding may begin after an event that another one is still to be handed: the one that began first counts.
        let begun = owner.bounds.values().filter_map(|bound| bound.binding.after).min();
        if owner.is_behind() { owner.cursor } else { dispatched.max(begun) }
    }

    /// Where a subscriber stands: it was handed everything that matched up to here. Its bindings are told so, since what
    /// matched differently when it happened must not be handed over when the feed is read once more.
    fn settle(&mut self, number: u64) -> Option<Position> {
        let dispatched = self.dispatched;
        let Some(owner) = self.bindings.owner(number) else { return dispatched };
        let stands = if owner.is_behind() { owner.cursor } else { dispatched };
        if let Some(stands) = stands {
            owner.bounds.values().for_each(|bound| bound.see(stands));
        }
        stands
    }

    /// From now on the feed is read for a subscriber, after `cursor` or, if it is behind already, whichever comes first.
    fn fall_behind(&mut self, number: u64, cursor: Position) {
        let Some(owner) = self.bindings.owner(number) else { return };
        let cursor = if owner.is_behind() { owner.cursor.map_or(cursor, |old| old.min(cursor)) } else { cursor };
        owner.fall_behind(cursor);
        if !owner.read_for {
            owner.read_for = true;
            self.unread.push(number);
        }
    }
}

impl Queue {
    fn push(&mut self, committed: Arc<Committed>) {
        self.bytes += weight(&committed.event);
        self.last = Some(committed.position);
        self.events.push_back(committed);
    }

    fn pop(&mut self) -> Option<Arc<Committed>> {
        let committed = self.events.pop_front()?;
        self.bytes -= weight(&committed.event);
        Some(committed)
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
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "deliver_test.rs"]
mod tests;
