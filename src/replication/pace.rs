//! Owns: the pace of a snapshot that is built while its node serves: half of the time belongs to others.
//! Never: what is built, or when.

use std::thread;
use std::time::{Duration, Instant};

/// A step of a build. So short that others wait little for it, and long enough to be measured.
const STEP_BYTES: usize = 256 << 10;

/// How soon a build that rests notices that it may not.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How fast snapshots are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Without rests: everything is one thread, as in a simulation.
    Full,
    /// After each step a build rests as long as the step took. It sleeps, so it needs a thread for blocking work.
    Half,
}

/// The steps of one build.
pub struct Steps {
    pace: Pace,
    began: Instant,
    bytes: usize,
}

impl Steps {
    pub fn new(pace: Pace) -> Steps {
        Steps { pace, began: Instant::now(), bytes: 0 }
    }

    /// Counts bytes that are built next. After a step it rests for as long as `may_rest`.
    pub fn add(&mut self, bytes: usize, may_rest: impl Fn() -> bool) {
        self.bytes += bytes;
        if self.pace == Pace::Full || self.bytes < STEP_BYTES {
            return;
        }
        let ended = Instant::now();
        let until = ended + (ended - self.began);
        while may_rest() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
        (self.began, self.bytes) = (Instant::now(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const WORK: Duration = Duration::from_millis(50);

    /// How long the build rests after a step of `WORK`.
    fn rested(pace: Pace, bytes: usize, may_rest: impl Fn() -> bool) -> Duration {
        let mut steps = Steps::new(pace);
        thread::sleep(WORK);
        let began = Instant::now();
        steps.add(bytes, may_rest);
        began.elapsed()
    }

    #[test]
    fn a_step_is_followed_by_a_rest_of_its_length() {
        assert!(rested(Pace::Half, STEP_BYTES, || true) >= WORK);
    }

    #[test]
    fn nothing_rests_within_a_step_or_at_full_pace_or_when_it_may_not() {
        let asked = Cell::new(0);
        let count = |may| {
            asked.set(asked.get() + 1);
            may
        };
        rested(Pace::Half, STEP_BYTES - 1, || count(true));
        rested(Pace::Full, STEP_BYTES, || count(true));
        assert_eq!(asked.get(), 0);
        rested(Pace::Half, STEP_BYTES, || count(false));
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn a_rest_ends_when_the_node_stops() {
        let looks = Cell::new(0);
        let may_rest = || {
            looks.set(looks.get() + 1);
            looks.get() < 2
        };
        rested(Pace::Half, STEP_BYTES, may_rest);
        assert_eq!(looks.get(), 2);
    }
}
