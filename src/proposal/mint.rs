//! Owns: the only source of time and randomness. What it mints enters the log and is replayed, never minted again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::machine::ids::RequestId;
use crate::machine::stamp::Stamp;
use crate::planted::{self, Bug};

/// Mints stamps and request ids. The simulation and the tests bring their own.
pub trait Mint: Send + Sync + 'static {
    fn stamp(&self) -> Stamp;
    fn request_id(&self) -> RequestId;
}

/// Milliseconds since the epoch. It may jump either way.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The system's clock and random source. Stamps of one process never run backwards.
pub struct SystemMint {
    clock: Clock,
    last_ms: AtomicI64,
    /// Stamps that were minted; only a planted bug looks at it.
    count: AtomicU64,
}

impl Default for SystemMint {
    fn default() -> SystemMint {
        SystemMint::with_clock(Arc::new(system_ms))
    }
}

fn system_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64)
}

impl Mint for SystemMint {
    fn stamp(&self) -> Stamp {
        if planted::has(Bug::ReuseIdsAfterFailover) {
            // Without the time, which would tell the ids of two leaders apart.
            return Stamp { at_ms: 0, seed: u128::from(self.count.fetch_add(1, Ordering::Relaxed)) };
        }
        Stamp { at_ms: self.now_ms(), seed: random() }
    }

    fn request_id(&self) -> RequestId {
        RequestId::new(self.now_ms(), random())
    }
}

impl SystemMint {
    /// With a clock of the caller's: the simulation's clocks are wrong on purpose.
    pub fn with_clock(clock: Clock) -> SystemMint {
        SystemMint { clock, last_ms: AtomicI64::default(), count: AtomicU64::default() }
    }

    fn now_ms(&self) -> i64 {
        let now_ms = (self.clock)();
        now_ms.max(self.last_ms.fetch_max(now_ms, Ordering::Relaxed))
    }
}

/// A version 4 UUID has 122 random bits; the six fixed ones are folded over.
fn random() -> u128 {
    let (a, b) = (uuid::Uuid::new_v4().as_u128(), uuid::Uuid::new_v4().as_u128());
    a ^ b.rotate_left(64)
}
