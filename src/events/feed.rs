//! Owns: the feed of one node: the queue between commits and subscribers, dispatch in log order, which bindings take
//! part, and from which positions a subscriber may resume.
//! Reads: bindings, filters, the ring, the stored feed. Never: a socket. An attach point takes a delivery without
//! blocking. A subscriber whose queue is full is served from the stored feed by `catch_up.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bindings::{Binding, BindingKey, Bindings, Bound};
use super::delivery::{Delivery, Handed, Notice, print_envelope};
use super::errors::ResumeError;
use super::filter::{Filter, Wanted};
use super::position::{ClusterTag, OLDEST};
use super::ring::{Ring, weight};
use super::stored::{self, StoredFeed};
use super::{Committed, EventSink, locked};
use crate::machine::ids::{FeedPlace, Position};
use crate::machine::scope::Scope;
use crate::machine::turn::driver::{AttachDriver, DRIVERS_MAX};
use crate::metrics::trace::{Context, Span, SpanKind, Value};
use crate::metrics::{Counter, Page, catalogue};

/// How long one full subscriber may delay the synthetic events of those after it.
const SYNTHETIC_DELIVERY_MAX: Duration = Duration::from_secs(5);

/// How far a released subscriber had come. Nothing up to these positions is delivered to it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    pub stands: Position,
    /// How far each of its bindings had come. A binding can be further than `stands` while others catch up.
    pub seen: BTreeMap<Arc<str>, Position>,
}

/// A subscriber as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscriber {
    pub number: u64,
    pub bindings: usize,
    /// The function that gets the events of its first binding; empty for a stream.
    pub function_id: Arc<str>,
    /// What its first binding wants.
    pub filter: String,
    /// Whether it reads the stored feed because it is not up to date.
    pub is_behind: bool,
    /// Log entries between the newest event and its position.
    pub lag: u64,
    pub position: Option<Position>,
}

/// Bounds of the feed.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    pub cluster: ClusterTag,
    pub group: u32,
    /// Events kept in memory, so that a subscriber that was away briefly does not read the stored feed.
    pub ring_bytes_max: usize,
    /// Events queued for dispatch. Past it the publisher dispatches them itself: this is the back-pressure on commits.
    pub queue_bytes_max: usize,
}

impl Default for FeedSettings {
    fn default() -> FeedSettings {
        FeedSettings { cluster: ClusterTag::new("node"), group: 0, ring_bytes_max: 16 << 20, queue_bytes_max: 16 << 20 }
    }
}

/// The feed of one node. The events of every commit pass through it once, in log order.
pub struct Feed {
    settings: FeedSettings,
    /// The cluster, when the node joined it after the feed was created.
    joined: OnceLock<ClusterTag>,
    /// The state that stores the events. Weak, because the state holds the feed to publish to it.
    stored: RwLock<Option<Weak<dyn StoredFeed>>>,
    queue: Mutex<Queue>,
    /// Held while an event is matched and delivered, so that a new binding gets past events first and then live ones.
    pub(super) state: Mutex<State>,
    published: Notify,
    /// The events that were published here.
    events: Counter,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Arc<Committed>>,
    bytes: usize,
    /// Position of the last event that was published.
    last: Option<Position>,
}

#[derive(Default)]
pub(super) struct State {
    pub bindings: Bindings,
    pub ring: Ring,
    /// The last event that was dispatched. Every binding that is not behind received all its matches up to here.
    pub dispatched: Option<Position>,
    /// Subscribers that fell behind and have no reader task yet.
    pub unread: Vec<u64>,
}

impl Feed {
    pub fn new(settings: FeedSettings) -> Arc<Feed> {
        Arc::new(Feed {
            settings,
            joined: OnceLock::new(),
            stored: RwLock::default(),
            queue: Mutex::default(),
            state: Mutex::default(),
            published: Notify::new(),
            events: Counter::default(),
        })
    }

    /// Sets the state that stores the events. Without one, only events in the ring can be resumed.
    pub fn reads_from(&self, stored: &Arc<dyn StoredFeed>) {
        *self.stored.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(stored));
    }

    pub(super) fn stored(&self) -> Option<Arc<dyn StoredFeed>> {
        self.stored.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }

    /// Declares that every event after `position` will be published here. Called once, before the first publish.
    pub fn starts_after(&self, position: Position) {
        let mut state = locked(&self.state);
        state.ring = Ring::starting_after(position);
        state.dispatched = Some(position);
        locked(&self.queue).last = Some(position);
    }

    /// Sets the cluster of a node that joins one. Only the first call has an effect; it comes before the first publish.
    pub fn joins(&self, cluster: &str) {
        self.joined.get_or_init(|| ClusterTag::new(cluster));
    }

    pub fn cluster(&self) -> &ClusterTag {
        self.joined.get().unwrap_or(&self.settings.cluster)
    }

    /// The dispatcher task: runs until shutdown, then dispatches what is queued.
    pub async fn dispatch(self: Arc<Self>, shutdown: CancellationToken) {
        // Yield after this many events, so that a busy feed does not starve other tasks of its thread.
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

    /// Adds a binding. If it has a position, it gets the stored events after it first, then live events. A binding with
    /// the same key is replaced without a gap: the new one continues where the old one is.
    pub fn bind(&self, binding: Binding) -> Result<(), ResumeError> {
        if let Some(after) = binding.after {
            self.check(after)?;
        }
        self.resume(binding);
        Ok(())
    }

    /// Like `bind`, for a subscriber that did not choose its position. If events after the position are gone, it gets
    /// what is stored, and a notice of the loss.
    pub fn resume(&self, mut binding: Binding) {
        let number = binding.key.owner;
        let named = binding.after;
        let mut state = locked(&self.state);
        let stands = state.reached(number);
        if let Some(old) = state.bindings.get(&binding.key) {
            stands.into_iter().for_each(|stands| old.see(stands));
            let (seen, begun) = (old.seen(), old.binding.after);
            if named <= seen {
                binding.after = begun;
                state.bindings.insert(binding, seen);
                return;
            }
        }
        let cursor = state.bindings.owner(number).filter(|owner| owner.is_behind()).map(|owner| owner.cursor);
        let Some(after) = named else {
            // Skip events that were published before the binding and are not dispatched yet: they are older than it.
            let now = Some(self.now());
            binding.after = now;
            state.bindings.insert(binding, now);
            return;
        };
        let missed_nothing = stands.is_some_and(|stands| after >= stands);
        let reads_again = match cursor {
            Some(cursor) => cursor.is_none_or(|cursor| after < cursor),
            None => !missed_nothing,
        };
        // Only if the subscriber goes back: it may have thousands of other bindings.
        if reads_again {
            state.settle(number);
        }
        state.bindings.insert(binding, Some(after));
        if reads_again || cursor.is_some() {
            state.fall_behind(number, after);
            drop(state);
            // A feed whose publisher dispatches may have no dispatcher task that would start a reader.
            if self.settings.queue_bytes_max == 0 {
                self.read_at_once(number);
            }
            self.published.notify_one();
        }
    }

    /// The position of a subscriber that received everything published so far.
    pub fn now(&self) -> Position {
        let beginning = FeedPlace { index: 0, ordinal: 0 };
        let applied = || self.stored().map_or(beginning, |stored| stored.applied());
        let last = locked(&self.queue).last;
        last.unwrap_or_else(|| applied().in_group(self.settings.group))
    }

    fn check(&self, after: Position) -> Result<(), ResumeError> {
        let asked = || self.cluster().print(after);
        if after.group != self.settings.group {
            return Err(ResumeError::OtherGroup { after: asked(), group: after.group, here: self.settings.group });
        }
        let Some(stored) = self.stored() else {
            return locked(&self.state).ring.check_reaches(after, self.cluster());
        };
        if let Some(newest) = self.ahead(after) {
            return Err(ResumeError::Future { after: asked(), newest: self.cluster().print(newest) });
        }
        match stored::oldest(&*stored)?.in_group(after.group) {
            oldest if oldest > after => {
                Err(ResumeError::Compacted { after: asked(), oldest: self.cluster().print(oldest) })
            }
            _reached => Ok(()),
        }
    }

    /// The newest position of this node, if `after` is beyond it.
    pub fn ahead(&self, after: Position) -> Option<Position> {
        let newest = self.stored()?.applied().in_group(self.settings.group);
        (after.index > newest.index).then_some(newest)
    }

    /// Another node may have reached a position that this node has not. Waits until this node knows every change that
    /// was acknowledged before the call.
    pub async fn catch_up(&self, after: Position) -> Result<(), ResumeError> {
        if self.ahead(after).is_none() {
            return Ok(());
        }
        let stored = self.stored().ok_or_else(|| ResumeError::Unavailable("the node is stopping".to_owned()))?;
        let explain = |why| ResumeError::Unavailable(format!("position `{}`: {why}", self.cluster().print(after)));
        stored.catch_up().await.map_err(explain)
    }

    /// The position from which everything stored can be read.
    pub fn oldest(&self) -> Result<Position, ResumeError> {
        let group = self.settings.group;
        let Some(stored) = self.stored() else {
            let ring = &locked(&self.state).ring;
            return Ok(ring.complete_after.unwrap_or(Position { group, index: 0, ordinal: 0 }));
        };
        Ok(stored::oldest(&*stored)?.in_group(group))
    }

    /// Reads the position a subscriber wants to resume after, as it wrote it.
    pub fn parse_position(&self, text: &str) -> Result<Position, ResumeError> {
        if text == OLDEST { self.oldest() } else { self.cluster().parse(text) }
    }

    /// The last event that was dispatched, or else the last one that is stored.
    pub fn position(&self) -> Option<Position> {
        let stored = self.stored();
        // The fallback when no event is stored yet. Read first, so that everything committed meanwhile comes after it.
        let applied = stored.as_ref().map(|stored| stored.applied());
        let dispatched = locked(&self.state).dispatched;
        let newest = || stored::newest(&**stored.as_ref()?);
        dispatched.or_else(|| newest().or(applied).map(|place| place.in_group(self.settings.group)))
    }

    /// Fails when the feed cannot be resumed after this position.
    pub fn check_resume(&self, after: &str) -> Result<(), ResumeError> {
        self.check(self.cluster().parse(after)?)
    }

    /// Dispatches what is published so far, then moves every binding to another feed. Positions of one feed mean
    /// nothing in another, so all bindings start there with live events.
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

    /// Delivers a synthetic event: one that describes a state instead of a commit. It is not stored and cannot be
    /// resumed. Waits for subscribers whose queue is full, within a bound.
    pub async fn deliver_synthetic(&self, committed: &Arc<Committed>) {
        let mut matching = Vec::new();
        locked(&self.state).bindings.each_wanting(&committed.event, |bound| matching.push(bound.clone()));
        let mut envelope = None;
        for bound in matching {
            let delivered = async {
                while self.hand_over(&bound, committed, &mut envelope, Notice::default(), None) == Handed::Full {
                    bound.binding.to.room(&bound.binding).await;
                }
            };
            if tokio::time::timeout(SYNTHETIC_DELIVERY_MAX, delivered).await.is_err() {
                let subscriber = bound.binding.key.owner;
                tracing::warn!(subscriber, "a subscriber with a full queue did not get an event of replaced data");
            }
        }
    }

    pub fn unbind(&self, key: &BindingKey) -> bool {
        locked(&self.state).bindings.remove(key).is_some()
    }

    /// Removes some bindings of a subscriber that is leaving. Returns the position each of them started after.
    pub fn unbind_some<'a>(&self, owner: u64, ids: impl Iterator<Item = &'a Arc<str>>) -> Vec<Option<Position>> {
        let mut state = locked(&self.state);
        let removed = ids.map(|id| state.bindings.remove(&BindingKey { owner, id: id.clone() }));
        removed.map(|bound| bound?.binding.after).collect()
    }

    /// Removes all bindings of a subscriber that is gone. Returns the position each of them started after.
    pub fn unbind_owner(&self, owner: u64) -> BTreeMap<Arc<str>, Position> {
        let owner = locked(&self.state).bindings.remove_owner(owner).unwrap_or_default();
        owner.bounds.into_iter().filter_map(|(id, bound)| Some((id, bound.binding.after?))).collect()
    }

    /// True when every event after this position is still available.
    pub fn reaches(&self, position: Position) -> bool {
        self.check(position).is_ok()
    }

    /// Moves the bindings of one subscriber to another that took over its identity. Events sent to the old one may be
    /// lost, so the new one continues after `confirmed`, or from the start of each binding.
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

    /// The drivers that are bound here and say who they are. Each once, whatever its bindings.
    pub fn drivers(&self) -> Vec<(AttachDriver, Option<Arc<Scope>>)> {
        let state = locked(&self.state);
        let mut found = BTreeMap::new();
        for filter in state.bindings.of_drivers().map(|bound| &bound.binding.filter) {
            if let Some(driver) = filter.driver() {
                found.insert((driver.driver_id.clone(), scope_text(filter)), (driver, filter.scope().cloned()));
            }
        }
        found.into_values().take(DRIVERS_MAX).collect()
    }

    pub fn bindings(&self) -> usize {
        locked(&self.state).bindings.len()
    }

    /// Adds the figures of the feed and its subscribers to a page.
    pub fn measure(&self, page: &mut Page) {
        let queued = locked(&self.queue).bytes;
        {
            let state = locked(&self.state);
            let newest = state.dispatched.map_or(0, |dispatched| dispatched.index);
            let (mut subscribers, mut behind, mut lag) = (0, 0, 0);
            for owner in state.bindings.all_owners().filter(|owner| !owner.bounds.is_empty()) {
                subscribers += 1;
                if owner.is_behind() {
                    behind += 1;
                    let cursor = owner.cursor.map_or(newest, |cursor| cursor.index);
                    lag = lag.max(newest.saturating_sub(cursor));
                }
            }
            page.whole(catalogue::SUBSCRIBERS, subscribers);
            page.whole(catalogue::SUBSCRIBERS_BEHIND, behind);
            page.whole(catalogue::SUBSCRIBER_LAG, lag);
            page.whole(catalogue::BINDINGS, state.bindings.len() as u64);
            page.whole(catalogue::FEED_RECENT, state.ring.bytes() as u64);
        }
        page.whole(catalogue::EVENTS, self.events.value());
        page.whole(catalogue::FEED_QUEUED, queued as u64);
        if let Some(bytes) = self.stored().and_then(|stored| stored::bytes(&*stored)) {
            page.whole(catalogue::FEED_KEPT, bytes);
        }
    }

    /// The subscribers that are furthest behind, at most `most` of them.
    pub fn subscribers(&self, most: usize) -> Vec<Subscriber> {
        let mut state = locked(&self.state);
        let dispatched = state.dispatched;
        let newest = dispatched.map_or(0, |dispatched| dispatched.index);
        let mut found: Vec<(u64, u64)> = Vec::new();
        for (number, owner) in state.bindings.owners().filter(|(_, owner)| !owner.bounds.is_empty()) {
            let cursor = owner.cursor.filter(|_| owner.is_behind());
            found.push((cursor.map_or(0, |cursor| newest.saturating_sub(cursor.index)), number));
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        let mut subscribers = Vec::new();
        for (lag, number) in found.into_iter().take(most) {
            let Some(owner) = state.bindings.owner(number) else { continue };
            let bound = owner.bounds.values().next();
            subscribers.push(Subscriber {
                number,
                bindings: owner.bounds.len(),
                function_id: bound.map(|bound| bound.binding.function_id.clone()).unwrap_or_default(),
                filter: bound.map(|bound| bound.binding.filter.describe()).unwrap_or_default(),
                is_behind: owner.is_behind(),
                lag,
                position: if owner.is_behind() { owner.cursor } else { dispatched },
            });
        }
        subscribers
    }

    /// The subscriber received all its matches up to this position. `None` when it is unknown, or when a loss of events
    /// was not reported to it yet.
    pub fn stands(&self, owner: u64) -> Option<Position> {
        locked(&self.state).stands(owner)
    }

    /// Removes all bindings of a subscriber that continues on another node. `None` when its position is unknown.
    pub fn release(&self, owner: u64) -> Option<Released> {
        let mut state = locked(&self.state);
        let stands = state.stands(owner);
        state.settle(owner);
        let owner = state.bindings.remove_owner(owner)?;
        let seen = owner.bounds.into_iter().filter_map(|(id, bound)| Some((id, bound.seen()?)));
        Some(Released { stands: stands?, seen: seen.collect() })
    }

    /// Moves what is queued to the ring if nobody is subscribed: that is less work than waking the dispatcher. False if
    /// somebody is, or may be.
    fn keep_for_later(&self) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) if state.bindings.is_empty() => state,
            Ok(_) | Err(_) => return false,
        };
        while let Some(committed) = locked(&self.queue).pop() {
            self.dispatch_one(&mut state, committed);
        }
        true
    }

    /// Dispatches up to `most` events. True when more are queued.
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
        let span = committed.trace.as_ref().map(|trace| trace.child("deliver", SpanKind::Internal));
        let trace = span.as_ref().map(Span::context);
        let mut taken = 0;
        state.bindings.each_match(&committed.event, committed.position, |bound| {
            match self.hand_over(bound, &committed, &mut envelope, bound.notice(), trace.as_ref()) {
                Handed::Taken => {
                    taken += 1;
                    bound.take(committed.position);
                }
                Handed::Full => full.push((bound.binding.key.owner, bound.binding.after)),
            }
        });
        if let Some(span) = span {
            drop(span.with("subscribers", Value::Number(taken)).with("behind", Value::Number(full.len() as u64)));
        }
        for (number, begun) in full {
            state.settle(number);
            if let Some(cursor) = state.dispatched.or(begun) {
                state.fall_behind(number, cursor);
            }
            if let Some(owner) = state.bindings.owner(number) {
                owner.lags();
            }
            tracing::debug!(subscriber = number, "a subscriber's queue is full; it reads the stored feed");
            self.published.notify_one();
        }
        state.dispatched = Some(committed.position);
        state.ring.push(committed, self.settings.ring_bytes_max);
    }

    /// Delivers the event to the binding's attach point. `envelope` caches the printed envelope of this event.
    pub(super) fn hand_over(
        &self,
        bound: &Bound,
        committed: &Arc<Committed>,
        envelope: &mut Option<String>,
        notice: Notice,
        trace: Option<&Context>,
    ) -> Handed {
        let binding = &bound.binding;
        let data = match binding.filter.wanted {
            Wanted::Kind(_) | Wanted::Kinds(_) if binding.to.prints_itself() => "",
            Wanted::Kind(_) | Wanted::Kinds(_) => committed.payload().text(),
            Wanted::Everything => envelope.get_or_insert_with(|| print_envelope(committed)),
        };
        binding.to.deliver(Delivery { binding, committed, data, notice, trace, cluster: self.cluster() })
    }
}

impl EventSink for Feed {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        self.events.add(events.len() as u64);
        let behind = {
            let mut queue = locked(&self.queue);
            for committed in events {
                queue.push(committed);
            }
            queue.bytes > self.settings.queue_bytes_max
        };
        if behind {
            self.drain(usize::MAX);
        } else if !self.keep_for_later() {
            self.published.notify_one();
        }
    }

    fn is_heard(&self) -> bool {
        // Held while events are delivered: then somebody listens.
        self.state.try_lock().map_or(true, |state| !state.bindings.is_empty())
    }

    /// Every subscriber falls behind: the skipped events were never published here, but the new state stores them.
    fn jumped(&self, to: Position) {
        let mut state = locked(&self.state);
        while let Some(committed) = locked(&self.queue).pop() {
            self.dispatch_one(&mut state, committed);
        }
        let (dispatched, mut live) = (state.dispatched, Vec::new());
        for (number, owner) in state.bindings.owners() {
            let begun = owner.bounds.values().filter_map(|bound| bound.binding.after).min();
            if let (false, Some(cursor)) = (owner.is_behind(), dispatched.or(begun)) {
                live.push((number, cursor));
            }
        }
        for (number, cursor) in live {
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
            // A client that resumed from here would never learn that it lost events.
            return None;
        }
        // A binding may start after an event that another one has yet to receive, so the earliest start counts.
        let begun = owner.bounds.values().filter_map(|bound| bound.binding.after).min();
        if owner.is_behind() { owner.cursor } else { dispatched.max(begun) }
    }

    /// Records in the bindings of a subscriber up to where it received all its matches. Metadata may change later, so an
    /// event that did not match when it happened could match when it is read again.
    fn settle(&mut self, number: u64) {
        if let Some(reached) = self.reached(number)
            && let Some(owner) = self.bindings.owner(number)
        {
            owner.bounds.values().for_each(|bound| bound.see(reached));
        }
    }

    /// The position up to which a subscriber received all its matches.
    fn reached(&mut self, number: u64) -> Option<Position> {
        match self.bindings.owner(number) {
            Some(owner) if owner.is_behind() => owner.cursor,
            Some(_) | None => self.dispatched,
        }
    }

    /// Starts reading the stored feed for a subscriber after `cursor`, or after its current cursor if that is earlier.
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

/// Two callers with different scopes may use one name.
fn scope_text(filter: &Filter) -> Option<String> {
    filter.scope().map(|scope| scope.text().to_owned())
}

#[cfg(test)]
#[path = "feed_test.rs"]
mod tests;
