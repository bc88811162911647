//! Owns: `bench cost`: what a large store takes in memory and on disk, and how long a node of it needs to serve again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::args::LoadArgs;
use super::etcd::{self, Etcd, kv};
use super::http::Caller;
use super::nodes::Nodes;
use super::progress::progress;
use super::report::{Goal, Ratio, Report, System};
use super::systems::Systems;
use super::words::Messages;

/// Sessions that the entries are spread over.
const SESSIONS: usize = 100;
/// Entries of one `session::append-many`.
const BATCH: usize = 100;
const WRITERS: usize = 4;
/// etcd has no batches: as many writers as it needs to be busy.
const ETCD_WRITERS: usize = 64;
/// Snapshots and compactions go on for a while after the last write. The store is at rest when its files have not changed
/// in size for so long.
const REST: Duration = Duration::from_secs(4);
const REST_MAX: Duration = Duration::from_secs(90);
const SERVING_MAX: Duration = Duration::from_secs(120);
const MIB: f64 = (1 << 20) as f64;

const EXAMPLES: &str = "\
Examples:
  session-manager bench cost
  session-manager bench cost --entries 100000 --with-etcd

Fills the store with messages of 1 KiB, waits until it is at rest, and tells what one node takes: memory at its peak and at
rest, disk at rest, and the time from starting a stopped or killed node until it answers a linearizable read. Takes minutes.";

/// What a large store takes in memory, disk and restart
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct CostArgs {
    /// Messages of 1 KiB
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    entries: u32,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl CostArgs {
    pub fn usual(load: LoadArgs) -> CostArgs {
        CostArgs { entries: 1_000_000, load }
    }
}

/// What one node takes.
struct Cost {
    loading: Duration,
    resident_peak: Option<u64>,
    resident_at_rest: Option<u64>,
    disk: u64,
    restart_stopped: Duration,
    restart_killed: Duration,
}

pub async fn run(args: &CostArgs, systems: &mut Systems) -> Result<Report, String> {
    let mut report = Report { systems: systems.words(), ..Report::default() };
    let entries = args.entries as usize;
    let ours = ours(&mut systems.ours, entries).await?;
    tell(&mut report, System::Ours, entries, &ours);
    if let Some(etcd) = &mut systems.etcd {
        let theirs = theirs(etcd, entries).await?;
        tell(&mut report, System::Etcd, entries, &theirs);
    }
    Ok(report)
}

/// goals.md P7, where the size is the one it speaks of.
fn tell(report: &mut Report, system: System, entries: usize, cost: &Cost) {
    let data = (entries * super::words::MESSAGE_BYTES) as f64;
    let counts = system == System::Ours && entries == 1_000_000;
    let goal = |most: f64| if counts { Goal::AtMost(most) } else { Goal::None };
    let mut row = |what: &str, value: f64, goal: Goal| {
        report.ratios.push(Ratio {
            name: format!("cost of {entries} entries, {}: {what}", system.name()),
            value,
            goal,
        });
    };
    row("loading, entries per second", entries as f64 / cost.loading.as_secs_f64().max(f64::MIN_POSITIVE), Goal::None);
    if let Some(bytes) = cost.resident_peak {
        row("resident MiB of a node at its peak", bytes as f64 / MIB, goal(400.0));
    }
    if let Some(bytes) = cost.resident_at_rest {
        row("resident MiB of a node at rest", bytes as f64 / MIB, goal(400.0));
    }
    row("disk of a node / data", cost.disk as f64 / data, goal(3.0));
    row("seconds to serve again, stopped in order", cost.restart_stopped.as_secs_f64(), goal(5.0));
    row("seconds to serve again, killed", cost.restart_killed.as_secs_f64(), goal(5.0));
}

async fn ours(nodes: &mut Nodes, entries: usize) -> Result<Cost, String> {
    if !nodes.are_ours() {
        return Err("bench cost starts and kills nodes: it takes none that run already".to_owned());
    }
    let begun = Instant::now();
    fill_ours(&nodes.addresses, entries).await?;
    let loading = begun.elapsed();
    rest("session-manager", || nodes.disk_bytes()).await;
    let (resident_peak, resident_at_rest) = (nodes.processes.resident_peak(), nodes.processes.resident());
    let disk = nodes.disk_bytes();
    progress("a node is stopped and started again");
    let address = nodes.end_last(false).await?;
    let restart_stopped = serving_again(nodes, &address).await?;
    progress("a node is killed and started again");
    let address = nodes.end_last(true).await?;
    let restart_killed = serving_again(nodes, &address).await?;
    Ok(Cost { loading, resident_peak, resident_at_rest, disk, restart_stopped, restart_killed })
}

async fn fill_ours(nodes: &[String], entries: usize) -> Result<(), String> {
    let messages = Arc::new(Messages::new());
    let next = Arc::new(AtomicUsize::new(0));
    for session in 0..SESSIONS {
        let mut caller = Caller::connect(&nodes[0]).await?;
        caller.call("session::ensure", format!(r#"{{"session_id":"cost-{session}"}}"#)).await?;
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (messages, next, node) = (messages.clone(), next.clone(), nodes[writer % nodes.len()].clone());
        writers.spawn(async move {
            let mut caller = Caller::connect(&node).await?;
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= entries {
                    return Ok::<(), String>(());
                }
                let batch: Vec<&str> = (first..entries.min(first + BATCH)).map(|nth| messages.nth(nth)).collect();
                let session = first / BATCH % SESSIONS;
                let body = format!(r#"{{"session_id":"cost-{session}","messages":[{}]}}"#, batch.join(","));
                caller.call("session::append-many", body).await?;
                if first.is_multiple_of(100 * BATCH) {
                    progress(&format!("filling session-manager: {first} of {entries} entries"));
                }
            }
        });
    }
    join(writers).await
}

async fn join(mut writers: JoinSet<Result<(), String>>) -> Result<(), String> {
    while let Some(ended) = writers.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(())
}

/// Waits until the files of a system stay as large as they are.
async fn rest(system: &str, disk_bytes: impl Fn() -> u64) {
    let begun = Instant::now();
    let (mut bytes, mut since) = (disk_bytes(), Instant::now());
    while since.elapsed() < REST && begun.elapsed() < REST_MAX {
        progress(&format!("waiting until {system} is at rest: {:.0} MiB on disk", bytes as f64 / MIB));
        sleep(Duration::from_millis(500)).await;
        let now = disk_bytes();
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
    }
}

/// The time from the start of the node that ended until it answers.
async fn serving_again(nodes: &mut Nodes, address: &str) -> Result<Duration, String> {
    let begun = Instant::now();
    nodes.start_last()?;
    loop {
        let asked = async {
            let mut caller = Caller::connect(address).await?;
            caller.call("session::messages", r#"{"session_id":"cost-0","limit":100}"#.to_owned()).await
        };
        match asked.await {
            Ok(_) => return Ok(begun.elapsed()),
            Err(why) if begun.elapsed() > SERVING_MAX => return Err(format!("{address} does not serve again: {why}")),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn theirs(etcd: &mut Etcd, entries: usize) -> Result<Cost, String> {
    let begun = Instant::now();
    fill_theirs(etcd, entries).await?;
    let loading = begun.elapsed();
    rest("etcd", || etcd.disk_bytes()).await;
    let (resident_peak, resident_at_rest) = (etcd.processes.resident_peak(), etcd.processes.resident());
    let disk = etcd.disk_bytes();
    progress("a member of etcd is stopped and started again");
    let restart_stopped = their_restart(etcd, false).await?;
    progress("a member of etcd is killed and started again");
    let restart_killed = their_restart(etcd, true).await?;
    Ok(Cost { loading, resident_peak, resident_at_rest, disk, restart_stopped, restart_killed })
}

async fn fill_theirs(etcd: &Etcd, entries: usize) -> Result<(), String> {
    let messages = Arc::new(Messages::new());
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for writer in 0..ETCD_WRITERS {
        let (messages, next, mut kv) = (messages.clone(), next.clone(), kv(etcd.channel(writer).await?));
        writers.spawn(async move {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= entries {
                    return Ok::<(), String>(());
                }
                let value = messages.nth(nth).to_owned();
                etcd::put(&mut kv, format!("cost/{}/{nth:012}", nth / BATCH % SESSIONS), value.into()).await?;
                if nth.is_multiple_of(10_000) {
                    progress(&format!("filling etcd: {nth} of {entries} keys"));
                }
            }
        });
    }
    join(writers).await
}

async fn their_restart(etcd: &mut Etcd, killed: bool) -> Result<Duration, String> {
    let address = etcd.end_last(killed)?;
    let begun = Instant::now();
    etcd.start_last()?;
    loop {
        let asked = async {
            let mut kv = kv(etcd::connect(&address).await?);
            etcd::range(&mut kv, "cost/0/", 100).await
        };
        match asked.await {
            Ok(_) => return Ok(begun.elapsed()),
            Err(why) if begun.elapsed() > SERVING_MAX => return Err(format!("{address} does not serve again: {why}")),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}
