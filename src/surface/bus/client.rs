//! Owns: one client's identity on the bus, where its frames go, and what happens to its results when its socket is
//! lost.
//! Never: the registrations of a client (`registry`), its socket (`connection`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tokio::sync::{Semaphore, oneshot};
use uuid::Uuid;

use crate::access::Identity;
use crate::machine::ids::Position;
use crate::surface::errors::CallError;
use crate::surface::locked;
use crate::surface::socket::Text;
use crate::surface::socket::frame::Frame;
use crate::surface::socket::outbox::{Class, Outbox, Sent};

/// Results kept for one client that lost its socket.
const PARKED_BYTES_MAX: usize = 16 << 20;

/// The answer of a client to a forwarded call: a result or an error, as JSON text.
pub type Reply = Result<String, String>;

/// How a client describes itself (`engine::workers::register`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct About {
    pub name: Option<String>,
    pub description: Option<String>,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub os: Option<String>,
    pub isolation: Option<String>,
    pub namespace: Option<String>,
}

/// A connected client. The wire calls it a worker.
pub struct Client {
    /// Unique and increasing with every connection. The key of everything the client registers.
    pub number: u64,
    pub id: String,
    /// Proves the identity of a client that reattaches.
    pub token: String,
    pub peer: Option<SocketAddr>,
    pub identity: Arc<Identity>,
    /// The part of the bus that it sees: the text of its scope, empty without one.
    pub realm: Arc<str>,
    pub connected_at_ms: u64,
    /// Permits for calls that this client may still start.
    pub calls: Arc<Semaphore>,
    calls_max: usize,
    about: Mutex<About>,
    link: Mutex<Link>,
    /// Calls of other clients that this one has yet to answer.
    waiting: Mutex<HashMap<String, oneshot::Sender<Reply>>>,
    missed: Mutex<Missed>,
    confirmed: Mutex<Confirmed>,
}

/// Bindings that were live when the socket was lost, and how far each had come. They resume from there when the client
/// registers them again after a reattach.
#[derive(Debug, Default)]
pub struct Missed {
    pub bindings: HashMap<Arc<str>, Option<Position>>,
}

impl Missed {
    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        const FIXED_BYTES: usize = 96;
        self.bindings.keys().map(|id| id.len() + FIXED_BYTES).sum()
    }
}

/// Up to where the client is known to have received its events.
#[derive(Debug, Default)]
struct Confirmed {
    position: Option<Position>,
    /// Number of events that were queued.
    sent: u64,
    /// Position of the last event, and the one before it.
    last: Option<Position>,
    before: Option<Position>,
    /// Events up to this number were sent before the client asked for older ones. Their arrival confirms none of those.
    ignore_up_to: u64,
}

/// Where frames for a client go.
enum Link {
    Attached(Arc<Outbox>),
    /// The socket is lost. Results are collected here for a while.
    Detached(Arc<Outbox>),
    /// Another connection took over.
    Moved(Arc<Client>),
    Gone,
}

/// The part of the bus that a caller sees.
pub fn realm_of(identity: &Identity) -> Arc<str> {
    identity.scope.as_ref().map_or_else(|| "".into(), |scope| scope.text().into())
}

impl Confirmed {
    fn next(&mut self, position: Position) -> Sent {
        self.sent += 1;
        if self.last != Some(position) {
            (self.before, self.last) = (self.last, Some(position));
        }
        Sent { number: self.sent, position, before: self.before }
    }
}

impl Client {
    pub fn new(
        number: u64,
        peer: Option<SocketAddr>,
        identity: Arc<Identity>,
        calls_max: usize,
        outbox: Arc<Outbox>,
        now_ms: u64,
    ) -> Client {
        Client {
            number,
            id: Uuid::new_v4().to_string(),
            token: Uuid::new_v4().to_string(),
            peer,
            realm: realm_of(&identity),
            identity,
            connected_at_ms: now_ms,
            calls: Arc::new(Semaphore::new(calls_max)),
            calls_max,
            about: Mutex::default(),
            link: Mutex::new(Link::Attached(outbox)),
            waiting: Mutex::default(),
            missed: Mutex::default(),
            confirmed: Mutex::default(),
        }
    }

    pub fn about(&self) -> About {
        locked(&self.about).clone()
    }

    pub fn describe(&self, about: About) {
        *locked(&self.about) = about;
    }

    pub fn calls_in_flight(&self) -> usize {
        self.calls_max.saturating_sub(self.calls.available_permits())
    }

    /// True when a result was written recently and nothing is queued.
    #[cfg(test)]
    pub fn has_answered(&self) -> bool {
        match &*locked(&self.link) {
            Link::Attached(outbox) => outbox.has_results() && outbox.is_empty(),
            Link::Detached(_) | Link::Moved(_) | Link::Gone => false,
        }
    }

    /// Waits until every call of this client is answered.
    pub async fn calls_done(&self) {
        let all = u32::try_from(self.calls_max).unwrap_or(u32::MAX);
        // The semaphore is never closed, so this cannot fail.
        let _ = self.calls.acquire_many(all).await;
    }

    /// Sends an event, a call or a notice. Dropped when the client has no socket.
    pub fn send(&self, frame: Text) {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) => return outbox.push(frame, Class::Other),
            Link::Detached(_) | Link::Gone => return,
            Link::Moved(successor) => successor.clone(),
        };
        successor.send(frame);
    }

    /// Sends an event. If the queue is full of events, nothing is sent and the full outbox is returned. Dropped when
    /// the client has no socket. `position` is given only for bindings of this client.
    pub fn offer_event(&self, frame: impl FnOnce() -> Text, position: Option<Position>) -> Result<(), Arc<Outbox>> {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) if outbox.is_full_of_events() => return Err(outbox.clone()),
            Link::Attached(outbox) => {
                let class =
                    position.map_or(Class::Other, |position| Class::Event(locked(&self.confirmed).next(position)));
                outbox.push(frame(), class);
                return Ok(());
            }
            Link::Detached(_) | Link::Gone => return Ok(()),
            Link::Moved(successor) => successor.clone(),
        };
        successor.offer_event(frame, position)
    }

    /// The outbox of its socket. `None` without a socket.
    pub fn outbox(&self) -> Option<Arc<Outbox>> {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) => return Some(outbox.clone()),
            Link::Detached(_) | Link::Gone => return None,
            Link::Moved(successor) => successor.clone(),
        };
        successor.outbox()
    }

    /// Records that the client has everything up to this position: it answered a ping that was sent after it.
    pub fn confirm(&self, number: u64, position: Position) {
        let mut confirmed = locked(&self.confirmed);
        if number > confirmed.ignore_up_to {
            confirmed.position = confirmed.position.max(Some(position));
        }
    }

    /// The position up to which a client that received this event has everything. `delivered` is the position up to
    /// which the feed delivered all its matches.
    pub fn completes(&self, sent: Sent, delivered: Option<Position>) -> Option<Position> {
        let is_last = locked(&self.confirmed).sent == sent.number;
        if is_last && delivered >= Some(sent.position) { Some(sent.position) } else { sent.before }
    }

    pub fn confirmed(&self) -> Option<Position> {
        locked(&self.confirmed).position
    }

    /// The client receives events after this position again, or for the first time, so none of them is confirmed. Call
    /// this after the binding is in the feed, which delivers in order from there on.
    pub fn restart_after(&self, after: Position) {
        let mut confirmed = locked(&self.confirmed);
        if confirmed.position.is_some_and(|position| position > after) {
            confirmed.position = Some(after);
        }
        confirmed.ignore_up_to = confirmed.sent;
        (confirmed.last, confirmed.before) = (None, None);
    }

    /// Sends the answer to a call. Without a socket it is kept until the client reattaches.
    pub fn send_result(&self, frame: Frame) {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) => return outbox.push(frame, Class::Result),
            Link::Detached(outbox) => {
                if outbox.bytes() + frame.bytes() <= PARKED_BYTES_MAX {
                    outbox.push(frame, Class::Result);
                } else {
                    tracing::debug!(client = self.id, "dropped a result: too many bytes are kept for this client");
                }
                return;
            }
            Link::Gone => return,
            Link::Moved(successor) => successor.clone(),
        };
        successor.send_result(frame);
    }

    /// The socket is lost. True when there is something to keep for the client, now or when a call in flight ends.
    pub fn detach(&self, missed: Missed) -> bool {
        let mut link = locked(&self.link);
        let outbox = match &*link {
            Link::Attached(outbox) => outbox,
            Link::Moved(successor) => {
                // It reattached before its old socket was removed.
                successor.note_missed(missed);
                return false;
            }
            Link::Detached(_) | Link::Gone => return false,
        };
        outbox.cut(1001, "the connection is over");
        let keep = outbox.has_results() || self.calls_in_flight() > 0 || !missed.bindings.is_empty();
        *locked(&self.missed) = missed;
        *link = if keep { Link::Detached(outbox.clone()) } else { Link::Gone };
        keep
    }

    /// The client did not reattach in time: drop what was kept.
    pub fn forget(&self) {
        let mut link = locked(&self.link);
        if matches!(*link, Link::Detached(_)) {
            *link = Link::Gone;
            *locked(&self.missed) = Missed::default();
        }
    }

    /// Moves everything of this client to its new connection. True when the old socket was still open: it is closed.
    pub fn move_to(&self, successor: &Arc<Client>) -> bool {
        let before = std::mem::replace(&mut *locked(&self.link), Link::Moved(successor.clone()));
        let (outbox, alive) = match before {
            Link::Attached(outbox) => (outbox, true),
            Link::Detached(outbox) => (outbox, false),
            Link::Moved(_) | Link::Gone => return false,
        };
        for frame in outbox.take_results() {
            successor.send_result(frame);
        }
        outbox.cut(1000, "superseded: this worker reattached on another connection");
        successor.describe(self.about());
        successor.note_missed(std::mem::take(&mut *locked(&self.missed)));
        let moved = std::mem::take(&mut *locked(&self.waiting));
        locked(&successor.waiting).extend(moved);
        alive
    }

    fn note_missed(&self, missed: Missed) {
        if !missed.bindings.is_empty() {
            *locked(&self.missed) = missed;
        }
    }

    /// The position a binding resumes after, if it was live on a socket that was lost.
    pub fn resume_binding(&self, id: &str) -> Option<Position> {
        let mut missed = locked(&self.missed);
        missed.bindings.remove(id).flatten()
    }

    /// Registers a call that is forwarded to this client. The receiver gets its answer.
    pub fn expect_reply(&self, invocation_id: &str) -> oneshot::Receiver<Reply> {
        let (sender, receiver) = oneshot::channel();
        locked(&self.waiting).insert(invocation_id.to_owned(), sender);
        receiver
    }

    /// The caller no longer waits for that answer.
    pub fn forget_reply(&self, invocation_id: &str) {
        locked(&self.waiting).remove(invocation_id);
    }

    /// Passes an answer to its caller. Unknown ids are late answers and are dropped.
    pub fn reply(&self, invocation_id: &str, reply: Reply) {
        let waiting = locked(&self.waiting).remove(invocation_id);
        if let Some(sender) = waiting {
            // The caller may have stopped waiting. Then the answer is dropped.
            let _ = sender.send(reply);
        }
    }

    /// Fails all calls that this client has yet to answer.
    pub fn stop_replies(&self) {
        let error = CallError::ClientGone.print_for_bus();
        for (_, sender) in std::mem::take(&mut *locked(&self.waiting)) {
            let _ = sender.send(Err(error.clone()));
        }
    }
}
