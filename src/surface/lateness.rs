//! Owns: measuring how late the tasks of the doors run. A request on a busy node waits in the queue of its runtime, and for
//! a processor, before any code of this program sees it. This is the part of its time that no other figure shows.
//! Never: what follows from it (`fair_share`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::bus::Bus;
use super::endpoint::LiveLimits;

/// Often enough for a percentile of a minute, and too rarely to keep an idle processor awake.
const EVERY: Duration = Duration::from_millis(100);

/// Measures until the port closes.
pub async fn measure(limits: Arc<LiveLimits>, bus: Arc<Bus>, shutdown: CancellationToken) {
    loop {
        let due = Instant::now() + EVERY;
        tokio::select! {
            () = sleep_until(due) => {
                limits.lateness().observe(due.elapsed());
                bus.gate().ran_late(due.elapsed());
            }
            () = shutdown.cancelled() => return,
        }
    }
}
