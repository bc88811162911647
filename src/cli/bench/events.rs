//! Owns: `bench events`: how long a write takes to reach those who subscribed, at a steady rate, on every node.

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
use super::bus::{Answer, Bus, invoke};
use super::etcd::{self, Etcd, kv};
use super::figures::Timings;
use super::footprint::{Processes, Spent};
use super::progress::progress;
use super::report::{Figure, Goal, Ratio, Report, System};
use super::systems::Systems;
use super::window::{ANSWER_MAX, Sample};
use super::words::{self, MESSAGE_BYTES};
use crate::proto::etcd::WatchResponse;

/// Stands in every event before its number.
const MARK: &str = "tick-";
const DIGITS: usize = 8;
/// How long after the last write its event may still come.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Between subscribing and the first write.
const LEAD_IN: Duration = Duration::from_millis(300);

const EXAMPLES: &str = "\
Examples:
  session-manager bench events
  session-manager bench events --subscribers 1,100,1000 --rate 100 --seconds 20
  session-manager bench events --with-etcd --json events.json

Messages of 1 KiB are appended to one session at a steady rate, through all nodes in turn. Subscribers, spread over all
nodes, are bound to session::message-added. The time runs from the moment the call is sent, so it is more than what lies
between commit and handler. etcd gets the same writes, and watchers on their keys.";

/// From a write to the handlers of its event
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct EventsArgs {
    /// Numbers of subscribers to run with, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,100", value_parser = args::subscribers)]
    subscribers: Vec<usize>,

    /// Events per second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl EventsArgs {
    pub fn usual(load: LoadArgs) -> EventsArgs {
        EventsArgs { subscribers: vec![1, 100], rate: 100, load }
    }
}

pub async fn run(args: &EventsArgs, systems: &Systems) -> Result<Report, String> {
    let mut report = Report { systems: systems.words(), ..Report::default() };
    for subscribers in args.subscribers.iter().copied() {
        let name = format!("events, {} per second, {subscribers} subscribers", args.rate);
        let (mut ours, mut peers, mut after_answer) = (Vec::new(), Vec::new(), Timings::default());
        for round in 1..=systems.args.rounds {
            progress(&format!("{name}, session-manager, round {round}"));
            let ticks = Ticks::new(args.rate, systems.args.seconds);
            ours.push(ticks.watch(hear_ours(systems, subscribers, &ticks), &systems.ours.processes).await?);
            ticks.answered_before_heard(&mut after_answer);
            if let Some(etcd) = &systems.etcd {
                progress(&format!("{name}, etcd, round {round}"));
                let ticks = Ticks::new(args.rate, systems.args.seconds);
                peers.push(ticks.watch(hear_etcd(etcd, subscribers, &ticks), &etcd.processes).await?);
            }
        }
        report.figures.push(Figure::of(name.clone(), System::Ours, ours));
        if !peers.is_empty() {
            report.figures.push(Figure::of(name.clone(), System::Etcd, peers));
        }
        // goals.md P5, by a measure that is longer than the goal's.
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

/// When each event was written, answered and heard last, in microseconds after `base`; 0 for not yet.
struct Ticks {
    base: Instant,
    every: Duration,
    sent: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
    heard_last: Vec<AtomicU64>,
}

impl Ticks {
    fn new(rate: u32, seconds: f64) -> Arc<Ticks> {
        let count = (f64::from(rate) * seconds).ceil().max(1.0) as usize;
        let blank = || (0..count).map(|_| AtomicU64::new(0)).collect();
        let every = Duration::from_secs(1) / rate;
        Arc::new(Ticks { base: Instant::now(), every, sent: blank(), answered: blank(), heard_last: blank() })
    }

    fn count(&self) -> usize {
        self.sent.len()
    }

    fn now(&self) -> u64 {
        (self.base.elapsed().as_micros() as u64).max(1)
    }

    /// The body of the nth event: as long as any other message here.
    fn message(&self, nth: usize) -> String {
        let around = words::spelled("").len() + MARK.len() + DIGITS + 1;
        let text = words::text(nth as u64, MESSAGE_BYTES - around);
        words::spelled(&format!("{MARK}{nth:0DIGITS$} {text}"))
    }

    /// Takes the time of an event out of a text that carries it.
    fn hear(&self, text: &str) -> Option<Duration> {
        let rest = &text[text.find(MARK)? + MARK.len()..];
        let nth: usize = rest.get(..DIGITS)?.parse().ok()?;
        let (sent, now) = (self.sent.get(nth)?.load(Ordering::Relaxed), self.now());
        self.heard_last[nth].fetch_max(now, Ordering::Relaxed);
        (sent > 0).then(|| Duration::from_micros(now.saturating_sub(sent)))
    }

    /// How long after the writer's answer the last subscriber heard; nothing where it heard before.
    fn answered_before_heard(&self, timings: &mut Timings) {
        for (answered, heard) in self.answered.iter().zip(&self.heard_last) {
            let (answered, heard) = (answered.load(Ordering::Relaxed), heard.load(Ordering::Relaxed));
            if answered > 0 && heard > 0 {
                timings.push(Duration::from_micros(heard.saturating_sub(answered)));
            }
        }
    }

    async fn watch(
        &self,
        heard: impl Future<Output = Result<Timings, String>>,
        servers: &Processes,
    ) -> Result<Sample, String> {
        let before: (Option<Spent>, Option<Spent>) = (servers.spent(), Processes::me().spent());
        let timings = heard.await?;
        // The rate is that of deliveries while events were written.
        let window = self.every * self.count() as u32;
        let (servers, client) = (servers.spent_since(before.0), Processes::me().spent_since(before.1));
        Ok(Sample { timings, errors: 0, first_error: None, window, servers, client })
    }

    /// The time of the nth write.
    fn due(&self, begin: Instant, nth: usize) -> Instant {
        begin + self.every * nth as u32
    }
}

/// Waits for all subscribers. Each must have heard every event.
async fn gather(mut subscribers: JoinSet<Result<Timings, String>>) -> Result<Timings, String> {
    let mut all = Timings::default();
    while let Some(ended) = subscribers.join_next().await {
        all.join(ended.map_err(|error| format!("a subscriber broke off: {error}"))??);
    }
    Ok(all)
}

async fn hear_ours(systems: &Systems, subscribers: usize, ticks: &Arc<Ticks>) -> Result<Timings, String> {
    let nodes = &systems.ours.addresses;
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
        ended.map_err(|error| format!("a writer broke off: {error}"))??;
    }
    gather(listening).await
}

async fn subscribe(node: &str, session_id: &str, nth: usize) -> Result<Bus, String> {
    let mut bus = Bus::connect(node).await?;
    let function = format!("{session_id}-handler-{nth}");
    bus.feed(json!({ "type": "registerfunction", "id": function }).to_string()).await?;
    let binding = json!({
        "type": "registertrigger", "id": format!("{function}-binding"), "trigger_type": "session::message-added",
        "function_id": function, "config": { "session_id": session_id },
    });
    bus.feed(binding.to_string()).await?;
    bus.flush().await?;
    loop {
        let frame: Value = serde_json::from_str(&bus.next().await?).unwrap_or_default();
        if frame["type"] == "triggerregistrationresult" {
            return match frame.get("error").filter(|error| !error.is_null()) {
                None => Ok(bus),
                Some(error) => Err(format!("{node}: the binding was refused: {error}")),
            };
        }
    }
}

async fn listen(mut bus: Bus, ticks: Arc<Ticks>, end: Instant) -> Result<Timings, String> {
    let mut timings = Timings::default();
    while timings.len() < ticks.count() {
        let frame = match timeout_at(end.into(), bus.next()).await {
            Ok(frame) => frame?,
            Err(_) => return Err(missed(timings.len(), ticks.count())),
        };
        if let Some(took) = ticks.hear(&frame) {
            timings.push(took);
        }
    }
    Ok(timings)
}

fn missed(heard: usize, count: usize) -> String {
    format!("a subscriber heard {heard} of {count} events")
}

/// Writes every `step`th event from `first` on, without waiting for answers, which are noted as they come.
async fn write(
    mut bus: Bus,
    session_id: String,
    (first, step): (usize, usize),
    begin: Instant,
    ticks: Arc<Ticks>,
) -> Result<(), String> {
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
                bus.feed(frame).await?;
                bus.flush().await?;
                unanswered += 1;
            }
            frame = bus.next(), if unanswered > 0 => {
                let frame = frame?;
                let Some(answer) = Answer::of(&frame) else { continue };
                answer.result.map_err(|error| format!("session::append: {error}"))?;
                if let Some(answered) = answer.invocation_id.parse().ok().and_then(|nth: usize| ticks.answered.get(nth)) {
                    answered.store(ticks.now(), Ordering::Relaxed);
                }
                unanswered -= 1;
            }
        }
    }
    Ok(())
}

async fn hear_etcd(etcd: &Etcd, subscribers: usize, ticks: &Arc<Ticks>) -> Result<Timings, String> {
    let prefix = format!("bench-{}/", uuid::Uuid::new_v4().simple());
    let begin = Instant::now() + LEAD_IN + Duration::from_millis(4 * subscribers as u64);
    let end = ticks.due(begin, ticks.count()) + LATE_MAX;
    let mut listening = JoinSet::new();
    for nth in 0..subscribers {
        let watched = timeout(ANSWER_MAX, etcd.watch(nth, &prefix)).await;
        let responses = watched.unwrap_or_else(|_| Err("etcd watch: no answer in time".to_owned()))?;
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
                ended.map_err(|error| format!("a writer broke off: {error}"))??;
            }
            Ok::<(), String>(())
        });
    }
    while let Some(ended) = writing.join_next().await {
        ended.map_err(|error| format!("a writer broke off: {error}"))??;
    }
    gather(listening).await
}

async fn listen_etcd(
    mut responses: Streaming<WatchResponse>,
    ticks: Arc<Ticks>,
    end: Instant,
) -> Result<Timings, String> {
    let mut timings = Timings::default();
    while timings.len() < ticks.count() {
        let response = match timeout_at(end.into(), responses.message()).await {
            Ok(Ok(Some(response))) => response,
            Ok(Ok(None)) => return Err("etcd ended a watch".to_owned()),
            Ok(Err(status)) => return Err(format!("etcd watch: {}", status.message())),
            Err(_) => return Err(missed(timings.len(), ticks.count())),
        };
        for event in response.events {
            let value = event.kv.map(|kv| kv.value).unwrap_or_default();
            if let Some(took) = std::str::from_utf8(&value).ok().and_then(|text| ticks.hear(text)) {
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
    fn an_event_carries_its_number_and_is_timed_once_it_was_sent() {
        let ticks = Ticks::new(100, 0.05);
        assert_eq!(ticks.count(), 5);
        let message = ticks.message(3);
        assert_eq!(message.len(), MESSAGE_BYTES);
        assert_eq!(ticks.hear(&message), None, "nobody sent it yet");
        ticks.sent[3].store(1, Ordering::Relaxed);
        assert!(ticks.hear(&message).is_some());
        assert_eq!(ticks.hear("tick-99999999 beyond the last"), None);
        assert_eq!(ticks.hear("tick-0"), None);
    }
}
