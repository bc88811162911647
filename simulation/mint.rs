//! Owns: the mint of a simulated host. One planted bug lives here: a host that mints the same ids again after every start.

use std::sync::atomic::{AtomicU64, Ordering};

use session_manager::machine::ids::RequestId;
use session_manager::machine::stamp::Stamp;
use session_manager::mint::{Clock, Mint, SystemMint};
use session_manager::planted::{self, Bug};

pub struct SimulatedMint {
    system: SystemMint,
    /// Stamps minted since the start. Used only by the planted bug.
    minted: AtomicU64,
}

impl SimulatedMint {
    pub fn new(clock: Clock) -> SimulatedMint {
        SimulatedMint { system: SystemMint::with_clock(clock), minted: AtomicU64::default() }
    }
}

impl Mint for SimulatedMint {
    fn stamp(&self) -> Stamp {
        if planted::has(Bug::ReuseIdsAfterFailover) {
            // Without a time, which would make the ids of two leaders differ.
            return Stamp { at_ms: 0, seed: u128::from(self.minted.fetch_add(1, Ordering::Relaxed)) };
        }
        self.system.stamp()
    }

    fn request_id(&self) -> RequestId {
        self.system.request_id()
    }
}
