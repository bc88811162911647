//! Owns: the only source of time and randomness. What it mints enters the log and is replayed, never minted again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::machine::ids::RequestId;
use crate::machine::stamp::Stamp;

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
        Stamp { at_ms: self.now_ms(), seed: random() }
    }

    fn request_id(&self) -> RequestId {
        RequestId::new(self.now_ms(), random())
    }
}

impl SystemMint {
    /// With a clock of the caller, such as the simulation's, which is wrong on purpose.
    pub fn with_clock(clock: Clock) -> SystemMint {
        SystemMint { clock, last_ms: AtomicI64::default() }
    }

    fn now_ms(&self) -> i64 {
        let now_ms = (self.clock)();
        now_ms.max(self.last_ms.fetch_max(now_ms, Ordering::Relaxed))
    }
}

/// 128 random bits. Each thread has a generator that the system seeds once (and again every 64 KiB), so that an id costs
/// no system call.
fn random() -> u128 {
    rand::random()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_threads_mint_different_ids() {
        let mint = SystemMint::with_clock(Arc::new(|| 1));
        let mint_some = || (0..10_000).map(|_| mint.stamp().seed).collect::<Vec<_>>();
        let seeds: HashSet<u128> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(mint_some)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(seeds.len(), 40_000);
        // Each of the 128 bits is random: about half of the seeds have it.
        for bit in 0..128 {
            let ones = seeds.iter().filter(|seed| *seed >> bit & 1 == 1).count();
            assert!((18_000..22_000).contains(&ones), "bit {bit}: {ones} of 40000");
        }
    }
}
