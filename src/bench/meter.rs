//! Owns: what clients that call at a steady rate see while something else happens: their timings, and the longest time
//! without an answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::BenchError;
use super::figures::Timings;

/// One part of the measurement: what the clients saw while something else happened.
pub struct Part {
    pub name: &'static str,
    pub timings: Timings,
    pub gap: Duration,
    pub took: Duration,
    pub errors: u64,
    pub first_error: Option<String>,
}

/// What the clients saw since the last part began.
#[derive(Default)]
pub struct Meter {
    timings: Mutex<Timings>,
    /// The last answered call of any client, and the longest time without one.
    answered: Mutex<Option<Instant>>,
    gap_us: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
    over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meter {
    pub fn done(&self, took: Duration) {
        lock(&self.timings).push(took);
        let now = Instant::now();
        if let Some(before) = lock(&self.answered).replace(now) {
            self.gap_us.fetch_max((now - before).as_micros() as u64, Ordering::Relaxed);
        }
    }

    pub fn failed(&self, why: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        lock(&self.first_error).get_or_insert_with(|| why.to_owned());
    }

    /// The clients stop.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// What the clients see while `work` runs.
    pub async fn part<R>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<R, BenchError>>,
    ) -> Result<(Part, R), BenchError> {
        std::mem::take(&mut *lock(&self.timings));
        self.gap_us.store(0, Ordering::Relaxed);
        self.errors.store(0, Ordering::Relaxed);
        lock(&self.first_error).take();
        let begun = Instant::now();
        let result = work.await?;
        let timings = std::mem::take(&mut *lock(&self.timings));
        // A gap that has not ended yet counts as well.
        let open = lock(&self.answered).map_or(begun.elapsed(), |last| last.elapsed());
        let gap = Duration::from_micros(self.gap_us.load(Ordering::Relaxed)).max(open);
        let (errors, first_error) = (self.errors.load(Ordering::Relaxed), lock(&self.first_error).take());
        Ok((Part { name, timings, gap, took: begun.elapsed(), errors, first_error }, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gap_counts_although_no_answer_has_ended_it() {
        let meter = Meter::default();
        meter.done(Duration::from_millis(1));
        let silence = Duration::from_millis(30);
        let silent = async {
            tokio::time::sleep(silence).await;
            Ok(())
        };
        let (part, ()) = meter.part("silent", silent).await.unwrap();
        assert!(part.gap >= silence && part.timings.len() == 0, "{:?}", part.gap);
        meter.failed("lost");
        let (part, ()) = meter.part("next", async { Ok(()) }).await.unwrap();
        assert_eq!((part.errors, part.first_error), (0, None), "each part has its own errors");
    }
}
