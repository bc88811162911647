//! Owns: the queue of messages to one client, bounded by bytes and count. A client that does not read is disconnected:
//! nothing waits for it.
//! Never: a socket, or what a message means.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::CloseReason;
use super::frame::Frame;
use crate::machine::ids::Position;
use crate::surface::locked;

/// The memory cost of a queued message besides its text.
const MESSAGE_OVERHEAD_BYTES: usize = 96;
/// A result that was written may still be lost with the socket, so the last few are kept for a client that reattaches.
const RECENT_RESULTS_MAX: usize = 16;
const RECENT_RESULTS_BYTES_MAX: usize = 128 << 10;
/// While all clients together exceed their bound, a client that holds less than this is not disconnected.
const FAIR_SHARE_BYTES: usize = 256 << 10;

/// While all clients together hold more than `events_total_bytes_max`, each may hold only this much in events.
const FAIR_EVENTS_BYTES: usize = 32 << 10;

/// Bounds of the queue of one client, and of all queues together.
#[derive(Debug, Clone)]
pub struct OutboxLimits {
    /// Events and calls to the client. Past it the client is a slow consumer and is disconnected.
    pub bytes_max: usize,
    /// Past this no more events are queued. The client reads them from the stored feed later.
    pub events_bytes_max: usize,
    /// Past this, over all clients, each may queue only a fair share of events.
    pub events_total_bytes_max: usize,
    /// Results may take this much in addition: the client asked for them, and its calls are not read long before this.
    pub results_bytes_max: usize,
    pub frames_max: usize,
    /// All clients together.
    pub total_bytes_max: usize,
}

impl Default for OutboxLimits {
    fn default() -> OutboxLimits {
        OutboxLimits {
            bytes_max: 32 << 20,
            events_bytes_max: 512 << 10,
            events_total_bytes_max: 64 << 20,
            results_bytes_max: 128 << 20,
            frames_max: 64 << 10,
            total_bytes_max: 512 << 20,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The answer to a call. Kept when the socket is lost, until the client reattaches.
    Result,
    /// An event for a binding of this client. Lost with the socket, but stored in the feed.
    Event(Sent),
    /// Anything else. Lost with the socket.
    Other,
}

/// An event that was queued for a client. Positions may go back, when the client asks for old events; numbers never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Sequence number of this event on this connection.
    pub number: u64,
    pub position: Position,
    /// The last position that was sent before this one. Several bindings may receive the same event, so its arrival
    /// proves only that everything before it arrived.
    pub before: Option<Position>,
}

/// What the writer does next.
#[derive(Debug)]
pub enum Next {
    Write(Frame, Class),
    Close(CloseReason),
}

pub struct Outbox {
    state: Mutex<State>,
    limits: OutboxLimits,
    /// Bytes queued for all clients together.
    total_bytes: Arc<AtomicUsize>,
    filled: Notify,
    emptied: Notify,
    /// Cancelled when the connection must end without writing the rest of the queue.
    cut: CancellationToken,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Frame, Class)>,
    bytes: usize,
    close: Option<CloseReason>,
    /// The last results that were written.
    recent: VecDeque<Frame>,
    recent_bytes: usize,
}

impl Outbox {
    pub fn new(limits: OutboxLimits, total_bytes: Arc<AtomicUsize>) -> Outbox {
        Outbox {
            state: Mutex::default(),
            limits,
            total_bytes,
            filled: Notify::new(),
            emptied: Notify::new(),
            cut: CancellationToken::new(),
        }
    }

    /// Queues a message. A client whose queue is full is disconnected, and everything queued except results is dropped.
    pub fn push(&self, message: impl Into<Frame>, class: Class) {
        let frame = message.into();
        let mut state = locked(&self.state);
        if state.close.is_some() && class != Class::Result {
            return;
        }
        if self.is_full(&state, class) {
            let waiting = state.bytes;
            let reason = format!("slow consumer: {waiting} bytes in {} frames were not read", state.queue.len());
            self.cut_off(&mut state, 1013, reason);
            return;
        }
        self.add(&mut state, frame, class);
        drop(state);
        self.filled.notify_one();
    }

    /// The bound applies to what is queued already, so that one large message always fits into an empty queue.
    fn is_full(&self, state: &State, class: Class) -> bool {
        let bytes_max = match class {
            Class::Result => self.limits.bytes_max + self.limits.results_bytes_max,
            Class::Event(_) | Class::Other => self.limits.bytes_max,
        };
        let crowded = self.total_bytes.load(Ordering::Relaxed) > self.limits.total_bytes_max;
        state.bytes > bytes_max
            || state.queue.len() >= self.limits.frames_max
            || (crowded && state.bytes > FAIR_SHARE_BYTES)
    }

    fn add(&self, state: &mut State, frame: Frame, class: Class) {
        let cost = cost(&frame);
        state.bytes += cost;
        self.total_bytes.fetch_add(cost, Ordering::Relaxed);
        state.queue.push_back((frame, class));
    }

    /// Waits for the next message to write or, once all are written, for the reason to close.
    pub async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            self.filled.notified().await;
        }
    }

    fn try_next(&self) -> Option<Next> {
        let mut state = locked(&self.state);
        if let Some(reason) = &state.close
            && (self.cut.is_cancelled() || state.queue.is_empty())
        {
            return Some(Next::Close(reason.clone()));
        }
        let (frame, class) = state.queue.pop_front()?;
        let cost = cost(&frame);
        state.bytes -= cost;
        self.total_bytes.fetch_sub(cost, Ordering::Relaxed);
        if class == Class::Result {
            state.remember(&frame);
        }
        drop(state);
        self.emptied.notify_waiters();
        Some(Next::Write(frame, class))
    }

    pub fn is_empty(&self) -> bool {
        locked(&self.state).queue.is_empty()
    }

    /// Queued bytes.
    pub fn bytes(&self) -> usize {
        locked(&self.state).bytes
    }

    /// True when a result is queued, or was written and may not have arrived.
    pub fn has_results(&self) -> bool {
        let state = locked(&self.state);
        !state.recent.is_empty() || state.queue.iter().any(|(_, class)| *class == Class::Result)
    }

    /// True when no event should be queued now.
    pub fn is_full_of_events(&self) -> bool {
        let state = locked(&self.state);
        state.close.is_none() && state.bytes > self.events_bytes_max()
    }

    fn events_bytes_max(&self) -> usize {
        let crowded = self.total_bytes.load(Ordering::Relaxed) > self.limits.events_total_bytes_max;
        if crowded { self.limits.events_bytes_max.min(FAIR_EVENTS_BYTES) } else { self.limits.events_bytes_max }
    }

    /// Waits until there is room for more events.
    pub async fn room_for_events(&self) {
        self.below(|| self.events_bytes_max() / 2).await;
    }

    /// Waits until the queue is short. The client's calls are not read meanwhile.
    pub async fn room(&self) {
        self.below(|| self.limits.bytes_max / 4).await;
    }

    async fn below(&self, bytes_max: impl Fn() -> usize) {
        let has_room = || {
            let state = locked(&self.state);
            state.close.is_some() || state.bytes <= bytes_max()
        };
        while !has_room() {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if has_room() {
                return;
            }
            emptied.await;
        }
    }

    /// Ends the connection once everything queued is written.
    pub fn finish(&self, code: u16, reason: impl Into<String>) {
        let mut state = locked(&self.state);
        state.close.get_or_insert(CloseReason::new(code, reason));
        self.wake(state);
    }

    /// Ends the connection without writing the queue.
    pub fn cut(&self, code: u16, reason: impl Into<String>) {
        let mut state = locked(&self.state);
        self.cut_off(&mut state, code, reason.into());
    }

    pub fn cut_token(&self) -> &CancellationToken {
        &self.cut
    }

    /// Why the connection ends. `None` while it is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        locked(&self.state).close.clone()
    }

    fn cut_off(&self, state: &mut State, code: u16, reason: String) {
        state.close.get_or_insert(CloseReason { code, reason });
        let kept: VecDeque<_> = state.queue.drain(..).filter(|(_, class)| *class == Class::Result).collect();
        let bytes = kept.iter().map(|(frame, _)| cost(frame)).sum();
        self.total_bytes.fetch_sub(state.bytes - bytes, Ordering::Relaxed);
        (state.queue, state.bytes) = (kept, bytes);
        self.cut.cancel();
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        drop(state);
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }

    /// Empties the queue of a lost socket. Returns the results that may not have arrived, oldest first.
    pub fn take_results(&self) -> Vec<Frame> {
        let mut state = locked(&self.state);
        self.total_bytes.fetch_sub(state.bytes, Ordering::Relaxed);
        state.bytes = 0;
        state.recent_bytes = 0;
        let recent = std::mem::take(&mut state.recent);
        let waiting = std::mem::take(&mut state.queue);
        let waiting = waiting.into_iter().filter(|(_, class)| *class == Class::Result).map(|(frame, _)| frame);
        recent.into_iter().chain(waiting).collect()
    }

    /// Puts back a result that could not be written, unless it is among the recent ones.
    pub fn give_back(&self, frame: Frame) {
        let mut state = locked(&self.state);
        if !state.recent.contains(&frame) {
            let cost = cost(&frame);
            state.bytes += cost;
            self.total_bytes.fetch_add(cost, Ordering::Relaxed);
            state.queue.push_front((frame, Class::Result));
        }
    }
}

impl State {
    fn remember(&mut self, frame: &Frame) {
        self.recent_bytes += frame.bytes();
        self.recent.push_back(frame.clone());
        while self.recent.len() > RECENT_RESULTS_MAX || self.recent_bytes > RECENT_RESULTS_BYTES_MAX {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_bytes -= oldest.bytes();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.take_results();
    }
}

fn cost(frame: &Frame) -> usize {
    frame.bytes() + MESSAGE_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(limits: OutboxLimits) -> (Outbox, Arc<AtomicUsize>) {
        let total = Arc::new(AtomicUsize::new(0));
        (Outbox::new(limits, total.clone()), total)
    }

    fn text(size: usize) -> Frame {
        "x".repeat(size).as_str().into()
    }

    #[tokio::test]
    async fn messages_leave_in_order_and_the_close_reason_comes_last() {
        let (outbox, total) = outbox(OutboxLimits::default());
        outbox.push("1", Class::Other);
        outbox.push("2", Class::Result);
        outbox.finish(1001, "bye");
        outbox.push("3", Class::Other);
        assert!(matches!(outbox.next().await, Next::Write(frame, _) if frame == "1".into()));
        assert!(matches!(outbox.next().await, Next::Write(frame, _) if frame == "2".into()));
        assert!(matches!(outbox.next().await, Next::Close(reason) if reason.code == 1001));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_full_outbox_cuts_the_client_off_and_keeps_only_results() {
        let (outbox, total) = outbox(OutboxLimits { bytes_max: 1000, ..OutboxLimits::default() });
        outbox.push(text(800), Class::Other);
        outbox.push("r", Class::Result);
        outbox.push(text(5000), Class::Other);
        assert!(outbox.close_reason().is_none());
        outbox.push(text(1), Class::Other);
        let close = outbox.close_reason().unwrap();
        assert!(close.code == 1013 && close.reason.starts_with("slow consumer"), "{close:?}");
        assert!(matches!(outbox.next().await, Next::Close(_)));
        assert_eq!(outbox.take_results(), [Frame::from("r")]);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn when_all_clients_hold_too_much_the_greedy_one_is_cut_off() {
        let limits = OutboxLimits { total_bytes_max: 1 << 20, ..OutboxLimits::default() };
        let (greedy, total) = outbox(limits.clone());
        let modest = Outbox::new(limits, total);
        greedy.push(text(2 << 20), Class::Other);
        modest.push(text(10), Class::Other);
        greedy.push(text(10), Class::Other);
        modest.push(text(10), Class::Other);
        assert!(greedy.close_reason().is_some() && modest.close_reason().is_none());
    }

    #[tokio::test]
    async fn results_that_were_handed_to_the_socket_lately_are_kept_within_bounds() {
        let (outbox, _) = outbox(OutboxLimits::default());
        for size in [10, RECENT_RESULTS_BYTES_MAX + 1, 20, 30] {
            outbox.push(text(size), Class::Result);
            outbox.next().await;
        }
        let sizes: Vec<usize> = outbox.take_results().iter().map(Frame::bytes).collect();
        assert_eq!(sizes, [20, 30]);
    }
}
