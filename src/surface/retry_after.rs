//! Owns: when a refused call should be tried again. Refused callers come back spread over the next seconds, no more of them
//! in each than the node refuses easily. While many are refused, they stay away for longer.
//! Never: which calls are refused (`fair_share`).

use std::sync::Mutex;

use tokio::time::Instant;

use super::locked;

/// The longest advice. When an overload ends, everybody is back within five seconds.
const SECONDS_MAX: usize = 5;
/// In one second, this part of the calls that are admitted may come back. With its way through the kernel, a refusal takes
/// a good part of the time of a small call.
const BACK_PART: u64 = 10;
/// A node that admits almost nothing, because the cluster has no leader or calls are very large, can still refuse so many
/// in a second with a few thousandths of a processor.
const BACK_MIN: u64 = 100;

/// The advice of one node.
pub struct RetryAfter(Mutex<State>);

struct State {
    began: Instant,
    /// The current second since then.
    second: u64,
    /// Calls admitted in this second, and in the one before.
    admitted: [u64; 2],
    /// How many callers were told to come back in each of the next seconds, by the second's remainder.
    back: [u64; SECONDS_MAX + 1],
}

impl Default for RetryAfter {
    fn default() -> RetryAfter {
        let began = Instant::now();
        RetryAfter(Mutex::new(State { began, second: 0, admitted: [0; 2], back: [0; _] }))
    }
}

impl RetryAfter {
    pub fn admitted(&self) {
        let mut state = locked(&self.0);
        state.turn_to(Instant::now());
        state.admitted[0] += 1;
    }

    /// A call is refused. Returns after how many seconds its caller should try again.
    pub fn refused(&self) -> u64 {
        let mut state = locked(&self.0);
        state.turn_to(Instant::now());
        let most = (state.admitted[1] / BACK_PART).max(BACK_MIN);
        let (second, back) = (state.second, &mut state.back);
        let place = |after: u64| ((second + after) % back.len() as u64) as usize;
        let seconds = 1..=SECONDS_MAX as u64;
        let free = seconds.clone().find(|after| back[place(*after)] < most);
        // If all are full, the one with the fewest.
        let after = free.or_else(|| seconds.min_by_key(|after| back[place(*after)])).unwrap_or(1);
        let place = place(after);
        back[place] += 1;
        after
    }
}

impl State {
    fn turn_to(&mut self, now: Instant) {
        let second = now.duration_since(self.began).as_secs();
        let passed = second - self.second;
        if passed == 0 {
            return;
        }
        for past in (self.second..second).take(self.back.len()) {
            self.back[(past % self.back.len() as u64) as usize] = 0;
        }
        self.admitted = [0, if passed == 1 { self.admitted[0] } else { 0 }];
        self.second = second;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn next_second() {
        tokio::time::advance(Duration::from_secs(1)).await;
    }

    /// How many of so many refused callers are told to come back after each of the seconds.
    fn refuse(advice: &RetryAfter, callers: u64) -> [u64; SECONDS_MAX] {
        let mut told = [0; SECONDS_MAX];
        (0..callers).for_each(|_| told[advice.refused() as usize - 1] += 1);
        told
    }

    #[tokio::test(start_paused = true)]
    async fn refused_callers_come_back_spread_over_the_next_seconds() {
        let advice = RetryAfter::default();
        (0..4000).for_each(|_| advice.admitted());
        next_second().await;
        assert_eq!(refuse(&advice, 399), [399, 0, 0, 0, 0], "a few are told to come back soon");
        assert_eq!(refuse(&advice, 801), [1, 400, 400, 0, 0]);
        assert_eq!(refuse(&advice, 800 + 5000), [1000, 1000, 1000, 1400, 1400], "a crowd stays away for longer");
        // Those of the first second are back. Those who were told two seconds still come one second later.
        (0..4000).for_each(|_| advice.admitted());
        next_second().await;
        assert_eq!(refuse(&advice, 400), [0, 0, 0, 0, 400]);
        for _ in 0..=SECONDS_MAX {
            next_second().await;
        }
        assert_eq!(refuse(&advice, 1), [1, 0, 0, 0, 0], "it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_admits_nothing_may_refuse_some() {
        let advice = RetryAfter::default();
        for _ in 0..3 {
            assert_eq!(refuse(&advice, BACK_MIN), [BACK_MIN, 0, 0, 0, 0]);
            next_second().await;
        }
    }
}
