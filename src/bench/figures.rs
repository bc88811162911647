//! Owns: percentiles of timings, and the comparison of a figure with its goal.

use std::time::Duration;

use serde_json::{Value, json};

/// Timings of one repeated request.
#[derive(Debug, Default, Clone)]
pub struct Timings {
    taken: Vec<Duration>,
}

impl Timings {
    pub fn push(&mut self, taken: Duration) {
        self.taken.push(taken);
    }

    pub fn len(&self) -> usize {
        self.taken.len()
    }

    pub fn join(&mut self, other: Timings) {
        self.taken.extend(other.taken);
    }

    pub fn median(&self) -> Duration {
        self.at(0.5)
    }

    pub fn p99(&self) -> Duration {
        self.at(0.99)
    }

    /// The smallest timing that is at least as long as `share` of all timings.
    fn at(&self, share: f64) -> Duration {
        let mut sorted = self.taken.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// The timings of one request in a small store and in a large one.
#[derive(Debug)]
pub struct Growth {
    pub name: String,
    pub small: Timings,
    pub large: Timings,
    /// The largest ratio of the medians that meets the goal.
    pub ratio_max: f64,
}

impl Growth {
    pub fn ratio(&self) -> f64 {
        self.large.median().as_secs_f64() / self.small.median().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    pub fn pass(&self) -> bool {
        self.ratio() <= self.ratio_max
    }

    pub fn json(&self) -> Value {
        let side =
            |timings: &Timings| json!({ "median_us": micros(timings.median()), "p99_us": micros(timings.p99()) });
        json!({
            "name": self.name,
            "small": side(&self.small),
            "large": side(&self.large),
            "ratio": (self.ratio() * 100.0).round() / 100.0,
            "ratio_max": self.ratio_max,
            "pass": self.pass(),
        })
    }

    /// One row of the Markdown table in `architecture/performance.md`.
    pub fn row(&self) -> String {
        format!(
            "| {} | {} / {} | {} / {} | {:.2} | {} | {} |",
            self.name,
            micros(self.small.median()),
            micros(self.small.p99()),
            micros(self.large.median()),
            micros(self.large.p99()),
            self.ratio(),
            self.ratio_max,
            if self.pass() { "pass" } else { "FAIL" },
        )
    }
}

pub const TABLE_HEAD: &str = "\
| request | small: median / p99 µs | large: median / p99 µs | ratio | goal ≤ | |
|---|---|---|---|---|---|";

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings(micros: impl IntoIterator<Item = u64>) -> Timings {
        Timings { taken: micros.into_iter().map(Duration::from_micros).collect() }
    }

    #[test]
    fn median_and_p99_are_measured_values() {
        let hundred = timings((1..=100).rev());
        assert_eq!(hundred.median(), Duration::from_micros(50));
        assert_eq!(hundred.p99(), Duration::from_micros(99));
        assert_eq!(timings([7]).p99(), Duration::from_micros(7));
        assert_eq!(timings([]).median(), Duration::ZERO);
    }

    #[test]
    fn a_ratio_at_its_bound_passes() {
        let growth =
            |large| Growth { name: "x".to_owned(), small: timings([100]), large: timings([large]), ratio_max: 1.5 };
        assert!(growth(150).pass());
        assert!(!growth(151).pass());
    }
}
