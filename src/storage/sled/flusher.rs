//! Owns: the thread that moves layers into sled, and when.
//! Never: gives up a layer that sled does not have yet. A disk that is full now may have room later.

use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Shared;
use super::base::Base;
use super::moment::Lease;
use crate::machine::refusal::Fault;
use crate::storage::contained::contain;
use crate::storage::kv::Changed;

/// How long a commit stays in memory only. What is lost with the process is applied again from the log, so this trades a
/// longer start after a kill for keys that change often and reach sled seldom.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

/// How long a failed flush rests before the next try.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

pub fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("state-flusher".to_owned()).spawn(move || run(&shared))
}

fn run(shared: &Shared) {
    loop {
        let closing = await_work(shared);
        let flushed = flush(shared);
        report(shared, &flushed);
        if closing {
            let mut flushed = flushed;
            while matches!(flushed, Ok(true)) {
                flushed = flush(shared);
                report(shared, &flushed);
            }
            return;
        }
    }
}

/// Waits for the clock, for a large layer, or for the end; true at the end.
fn await_work(shared: &Shared) -> bool {
    let idle = |control: &mut super::Control| {
        let much = control.active_bytes >= shared.bounds.flush_bytes || control.sealed_bytes > 0;
        !(control.closing || much && control.failing.is_none())
    };
    let control = shared.control();
    let patience = if control.failing.is_some() { RETRY_INTERVAL } else { FLUSH_INTERVAL };
    let waited = shared.wake.wait_timeout_while(control, patience, idle);
    let (control, _) = waited.unwrap_or_else(PoisonError::into_inner);
    control.closing
}

/// Moves the oldest layer into sled; false when there is none.
pub fn flush(shared: &Shared) -> Result<bool, Fault> {
    let _turn = shared.turn();
    let Some(Flush { layer, base, leases }) = next(shared) else { return Ok(false) };
    // Sled asserts where it should answer; the layer is still here, so its panic is one more failed try.
    contain(|| base.flush(&layer, &leases)).unwrap_or_else(|| Err(Fault("sled panicked during a flush".to_owned())))?;
    let mut control = shared.control();
    let mut layers = shared.layers_mut();
    let mut before = None;
    if let Some(done) = layers.sealed.pop_front() {
        control.sealed_bytes -= done.bytes;
        before = layers.written.replace(done.changed);
    }
    drop((layers, control));
    shared.room.notify_all();
    // A whole layer, let go while nobody waits.
    drop(before);
    Ok(true)
}

struct Flush {
    layer: Arc<Changed>,
    base: Arc<Base>,
    /// The freezes for which this layer comes too late. One that is taken from now on has this layer in it.
    leases: Vec<Arc<Lease>>,
}

/// The layer that waits longest, else the active one, which is sealed for it.
fn next(shared: &Shared) -> Option<Flush> {
    let mut control = shared.control();
    let mut layers = shared.layers_mut();
    if layers.sealed.is_empty() {
        layers.seal(&mut control);
    }
    let layer = Arc::clone(&layers.sealed.front()?.changed);
    let live = layers.leases.iter().filter_map(Weak::upgrade);
    let leases = live.filter(|lease| !lease.covers(&layer)).collect();
    Some(Flush { layer, base: Arc::clone(&layers.base), leases })
}

/// Remembers how the flush went. A failure is logged when it begins, its end when it ends.
fn report(shared: &Shared, flushed: &Result<bool, Fault>) {
    let mut control = shared.control();
    match flushed {
        Ok(_) => {
            if control.failing.take().is_some() {
                tracing::info!("the state is written down again");
            }
        }
        Err(fault) => {
            if control.failing.is_none() {
                tracing::error!(%fault, "the state could not be written down; it stays in memory and is retried");
            }
            control.failing = Some(fault.0.clone());
            shared.room.notify_all();
        }
    }
}
