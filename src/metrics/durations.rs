//! Owns: a histogram of durations. Recording one is two additions to atomics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets. From the apply of one small entry to the longest deadline of a call.
const BOUNDS_US: [u64; 20] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];
/// The last bucket has no bound.
const BUCKETS: usize = BOUNDS_US.len() + 1;

#[derive(Debug)]
pub struct Durations {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) }
    }
}

/// The content of a histogram at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// The upper bound in seconds, and how many durations are in this bucket and in no lower one.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum_seconds: f64,
}

impl Reading {
    pub fn add(&mut self, other: &Reading) {
        self.count += other.count;
        self.sum_seconds += other.sum_seconds;
        match self.buckets.is_empty() {
            true => self.buckets = other.buckets.clone(),
            false => self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, (_, count))| own.1 += count),
        }
    }

    /// What was observed since an earlier reading of the same histogram.
    pub fn since(mut self, earlier: &Reading) -> Reading {
        self.count = self.count.saturating_sub(earlier.count);
        self.sum_seconds -= earlier.sum_seconds;
        self.buckets
            .iter_mut()
            .zip(&earlier.buckets)
            .for_each(|(own, (_, count))| own.1 = own.1.saturating_sub(*count));
        self
    }

    /// The upper bound of the bucket that holds this share of all durations, in seconds. `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let last = BOUNDS_US[BOUNDS_US.len() - 1] as f64 / 1e6;
        for (bound, count) in &self.buckets {
            seen += count;
            if self.count > 0 && seen >= wanted {
                return Some(bound.min(last));
            }
        }
        None
    }
}

impl Durations {
    pub fn observe(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound_us| bound_us * 1000 < nanos);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// How many were observed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// The sum of all that were observed.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    pub fn read(&self) -> Reading {
        let bounds = BOUNDS_US.iter().map(|bound_us| *bound_us as f64 / 1e6).chain([f64::MAX]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // Counted from the same reading, so that the page never contradicts itself.
        let count = buckets.iter().map(|(_, count)| count).sum();
        Reading { buckets, count, sum_seconds: self.total().as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_reaches_it() {
        let durations = Durations::default();
        for nanos in [0, 10_000, 10_001, 30_000_000_000, 30_000_000_001] {
            durations.observe(Duration::from_nanos(nanos));
        }
        let Reading { buckets, count, sum_seconds } = durations.read();
        let filled: Vec<(f64, u64)> = buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(1e-5, 2), (2.5e-5, 1), (30.0, 1), (f64::MAX, 1)]);
        assert_eq!((count, durations.count()), (5, 5));
        assert!((sum_seconds - 60.000_020_002).abs() < 1e-9, "{sum_seconds}");
    }
}
