//! Owns: `bench overload`: many times the clients that the nodes serve well, over HTTP: what is answered, how fast calls are
//! refused, how much memory a node takes, and how soon the rate is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::append::{Appends, make_sessions, session_names};
use super::args::{self, LoadArgs};
use super::bus_client::Lanes;
use super::error::BenchError;
use super::figures::Timings;
use super::http_client::Caller;
use super::progress::progress;
use super::report::{Figure, Goal, Ratio, Report, System};
use super::scraped::Histogram;
use super::systems::Systems;
use super::text::Messages;
use super::window::Sample;

/// A refused client tries again when the header `retry-after` says so, and up to so much later. Each has a time of its own,
/// because the header counts whole seconds.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// The advice of a node that gives none.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// One more client calls once in this time. It is not among those that press on.
const QUIET_EVERY: Duration = Duration::from_millis(50);
/// The first seconds of an overload are told apart.
const AT_FIRST: Duration = Duration::from_secs(5);
/// How often the lateness of the tasks here is measured.
const LATENESS_EVERY: Duration = Duration::from_millis(20);
/// How often the rate is looked at after the overload.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What the nodes measure themselves.
const REFUSALS: &str = "session_manager_refusal_duration_seconds";
const TASK_LATENESS: &str = "session_manager_task_lateness_seconds";
const MIB: f64 = (1 << 20) as f64;

const EXAMPLES: &str = "\
Examples:
  session-manager bench overload --seconds 60
  session-manager bench overload --clients 400 --node http://127.0.0.1:49134 --token-file token

Clients append messages of 1 KiB over HTTP, each with one call at a time: first as many as given, then ten times as many \
for --seconds, then the first ones again. A node refuses a call that would wait for half a second or longer, so give \
--clients 1200 to see calls refused. A refused client waits as the header retry-after says. One quiet client measures \
beside them. The clients share the processors with the nodes: the lateness of the tasks here and of those of the nodes \
tells how much of a time is waiting for a processor.";

/// Measure ten times the clients that the nodes serve well
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct OverloadArgs {
    /// Number of clients that the nodes serve well
    #[arg(long, default_value_t = 128, value_parser = args::overload_clients)]
    clients: usize,

    /// How many times as many press on
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=100))]
    times: u32,

    #[command(flatten)]
    pub load: LoadArgs,
}

/// What clients have seen since the counters were last taken.
#[derive(Default)]
struct Seen {
    answered: Timings,
    /// In the first seconds, while most clients connect and nobody has been told to stay away.
    refused_at_first: Timings,
    refused: Timings,
    first_refusal: Option<String>,
}

impl Seen {
    fn join(&mut self, other: Seen) {
        self.answered.join(other.answered);
        self.refused_at_first.join(other.refused_at_first);
        self.refused.join(other.refused);
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
    }

    fn all_refused(&self) -> Timings {
        let mut all = self.refused_at_first.clone();
        all.join(self.refused.clone());
        all
    }
}

pub async fn run(args: &OverloadArgs, systems: &Systems) -> Result<Report, BenchError> {
    let messages = Arc::new(Messages::new());
    let sessions = Arc::new(session_names(args.clients));
    make_sessions(&systems.ours, &sessions).await?;
    let crowd = Crowd { systems, sessions, messages };
    let seconds = Duration::from_secs_f64(args.load.seconds);
    let short = seconds.min(Duration::from_secs(10));
    crowd.run(args.clients, short / 2, None).await?;
    progress("the clients that the nodes serve well");
    let before = crowd.run(args.clients, short, None).await?;
    progress("overload");
    let nodes = Inside::read(systems).await?;
    let overload = crowd.run(args.clients * args.times as usize, seconds, None).await?;
    let inside = nodes.since(&Inside::read(systems).await?);
    let peak = systems.ours.processes.resident_peak();
    progress("afterwards");
    let after = crowd.run(args.clients, short, Some(before.rate * 0.9)).await?;
    let mut report = report(args, systems, [before, overload, after], peak);
    for (name, value) in inside {
        let value = value.map_or(0.0, |value| value.as_secs_f64() * 1e3);
        report.ratios.push(Ratio { name: format!("in overload: {name}, ms"), value, goal: Goal::None });
    }
    Ok(report)
}

/// What the nodes measured themselves.
struct Inside {
    refusals: Histogram,
    lateness: Histogram,
}

impl Inside {
    async fn read(systems: &Systems) -> Result<Inside, BenchError> {
        let nodes = &systems.ours.targets;
        let refusals = Histogram::of(nodes, REFUSALS).await?;
        Ok(Inside { refusals, lateness: Histogram::of(nodes, TASK_LATENESS).await? })
    }

    /// Bounds of what was measured between this reading and a later one.
    fn since(&self, later: &Inside) -> [(&'static str, Option<Duration>); 4] {
        let refusals = |share| later.refusals.quantile_since(&self.refusals, share);
        let lateness = |share| later.lateness.quantile_since(&self.lateness, share);
        [
            ("p50 of the nodes' own time for a refusal, at most", refusals(0.5)),
            ("p99 of the nodes' own time for a refusal, at most", refusals(0.99)),
            ("p50 of the lateness of the nodes' tasks, at most", lateness(0.5)),
            ("p99 of the lateness of the nodes' tasks, at most", lateness(0.99)),
        ]
    }
}

struct Crowd<'a> {
    systems: &'a Systems,
    sessions: Arc<Vec<String>>,
    messages: Arc<Messages>,
}

struct Phase {
    crowd: Seen,
    quiet: Seen,
    /// How late the tasks of the clients run.
    lateness: Timings,
    rate: f64,
    took: Duration,
    /// When the rate had reached what was expected.
    reached: Option<Duration>,
}

impl Crowd<'_> {
    /// Runs so many clients for this time, and waits for their last answers.
    async fn run(&self, clients: usize, time: Duration, expected_rate: Option<f64>) -> Result<Phase, BenchError> {
        let (over, answered) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let first_until = Instant::now() + AT_FIRST;
        let targets = &self.systems.ours.targets;
        let mut tasks = JoinSet::new();
        // The quiet client is at the node that the first of the others is at.
        for client in 0..=clients {
            let is_quiet = client == clients;
            let nth = if is_quiet { 0 } else { client };
            let caller = Caller::connect(&targets[nth % targets.len()]).await?;
            let appends = Appends {
                sessions: vec![self.sessions[nth % self.sessions.len()].clone()],
                messages: self.messages.clone(),
                next: nth * 31,
            };
            let pause = is_quiet.then_some(QUIET_EVERY);
            let (over, answered) = (over.clone(), answered.clone());
            let again_within = AGAIN_WITHIN * (client * 31 % 100) as u32 / 100;
            tasks.spawn(async move {
                let pauses = Pauses { after_each: pause, again_within, first_until };
                Ok::<_, BenchError>((is_quiet, press(caller, appends, pauses, over, answered).await?))
            });
        }
        let late = tokio::spawn(lateness(over.clone()));
        let begun = Instant::now();
        let (mut last, mut reached) = (0, None);
        while begun.elapsed() < time {
            sleep(LOOK_EVERY).await;
            let now = answered.load(Ordering::Relaxed);
            let rate = (now - last) as f64 / LOOK_EVERY.as_secs_f64();
            if reached.is_none() && expected_rate.is_some_and(|expected| rate >= expected) {
                reached = Some(begun.elapsed());
            }
            last = now;
        }
        let (took, rate) = (begun.elapsed(), last as f64 / begun.elapsed().as_secs_f64());
        over.cancel();
        let (mut crowd, mut quiet) = (Seen::default(), Seen::default());
        while let Some(ended) = tasks.join_next().await {
            let (is_quiet, seen) = ended??;
            if is_quiet { quiet.join(seen) } else { crowd.join(seen) }
        }
        Ok(Phase { crowd, quiet, lateness: late.await?, rate, took, reached })
    }
}

/// How late a task of this program runs, until the phase is over.
async fn lateness(over: CancellationToken) -> Timings {
    let mut late = Timings::default();
    while !over.is_cancelled() {
        let due = Instant::now() + LATENESS_EVERY;
        sleep_until(due.into()).await;
        late.push(due.elapsed());
    }
    late
}

struct Pauses {
    after_each: Option<Duration>,
    /// After the time that a refusal advises.
    again_within: Duration,
    first_until: Instant,
}

/// One client, until the phase is over.
async fn press(
    mut caller: Caller,
    mut appends: Appends,
    pauses: Pauses,
    over: CancellationToken,
    answered: Arc<AtomicU64>,
) -> Result<Seen, BenchError> {
    let mut seen = Seen::default();
    while !over.is_cancelled() {
        let mut body = String::with_capacity(1536);
        appends.body(0, &mut body);
        let sent = Instant::now();
        match caller.call(appends.function(), body).await {
            Ok(_) => {
                seen.answered.push(sent.elapsed());
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(BenchError::Refused { why, .. }) => {
                let refused = if sent < pauses.first_until { &mut seen.refused_at_first } else { &mut seen.refused };
                refused.push(sent.elapsed());
                seen.first_refusal.get_or_insert(why);
                let again_after = caller.retry_after().unwrap_or(AGAIN_AFTER) + pauses.again_within;
                // It does not come again, so the next clients need not wait for it.
                let _ = timeout(again_after, over.cancelled()).await;
            }
            Err(error) => return Err(error),
        }
        if let Some(pause) = pauses.after_each {
            sleep(pause).await;
        }
    }
    Ok(seen)
}

fn report(args: &OverloadArgs, systems: &Systems, phases: [Phase; 3], peak: Option<u64>) -> Report {
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    let mut row = |name: String, timings: Timings, window: Duration, first_error: Option<String>| {
        let sample = Sample { timings, errors: 0, first_error, window, servers: None, client: None };
        report.figures.push(Figure::of(name, System::Ours, vec![sample]));
    };
    let [before, overload, after] = phases;
    let (rates, reached) = ((before.rate, overload.rate), after.reached);
    let refused = [overload.crowd.all_refused(), overload.quiet.all_refused()];
    let refused_p99 = refused.iter().map(Timings::p99).max().unwrap_or_default();
    let [crowd_refused, quiet_refused] = refused;
    let refused = crowd_refused.len() + quiet_refused.len();
    let (clients, many) = (args.clients, args.clients * args.times as usize);
    row(format!("{clients} clients"), before.crowd.answered, before.took, None);
    row(format!("{many} clients, answered"), overload.crowd.answered, overload.took, None);
    let later = overload.took.saturating_sub(AT_FIRST);
    let at_first = format!("{many} clients, refused in the first {} s", AT_FIRST.as_secs());
    row(at_first, overload.crowd.refused_at_first, overload.took.min(AT_FIRST), None);
    row(format!("{many} clients, refused later"), overload.crowd.refused, later, overload.crowd.first_refusal);
    row("one quiet client beside them, answered".to_owned(), overload.quiet.answered, overload.took, None);
    row("one quiet client beside them, refused".to_owned(), quiet_refused, overload.took, None);
    row("lateness of the clients' tasks in overload".to_owned(), overload.lateness, overload.took, None);
    row(format!("{clients} clients afterwards"), after.crowd.answered, after.took, None);
    let mut ratio = |name: &str, value: f64, goal: Goal| {
        report.ratios.push(Ratio { name: name.to_owned(), value, goal });
    };
    ratio("rate in overload / before", rates.1 / rates.0.max(f64::MIN_POSITIVE), Goal::None);
    let seconds = reached.map_or(f64::INFINITY, |reached| reached.as_secs_f64());
    ratio("seconds until 9/10 of the rate was back", seconds, Goal::AtMost(5.0));
    if refused > 0 {
        ratio("p99 of refusals, ms", refused_p99.as_secs_f64() * 1e3, Goal::AtMost(50.0));
    }
    if let Some(peak) = peak {
        ratio("peak memory of a node, MiB", peak as f64 / MIB, Goal::None);
    }
    report
}
