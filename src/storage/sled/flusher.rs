//! Owns: the thread that writes layers to sled, and when it does.
//! Never: drops a layer that is not in sled. A full disk may have space again later, so a failed flush is retried.

use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// The pause between two steps of the reclaim: others use the disk too.
const RECLAIM_PAUSE: Duration = Duration::from_millis(50);

/// What one step of the reclaim may write.
const RECLAIM_BYTES: usize = 1 << 20;

pub fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("state-flusher".to_owned()).spawn(move || run(&shared))
}

fn run(shared: &Shared) {
    let mut last_flush = Instant::now();
    loop {
        let idle = !await_work(shared, last_flush);
        let closing = shared.control().closing;
        let flushed = flush(shared);
        last_flush = Instant::now();
        report(shared, &flushed);
        if !closing && flushed.is_ok() {
            reclaim_until_work(shared, idle, last_flush + FLUSH_INTERVAL);
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

/// Waits until the interval since the last flush has passed, a layer is full, or the store closes. False if the interval
/// has passed.
fn await_work(shared: &Shared, last_flush: Instant) -> bool {
    let interval = {
        let control = shared.control();
        if control.failing.is_some() || control.no_space { RETRY_INTERVAL } else { FLUSH_INTERVAL }
    };
    has_work(shared, interval.saturating_sub(last_flush.elapsed()))
}

/// Frees space of dead bodies, step by step, until there is a layer to flush. Without writes the next flush is seconds
/// away, and a disk that is nearly full needs its space now.
fn reclaim_until_work(shared: &Shared, idle: bool, flush_at: Instant) {
    loop {
        let began = Instant::now();
        let more = reclaim(shared, idle);
        // Half of the time belongs to others.
        let pause = began.elapsed().max(RECLAIM_PAUSE);
        if !more || Instant::now() + pause >= flush_at || has_work(shared, pause) {
            return;
        }
    }
}

/// Waits until a layer is full or the store closes, at most for this long. False if the time has passed.
fn has_work(shared: &Shared, timeout: Duration) -> bool {
    let idle = |control: &mut super::Control| {
        let much = control.active_bytes >= shared.bounds.flush_bytes || control.sealed_bytes > 0;
        !(control.closing || much && control.failing.is_none() && !control.no_space)
    };
    let waited = shared.wake.wait_timeout_while(shared.control(), timeout, idle);
    let (control, waited) = waited.unwrap_or_else(PoisonError::into_inner);
    drop(control);
    !waited.timed_out()
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
    let done = layers.sealed.pop_front();
    control.sealed_bytes -= done.as_ref().map_or(0, |done| done.bytes);
    drop((layers, control));
    shared.room.notify_all();
    // Freeing a whole layer takes time: do it after the locks are released.
    drop((done, layer));
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

/// Frees some space of dead bodies: more of it if there is little else to write. True if there is more to free. If it
/// fails, the next flush tries again.
pub fn reclaim(shared: &Shared, idle: bool) -> bool {
    let _turn = shared.turn();
    let base = Arc::clone(&shared.layers().base);
    // A step writes what is alive once more before it frees the rest.
    if !base.has_space_for(RECLAIM_BYTES) {
        return false;
    }
    let step = catch_panic(|| reclaim::step(&base, idle)).unwrap_or_else(|| Err(Fault("sled panicked".to_owned())));
    step.unwrap_or_else(|fault| {
        tracing::warn!(%fault, "the space of dead bodies was not freed");
        false
    })
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
