//! Owns: how many messages one connection may send in a while.
//! Never: what is done with one that is too many.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const MESSAGES_MAX: usize = 60;
const WINDOW: Duration = Duration::from_secs(10);

/// A sliding window over the messages that were accepted.
#[derive(Default)]
pub struct Pace(VecDeque<Instant>);

impl Pace {
    /// Accepts a message, or says how long the client must wait.
    pub fn accept(&mut self, now: Instant) -> Result<(), Duration> {
        while self.0.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            self.0.pop_front();
        }
        match self.0.front() {
            Some(first) if self.0.len() >= MESSAGES_MAX => Err(WINDOW - now.duration_since(*first)),
            _room => {
                self.0.push_back(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_messages_pass_in_ten_seconds_and_refused_ones_do_not_count() {
        let (mut pace, begun) = (Pace::default(), Instant::now());
        for _ in 0..MESSAGES_MAX {
            assert_eq!(pace.accept(begun), Ok(()));
        }
        for _ in 0..1000 {
            assert_eq!(pace.accept(begun + WINDOW / 2), Err(WINDOW / 2));
        }
        assert_eq!(pace.accept(begun + WINDOW), Ok(()));
    }
}
