//! Owns: the figures of the last hour, kept in the node: a ring of samples, and `GET /v1/history`. A sample is made of the
//! same page as `GET /metrics`.
//! Never: work on the threads that answer calls, or a decision by a figure.

use std::collections::VecDeque;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use super::http::{self, Port};
use super::{locked, scrapes};
use crate::access::{Action, credentials};
use crate::metrics::{Page, Reading, catalogue};
use crate::requests;

const EVERY: Duration = Duration::from_secs(5);
/// An hour.
const SAMPLES_MAX: usize = 720;

/// The functions that write, by name.
static WRITERS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| requests::served().filter(|function| function.writes).map(|function| function.id).collect());

/// One moment. Counts are since the sample before.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Sample {
    at_ms: i64,
    writes: u64,
    reads: u64,
    errors: u64,
    events: u64,
    write_p50_ms: Option<f64>,
    write_p99_ms: Option<f64>,
    read_p50_ms: Option<f64>,
    read_p99_ms: Option<f64>,
    leader_changes: u64,
    term: u64,
    applied: u64,
    is_leader: bool,
    subscribers: u64,
    subscriber_lag: u64,
    connections: u64,
    memory_bytes: u64,
    disk_bytes: u64,
    disk_free_bytes: u64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Default)]
struct Counts {
    writes: Reading,
    reads: Reading,
    calls: u64,
    answered: u64,
    events: u64,
    leader_changes: u64,
}

#[derive(Default)]
struct Ring {
    samples: VecDeque<Sample>,
    last: Option<Counts>,
}

/// The samples of one node.
#[derive(Default)]
pub struct History(Mutex<Ring>);

/// Takes samples until the port closes.
pub async fn keep(port: Port) {
    loop {
        if let Some(page) = scrapes::page(&port).await {
            locked(&port.history.0).add(&page, credentials::now_ms());
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = port.shutdown.cancelled() => return,
        }
    }
}

pub async fn history(State(port): State<Port>, request: Request) -> Response {
    if let Some(refused) = http::forbidden(&request, Action::Metrics) {
        return refused;
    }
    let ring = locked(&port.history.0);
    axum::Json(json!({ "every_ms": EVERY.as_millis() as u64, "samples": &ring.samples })).into_response()
}

impl Ring {
    fn add(&mut self, page: &Page, at_ms: i64) {
        let now = Counts::of(page);
        let Some(before) = self.last.replace(now.clone()) else { return };
        let of_page = |metric| page.sum(metric, |_| true);
        let writes = now.writes.since(&before.writes);
        let reads = now.reads.since(&before.reads);
        let ms = |reading: &Reading, share| reading.quantile(share).map(|seconds| seconds * 1e3);
        let failed = (now.calls - now.answered).saturating_sub(before.calls - before.answered);
        self.samples.push_back(Sample {
            at_ms,
            writes: writes.count,
            reads: reads.count,
            errors: failed,
            events: now.events.saturating_sub(before.events),
            write_p50_ms: ms(&writes, 0.5),
            write_p99_ms: ms(&writes, 0.99),
            read_p50_ms: ms(&reads, 0.5),
            read_p99_ms: ms(&reads, 0.99),
            leader_changes: now.leader_changes.saturating_sub(before.leader_changes),
            term: of_page(catalogue::TERM),
            applied: of_page(catalogue::PROPOSALS_APPLIED),
            is_leader: of_page(catalogue::IS_LEADER) == 1,
            subscribers: of_page(catalogue::SUBSCRIBERS),
            subscriber_lag: of_page(catalogue::SUBSCRIBER_LAG),
            connections: of_page(catalogue::CONNECTIONS),
            memory_bytes: of_page(catalogue::RESIDENT_MEMORY),
            disk_bytes: of_page(catalogue::DISK),
            disk_free_bytes: of_page(catalogue::DISK_FREE),
        });
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }
}

impl Counts {
    fn of(page: &Page) -> Counts {
        let writes = |function: &str| WRITERS.contains(&function);
        Counts {
            writes: page.total(catalogue::CALL_DURATION, writes),
            reads: page.total(catalogue::CALL_DURATION, |function| !writes(function)),
            calls: page.sum(catalogue::CALLS, |_| true),
            answered: page.sum_where(catalogue::CALLS, "code", "ok"),
            events: page.sum(catalogue::EVENTS, |_| true),
            leader_changes: page.sum(catalogue::LEADER_CHANGES, |_| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Durations;

    fn page(appends: &Durations, lists: &Durations, ok: u64, refused: u64, events: u64) -> Page {
        let mut page = Page::default();
        page.durations(catalogue::CALL_DURATION, &[("function", "session::append"), ("door", "http")], appends);
        page.durations(catalogue::CALL_DURATION, &[("function", "session::list"), ("door", "bus")], lists);
        let labels = |code| [("function", "session::append"), ("door", "http"), ("code", code)];
        page.whole_of(catalogue::CALLS, &labels("ok"), ok);
        page.whole_of(catalogue::CALLS, &labels("session/not_found"), refused);
        page.whole(catalogue::EVENTS, events);
        page
    }

    #[test]
    fn a_sample_counts_what_happened_since_the_one_before() {
        let (appends, lists, mut ring) = (Durations::default(), Durations::default(), Ring::default());
        appends.observe(Duration::from_secs(20));
        ring.add(&page(&appends, &lists, 1, 0, 1), 1);
        assert!(ring.samples.is_empty());
        for _ in 0..99 {
            appends.observe(Duration::from_micros(900));
        }
        appends.observe(Duration::from_millis(200));
        lists.observe(Duration::from_micros(40));
        ring.add(&page(&appends, &lists, 100, 3, 41), 2);
        let sample = ring.samples.back().unwrap();
        assert_eq!((sample.writes, sample.reads, sample.errors, sample.events), (100, 1, 3, 40));
        assert_eq!((sample.write_p50_ms, sample.write_p99_ms), (Some(1.0), Some(1.0)));
        assert_eq!(sample.read_p99_ms, Some(0.05));
        ring.add(&page(&appends, &lists, 100, 3, 41), 3);
        let quiet = ring.samples.back().unwrap();
        assert_eq!((quiet.writes, quiet.write_p50_ms, quiet.errors), (0, None, 0));
    }

    #[test]
    fn the_ring_keeps_an_hour() {
        let (none, mut ring) = (Durations::default(), Ring::default());
        for at_ms in 0..SAMPLES_MAX as i64 + 10 {
            ring.add(&page(&none, &none, 0, 0, 0), at_ms);
        }
        assert_eq!(ring.samples.len(), SAMPLES_MAX);
        assert_eq!(ring.samples.back().map(|sample| sample.at_ms), Some(SAMPLES_MAX as i64 + 9));
    }
}
