//! Owns: one client's identity on the bus, where its frames go, and what becomes of its results when the socket is lost.
//! Never: the registrations of a client (registry), the socket (connection).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tokio::sync::{Semaphore, oneshot};
use uuid::Uuid;

use super::locked;
use super::outbound::{ErrorBody, Frame};
use super::outbox::{Class, Outbox, Sent};
use crate::machine::ids::Position;

/// Results kept for one client that lost its socket.
const PARKED_BYTES_MAX: usize = 16 << 20;

/// The answer of another worker: a result or an error, as JSON text.
pub type Reply = Result<String, String>;

/// What a worker tells about itself (`engine::workers::register`).
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

pub struct Worker {
    /// Rises with every connection; the key of everything the client registers.
    pub number: u64,
    pub id: String,
    /// Whoever presents it with the id is this worker.
    pub token: String,
    pub peer: Option<SocketAddr>,
    pub connected_at_ms: u64,
    /// Calls this worker may still start.
    pub calls: Arc<Semaphore>,
    calls_max: usize,
    about: Mutex<About>,
    link: Mutex<Link>,
    /// Calls that other workers made and this one has yet to answer.
    waiting: Mutex<HashMap<String, oneshot::Sender<Reply>>>,
    missed: Mutex<Missed>,
    confirmed: Mutex<Confirmed>,
}

/// Bindings that were live when the socket was lost, and how far each had come. Registered again after a reattach,
/// they go on from there.
#[derive(Debug, Default)]
pub struct Missed {
    pub bindings: HashMap<Arc<str>, Option<Position>>,
}

/// How far the client has its events for certain.
#[derive(Debug, Default)]
struct Confirmed {
    position: Option<Position>,
    /// Events that were put on their way.
    sent: u64,
    /// The position of the last one, and the one before that.
    last: Option<Position>,
    before: Option<Position>,
    /// Those up to this number were sent before the client asked for older ones: having them says nothing of the older.
    void: u64,
}

/// Where frames for a worker go.
enum Link {
    Attached(Arc<Outbox>),
    /// The socket is lost; results gather here for a while.
    Detached(Arc<Outbox>),
    /// Another connection took over.
    Moved(Arc<Worker>),
    Gone,
}

impl Confirmed {
    fn send(&mut self, position: Position) -> Sent {
        self.sent += 1;
        if self.last != Some(position) {
            (self.before, self.last) = (self.last, Some(position));
        }
        Sent { number: self.sent, position, before: self.before }
    }
}

impl Worker {
    pub fn new(number: u64, peer: Option<SocketAddr>, calls_max: usize, outbox: Arc<Outbox>, now_ms: u64) -> Worker {
        Worker {
            number,
            id: Uuid::new_v4().to_string(),
            token: Uuid::new_v4().to_string(),
            peer,
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

    /// True when a result was handed to the socket lately.
    #[cfg(test)]
    pub fn has_answered(&self) -> bool {
        match &*locked(&self.link) {
            Link::Attached(outbox) => outbox.has_results() && outbox.is_empty(),
            Link::Detached(_) | Link::Moved(_) | Link::Gone => false,
        }
    }

    /// Waits until every call this worker made is answered.
    pub async fn calls_done(&self) {
        let all = u32::try_from(self.calls_max).unwrap_or(u32::MAX);
        // An error would mean that the semaphore is closed, which nobody does.
        let _ = self.calls.acquire_many(all).await;
    }

    /// Sends an event, a call or a notice. Lost when the worker has no socket.
    pub fn send(&self, frame: Frame) {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) => return outbox.push(frame, Class::Other),
            Link::Detached(_) | Link::Gone => return,
            Link::Moved(successor) => successor.clone(),
        };
        successor.send(frame);
    }

    /// Sends an event, unless too many wait already: then nothing is taken, and the outbox to wait for is answered.
    /// Lost when the worker has no socket. `position` is given for bindings of the worker's own.
    pub fn offer_event(&self, frame: impl FnOnce() -> Frame, position: Option<Position>) -> Result<(), Arc<Outbox>> {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) if outbox.is_full_of_events() => return Err(outbox.clone()),
            Link::Attached(outbox) => {
                let class =
                    position.map_or(Class::Other, |position| Class::Event(locked(&self.confirmed).send(position)));
                outbox.push(frame(), class);
                return Ok(());
            }
            Link::Detached(_) | Link::Gone => return Ok(()),
            Link::Moved(successor) => successor.clone(),
        };
        successor.offer_event(frame, position)
    }

    /// The outbox of its socket, if it has one.
    pub fn outbox(&self) -> Option<Arc<Outbox>> {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) => return Some(outbox.clone()),
            Link::Detached(_) | Link::Gone => return None,
            Link::Moved(successor) => successor.clone(),
        };
        successor.outbox()
    }

    /// The client has everything up to here: it answered a ping that was sent after it.
    pub fn confirm(&self, number: u64, position: Position) {
        let mut confirmed = locked(&self.confirmed);
        if number > confirmed.void {
            confirmed.position = confirmed.position.max(Some(position));
        }
    }

    /// What a client that has this event has for certain. `stands`: it was handed everything up to here.
    pub fn completes(&self, sent: Sent, stands: Option<Position>) -> Option<Position> {
        let is_last = locked(&self.confirmed).sent == sent.number;
        if is_last && stands >= Some(sent.position) { Some(sent.position) } else { sent.before }
    }

    pub fn confirmed(&self) -> Option<Position> {
        locked(&self.confirmed).position
    }

    /// The client is given events after this position once more, or for the first time: it has none of them for certain.
    /// To be told after the feed was, which hands it events in order from there on.
    pub fn begins_again(&self, after: Position) {
        let mut confirmed = locked(&self.confirmed);
        if confirmed.position.is_some_and(|position| position > after) {
            confirmed.position = Some(after);
        }
        confirmed.void = confirmed.sent;
        (confirmed.last, confirmed.before) = (None, None);
    }

    /// Sends the answer to a call, or keeps it for the worker to come back.
    pub fn send_result(&self, frame: Frame) {
        let successor = match &*locked(&self.link) {
            Link::Attached(outbox) => return outbox.push(frame, Class::Result),
            Link::Detached(outbox) => {
                if outbox.bytes() + frame.len() <= PARKED_BYTES_MAX {
                    outbox.push(frame, Class::Result);
                } else {
                    tracing::debug!(worker = self.id, "dropped a result: too much is parked for this worker");
                }
                return;
            }
            Link::Gone => return,
            Link::Moved(successor) => successor.clone(),
        };
        successor.send_result(frame);
    }

    /// The socket is lost. True: there is something to keep for the worker, or there will be.
    pub fn detach(&self, missed: Missed) -> bool {
        let mut link = locked(&self.link);
        let outbox = match &*link {
            Link::Attached(outbox) => outbox,
            Link::Moved(successor) => {
                // It came back while its old socket was being cleared away.
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

    /// Nobody came back in time: what was kept is dropped.
    pub fn forget(&self) {
        let mut link = locked(&self.link);
        if matches!(*link, Link::Detached(_)) {
            *link = Link::Gone;
        }
    }

    /// Hands everything that is this worker's to its new connection. The old socket, if it still looks alive, is
    /// closed. True: it did look alive.
    pub fn move_to(&self, successor: &Arc<Worker>) -> bool {
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

    /// From where a binding that is registered again goes on, if it was live on a socket that was lost.
    pub fn resume_binding(&self, id: &str) -> Option<Position> {
        let mut missed = locked(&self.missed);
        missed.bindings.remove(id).flatten()
    }

    /// Notes a call that was passed on to this worker; the receiver gets its answer.
    pub fn expect_reply(&self, invocation_id: &str) -> oneshot::Receiver<Reply> {
        let (sender, receiver) = oneshot::channel();
        locked(&self.waiting).insert(invocation_id.to_owned(), sender);
        receiver
    }

    /// Nobody waits for that answer any more.
    pub fn give_up(&self, invocation_id: &str) {
        locked(&self.waiting).remove(invocation_id);
    }

    /// An answer came. Unknown ids are late answers and are dropped.
    pub fn reply(&self, invocation_id: &str, reply: Reply) {
        let waiting = locked(&self.waiting).remove(invocation_id);
        if let Some(sender) = waiting {
            // The caller may have stopped waiting; then nobody wants the answer.
            let _ = sender.send(reply);
        }
    }

    /// This worker will answer nothing any more.
    pub fn stop_replies(&self) {
        let error = ErrorBody::new("invocation_stopped", "the worker that served the call disconnected").print();
        for (_, sender) in std::mem::take(&mut *locked(&self.waiting)) {
            let _ = sender.send(Err(error.clone()));
        }
    }
}
