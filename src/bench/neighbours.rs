//! Owns: `bench neighbours`: the latency of steady writers while another client forks, scans, exports, lists and deletes
//! a very long session, and what that costs in memory and elections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::append::{Appends, append_when_due, make_sessions, session_names};
use super::args::{self, LoadArgs};
use super::bus_client::Bus;
use super::error::BenchError;
use super::http_client::Caller;
use super::meter::{Meter, Part};
use super::nodes::is_leader;
use super::progress::progress;
use super::report::{Figure, Goal, Ratio, Report, System};
use super::systems::Systems;
use super::target::Target;
use super::text::Messages;
use super::window::Sample;

/// Messages in one `session::append-many`.
const BATCH: usize = 500;
/// A page of the neighbour. Large pages are the heavier load.
const PAGE: usize = 500;
/// How often memory and leadership are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a load leaves behind is written in this time, before anything is measured.
const SETTLE: Duration = Duration::from_secs(5);
/// The entries of a deleted session are freed in the background. Writers are measured for this long meanwhile.
const FREEING: Duration = Duration::from_secs(20);
/// How often each kind of list is asked for.
const LISTS: usize = 20;
/// A fork of a million entries takes longer than a call may by default.
pub const SETTINGS: &str = "call_timeout_ms: 600000\n";
const ALONE: &str = "alone";
const MIB: f64 = (1 << 20) as f64;

const EXAMPLES: &str = "\
Examples:
  session-manager bench neighbours
  session-manager bench neighbours --entries 100000 --clients 32 --json neighbours.json

Fills one session with messages of 1 KiB, finds the highest rate of the writers, and lets them write at half of it, \
each to its own session. Then another client forks the long session, reads all of it with a filter that matches nothing, \
exports it, lists it as raw entries, lists sessions, and deletes the fork. A writer has one call at a time; one that is \
late does not catch up, so the rate of each part shows how much the writers were held back. Takes minutes.";

/// Measure writers while another client works on a very long session
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct NeighboursArgs {
    /// Number of messages of 1 KiB in the long session
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    entries: u32,

    /// Number of writers
    #[arg(long, default_value_t = 32, value_parser = args::clients)]
    clients: usize,

    #[command(flatten)]
    pub load: LoadArgs,
}

pub async fn run(args: &NeighboursArgs, systems: &Systems) -> Result<Report, BenchError> {
    let messages = Arc::new(Messages::new());
    let session_id = format!("long-{}", uuid::Uuid::new_v4().simple());
    let last = fill(&systems.ours.targets[0], &session_id, args.entries as usize, &messages).await?;
    let sessions = session_names(args.clients);
    make_sessions(&systems.ours, &sessions).await?;
    let appends = |clients: Vec<usize>| Appends {
        sessions: clients.iter().map(|client| sessions[*client].clone()).collect(),
        messages: messages.clone(),
        next: clients.first().copied().unwrap_or(0) * 31,
    };
    sleep(SETTLE).await;
    let peak = systems.run_ours(&systems.ours, "the highest rate of the writers", args.clients, appends).await?;
    let every = Duration::from_secs_f64(2.0 * args.clients as f64 / peak.ops_per_s().max(1.0));
    sleep(SETTLE).await;

    let meter = Arc::new(Meter::default());
    let mut writers = JoinSet::new();
    for client in 0..args.clients {
        let bus = Bus::connect(&systems.ours.targets[client % systems.ours.targets.len()]).await?;
        let first = Instant::now() + every * client as u32 / args.clients as u32;
        writers.spawn(write(bus, appends(vec![client]), (first, every), meter.clone()));
    }
    let changes = tokio::spawn(leader_changes(systems.ours.targets[0].clone(), meter.clone()));
    let measured = parts(args, systems, &meter, &Long { session_id, last }).await;
    meter.end();
    let changes = changes.await??;
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    let measured = measured?;
    Ok(report(args, systems, peak, measured, changes))
}

/// What was measured.
struct Measured {
    alone: Part,
    beside: Vec<Beside>,
    /// The most that one process grew by, in bytes.
    grown: u64,
}

/// What the writers saw beside one kind of work.
struct Beside {
    part: Part,
    /// How long the neighbour waited for its answer.
    answered: Duration,
    /// The most that one process had grown by until then, in bytes.
    grown: u64,
}

/// The long session.
struct Long {
    session_id: String,
    last: String,
}

/// The writers alone, then beside each kind of work.
async fn parts(args: &NeighboursArgs, systems: &Systems, meter: &Meter, long: &Long) -> Result<Measured, BenchError> {
    let seconds = Duration::from_secs_f64(args.load.seconds.max(1.0));
    progress("the writers alone: warming up");
    sleep(seconds).await;
    progress("the writers alone");
    let (alone, ()) = meter.part(ALONE, rest(seconds * 2)).await?;
    let grown = AtomicU64::new(0);
    let before = systems.ours.processes.each_resident();
    let mut beside = std::pin::pin!(beside(systems, meter, long, &grown));
    loop {
        tokio::select! {
            beside = &mut beside => {
                return Ok(Measured { alone, beside: beside?, grown: grown.load(Ordering::Relaxed) });
            }
            () = sleep(LOOK_EVERY) => {
                let now = systems.ours.processes.each_resident();
                let most = now.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before)).max();
                grown.fetch_max(most.unwrap_or(0), Ordering::Relaxed);
            }
        }
    }
}

/// Everything that the neighbour does, through the leader.
async fn beside(systems: &Systems, meter: &Meter, long: &Long, grown: &AtomicU64) -> Result<Vec<Beside>, BenchError> {
    let mut caller = Caller::connect(&systems.ours.targets[0]).await?;
    let session_id = &long.session_id;
    let beside = |part: Part, answered: Option<Duration>| {
        let answered = answered.unwrap_or(part.took);
        Beside { part, answered, grown: grown.load(Ordering::Relaxed) }
    };
    progress("beside a fork");
    let fork = json!({ "session_id": session_id, "entry_id": long.last }).to_string();
    let (forking, forked) = meter.part("fork", caller.parsed::<Session>("session::fork", fork)).await?;
    let forking = beside(forking, None);

    progress("beside a scan with a filter that matches nothing");
    let roles = json!({ "session_id": session_id, "roles": ["function_result"], "limit": PAGE });
    let (scanning, ()) = meter.part("scan", pages(&mut caller, "session::messages", roles)).await?;
    let scanning = beside(scanning, None);

    progress("beside an export");
    let export = json!({ "session_id": session_id, "limit": PAGE });
    let (exporting, ()) = meter.part("export", pages(&mut caller, "session::export", export)).await?;
    let exporting = beside(exporting, None);

    progress("beside raw lists of the session and lists of sessions");
    let (listing, ()) = meter.part("list", lists(&mut caller, session_id)).await?;
    let listing = beside(listing, None);

    progress("beside a delete");
    let delete = json!({ "session_id": forked.session_id }).to_string();
    let (deleting, answered) = meter.part("delete", delete_and_rest(&mut caller, delete)).await?;
    Ok(vec![forking, scanning, exporting, listing, beside(deleting, Some(answered))])
}

/// Deletes a session, and waits while its entries are freed. Returns how long the answer took.
async fn delete_and_rest(caller: &mut Caller, delete: String) -> Result<Duration, BenchError> {
    let asked = Instant::now();
    caller.call("session::delete", delete).await?;
    let answered = asked.elapsed();
    rest(FREEING).await?;
    Ok(answered)
}

async fn rest(time: Duration) -> Result<(), BenchError> {
    sleep(time).await;
    Ok(())
}

#[derive(Deserialize)]
struct Session {
    session_id: String,
}

#[derive(Deserialize)]
struct Page {
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Appended {
    last_entry_id: String,
}

/// Reads all pages of a question.
async fn pages(caller: &mut Caller, function: &'static str, mut ask: Value) -> Result<(), BenchError> {
    loop {
        let page: Page = caller.parsed(function, ask.to_string()).await?;
        match page.next_cursor {
            Some(cursor) => ask["cursor"] = json!(cursor),
            None => return Ok(()),
        }
    }
}

/// A raw list of a very long session is refused for its size, after the node has read a part of it.
async fn lists(caller: &mut Caller, session_id: &str) -> Result<(), BenchError> {
    for _ in 0..LISTS {
        let raw = json!({ "session_id": session_id }).to_string();
        match caller.call("session::store::list-entries", raw).await {
            Ok(_) | Err(BenchError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        for order in ["updated_desc", "created_asc"] {
            let list = json!({ "order": order, "status": "working", "metadata": { "owner": "nobody" }, "limit": PAGE });
            caller.call("session::list", list.to_string()).await?;
        }
    }
    Ok(())
}

/// Writes the long session. Returns the id of its last entry.
async fn fill(node: &Target, session_id: &str, entries: usize, messages: &Messages) -> Result<String, BenchError> {
    let mut caller = Caller::connect(node).await?;
    caller.call("session::ensure", json!({ "session_id": session_id }).to_string()).await?;
    let (mut written, mut last) = (0, String::new());
    while written < entries {
        let batch: Vec<&str> = (written..entries.min(written + BATCH)).map(|nth| messages.nth(nth)).collect();
        let body = format!(r#"{{"session_id":"{session_id}","messages":[{}]}}"#, batch.join(","));
        let appended: Appended = caller.parsed("session::append-many", body).await?;
        written += batch.len();
        last = appended.last_entry_id;
        progress(&format!("filling a session: {written} of {entries} entries"));
    }
    Ok(last)
}

/// One writer: one call at a time, each as soon as it is due and the one before it is answered.
async fn write(
    mut bus: Bus,
    mut appends: Appends,
    (mut due, every): (Instant, Duration),
    meter: Arc<Meter>,
) -> Result<(), BenchError> {
    while !meter.is_over() {
        let append = append_when_due(&mut bus, &mut appends, due).await?;
        match append.refusal {
            Some(why) => meter.failed(&why),
            None => meter.done(append.took),
        }
        due = (due + every).max(append.sent);
    }
    Ok(())
}

/// Asks the first leader for its role until the measurement is over, and counts how often it lost or regained it.
async fn leader_changes(leader: Target, meter: Arc<Meter>) -> Result<u64, BenchError> {
    let (mut changes, mut leads) = (0, true);
    while !meter.is_over() {
        let now = is_leader(&leader).await?;
        changes += u64::from(now != leads);
        leads = now;
        sleep(LOOK_EVERY).await;
    }
    Ok(changes)
}

/// The goals are those of goals.md P8.
fn report(args: &NeighboursArgs, systems: &Systems, peak: Sample, measured: Measured, changes: u64) -> Report {
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    let counts = args.entries >= 1_000_000 && args.clients == 32;
    let goal = |most: f64| if counts { Goal::AtMost(most) } else { Goal::None };
    let mut ratio = |name: String, value: f64, goal: Goal| report.ratios.push(Ratio { name, value, goal });
    report.figures.push(Figure::of(format!("{} writers, highest rate", args.clients), System::Ours, vec![peak]));
    let alone_p99 = measured.alone.timings.p99().as_secs_f64().max(f64::MIN_POSITIVE);
    let alone = format!("{} writers alone, half of the rate", args.clients);
    report.figures.push(Figure::of(alone, System::Ours, vec![Sample::of(measured.alone)]));
    for Beside { part, answered, grown } in measured.beside {
        let what = format!("{} writers beside {}", args.clients, part.name);
        let done = format!("{} of {} entries, seconds until it was done", part.name, args.entries);
        ratio(done, answered.as_secs_f64(), Goal::None);
        ratio(format!("{what}: p99 / alone"), part.timings.p99().as_secs_f64() / alone_p99, goal(3.0));
        ratio(format!("{what}: longest time without a write, ms"), part.gap.as_secs_f64() * 1e3, goal(300.0));
        ratio(format!("{what}: most growth of a node until then, MiB"), grown as f64 / MIB, Goal::None);
        report.figures.push(Figure::of(what, System::Ours, vec![Sample::of(part)]));
    }
    ratio("most growth of a node, MiB".to_owned(), measured.grown as f64 / MIB, goal(64.0));
    ratio("changes of the leader".to_owned(), changes as f64, goal(0.0));
    report
}
