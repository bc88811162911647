//! Owns: the frames that wait to be written to one client, bounded by bytes and count.
//! Never: a socket. A client that does not read is cut off here, not waited for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::locked;
use super::outbound::Frame;
use crate::machine::ids::Position;

/// What a waiting frame costs besides its text.
const FRAME_OVERHEAD_BYTES: usize = 96;
/// Results that left for the socket may still be lost with it, so the last few are kept for a client that reattaches.
const RECENT_RESULTS_MAX: usize = 16;
const RECENT_RESULTS_BYTES_MAX: usize = 128 << 10;
/// While every client together is over its bound, one that holds less than this is not the one to cut off.
const FAIR_SHARE_BYTES: usize = 256 << 10;

/// While all clients together hold more than `events_total_bytes_max`, each may only hold this much in events.
const FAIR_EVENTS_BYTES: usize = 32 << 10;

/// Bounds of what waits for one client, and for all of them.
#[derive(Debug, Clone)]
pub struct OutboxLimits {
    /// Events and calls to the client; past it the client is a slow consumer.
    pub bytes_max: usize,
    /// Past this the client is given no more events; they wait in the kept feed.
    pub events_bytes_max: usize,
    /// Past this, for all clients together, each gets no more than a fair share of events.
    pub events_total_bytes_max: usize,
    /// Results may take this much on top: the client asked for them, and the reader stops taking calls long before.
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
    /// The answer to a call: kept when the socket is lost, for the client to fetch by reattaching.
    Result,
    /// An event for a binding of the client's own; lost with the socket, and kept in the feed.
    Event(Sent),
    /// Anything else; lost with the socket.
    Other,
}

/// An event on its way to a client. Positions go back when the client asks for old events; numbers never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The how-manieth event of its own bindings this is on this connection.
    pub number: u64,
    pub position: Position,
    /// The last position that was sent before this one. Several bindings may get one event, so an event that arrived says
    /// for certain only that those before it did.
    pub before: Option<Position>,
}

/// Why a connection ends, as the client will read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goodbye {
    pub code: u16,
    pub reason: String,
}

/// What the writer does next.
#[derive(Debug)]
pub enum Next {
    Write(Frame, Class),
    Close(Goodbye),
}

pub struct Outbox {
    state: Mutex<State>,
    limits: OutboxLimits,
    /// What waits for all clients together.
    total_bytes: Arc<AtomicUsize>,
    filled: Notify,
    emptied: Notify,
    /// Cancelled when the connection must end without writing what waits.
    cut: CancellationToken,
}

#[derive(Default)]
struct State {
    frames: VecDeque<(Frame, Class)>,
    bytes: usize,
    goodbye: Option<Goodbye>,
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

    /// Queues a frame. A client whose queue is full is cut off; what it was to get besides results is dropped.
    pub fn push(&self, frame: Frame, class: Class) {
        let mut state = locked(&self.state);
        if state.goodbye.is_some() && class != Class::Result {
            return;
        }
        if self.is_full(&state, class) {
            let waiting = state.bytes;
            let reason = format!("slow consumer: {waiting} bytes in {} frames were not read", state.frames.len());
            self.cut_off(&mut state, 1013, reason);
            return;
        }
        self.add(&mut state, frame, class);
        drop(state);
        self.filled.notify_one();
    }

    /// The bound is on what waits already, so that one large frame always fits into an empty queue.
    fn is_full(&self, state: &State, class: Class) -> bool {
        let bytes_max = match class {
            Class::Result => self.limits.bytes_max + self.limits.results_bytes_max,
            Class::Event(_) | Class::Other => self.limits.bytes_max,
        };
        let crowded = self.total_bytes.load(Ordering::Relaxed) > self.limits.total_bytes_max;
        state.bytes > bytes_max
            || state.frames.len() >= self.limits.frames_max
            || (crowded && state.bytes > FAIR_SHARE_BYTES)
    }

    fn add(&self, state: &mut State, frame: Frame, class: Class) {
        let cost = cost(&frame);
        state.bytes += cost;
        self.total_bytes.fetch_add(cost, Ordering::Relaxed);
        state.frames.push_back((frame, class));
    }

    /// Waits for something to do: the next frame, or, once all is written, the goodbye.
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
        if let Some(goodbye) = &state.goodbye
            && (self.cut.is_cancelled() || state.frames.is_empty())
        {
            return Some(Next::Close(goodbye.clone()));
        }
        let (frame, class) = state.frames.pop_front()?;
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
        locked(&self.state).frames.is_empty()
    }

    /// What waits, in bytes.
    pub fn bytes(&self) -> usize {
        locked(&self.state).bytes
    }

    /// True when a result waits or may not have arrived.
    pub fn has_results(&self) -> bool {
        let state = locked(&self.state);
        !state.recent.is_empty() || state.frames.iter().any(|(_, class)| *class == Class::Result)
    }

    /// True when the client should not get another event now.
    pub fn is_full_of_events(&self) -> bool {
        let state = locked(&self.state);
        state.goodbye.is_none() && state.bytes > self.events_bytes_max()
    }

    fn events_bytes_max(&self) -> usize {
        let crowded = self.total_bytes.load(Ordering::Relaxed) > self.limits.events_total_bytes_max;
        if crowded { self.limits.events_bytes_max.min(FAIR_EVENTS_BYTES) } else { self.limits.events_bytes_max }
    }

    /// Waits until little enough is queued for more events.
    pub async fn room_for_events(&self) {
        self.below(|| self.events_bytes_max() / 2).await;
    }

    /// Waits until little enough is queued for the client to deserve more. Its calls are not read meanwhile.
    pub async fn room(&self) {
        self.below(|| self.limits.bytes_max / 4).await;
    }

    async fn below(&self, bytes_max: impl Fn() -> usize) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            {
                let state = locked(&self.state);
                if state.goodbye.is_some() || state.bytes <= bytes_max() {
                    return;
                }
            }
            emptied.await;
        }
    }

    /// Ends the connection once everything that waits is written.
    pub fn finish(&self, code: u16, reason: impl Into<String>) {
        let mut state = locked(&self.state);
        state.goodbye.get_or_insert(Goodbye { code, reason: reason.into() });
        self.wake(state);
    }

    /// Ends the connection now.
    pub fn cut(&self, code: u16, reason: impl Into<String>) {
        let mut state = locked(&self.state);
        self.cut_off(&mut state, code, reason.into());
    }

    pub fn cut_token(&self) -> &CancellationToken {
        &self.cut
    }

    /// Why the connection ends, if it does.
    pub fn goodbye(&self) -> Option<Goodbye> {
        locked(&self.state).goodbye.clone()
    }

    fn cut_off(&self, state: &mut State, code: u16, reason: String) {
        state.goodbye.get_or_insert(Goodbye { code, reason });
        let kept: VecDeque<_> = state.frames.drain(..).filter(|(_, class)| *class == Class::Result).collect();
        let bytes = kept.iter().map(|(frame, _)| cost(frame)).sum();
        self.total_bytes.fetch_sub(state.bytes - bytes, Ordering::Relaxed);
        (state.frames, state.bytes) = (kept, bytes);
        self.cut.cancel();
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        drop(state);
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }

    /// Empties the outbox of a lost socket: the results that may not have arrived, oldest first.
    pub fn take_results(&self) -> Vec<Frame> {
        let mut state = locked(&self.state);
        self.total_bytes.fetch_sub(state.bytes, Ordering::Relaxed);
        state.bytes = 0;
        state.recent_bytes = 0;
        let recent = std::mem::take(&mut state.recent);
        let waiting = std::mem::take(&mut state.frames);
        let waiting = waiting.into_iter().filter(|(_, class)| *class == Class::Result).map(|(frame, _)| frame);
        recent.into_iter().chain(waiting).collect()
    }

    /// Puts back a result whose writing failed and which is too large for the recent ones.
    pub fn give_back(&self, frame: Frame) {
        let mut state = locked(&self.state);
        if !state.recent.contains(&frame) {
            let cost = cost(&frame);
            state.bytes += cost;
            self.total_bytes.fetch_add(cost, Ordering::Relaxed);
            state.frames.push_front((frame, Class::Result));
        }
    }
}

impl State {
    fn remember(&mut self, frame: &Frame) {
        self.recent_bytes += frame.len();
        self.recent.push_back(frame.clone());
        while self.recent.len() > RECENT_RESULTS_MAX || self.recent_bytes > RECENT_RESULTS_BYTES_MAX {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_bytes -= oldest.len();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.take_results();
    }
}

fn cost(frame: &Frame) -> usize {
    frame.len() + FRAME_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(limits: OutboxLimits) -> (Outbox, Arc<AtomicUsize>) {
        let total = Arc::new(AtomicUsize::new(0));
        (Outbox::new(limits, total.clone()), total)
    }

    fn text(size: usize) -> Frame {
        "x".repeat(size).into()
    }

    #[tokio::test]
    async fn frames_leave_in_order_and_the_goodbye_comes_last() {
        let (outbox, total) = outbox(OutboxLimits::default());
        outbox.push("1".into(), Class::Other);
        outbox.push("2".into(), Class::Result);
        outbox.finish(1001, "bye");
        outbox.push("3".into(), Class::Other);
        assert!(matches!(outbox.next().await, Next::Write(frame, _) if *frame == *"1"));
        assert!(matches!(outbox.next().await, Next::Write(frame, _) if *frame == *"2"));
        assert!(matches!(outbox.next().await, Next::Close(goodbye) if goodbye.code == 1001));
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_full_outbox_cuts_the_client_off_and_keeps_only_results() {
        let (outbox, total) = outbox(OutboxLimits { bytes_max: 1000, ..OutboxLimits::default() });
        outbox.push(text(800), Class::Other);
        outbox.push("r".into(), Class::Result);
        outbox.push(text(5000), Class::Other);
        assert!(outbox.goodbye().is_none());
        outbox.push(text(1), Class::Other);
        let goodbye = outbox.goodbye().unwrap();
        assert!(goodbye.code == 1013 && goodbye.reason.starts_with("slow consumer"), "{goodbye:?}");
        assert!(matches!(outbox.next().await, Next::Close(_)));
        assert_eq!(outbox.take_results(), ["r"]);
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
        assert!(greedy.goodbye().is_some() && modest.goodbye().is_none());
    }

    #[tokio::test]
    async fn results_that_were_handed_to_the_socket_lately_are_kept_within_bounds() {
        let (outbox, _) = outbox(OutboxLimits::default());
        for size in [10, RECENT_RESULTS_BYTES_MAX + 1, 20, 30] {
            outbox.push(text(size), Class::Result);
            outbox.next().await;
        }
        let sizes: Vec<usize> = outbox.take_results().iter().map(|frame| frame.len()).collect();
        assert_eq!(sizes, [20, 30]);
    }
}
