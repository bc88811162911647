//! Owns: `bench events`: the time from a write to its event at every subscriber, at a steady rate, on all nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout, timeout_at};
use tonic::Streaming;

use super::args::{self, LoadArgs};
use super::bus_client::{Answer, Bus, invoke};
use super::error::BenchError;
use super::etcd::{self, Etcd, kv};
use super::figures::Timings;
use super::progress::progress;
use super::report::{Goal, Ratio, Report, System};
use super::systems::Systems;
use super::target::Target;
use super::text::{self, MESSAGE_BYTES};
use super::usage::{Processes, Usage};
use super::window::{ANSWER_MAX, Sample};
use crate::proto::etcd::WatchResponse;

/// Precedes the number of the event in its text.
const TAG: &str = "tick-";
const DIGITS: usize = 8;
/// How long after the last write an event may still arrive.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Time between subscribing and the first write.
const LEAD_IN: Duration = Duration::from_millis(300);

const EXAMPLES: &str = "\
Examples:
  session-manager bench events
  session-manager bench events --subscribers 1,100,1000 --rate 100 --seconds 20
  session-manager bench events --with-etcd --json events.json

Messages of 1 KiB are appended to one session at a steady rate, through all nodes in turn. Subscribers to \
session::message-added are spread over all nodes. The time counts from sending the call, so it includes the write. \
etcd gets the same writes and watchers on their keys.";

/// Measure the time from a write to its event at the subscribers
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct EventsArgs {
    /// Numbers of subscribers, measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,100", value_parser = args::subscribers)]
    subscribers: Vec<usize>,

    /// Events per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl EventsArgs {
    pub fn defaults(load: LoadArgs) -> EventsArgs {
        EventsArgs { subscribers: vec![1, 100], rate: 100, load }
    }
}

pub async fn run(args: &EventsArgs, systems: &Systems) -> Result<Report, BenchError> {
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    for subscribers in args.subscribers.iter().copied() {
        let name = format!("events, {} per second, {subscribers} subscribers", args.rate);
        let (mut ours, mut etcd, mut after_answer) = (Vec::new(), Vec::new(), Timings::default());
        for round in 1..=systems.args.rounds {
            progress(&format!("{name}, session-manager, round {round}"));
            let ticks = Ticks::new(args.rate, systems.args.seconds);
            ours.push(ticks.sample(receive_ours(systems, subscribers, &ticks), &systems.ours.processes).await?);
            ticks.push_delays_after_answer(&mut after_answer);
            if let Some(peer) = &systems.etcd {
                progress(&format!("{name}, etcd, round {round}"));
                let ticks = Ticks::new(args.rate, systems.args.seconds);
                etcd.push(ticks.sample(receive_etcd(peer, subscribers, &ticks), &peer.processes).await?);
            }
        }
        report.add(&name, ours, etcd);
        // goals.md P5. This measure includes the call itself, so it is stricter than the goal.
        if let Some(p50_ms) = report.figure(&name, System::Ours).map(|figure| figure.p50_ms) {
            let goal = if args.rate == 100 { Goal::AtMost(2.0) } else { Goal::None };
            report.ratios.push(Ratio { name: format!("{name}: p50 from call to handler, ms"), value: p50_ms, goal });
        }
        let value = after_answer.median().as_secs_f64() * 1e3;
        report.ratios.push(Ratio {
            name: format!("{name}: p50 from the call's answer to the last handler, ms"),
            value,
            goal: Goal::None,
        });
        report.compare(&name, "p50", |figure| figure.p50_ms, Goal::None);
        report.compare(&name, "p99", |figure| figure.p99_ms, Goal::None);
    }
    Ok(report)
}

/// When each event was sent, acknowledged and received by the last subscriber, in microseconds after `base`; 0 for not
/// yet.
struct Ticks {
    base: Instant,
    every: Duration,
    sent: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
    received_last: Vec<AtomicU64>,
}

impl Ticks {
    fn new(rate: u32, seconds: f64) -> Arc<Ticks> {
        let count = (f64::from(rate) * seconds).ceil().max(1.0) as usize;
        let blank = || (0..count).map(|_| AtomicU64::new(0)).collect();
        let every = Duration::from_secs(1) / rate;
        Arc::new(Ticks { base: Instant::now(), every, sent: blank(), answered: blank(), received_last: blank() })
    }

    fn count(&self) -> usize {
        self.sent.len()
    }

    fn now(&self) -> u64 {
        (self.base.elapsed().as_micros() as u64).max(1)
    }

    /// The message of the nth event, as long as the messages of the other benchmarks.
    fn message(&self, nth: usize) -> String {
        let overhead = text::message("").len() + TAG.len() + DIGITS + 1;
        let words = text::words(nth as u64, MESSAGE_BYTES - overhead);
        text::message(&format!("{TAG}{nth:0DIGITS$} {words}"))
    }

    /// Finds the number of an event in a text, and returns the time since it was sent.
    fn receive(&self, text: &str) -> Option<Duration> {
        let rest = &text[text.find(TAG)? + TAG.len()..];
        let nth: usize = rest.get(..DIGITS)?.parse().ok()?;
        let (sent, now) = (self.sent.get(nth)?.load(Ordering::Relaxed), self.now());
        self.received_last[nth].fetch_max(now, Ordering::Relaxed);
        (sent > 0).then(|| Duration::from_micros(now.saturating_sub(sent)))
    }

    /// Adds the time from each acknowledgement to the last subscriber's receipt; 0 if the subscriber was first.
    fn push_delays_after_answer(&self, timings: &mut Timings) {
        for (answered, received) in self.answered.iter().zip(&self.received_last) {
            let (answered, received) = (answered.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
            if answered > 0 && received > 0 {
                timings.push(Duration::from_micros(received.saturating_sub(answered)));
            }
        }
    }

    async fn sample(
        &self,
        receiving: impl Future<Output = Result<Timings, BenchError>>,
        servers: &Processes,
    ) -> Result<Sample, BenchError> {
        let before: (Option<Usage>, Option<Usage>) = (servers.usage(), Processes::this().usage());
        let timings = receiving.await?;
        // The rate counts deliveries over the time in which events were written.
        let window = self.every * self.count() as u32;
        let (servers, client) = (servers.usage_since(before.0), Processes::this().usage_since(before.1));
        Ok(Sample { timings, errors: 0, first_error: None, window, servers, client })
    }

    /// When the nth event is written.
    fn due(&self, begin: Instant, nth: usize) -> Instant {
        begin + self.every * nth as u32
    }
}

/// Waits for all subscribers. Each must have received every event.
async fn gather(mut subscribers: JoinSet<Result<Timings, BenchError>>) -> Result<Timings, BenchError> {
    let mut all = Timings::default();
    while let Some(ended) = subscribers.join_next().await {
        all.join(ended??);
    }
    Ok(all)
}

async fn receive_ours(systems: &Systems, subscribers: usize, ticks: &Arc<Ticks>) -> Result<Timings, BenchError> {
    let nodes = &systems.ours.targets;
    let session_id = format!("bench-{}", uuid::Uuid::new_v4().simple());
    Bus::connect(&nodes[0]).await?.call("session::ensure", &json!({ "session_id": session_id }).to_string()).await?;
    let begin = Instant::now() + LEAD_IN + Duration::from_millis(4 * subscribers as u64);
    let end = ticks.due(begin, ticks.count()) + LATE_MAX;
    let mut listening = JoinSet::new();
    for nth in 0..subscribers {
        let bus = subscribe(&nodes[nth % nodes.len()], &session_id, nth).await?;
        listening.spawn(listen(bus, ticks.clone(), end));
    }
    let mut writing = JoinSet::new();
    for (nth, node) in nodes.iter().enumerate() {
        let bus = Bus::connect(node).await?;
        writing.spawn(write(bus, session_id.clone(), (nth, nodes.len()), begin, ticks.clone()));
    }
    while let Some(ended) = writing.join_next().await {
        ended??;
    }
    gather(listening).await
}

async fn subscribe(node: &Target, session_id: &str, nth: usize) -> Result<Bus, BenchError> {
    let mut bus = Bus::connect(node).await?;
    let function = format!("{session_id}-handler-{nth}");
    bus.feed(&json!({ "type": "registerfunction", "id": function }).to_string());
    let binding = json!({
        "type": "registertrigger", "id": format!("{function}-binding"), "trigger_type": "session::message-added",
        "function_id": function, "config": { "session_id": session_id },
    });
    bus.feed(&binding.to_string());
    bus.flush().await?;
    loop {
        let frame: Value = serde_json::from_str(&bus.next().await?).unwrap_or_default();
        if frame["type"] == "triggerregistrationresult" {
            return match frame.get("error").filter(|error| !error.is_null()) {
                None => Ok(bus),
                Some(error) => Err(BenchError::Refused {
                    call: format!("registertrigger on {}", node.address),
                    why: error.to_string(),
                }),
            };
        }
    }
}

async fn listen(mut bus: Bus, ticks: Arc<Ticks>, end: Instant) -> Result<Timings, BenchError> {
    let mut timings = Timings::default();
    while timings.len() < ticks.count() {
        let frame = match timeout_at(end.into(), bus.next()).await {
            Ok(frame) => frame?,
            Err(_) => return Err(BenchError::MissedEvents { received: timings.len(), expected: ticks.count() }),
        };
        if let Some(took) = ticks.receive(&frame) {
            timings.push(took);
        }
    }
    Ok(timings)
}

/// Writes every `step`th event from `first` on. It does not wait for answers, but records when they arrive.
async fn write(
    mut bus: Bus,
    session_id: String,
    (first, step): (usize, usize),
    begin: Instant,
    ticks: Arc<Ticks>,
) -> Result<(), BenchError> {
    let mut mine = (first..ticks.count()).step_by(step).peekable();
    let mut unanswered = 0;
    while mine.peek().is_some() || unanswered > 0 {
        let due = mine.peek().map_or(begin, |nth| ticks.due(begin, *nth));
        tokio::select! {
            () = sleep_until(due.into()), if mine.peek().is_some() => {
                let Some(nth) = mine.next() else { continue };
                let body = format!(r#"{{"session_id":"{session_id}","message":{}}}"#, ticks.message(nth));
                let frame = invoke(&nth.to_string(), "session::append", &body);
                ticks.sent[nth].store(ticks.now(), Ordering::Relaxed);
                bus.feed(&frame);
                bus.flush().await?;
                unanswered += 1;
            }
            frame = bus.next(), if unanswered > 0 => {
                let frame = frame?;
                let Some(answer) = Answer::of(&frame) else { continue };
                answer.result.map_err(append_refused)?;
                let nth: Option<usize> = answer.invocation_id.parse().ok();
                if let Some(answered) = nth.and_then(|nth| ticks.answered.get(nth)) {
                    answered.store(ticks.now(), Ordering::Relaxed);
                }
                unanswered -= 1;
            }
        }
    }
    Ok(())
}

fn append_refused(why: &str) -> BenchError {
    BenchError::Refused { call: "session::append".to_owned(), why: why.to_owned() }
}

async fn receive_etcd(etcd: &Etcd, subscribers: usize, ticks: &Arc<Ticks>) -> Result<Timings, BenchError> {
    let prefix = format!("bench-{}/", uuid::Uuid::new_v4().simple());
    let begin = Instant::now() + LEAD_IN + Duration::from_millis(4 * subscribers as u64);
    let end = ticks.due(begin, ticks.count()) + LATE_MAX;
    let mut listening = JoinSet::new();
    for nth in 0..subscribers {
        let watched = timeout(ANSWER_MAX, etcd.watch(nth, &prefix)).await;
        let no_answer = || BenchError::NoAnswer { address: "etcd watch".to_owned(), limit: ANSWER_MAX };
        let responses = watched.unwrap_or_else(|_| Err(no_answer()))?;
        listening.spawn(listen_etcd(responses, ticks.clone(), end));
    }
    let mut writing = JoinSet::new();
    let step = etcd.addresses.len();
    for first in 0..step {
        let (kv, prefix, ticks) = (kv(etcd.channel(first).await?), prefix.clone(), ticks.clone());
        writing.spawn(async move {
            let mut puts = JoinSet::new();
            for nth in (first..ticks.count()).step_by(step) {
                sleep_until(ticks.due(begin, nth).into()).await;
                let (mut kv, key, value) = (kv.clone(), format!("{prefix}{nth:010}"), ticks.message(nth));
                ticks.sent[nth].store(ticks.now(), Ordering::Relaxed);
                puts.spawn(async move { etcd::put(&mut kv, key, Bytes::from(value)).await });
            }
            while let Some(ended) = puts.join_next().await {
                ended??;
            }
            Ok::<(), BenchError>(())
        });
    }
    while let Some(ended) = writing.join_next().await {
        ended??;
    }
    gather(listening).await
}

async fn listen_etcd(
    mut responses: Streaming<WatchResponse>,
    ticks: Arc<Ticks>,
    end: Instant,
) -> Result<Timings, BenchError> {
    let mut timings = Timings::default();
    while timings.len() < ticks.count() {
        let response = match timeout_at(end.into(), responses.message()).await {
            Ok(Ok(Some(response))) => response,
            Ok(Ok(None)) => return Err(etcd::refused("watch", "etcd ended the watch")),
            Ok(Err(status)) => return Err(etcd::refused("watch", status.message())),
            Err(_) => return Err(BenchError::MissedEvents { received: timings.len(), expected: ticks.count() }),
        };
        for event in response.events {
            let value = event.kv.map(|kv| kv.value).unwrap_or_default();
            if let Some(took) = std::str::from_utf8(&value).ok().and_then(|text| ticks.receive(text)) {
                timings.push(took);
            }
        }
    }
    Ok(timings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_carries_its_number_and_is_timed_from_its_sending() {
        let ticks = Ticks::new(100, 0.05);
        assert_eq!(ticks.count(), 5);
        let message = ticks.message(3);
        assert_eq!(message.len(), MESSAGE_BYTES);
        assert_eq!(ticks.receive(&message), None, "not sent yet");
        ticks.sent[3].store(1, Ordering::Relaxed);
        assert!(ticks.receive(&message).is_some());
        assert_eq!(ticks.receive("tick-99999999 beyond the last"), None);
        assert_eq!(ticks.receive("tick-0"), None);
    }
}
