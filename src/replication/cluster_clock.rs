//! Owns: what the log says of time. The clock of the state is the latest stamp that was applied, the same on every node;
//! between two commands this node counts the time that passed. Wall clocks may jump and may differ between nodes, so
//! request ids and stamps are measured against this clock.
//! Never: a wall clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A request id of this node may be this far ahead of the cluster. Far less than what the state accepts
/// (`machine/apply/retries.rs`): the clock of the leader may be behind what this node counts.
const REQUEST_AHEAD_MAX_MS: i64 = 60 * 60 * 1000;

#[derive(Debug)]
pub struct ClusterClock {
    applied: Mutex<Applied>,
}

#[derive(Debug, Clone, Copy)]
struct Applied {
    /// 0 until the first command is applied.
    clock_ms: i64,
    at: Instant,
}

impl Applied {
    fn elapsed_ms(self) -> i64 {
        i64::try_from(self.at.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

impl ClusterClock {
    /// With the clock of the state at the start.
    pub fn new(clock_ms: i64) -> ClusterClock {
        ClusterClock { applied: Mutex::new(Applied { clock_ms, at: Instant::now() }) }
    }

    /// A command was applied with this time.
    pub fn applied(&self, clock_ms: i64) {
        let mut applied = self.lock();
        if clock_ms > applied.clock_ms {
            *applied = Applied { clock_ms, at: Instant::now() };
        }
    }

    /// The time of the cluster, or `wall_ms` if that is later.
    pub fn now_ms(&self, wall_ms: i64) -> i64 {
        let applied = *self.lock();
        wall_ms.max(applied.clock_ms.saturating_add(applied.elapsed_ms()))
    }

    /// The time for a stamp. If the wall clock is behind the cluster, time goes on at half its speed until the wall clock
    /// has caught up, instead of standing still.
    pub fn stamp_ms(&self, wall_ms: i64) -> i64 {
        let applied = *self.lock();
        if wall_ms > applied.clock_ms {
            return wall_ms;
        }
        applied.clock_ms.saturating_add(applied.elapsed_ms() / 2)
    }

    /// The time for a request id. The state keeps the answer for a minute by its own clock, whatever the clock of this
    /// node says.
    pub fn request_ms(&self, wall_ms: i64) -> i64 {
        let applied = *self.lock();
        if applied.clock_ms == 0 {
            return wall_ms;
        }
        let now_ms = applied.clock_ms.saturating_add(applied.elapsed_ms());
        wall_ms.clamp(now_ms, now_ms.saturating_add(REQUEST_AHEAD_MAX_MS))
    }

    fn lock(&self) -> MutexGuard<'_, Applied> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 60 * 60 * 1000;

    #[test]
    fn a_wall_clock_that_is_right_is_taken_as_it_is() {
        let clock = ClusterClock::new(1_000_000);
        assert_eq!(clock.stamp_ms(1_000_500), 1_000_500);
        assert_eq!(clock.request_ms(1_000_500), 1_000_500);
        assert_eq!(ClusterClock::new(0).request_ms(5), 5);
    }

    #[test]
    fn a_wall_clock_that_is_behind_or_far_ahead_does_not_decide() {
        let clock = ClusterClock::new(10 * HOUR_MS);
        clock.applied(20 * HOUR_MS);
        clock.applied(15 * HOUR_MS);
        for behind in [0, 19 * HOUR_MS] {
            assert!((20 * HOUR_MS..20 * HOUR_MS + 5_000).contains(&clock.stamp_ms(behind)));
            assert!((20 * HOUR_MS..20 * HOUR_MS + 5_000).contains(&clock.request_ms(behind)));
            assert!((20 * HOUR_MS..20 * HOUR_MS + 5_000).contains(&clock.now_ms(behind)));
        }
        let ahead = clock.request_ms(1_000 * HOUR_MS);
        assert!((21 * HOUR_MS..21 * HOUR_MS + 5_000).contains(&ahead), "{ahead}");
    }

    #[test]
    fn time_goes_on_while_the_wall_clock_is_behind() {
        let clock = ClusterClock::new(HOUR_MS);
        let first = clock.stamp_ms(0);
        while clock.stamp_ms(0) == first {
            std::thread::yield_now();
        }
        assert!(clock.stamp_ms(0) > first);
    }
}
