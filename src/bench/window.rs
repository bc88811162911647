//! Owns: the measured window. Clients start before it (caches fill, connections settle) and stop after it. An operation
//! counts if its answer arrives inside the window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::error::BenchError;
use super::figures::Timings;
use super::meter::Part;
use super::progress::progress;
use super::usage::{Processes, Usage};

const WARM_UP: Duration = Duration::from_millis(700);
/// How often the progress line is updated.
const REPORT_EVERY: Duration = Duration::from_millis(250);
/// The deadline of one call.
pub const ANSWER_MAX: Duration = Duration::from_secs(20);

// The phase is 0 while clients warm up.
const OPEN: u8 = 1;
const CLOSED: u8 = 2;

#[derive(Debug, Default)]
pub struct Window {
    phase: AtomicU8,
    counted: AtomicU64,
}

impl Window {
    pub fn is_closed(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == CLOSED
    }

    fn is_open(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == OPEN
    }
}

/// The operations of some clients inside the window.
#[derive(Debug, Default)]
pub struct Tally {
    timings: Timings,
    errors: u64,
    first_error: Option<String>,
}

impl Tally {
    pub fn done(&mut self, window: &Window, took: Duration) {
        if window.is_open() {
            self.timings.push(took);
            window.counted.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn failed(&mut self, window: &Window, error: &BenchError) {
        if window.is_open() {
            self.errors += 1;
            self.first_error.get_or_insert_with(|| error.to_string());
        }
    }

    fn join(&mut self, other: Tally) {
        self.timings.join(other.timings);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// The result of one round on one system.
#[derive(Debug)]
pub struct Sample {
    pub timings: Timings,
    pub errors: u64,
    pub first_error: Option<String>,
    pub window: Duration,
    pub servers: Option<Usage>,
    pub client: Option<Usage>,
}

impl Sample {
    /// What clients at a steady rate saw.
    pub fn of(part: Part) -> Sample {
        let Part { timings, took, errors, first_error, .. } = part;
        Sample { timings, errors, first_error, window: took, servers: None, client: None }
    }

    pub fn ops_per_s(&self) -> f64 {
        self.timings.len() as f64 / self.window.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Running clients. Each returns its tally once the window is closed.
pub type Clients = JoinSet<Result<Tally, BenchError>>;

/// Lets the clients run for `seconds` after a warm-up. The progress line begins with `workload`.
pub async fn measure(
    workload: &str,
    window: Arc<Window>,
    mut clients: Clients,
    processes: &Processes,
    seconds: f64,
) -> Result<Sample, BenchError> {
    watch(&mut clients, Instant::now() + WARM_UP, || progress(&format!("{workload}: warming up"))).await?;
    let (servers, me) = (processes.usage(), Processes::this().usage());
    let opened = Instant::now();
    window.phase.store(OPEN, Ordering::Relaxed);
    let report = || {
        let (counted, passed) = (window.counted.load(Ordering::Relaxed), opened.elapsed().as_secs_f64());
        let rate = counted as f64 / passed.max(0.001);
        progress(&format!("{workload}: {passed:.0} of {seconds:.0} s, {rate:.0} per second"));
    };
    watch(&mut clients, opened + Duration::from_secs_f64(seconds), report).await?;
    window.phase.store(CLOSED, Ordering::Relaxed);
    let took = opened.elapsed();
    let (servers, me) = (processes.usage_since(servers), Processes::this().usage_since(me));
    let mut tally = Tally::default();
    while let Some(ended) = clients.join_next().await {
        tally.join(ended??);
    }
    if tally.timings.len() == 0 {
        let first_error = tally.first_error.unwrap_or_else(|| "no answer in time".to_owned());
        return Err(BenchError::NothingMeasured { workload: workload.to_owned(), first_error });
    }
    let Tally { timings, errors, first_error } = tally;
    Ok(Sample { timings, errors, first_error, window: took, servers, client: me })
}

/// Waits until `end`. A client that fails before it ends the measurement.
async fn watch(clients: &mut Clients, end: Instant, report: impl Fn()) -> Result<(), BenchError> {
    while Instant::now() < end {
        report();
        let next = end.min(Instant::now() + REPORT_EVERY);
        tokio::select! {
            Some(ended) = clients.join_next() => {
                ended??;
                return Err(BenchError::ClientStopped);
            }
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
    Ok(())
}
