//! Owns: pings that tell which events a client received. A ping is written after an event; its pong proves that the
//! client received that event and everything before it.
//! Never: what is done with the confirmed position.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::outbox::Sent;
use crate::machine::ids::Position;
use crate::surface::locked;

/// A client that receives events is probed at most this often.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The probes of one connection.
#[derive(Default)]
pub struct Probe(Mutex<State>);

#[derive(Default)]
struct State {
    number: u64,
    /// What the pong of the last probe confirms: an event's sequence number on this connection, and a position.
    confirms: Option<(u64, Position)>,
    /// The last event that was written, and the last that was probed.
    written: Option<Sent>,
    probed: Option<Sent>,
    probed_at: Option<Instant>,
}

impl Probe {
    /// Records that an event was written.
    pub fn wrote(&self, sent: Sent) {
        locked(&self.0).written = Some(sent);
    }

    /// The last event that was written.
    pub fn written(&self) -> Option<Sent> {
        locked(&self.0).written
    }

    /// True when events were written since the last probe, and that was long enough ago.
    pub fn is_due(&self) -> bool {
        let state = locked(&self.0);
        state.written != state.probed && state.probed_at.is_none_or(|at| at.elapsed() >= PROBE_EVERY)
    }

    /// The payload of the ping to write now. `complete` is the position up to which the client has everything once it
    /// has what was written.
    pub fn ping(&self, complete: Option<Position>) -> Bytes {
        let mut state = locked(&self.0);
        state.number += 1;
        state.probed = state.written;
        state.probed_at = Some(Instant::now());
        state.confirms = state.written.map(|sent| sent.number).zip(complete);
        Bytes::copy_from_slice(&state.number.to_be_bytes())
    }

    /// What a pong with this payload confirms.
    pub fn confirmed(&self, payload: &[u8]) -> Option<(u64, Position)> {
        let state = locked(&self.0);
        state.confirms.filter(|_| payload == state.number.to_be_bytes())
    }
}
