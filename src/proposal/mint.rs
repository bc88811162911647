//! Owns: the only source of time and randomness. What it mints enters the log and is replayed, never minted again.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::machine::stamp::Stamp;

/// Mints stamps and request ids. The simulation and the tests bring their own.
pub trait Mint: Send + Sync + 'static {
    fn stamp(&self) -> Stamp;
    fn request_id(&self) -> u128;
}

/// The machine's clock and random source. Stamps of one process never run backwards.
#[derive(Debug, Default)]
pub struct SystemMint {
    last_ms: AtomicI64,
}

impl Mint for SystemMint {
    fn stamp(&self) -> Stamp {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64);
        let last_ms = self.last_ms.fetch_max(now_ms, Ordering::Relaxed);
        Stamp { at_ms: now_ms.max(last_ms), seed: self.request_id() }
    }

    fn request_id(&self) -> u128 {
        uuid::Uuid::new_v4().as_u128()
    }
}
