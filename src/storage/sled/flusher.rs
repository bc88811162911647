//! Owns: the thread that writes layers to sled, and when it does.
//! Never: drops a layer that is not in sled. A full disk may have space again later, so a failed flush is retried.

use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use super::Shared;
use super::base::Base;
use super::freeze::Freeze;
use super::panic_guard::catch_panic;
use super::reclaim;
use crate::machine::refusal::Fault;
use crate::storage::state::kv::Changed;

/// How long a commit stays in memory only. After a kill the log restores those commits. A longer interval makes that
/// start slower, but a key that changes often is written to sled less often.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

/// The pause before a failed flush is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// What one step of the reclaim may write.
const RECLAIM_BYTES: usize = 1 << 20;

pub fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("state-flusher".to_owned()).spawn(move || run(&shared))
}

fn run(shared: &Shared) {
    loop {
        let closing = await_work(shared);
        let flushed = flush(shared);
        report(shared, &flushed);
        if !closing && flushed.is_ok() {
            reclaim(shared);
        }
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

/// Waits until the interval has passed, a layer is full, or the store closes. True if the store closes.
fn await_work(shared: &Shared) -> bool {
    let idle = |control: &mut super::Control| {
        let much = control.active_bytes >= shared.bounds.flush_bytes || control.sealed_bytes > 0;
        !(control.closing || much && control.failing.is_none() && !control.no_space)
    };
    let control = shared.control();
    let timeout = if control.failing.is_some() || control.no_space { RETRY_INTERVAL } else { FLUSH_INTERVAL };
    let waited = shared.wake.wait_timeout_while(control, timeout, idle);
    let (control, _) = waited.unwrap_or_else(PoisonError::into_inner);
    control.closing
}

/// Writes the oldest layer to sled; false if there is none, or no space for it.
pub fn flush(shared: &Shared) -> Result<bool, Fault> {
    let _turn = shared.turn();
    let Some(Flush { layer, base, freezes }) = next(shared) else { return Ok(false) };
    let bytes = layer.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len)).sum();
    if !note_space(shared, base.has_space_for(bytes)) {
        return Ok(false);
    }
    // Sled panics on some errors. The layer is still in memory, so a panic is a failed flush like any other.
    catch_panic(|| base.flush(&layer, &freezes))
        .unwrap_or_else(|| Err(Fault("sled panicked during a flush".to_owned())))?;
    let mut control = shared.control();
    let mut layers = shared.layers_mut();
    let mut before = None;
    if let Some(done) = layers.sealed.pop_front() {
        control.sealed_bytes -= done.bytes;
        before = layers.written.replace(done.changed);
    }
    drop((layers, control));
    shared.room.notify_all();
    // Freeing a whole layer takes time: do it after the locks are released.
    drop(before);
    Ok(true)
}

/// Notes whether the disk has space for a flush, and logs a change.
fn note_space(shared: &Shared, has_space: bool) -> bool {
    let mut control = shared.control();
    match (control.no_space, has_space) {
        (false, false) => tracing::error!("the disk is full; the state stays in memory until it has space"),
        (true, true) => tracing::info!("the disk has space again; the state is flushed"),
        (true, false) | (false, true) => {}
    }
    control.no_space = !has_space;
    has_space
}

/// Frees some space of dead bodies. If that fails, the next flush tries again.
pub fn reclaim(shared: &Shared) {
    let _turn = shared.turn();
    let base = Arc::clone(&shared.layers().base);
    // A step writes what is alive once more before it frees the rest.
    if !base.has_space_for(RECLAIM_BYTES) {
        return;
    }
    let step = catch_panic(|| reclaim::step(&base)).unwrap_or_else(|| Err(Fault("sled panicked".to_owned())));
    if let Err(fault) = step {
        tracing::warn!(%fault, "the space of dead bodies was not freed");
    }
}

struct Flush {
    layer: Arc<Changed>,
    base: Arc<Base>,
    /// The freezes that must not see this layer. A freeze that is taken from now on contains it.
    freezes: Vec<Arc<Freeze>>,
}

/// The oldest sealed layer; without one the active layer, which is sealed first.
fn next(shared: &Shared) -> Option<Flush> {
    let mut control = shared.control();
    let mut layers = shared.layers_mut();
    if layers.sealed.is_empty() {
        layers.seal(&mut control);
    }
    let layer = Arc::clone(&layers.sealed.front()?.changed);
    let live = layers.freezes.iter().filter_map(Weak::upgrade);
    let freezes = live.filter(|freeze| !freeze.covers(&layer)).collect();
    Some(Flush { layer, base: Arc::clone(&layers.base), freezes })
}

/// Stores the result for commits. Logs the first failure and the first success after it.
fn report(shared: &Shared, flushed: &Result<bool, Fault>) {
    let mut control = shared.control();
    match flushed {
        Ok(_) => {
            if control.failing.take().is_some() {
                tracing::info!("the state is flushed to disk again");
            }
        }
        Err(fault) => {
            if control.failing.is_none() {
                tracing::error!(%fault, "the state could not be flushed to disk; it stays in memory, and is retried");
            }
            control.failing = Some(fault.0.clone());
            shared.room.notify_all();
        }
    }
}
