//! Owns: `bench greedy`: the latency of modest clients while one other client asks for as much as it can, in one way after
//! the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::sleep;

use super::append::{Appends, append_when_due, make_sessions, session_names};
use super::args::{self, LoadArgs};
use super::bus_client::{Bus, Lanes};
use super::error::BenchError;
use super::progress::progress;
use super::report::{Figure, Goal, Ratio, Report, System};
use super::systems::Systems;
use super::target::Target;
use super::text::Messages;
use super::window::{Clients, Sample, Tally, Window, measure};

/// The calls of one modest client per second.
const CALLS_PER_SECOND: u32 = 20;
/// What the greedy client left behind is finished in this time.
const SETTLE: Duration = Duration::from_secs(2);
/// Messages of a batch, and of a page.
const BATCH: usize = 500;
/// Bodies of this many ordinary messages.
const LARGE: usize = 1000;

const EXAMPLES: &str = "\
Examples:
  session-manager bench greedy
  session-manager bench greedy --seconds 10 --json greedy.json

Ten clients append messages of 1 KiB, each 20 times per second and with one call at a time. First they are alone, then \
beside one client that keeps 1,000 appends in flight, 64 batches of 500, 32 messages of 1 MB, or 64 pages of 500. All \
use the same node: first the leader, then a follower.";

/// Measure modest clients beside one that asks for as much as it can
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct GreedyArgs {
    /// Number of modest clients
    #[arg(long, default_value_t = 10, value_parser = args::clients)]
    clients: usize,

    #[command(flatten)]
    pub load: LoadArgs,
}

/// What the greedy client does, and how many calls it keeps in flight.
const KINDS: [(Kind, usize); 4] =
    [(Kind::Appends, 1000), (Kind::Batches, 64), (Kind::LargeMessages, 32), (Kind::Pages, 64)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Appends,
    Batches,
    LargeMessages,
    Pages,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Appends => "appends",
            Kind::Batches => "batches of 500",
            Kind::LargeMessages => "messages of 1 MB",
            Kind::Pages => "pages of 500",
        }
    }
}

pub async fn run(args: &GreedyArgs, systems: &Systems) -> Result<Report, BenchError> {
    let messages = Arc::new(Messages::new());
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    let sessions = session_names(args.clients + 1);
    make_sessions(&systems.ours, &sessions).await?;
    fill(&systems.ours.targets[0], &sessions[0], &messages).await?;
    let nodes = [("the leader", systems.ours.targets.first()), ("a follower", systems.ours.targets.get(1))];
    for (role, node) in nodes.into_iter().filter_map(|(role, node)| Some((role, node?))) {
        let part = |greedy| part(args, systems, node, (&sessions, &messages), greedy);
        let alone_name = format!("{} modest clients at {role}, alone", args.clients);
        progress(&alone_name);
        let (alone, _) = part(None).await?;
        let alone_p99 = alone.timings.p99().as_secs_f64().max(f64::MIN_POSITIVE);
        report.figures.push(Figure::of(alone_name, System::Ours, vec![alone]));
        for (kind, in_flight) in KINDS {
            let name = format!("the same at {role}, beside {in_flight} {}", kind.name());
            progress(&name);
            let (beside, greedy) = part(Some((kind, in_flight))).await?;
            let value = beside.timings.p99().as_secs_f64() / alone_p99;
            report.figures.push(Figure::of(name.clone(), System::Ours, vec![beside]));
            report.ratios.push(Ratio { name: format!("{name}: p99 / alone"), value, goal: Goal::AtMost(3.0) });
            report.ratios.push(Ratio {
                name: format!("{name}: calls of the greedy client per second"),
                value: greedy,
                goal: Goal::None,
            });
            sleep(SETTLE).await;
        }
    }
    Ok(report)
}

/// A session with enough messages for a page.
async fn fill(node: &Target, session_id: &str, messages: &Messages) -> Result<(), BenchError> {
    let batch: Vec<&str> = (0..BATCH).map(|nth| messages.nth(nth)).collect();
    let body = format!(r#"{{"session_id":"{session_id}","messages":[{}]}}"#, batch.join(","));
    Bus::connect(node).await?.call("session::append-many", &body).await.map(drop)
}

/// What the modest clients see, and how many calls of the greedy one were answered per second.
async fn part(
    args: &GreedyArgs,
    systems: &Systems,
    node: &Target,
    (sessions, messages): (&[String], &Arc<Messages>),
    greedy: Option<(Kind, usize)>,
) -> Result<(Sample, f64), BenchError> {
    let window = Arc::new(Window::default());
    let answered = Arc::new(AtomicUsize::new(0));
    let greedy_client = greedy.map(|(kind, in_flight)| {
        let (session_id, messages, answered) = (sessions[0].clone(), messages.clone(), answered.clone());
        let calls = Calls { kind, in_flight, session_id, messages, next: 0, answered };
        let (node, window) = (node.clone(), window.clone());
        // With a thread of its own, so that the modest clients do not wait for it here.
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let running = async { Bus::connect(&node).await?.run(calls, window).await };
            runtime.map_err(BenchError::Runtime)?.block_on(running)
        })
    });
    let mut clients = Clients::new();
    let every = Duration::from_secs(1) / CALLS_PER_SECOND;
    for (client, session) in sessions.iter().skip(1).enumerate() {
        let appends = Appends { sessions: vec![session.clone()], messages: messages.clone(), next: client * 31 };
        let first = Instant::now() + every * client as u32 / args.clients as u32;
        clients.spawn(modest(Bus::connect(node).await?, appends, (first, every), window.clone()));
    }
    let begun = Instant::now();
    let name = greedy.map_or("modest clients alone", |(kind, _)| kind.name());
    let sample = measure(name, window, clients, &systems.ours.processes, args.load.seconds).await?;
    let per_second = answered.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    if let Some(greedy_client) = greedy_client {
        greedy_client.await??;
    }
    Ok((sample, per_second))
}

/// One modest client: one call at a time, each as soon as it is due and the one before it is answered.
async fn modest(
    mut bus: Bus,
    mut appends: Appends,
    (mut due, every): (Instant, Duration),
    window: Arc<Window>,
) -> Result<Tally, BenchError> {
    let mut tally = Tally::default();
    while !window.is_closed() {
        let append = append_when_due(&mut bus, &mut appends, due).await?;
        match append.refusal {
            Some(why) => {
                tally.failed(&window, &BenchError::Refused { call: appends.function().to_owned(), why });
            }
            None => tally.done(&window, append.took),
        }
        due = (due + every).max(append.sent);
    }
    Ok(tally)
}

/// The calls of the greedy client.
struct Calls {
    kind: Kind,
    in_flight: usize,
    session_id: String,
    messages: Arc<Messages>,
    next: usize,
    answered: Arc<AtomicUsize>,
}

impl Lanes for Calls {
    fn function(&self) -> &'static str {
        match self.kind {
            Kind::Appends | Kind::LargeMessages => "session::append",
            Kind::Batches => "session::append-many",
            Kind::Pages => "session::messages",
        }
    }

    fn count(&self) -> usize {
        self.in_flight
    }

    fn body(&mut self, _lane: usize, out: &mut String) {
        self.next += 1;
        let session_id = &self.session_id;
        out.push_str(&format!(r#"{{"session_id":"{session_id}","#));
        match self.kind {
            Kind::Appends => out.push_str(&format!(r#""message":{}}}"#, self.messages.nth(self.next))),
            Kind::Batches => {
                let batch: Vec<&str> = (0..BATCH).map(|nth| self.messages.nth(nth)).collect();
                out.push_str(&format!(r#""messages":[{}]}}"#, batch.join(",")));
            }
            Kind::LargeMessages => {
                let text = "a long text, ".repeat(LARGE * 1024 / 13);
                let content = format!(r#"[{{"type":"text","text":"{text}"}}]"#);
                out.push_str(&format!(r#""message":{{"role":"user","timestamp":1,"content":{content}}}}}"#));
            }
            Kind::Pages => out.push_str(&format!(r#""limit":{BATCH}}}"#)),
        }
    }

    fn check(&mut self, _lane: usize, _answer: &str) -> Result<(), BenchError> {
        self.answered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
