//! Owns: the time in which operations count, and what they come to: clients run before it (caches fill, connections
//! settle) and a little after it; an operation counts when its answer comes while the window is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::figures::Timings;
use super::footprint::{Processes, Spent};
use super::progress::progress;

const WARM_UP: Duration = Duration::from_millis(700);
/// How often the progress line moves.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// A client whose answer does not come is given up.
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

/// What some clients did while the window was open.
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

    pub fn failed(&mut self, window: &Window, why: impl FnOnce() -> String) {
        if window.is_open() {
            self.errors += 1;
            self.first_error.get_or_insert_with(why);
        }
    }

    fn join(&mut self, other: Tally) {
        self.timings.join(other.timings);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// What one round of one system came to.
#[derive(Debug)]
pub struct Sample {
    pub timings: Timings,
    pub errors: u64,
    pub first_error: Option<String>,
    pub window: Duration,
    pub servers: Option<Spent>,
    pub client: Option<Spent>,
}

impl Sample {
    pub fn ops_per_s(&self) -> f64 {
        self.timings.len() as f64 / self.window.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Clients at work: each returns its tally once the window is closed.
pub type Clients = JoinSet<Result<Tally, String>>;

/// Lets the clients run for `seconds` after a warm-up. `what` heads the progress line.
pub async fn measure(
    what: &str,
    window: Arc<Window>,
    mut clients: Clients,
    processes: &Processes,
    seconds: f64,
) -> Result<Sample, String> {
    watch(&mut clients, Instant::now() + WARM_UP, || progress(&format!("{what}: warming up"))).await?;
    let (servers, me) = (processes.spent(), Processes::me().spent());
    let opened = Instant::now();
    window.phase.store(OPEN, Ordering::Relaxed);
    let tell = || {
        let (counted, passed) = (window.counted.load(Ordering::Relaxed), opened.elapsed().as_secs_f64());
        let rate = counted as f64 / passed.max(0.001);
        progress(&format!("{what}: {passed:.0} of {seconds:.0} s, {rate:.0} per second"));
    };
    watch(&mut clients, opened + Duration::from_secs_f64(seconds), tell).await?;
    window.phase.store(CLOSED, Ordering::Relaxed);
    let took = opened.elapsed();
    let (servers, me) = (processes.spent_since(servers), Processes::me().spent_since(me));
    let mut tally = Tally::default();
    while let Some(ended) = clients.join_next().await {
        tally.join(ended.map_err(|error| format!("{what}: a client broke off: {error}"))??);
    }
    if tally.timings.len() == 0 {
        let why = tally.first_error.unwrap_or_else(|| "no answer came in time".to_owned());
        return Err(format!("{what}: no operation succeeded: {why}"));
    }
    let Tally { timings, errors, first_error } = tally;
    Ok(Sample { timings, errors, first_error, window: took, servers, client: me })
}

/// Waits until `end`, or until a client gives up, which ends the measurement.
async fn watch(clients: &mut Clients, end: Instant, tell: impl Fn()) -> Result<(), String> {
    while Instant::now() < end {
        tell();
        let next = end.min(Instant::now() + TELL_EVERY);
        tokio::select! {
            Some(ended) = clients.join_next() => {
                let why = match ended {
                    Ok(Ok(_)) => "a client ended before its time".to_owned(),
                    Ok(Err(why)) => why,
                    Err(error) => format!("a client broke off: {error}"),
                };
                return Err(why);
            }
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
    Ok(())
}
