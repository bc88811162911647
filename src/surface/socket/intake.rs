//! Owns: the memory bound of messages that are still arriving, over all clients. A socket that exceeds its free share
//! is not read until other messages are complete. One message at a time may always arrive whole: otherwise many large
//! ones, each with a part of the memory, would wait for each other. Large messages pass in pieces (`turnstile`), so that
//! small ones get in between.
//! Never: what a message means.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::PollSemaphore;

use super::frame_ends::FrameEnds;
use super::messages::LARGE_BYTES;
use crate::surface::locked;
use crate::surface::turnstile::{PIECE_BYTES, Passage, Turnstile};

/// Every client may have this much arriving without a permit. Ordinary messages are smaller, and all connections together
/// take no more in these than all messages may take beyond.
const FREE_BYTES: usize = 64 << 10;
/// The first permit of a message. Small, so that a thousand clients that begin a message leave room for others.
const FIRST_STEP_KIB: u32 = 192;
/// Further permits are acquired in steps of this size.
const STEP_KIB: u32 = 1024;
const STEP_BYTES: usize = STEP_KIB as usize * 1024;
/// Each step must arrive within this time: a client that holds memory and sends slowly keeps it from others.
const STEP_MAX: Duration = Duration::from_secs(20);

/// The memory for arriving messages, shared by all clients.
pub struct Intake {
    kib: Arc<Semaphore>,
    /// Its one permit is the memory for one whole message. The message that holds it takes nothing else.
    whole_message: Arc<Semaphore>,
    turnstile: Turnstile,
}

impl Intake {
    pub fn new(total_bytes_max: usize, message_bytes_max: usize) -> Intake {
        // At least two messages: one that may arrive whole, and one by steps.
        let total = total_bytes_max.max(2 * message_bytes_max);
        let by_steps = kib(total - message_bytes_max).max(STEP_KIB);
        Intake {
            kib: Arc::new(Semaphore::new(by_steps as usize)),
            whole_message: Arc::new(Semaphore::new(1)),
            turnstile: Turnstile::default(),
        }
    }

    /// The pace of what may wait.
    pub fn turnstile(&self) -> &Turnstile {
        &self.turnstile
    }

    /// Memory for a message that arrives by another way than a socket. It grows while the message arrives.
    pub fn room(&self) -> Room {
        Room {
            kib: self.kib.clone(),
            whole_message: self.whole_message.clone(),
            taken: Taken::default(),
            turnstile: self.turnstile.clone(),
            passed: 0,
        }
    }

    /// Measures what is read from a socket.
    pub fn meter<S>(&self, socket: S) -> (Metered<S>, Arc<Arriving>) {
        let arriving = Arc::new(Arriving::default());
        let metered = Metered {
            socket,
            share: PollSemaphore::new(self.kib.clone()),
            whole_message: PollSemaphore::new(self.whole_message.clone()),
            frames: FrameEnds::new(LARGE_BYTES),
            passage: self.turnstile.passage(),
            passing: None,
            arriving: arriving.clone(),
        };
        (metered, arriving)
    }
}

/// What one arriving message has taken beyond its free share.
#[derive(Default)]
struct Taken {
    steps: Option<OwnedSemaphorePermit>,
    whole_message: Option<OwnedSemaphorePermit>,
}

impl Taken {
    /// How many bytes it may have.
    fn allows(&self) -> usize {
        match self.whole_message {
            // The size of a message is bounded elsewhere.
            Some(_) => usize::MAX,
            None => FREE_BYTES + self.steps.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) * 1024,
        }
    }

    /// What it takes next.
    fn next_step_kib(&self) -> u32 {
        if self.steps.is_none() { FIRST_STEP_KIB } else { STEP_KIB }
    }

    fn add_step(&mut self, step: OwnedSemaphorePermit) {
        match &mut self.steps {
            Some(steps) => steps.merge(step),
            None => self.steps = Some(step),
        }
    }

    /// The steps become free for others.
    fn take_whole_message(&mut self, permit: OwnedSemaphorePermit) {
        *self = Taken { steps: None, whole_message: Some(permit) };
    }
}

/// The memory of one arriving message.
pub struct Room {
    kib: Arc<Semaphore>,
    whole_message: Arc<Semaphore>,
    taken: Taken,
    turnstile: Turnstile,
    /// Bytes that have passed the turnstile.
    passed: usize,
}

impl Room {
    /// So many bytes have arrived, and they are kept in memory of this capacity. Waits until there is that memory, and until
    /// the next piece may arrive. A small message waits for neither.
    pub async fn grow_to(&mut self, bytes: usize, capacity: usize) {
        if bytes.saturating_sub(self.passed) > PIECE_BYTES {
            self.turnstile.pass(bytes - self.passed).await;
            self.passed = bytes;
        }
        while capacity > self.taken.allows() {
            // The semaphores are never closed, so neither fails.
            tokio::select! {
                biased;
                Ok(step) = self.kib.clone().acquire_many_owned(self.taken.next_step_kib()) => self.taken.add_step(step),
                Ok(whole) = self.whole_message.clone().acquire_owned() => self.taken.take_whole_message(whole),
                else => return,
            }
        }
    }
}

/// The pace at which a message must arrive: one step after another, each within a limited time.
pub struct Pace {
    pub due: Instant,
    step_end: usize,
}

impl Pace {
    pub fn new() -> Pace {
        Pace { due: Instant::now() + STEP_MAX, step_end: STEP_BYTES }
    }

    /// This many bytes arrived so far. The time in which this node made the client wait does not count.
    pub fn arrived(&mut self, bytes: usize, waited: Duration) {
        self.due += waited;
        if bytes >= self.step_end {
            *self = Pace { due: Instant::now() + STEP_MAX, step_end: bytes + STEP_BYTES };
        }
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new()
    }
}

/// How large the memory of a body becomes that has so many bytes and more to come: twice of what it was, but not more than
/// is announced.
pub fn capacity_for(bytes: usize, capacity: usize, announced: Option<usize>) -> usize {
    if bytes <= capacity {
        return capacity;
    }
    bytes.max((2 * capacity).min(announced.unwrap_or(usize::MAX)))
}

/// Bytes as permits of a semaphore: KiB, rounded up, at least one.
pub fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024).max(1)).unwrap_or(u32::MAX)
}

/// The memory held by one client's incomplete message.
#[derive(Default)]
pub struct Arriving {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Read since the last complete message.
    bytes: usize,
    taken: Taken,
    progressed: bool,
    /// When the last step was acquired, or arrived in the memory of a whole message.
    step_began: Option<Instant>,
    /// The step is complete when this many bytes have arrived.
    step_end: usize,
    /// Since when it waits for the next step, or for its next piece.
    waiting: Option<Instant>,
}

/// Why an incomplete message is given up.
#[derive(Debug, PartialEq, Eq)]
pub enum Stuck {
    /// It holds memory, and the rest does not arrive.
    TooSlow,
    /// No memory for the rest became free.
    NoRoom,
}

impl Arriving {
    /// A message is complete: the next one starts with the free share.
    pub fn finished(&self) {
        *locked(&self.held) = Held::default();
    }

    /// Why the message that is arriving should be given up now.
    pub fn stuck(&self, wait_max: Duration) -> Option<Stuck> {
        let held = locked(&self.held);
        match (held.waiting, held.step_began) {
            (Some(since), _) => (since.elapsed() > wait_max).then_some(Stuck::NoRoom),
            (None, Some(began)) => (began.elapsed() > STEP_MAX).then_some(Stuck::TooSlow),
            (None, None) => None,
        }
    }

    /// True when bytes arrived since the last call.
    pub fn progressed(&self) -> bool {
        std::mem::take(&mut locked(&self.held).progressed)
    }
}

impl Held {
    fn begin_step(&mut self) {
        (self.waiting, self.step_began) = (None, Some(Instant::now()));
        self.step_end = self.bytes + STEP_BYTES;
    }
}

/// A socket whose incoming bytes are counted.
pub struct Metered<S> {
    socket: S,
    share: PollSemaphore,
    whole_message: PollSemaphore,
    frames: FrameEnds,
    passage: Passage,
    /// Since when it waits for its next piece.
    passing: Option<Instant>,
    arriving: Arc<Arriving>,
}

impl<S> Metered<S> {
    /// Waits until the next piece of a large message may arrive. This does not count as slowness of the client.
    fn poll_pass(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let passed = self.passage.poll_pass(cx);
        match (passed, self.passing) {
            (Poll::Pending, None) => {
                self.passing = Some(Instant::now());
                locked(&self.arriving.held).waiting = self.passing;
            }
            (Poll::Ready(()), Some(since)) => {
                self.passing = None;
                let mut held = locked(&self.arriving.held);
                held.waiting = None;
                held.step_began = held.step_began.map(|began| began + since.elapsed());
            }
            (Poll::Pending, Some(_)) | (Poll::Ready(()), None) => {}
        }
        passed
    }

    /// Waits for memory for the next step, or for a whole message.
    fn poll_grow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let step_kib = {
            let mut held = locked(&self.arriving.held);
            held.waiting.get_or_insert_with(Instant::now);
            held.taken.next_step_kib()
        };
        // The semaphores are never closed, so neither is ever `None`.
        let step = self.share.poll_acquire_many(cx, step_kib);
        let whole = if step.is_pending() { self.whole_message.poll_acquire(cx) } else { Poll::Pending };
        let mut held = locked(&self.arriving.held);
        match (step, whole) {
            (Poll::Ready(Some(step)), _) => held.taken.add_step(step),
            (_, Poll::Ready(Some(whole))) => held.taken.take_whole_message(whole),
            (_, _) => return Poll::Pending,
        }
        held.begin_step();
        drop(held);
        // A request that still waits would keep permits from others when they become free.
        self.share = PollSemaphore::new(self.share.clone_inner());
        self.whole_message = PollSemaphore::new(self.whole_message.clone_inner());
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_pass(cx));
        let wants_more = {
            let held = locked(&this.arriving.held);
            held.bytes >= held.taken.allows()
        };
        if wants_more {
            ready!(this.poll_grow(cx));
        }
        let before = buf.filled().len();
        if !this.frames.give_kept(buf) {
            let room = buf.remaining().min(this.frames.limit());
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
            ready!(Pin::new(&mut this.socket).poll_read(cx, &mut part))?;
            let read = part.filled().len();
            buf.advance(read);
            this.frames.take_in(buf, before);
        }
        let read = buf.filled().len() - before;
        let mut held = locked(&this.arriving.held);
        held.bytes += read;
        held.progressed |= read > 0;
        if held.bytes > PIECE_BYTES {
            this.passage.arrived(read);
        }
        if held.taken.whole_message.is_some() && held.bytes >= held.step_end {
            held.begin_step();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn a_body_takes_no_more_memory_than_is_announced_or_twice_of_what_arrived() {
        assert_eq!(capacity_for(100, 0, Some(100)), 100);
        assert_eq!(capacity_for(100, 0, Some(1 << 30)), 100);
        assert_eq!(capacity_for(101, 100, Some(1 << 30)), 200);
        assert_eq!(capacity_for(101, 100, Some(150)), 150);
        assert_eq!(capacity_for(150, 200, Some(1 << 30)), 200);
        assert_eq!(capacity_for(201, 200, None), 400);
        assert_eq!(capacity_for(201, 200, Some(150)), 201, "a client may announce too little");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_holds_memory_must_keep_arriving() {
        let intake = Intake::new(2 * STEP_BYTES, STEP_BYTES);
        let (mut client, node) = tokio::io::duplex(1024);
        let (mut metered, arriving) = intake.meter(node);
        let reading = tokio::spawn(async move { tokio::io::copy(&mut metered, &mut tokio::io::sink()).await });
        tokio::io::AsyncWriteExt::write_all(&mut client, &vec![1; FREE_BYTES - 1]).await.unwrap();
        tokio::time::sleep(STEP_MAX * 10).await;
        assert_eq!(arriving.stuck(STEP_MAX), None, "a small message may take its time");
        tokio::io::AsyncWriteExt::write_all(&mut client, &[1; 4096]).await.unwrap();
        tokio::time::sleep(STEP_MAX / 2).await;
        assert_eq!(arriving.stuck(STEP_MAX), None);
        tokio::time::sleep(STEP_MAX).await;
        assert_eq!(arriving.stuck(STEP_MAX), Some(Stuck::TooSlow));
        reading.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_taken_as_bytes_arrive_and_waiting_for_it_ends() {
        let intake = Intake::new(2 * STEP_BYTES, STEP_BYTES);
        let mut rooms = [intake.room(), intake.room(), intake.room()];
        for room in &mut rooms {
            room.grow_to(FREE_BYTES, FREE_BYTES).await;
        }
        rooms[0].grow_to(2 * STEP_BYTES, 2 * STEP_BYTES).await;
        let (mut metered, arriving) = intake.meter(tokio::io::repeat(1));
        let reading = tokio::spawn(async move { tokio::io::copy(&mut metered, &mut tokio::io::sink()).await });
        tokio::time::sleep(STEP_MAX * 2).await;
        assert_eq!(arriving.stuck(STEP_MAX), Some(Stuck::NoRoom));
        reading.abort();
        let pace = Pace::new();
        tokio::time::sleep(STEP_MAX).await;
        assert!(pace.due <= Instant::now());
    }

    #[tokio::test]
    async fn a_client_past_its_free_share_waits_until_another_is_done() {
        let intake = Intake::new(STEP_KIB as usize * 1024, 1024);
        let endless = || tokio::io::repeat(1);
        let (mut large, mut next) = (vec![0; FREE_BYTES], [0]);
        // Some take all steps, another the memory of a whole message.
        let mut by_steps = Vec::from_iter((0..STEP_KIB / FIRST_STEP_KIB).map(|_| intake.meter(endless()).0));
        let (mut whole, _) = intake.meter(endless());
        for one in by_steps.iter_mut().chain([&mut whole]) {
            one.read_exact(&mut large).await.unwrap();
            one.read_exact(&mut next).await.unwrap();
        }
        let (mut third, arriving) = intake.meter(endless());
        third.read_exact(&mut large).await.unwrap();
        assert!(arriving.progressed() && !arriving.progressed());
        tokio::select! {
            biased;
            _ = third.read_exact(&mut next) => panic!("read more than there is room for"),
            () = tokio::task::yield_now() => {}
        }
        drop(by_steps);
        third.read_exact(&mut next).await.unwrap();
        arriving.finished();
        third.read_exact(&mut large).await.unwrap();
    }

    /// Each takes a part of the memory before any of them is complete.
    #[tokio::test(start_paused = true)]
    async fn large_messages_that_arrive_together_all_arrive() {
        const MESSAGE_BYTES: usize = 3 * STEP_BYTES;
        let intake = Intake::new(2 * MESSAGE_BYTES, MESSAGE_BYTES);
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (mut metered, arriving) = intake.meter(tokio::io::repeat(1));
            all.spawn(async move {
                let mut part = vec![0; STEP_BYTES / 4];
                for _ in 0..MESSAGE_BYTES / part.len() {
                    metered.read_exact(&mut part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                arriving.finished();
            });
            let mut room = intake.room();
            all.spawn(async move {
                for steps in 1..=MESSAGE_BYTES / STEP_BYTES {
                    room.grow_to(steps * STEP_BYTES, steps * STEP_BYTES).await;
                    tokio::task::yield_now().await;
                }
            });
        }
        let arrived = tokio::time::timeout(Duration::from_secs(3600), all.join_all()).await;
        assert_eq!(arrived.expect("none waits for ever").len(), 16);
    }
}
