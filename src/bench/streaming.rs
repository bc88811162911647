//! Owns: `bench streaming`: the bytes that are replicated and stored while a reply grows by updates that each carry the
//! full content so far.

use std::time::{Duration, Instant};

use clap::Args;

use super::args::LoadArgs;
use super::bus_client::Bus;
use super::error::BenchError;
use super::etcd::{self, Etcd, kv};
use super::figures::Timings;
use super::progress::progress;
use super::report::{Figure, Goal, Ratio, Report, System};
use super::systems::Systems;
use super::text;
use super::usage::{Processes, Usage};
use super::window::Sample;

/// The slowest node writes a moment after the quorum.
const SETTLE: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  session-manager bench streaming
  session-manager bench streaming --updates 300 --bytes 8192 --with-etcd

A client sends a growing reply with session::update-message, with the full content each time, as applications do. The \
report compares the bytes in each node's log (the bytes that were replicated) with the bytes of all updates in full, \
which is what etcd writes.";

/// Measure the bytes that are replicated while a reply grows
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct StreamingArgs {
    /// Number of updates
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    updates: u32,

    /// Final length of the reply in bytes
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bytes: u32,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl StreamingArgs {
    pub fn defaults(load: LoadArgs) -> StreamingArgs {
        StreamingArgs { updates: 300, bytes: 8192, load }
    }
}

pub async fn run(args: &StreamingArgs, systems: &Systems) -> Result<Report, BenchError> {
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    let name = format!("streaming, {} updates to {} bytes", args.updates, args.bytes);
    let reply = text::words(7, args.bytes as usize);
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for round in 1..=systems.args.rounds {
        progress(&format!("{name}, session-manager, round {round}"));
        ours.push(stream_ours(systems, &reply, args.updates).await?);
        if let Some(etcd) = &systems.etcd {
            progress(&format!("{name}, etcd, round {round}"));
            peers.push(stream_etcd(etcd, &reply, args.updates).await?);
        }
    }
    let snapshots: usize = (1..=args.updates).map(|nth| text::message(part(&reply, nth, args.updates)).len()).sum();
    for (system, streams) in [(System::Ours, ours), (System::Etcd, peers)] {
        if streams.is_empty() {
            continue;
        }
        let logged: Option<u64> = streams.iter().map(|stream| stream.logged).sum();
        let logged = logged.map(|logged| logged as f64 / streams.len() as f64);
        let mut figure = Figure::of(name.clone(), system, streams.into_iter().map(|stream| stream.sample).collect());
        figure.log_bytes = logged.map(|logged| logged / f64::from(args.updates));
        report.figures.push(figure);
        if let Some(logged) = logged {
            // goals.md P2.
            let goal = if system == System::Ours { Goal::AtMost(0.1) } else { Goal::None };
            let name = format!("{name}: log bytes of {} / bytes of all snapshots", system.name());
            report.ratios.push(Ratio { name, value: logged / snapshots as f64, goal });
        }
    }
    report.compare(&name, "p50", |figure| figure.p50_ms, Goal::None);
    Ok(report)
}

struct Stream {
    sample: Sample,
    /// Bytes by which the log of each node grew, on average.
    logged: Option<u64>,
}

/// The reply after its `nth` update.
fn part(reply: &str, nth: u32, updates: u32) -> &str {
    let bytes = reply.len() as u64 * u64::from(nth) / u64::from(updates);
    &reply[..bytes as usize]
}

async fn stream_ours(systems: &Systems, reply: &str, updates: u32) -> Result<Stream, BenchError> {
    let mut bus = Bus::connect(&systems.ours.targets[0]).await?;
    let session_id = format!("bench-{}", uuid::Uuid::new_v4().simple());
    bus.call("session::ensure", &format!(r#"{{"session_id":"{session_id}"}}"#)).await?;
    let empty = text::message("");
    let append = format!(r#"{{"session_id":"{session_id}","entry_id":"reply","message":{empty}}}"#);
    bus.call("session::append", &append).await?;
    let before = Before::now(&systems.ours.processes, systems.ours.log_bytes()).await;
    let mut timings = Timings::default();
    for nth in 1..=updates {
        let text = part(reply, nth, updates);
        let body = format!(
            r#"{{"session_id":"{session_id}","entry_id":"reply","content":[{{"type":"text","text":"{text}"}}]}}"#
        );
        let sent = Instant::now();
        let answer = bus.call("session::update-message", &body).await?;
        timings.push(sent.elapsed());
        if !answer.contains("\"updated\":true") {
            return Err(BenchError::UnexpectedAnswer { call: "session::update-message", answer });
        }
    }
    Ok(before.end(timings, &systems.ours.processes, || systems.ours.log_bytes()).await)
}

async fn stream_etcd(etcd: &Etcd, reply: &str, updates: u32) -> Result<Stream, BenchError> {
    let mut kv = kv(etcd.channel(0).await?);
    let key = format!("bench-{}", uuid::Uuid::new_v4().simple());
    let before = Before::now(&etcd.processes, etcd.log_bytes()).await;
    let mut timings = Timings::default();
    for nth in 1..=updates {
        let value = text::message(part(reply, nth, updates));
        let sent = Instant::now();
        etcd::put(&mut kv, key.clone(), value.into()).await?;
        timings.push(sent.elapsed());
    }
    Ok(before.end(timings, &etcd.processes, || etcd.log_bytes()).await)
}

/// The counters before a stream.
struct Before {
    at: Instant,
    servers: Option<Usage>,
    client: Option<Usage>,
    logged: Option<u64>,
}

impl Before {
    async fn now(servers: &Processes, logged: Option<u64>) -> Before {
        tokio::time::sleep(SETTLE).await;
        Before { at: Instant::now(), servers: servers.usage(), client: Processes::this().usage(), logged }
    }

    async fn end(self, timings: Timings, servers: &Processes, log_bytes: impl Fn() -> Option<u64>) -> Stream {
        let (window, client) = (self.at.elapsed(), Processes::this().usage_since(self.client));
        tokio::time::sleep(SETTLE).await;
        let servers = servers.usage_since(self.servers);
        let sample = Sample { timings, errors: 0, first_error: None, window, servers, client };
        let logged = log_bytes().zip(self.logged).map(|(now, before)| now.saturating_sub(before));
        Stream { sample, logged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_grows_to_its_full_length() {
        let reply = text::words(1, 10);
        let lengths: Vec<usize> = (1..=4).map(|nth| part(&reply, nth, 4).len()).collect();
        assert_eq!(lengths, [2, 5, 7, 10]);
    }
}
