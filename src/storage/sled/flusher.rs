//! Owns: the thread that moves layers into sled, and when.
//! Never: gives up a layer that sled does not have yet. A disk that is full now may have room later.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{FLUSH_BYTES, Shared};
use crate::machine::refusal::Fault;
use crate::storage::contained::contain;
use crate::storage::kv::Changed;

/// How long a commit stays in memory only, and how long a failed flush rests before the next try.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

pub fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("state-flusher".to_owned()).spawn(move || run(&shared))
}

fn run(shared: &Shared) {
    loop {
        let closing = await_work(shared);
        let flushed = flush(shared);
        report(shared, &flushed);
        if closing {
            // Two layers can be waiting: one that failed before, and the active one.
            if flushed.is_ok() {
                report(shared, &flush(shared));
            }
            return;
        }
    }
}

/// Waits for the clock, for a large layer, or for the end; true at the end.
fn await_work(shared: &Shared) -> bool {
    let idle = |control: &mut super::Control| {
        let large = control.active_bytes >= FLUSH_BYTES;
        let may_move = control.leases == 0 && control.failing.is_none();
        !(control.closing || large && may_move)
    };
    let waited = shared.wake.wait_timeout_while(shared.control(), FLUSH_INTERVAL, idle);
    let (control, _) = waited.unwrap_or_else(PoisonError::into_inner);
    control.closing
}

/// Moves one layer into sled, if there is one that may move.
pub fn flush(shared: &Shared) -> Result<(), Fault> {
    let _turn = shared.turn();
    let Some(layer) = next_layer(shared) else { return Ok(()) };
    let base = Arc::clone(&shared.layers().base);
    // Sled asserts where it should answer; the layer is still here, so its panic is one more failed try.
    contain(|| base.flush(&layer)).unwrap_or_else(|| Err(Fault("sled panicked during a flush".to_owned())))?;
    shared.layers_mut().frozen = None;
    Ok(())
}

/// The layer that failed last time, or the active one, which from here on is frozen.
fn next_layer(shared: &Shared) -> Option<Arc<Changed>> {
    let mut control = shared.control();
    let mut layers = shared.layers_mut();
    if layers.frozen.is_none() && control.leases == 0 && !layers.active.is_empty() {
        layers.frozen = Some(Arc::new(std::mem::take(&mut layers.active)));
        control.active_bytes = 0;
        shared.room.notify_all();
    }
    layers.frozen.clone()
}

/// Remembers how the flush went. A failure is logged when it begins, its end when it ends.
fn report(shared: &Shared, flushed: &Result<(), Fault>) {
    let mut control = shared.control();
    match flushed {
        Ok(()) => {
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
