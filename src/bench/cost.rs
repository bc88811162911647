//! Owns: `bench cost`: memory, disk space and restart time of a node with a large store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::args::LoadArgs;
use super::error::BenchError;
use super::etcd::{self, Etcd, kv};
use super::http_client::Caller;
use super::nodes::Nodes;
use super::progress::progress;
use super::report::{Goal, Ratio, Report, System};
use super::systems::Systems;
use super::target::Target;
use super::text::{MESSAGE_BYTES, Messages};

/// Sessions that the entries are spread over.
const SESSIONS: usize = 100;
/// Entries of one `session::append-many`.
const BATCH: usize = 100;
const WRITERS: usize = 4;
/// etcd writes one key per call, so it needs more writers to be busy.
const ETCD_WRITERS: usize = 64;
/// Snapshots and compactions continue after the last write. The store is idle when the size of its files has not
/// changed for this long.
const IDLE: Duration = Duration::from_secs(4);
const IDLE_MAX: Duration = Duration::from_secs(90);
const SERVING_MAX: Duration = Duration::from_secs(120);
const MIB: f64 = (1 << 20) as f64;

const EXAMPLES: &str = "\
Examples:
  session-manager bench cost
  session-manager bench cost --entries 100000 --with-etcd

Fills the store with messages of 1 KiB, waits until it is idle, and reports for one node: peak and idle memory, disk \
space, and the time from starting a stopped or killed node until it answers a linearizable read. Takes minutes.";

/// Measure memory, disk space and restart time of a large store
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct CostArgs {
    /// Number of messages of 1 KiB
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    entries: u32,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl CostArgs {
    pub fn defaults(load: LoadArgs) -> CostArgs {
        CostArgs { entries: 1_000_000, load }
    }
}

/// The costs of one node.
struct Cost {
    loading: Duration,
    resident_peak: Option<u64>,
    resident_idle: Option<u64>,
    disk: u64,
    restart_stopped: Duration,
    restart_killed: Duration,
}

pub async fn run(args: &CostArgs, systems: &mut Systems) -> Result<Report, BenchError> {
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    let entries = args.entries as usize;
    let ours = ours(&mut systems.ours, entries).await?;
    add_rows(&mut report, System::Ours, entries, &ours);
    if let Some(etcd) = &mut systems.etcd {
        let theirs = theirs(etcd, entries).await?;
        add_rows(&mut report, System::Etcd, entries, &theirs);
    }
    Ok(report)
}

/// The goals are those of goals.md P7, which are for 1,000,000 entries.
fn add_rows(report: &mut Report, system: System, entries: usize, cost: &Cost) {
    let data = (entries * MESSAGE_BYTES) as f64;
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
        row("peak resident MiB of a node", bytes as f64 / MIB, goal(400.0));
    }
    if let Some(bytes) = cost.resident_idle {
        row("idle resident MiB of a node", bytes as f64 / MIB, goal(400.0));
    }
    row("disk of a node / data", cost.disk as f64 / data, goal(3.0));
    row("seconds until a stopped node serves again", cost.restart_stopped.as_secs_f64(), goal(5.0));
    row("seconds until a killed node serves again", cost.restart_killed.as_secs_f64(), goal(5.0));
}

async fn ours(nodes: &mut Nodes, entries: usize) -> Result<Cost, BenchError> {
    if !nodes.are_ours() {
        return Err(BenchError::ServersNotOurs);
    }
    let begun = Instant::now();
    fill_ours(&nodes.targets, entries).await?;
    let loading = begun.elapsed();
    wait_until_idle("session-manager", || nodes.disk_bytes()).await;
    let (resident_peak, resident_idle) = (nodes.processes.resident_peak(), nodes.processes.resident());
    let disk = nodes.disk_bytes();
    progress("stopping and restarting a node");
    let restart_stopped = our_restart(nodes, false).await?;
    progress("killing and restarting a node");
    let restart_killed = our_restart(nodes, true).await?;
    Ok(Cost { loading, resident_peak, resident_idle, disk, restart_stopped, restart_killed })
}

async fn fill_ours(nodes: &[Target], entries: usize) -> Result<(), BenchError> {
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
                    return Ok::<(), BenchError>(());
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

async fn join(mut writers: JoinSet<Result<(), BenchError>>) -> Result<(), BenchError> {
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Waits until the files of a system keep their size.
async fn wait_until_idle(system: &str, disk_bytes: impl Fn() -> u64) {
    let begun = Instant::now();
    let (mut bytes, mut since) = (disk_bytes(), Instant::now());
    while since.elapsed() < IDLE && begun.elapsed() < IDLE_MAX {
        progress(&format!("waiting until {system} is idle: {:.0} MiB on disk", bytes as f64 / MIB));
        sleep(Duration::from_millis(500)).await;
        let now = disk_bytes();
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
    }
}

/// Ends the last node and returns the time from its restart until it answers a read.
async fn our_restart(nodes: &mut Nodes, kill: bool) -> Result<Duration, BenchError> {
    let target = nodes.end_last(kill).await?;
    let begun = Instant::now();
    nodes.start_last()?;
    serving(&target.address, begun, async || {
        let mut caller = Caller::connect(&target).await?;
        caller.call("session::messages", r#"{"session_id":"cost-0","limit":100}"#.to_owned()).await.map(drop)
    })
    .await
}

/// Repeats a read until it succeeds, and returns the time since `begun`.
async fn serving(
    address: &str,
    begun: Instant,
    read: impl AsyncFn() -> Result<(), BenchError>,
) -> Result<Duration, BenchError> {
    loop {
        match read().await {
            Ok(()) => return Ok(begun.elapsed()),
            Err(last) if begun.elapsed() > SERVING_MAX => {
                let (server, last) = (address.to_owned(), Box::new(last));
                return Err(BenchError::NotServing { server, limit: SERVING_MAX, last });
            }
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn theirs(etcd: &mut Etcd, entries: usize) -> Result<Cost, BenchError> {
    let begun = Instant::now();
    fill_theirs(etcd, entries).await?;
    let loading = begun.elapsed();
    wait_until_idle("etcd", || etcd.disk_bytes()).await;
    let (resident_peak, resident_idle) = (etcd.processes.resident_peak(), etcd.processes.resident());
    let disk = etcd.disk_bytes();
    progress("stopping and restarting a member of etcd");
    let restart_stopped = their_restart(etcd, false).await?;
    progress("killing and restarting a member of etcd");
    let restart_killed = their_restart(etcd, true).await?;
    Ok(Cost { loading, resident_peak, resident_idle, disk, restart_stopped, restart_killed })
}

async fn fill_theirs(etcd: &Etcd, entries: usize) -> Result<(), BenchError> {
    let messages = Arc::new(Messages::new());
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for writer in 0..ETCD_WRITERS {
        let (messages, next, mut kv) = (messages.clone(), next.clone(), kv(etcd.channel(writer).await?));
        writers.spawn(async move {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= entries {
                    return Ok::<(), BenchError>(());
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

async fn their_restart(etcd: &mut Etcd, kill: bool) -> Result<Duration, BenchError> {
    let address = etcd.end_last(kill)?;
    let begun = Instant::now();
    etcd.start_last()?;
    serving(&address, begun, async || {
        let mut kv = kv(etcd::connect(&address).await?);
        etcd::range(&mut kv, "cost/0/", 100).await.map(drop)
    })
    .await
}
