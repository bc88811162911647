//! Owns: the log of slow calls: which function, who called, how long it took, and where the time went.
//! Never: a body, or more lines than a person can read.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::warn;

use super::errors::CallError;
use super::gate::Call;
use super::locked;
use crate::metrics::timeline::Timeline;

/// A call that takes longer is logged. Most take a few milliseconds, and an election takes about 300.
const SLOW: Duration = Duration::from_secs(1);

/// Lines per second. Under overload every call is slow, and the first ones say why.
const LINES_MAX: u32 = 5;

#[derive(Default)]
pub struct SlowCalls(Mutex<Window>);

#[derive(Default)]
struct Window {
    begun: Option<Instant>,
    lines: u32,
    /// Slow calls that were not logged since the last one that was.
    left_out: u64,
}

impl SlowCalls {
    /// Logs a call that ended, if it was slow.
    pub fn note(&self, call: &Call, took: Duration, went: &Timeline, failed: Option<&CallError>) {
        if took < SLOW {
            return;
        }
        let Some(left_out) = locked(&self.0).admit(Instant::now()) else { return };
        let outcome = failed.map_or("ok", |error| error.kind().row().code);
        warn!(
            function = call.function,
            door = call.caller.door.name(),
            caller = &*call.caller.identity.name,
            took_ms = took.as_millis() as u64,
            %went,
            outcome,
            trace = call.trace,
            left_out,
            "a slow call"
        );
    }
}

impl Window {
    /// How many were left out before, if one more line may be written.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.begun.is_none_or(|begun| now.duration_since(begun) >= Duration::from_secs(1)) {
            (self.begun, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_a_few_lines_and_the_next_says_what_was_left_out() {
        let mut window = Window::default();
        let begun = Instant::now();
        let admitted = (0..100).filter(|_| window.admit(begun).is_some()).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert_eq!(window.admit(begun + Duration::from_secs(1)), Some(100 - u64::from(LINES_MAX)));
        assert_eq!(window.admit(begun + Duration::from_secs(1)), Some(0));
    }
}
