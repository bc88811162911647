//! Owns: a subscriber with a scope. It reads server-sent events, because the bus has no one trigger type for everything
//! that a scoped caller may see. It moves between nodes and resumes at its last position.
//! Never: checks of what it receives; the oracles do that.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, HOST};
use futures::{Stream, StreamExt};
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};
use turmoil::net::TcpStream;

use crate::determinism::Chance;
use crate::history::Place;
use crate::host::CLIENT_PORT;
use crate::http_call;
use crate::listener::{place, skipped};
use crate::recorder::{Received, Recorder};
use crate::tenant::Tenant;
use crate::workload::Common;

const CONNECT_MAX: Duration = Duration::from_millis(500);
/// How long the node may take to begin the stream.
const BEGIN_MAX: Duration = Duration::from_secs(2);
/// How often it looks whether the run ends.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const REFUSAL_BYTES_MAX: usize = 64 << 10;

pub struct TenantListener {
    pub id: usize,
    pub tenant: Tenant,
    pub nodes: Vec<(u64, IpAddr)>,
    pub recorder: Recorder,
    pub common: Arc<Common>,
    pub chance: Chance,
    /// The position of the last received event, as text and as numbers.
    pub after: Option<(String, Place)>,
}

/// What a piece of the stream says.
#[derive(Debug, PartialEq)]
enum Piece {
    /// A position without an event.
    Stands(String),
    Event {
        position: String,
        kind: String,
        seq: u64,
        payload: Value,
    },
    Skipped(Value),
    /// Nothing that matters here.
    Nothing,
}

impl TenantListener {
    /// Connects and receives until the end of the run.
    pub async fn run(mut self) {
        loop {
            let (node, host) = self.nodes[self.chance.below(self.nodes.len())];
            let after = self.after.clone();
            match timeout(BEGIN_MAX, self.begin(host)).await {
                Ok(Ok(body)) => {
                    let after = after.map(|(_, place)| place);
                    let subscription = self.recorder.bound(self.id, node, self.tenant, after);
                    let why = self.listen(body, subscription).await;
                    self.recorder.unbound(subscription, &why);
                }
                Ok(Err(why)) => self.say(&format!("node {node} sends no events: {why}")),
                Err(_) => self.say(&format!("node {node} sends no events in time")),
            }
            tokio::time::sleep(self.chance.millis(10, 200)).await;
        }
    }

    fn say(&self, words: &str) {
        self.recorder.say(&format!("listener {}", self.id), words);
    }

    async fn begin(&mut self, host: IpAddr) -> Result<Body, String> {
        let mut connection =
            http_call::open(TcpStream::connect(SocketAddr::new(host, CLIENT_PORT)), CONNECT_MAX).await?;
        let after = self.after.as_ref().map(|(position, _)| format!("?after={position}")).unwrap_or_default();
        let request = Request::get(format!("/v1/events{after}"))
            .header(HOST, "localhost")
            .header(AUTHORIZATION, format!("Bearer {}", self.tenant.token()))
            .body(Body::empty())
            .map_err(|error| error.to_string())?;
        let response = connection.send_request(request).await.map_err(|error| error.to_string())?;
        let (status, body) = (response.status(), Body::new(response.into_body()));
        if status.is_success() {
            return Ok(body);
        }
        if status.is_client_error() {
            // The node does not keep events that far back: start without a position.
            self.after = None;
        }
        let words = to_bytes(body, REFUSAL_BYTES_MAX).await.map_err(|error| error.to_string())?;
        Err(format!("{status} {}", String::from_utf8_lossy(&words)))
    }

    /// Receives until the connection ends. Returns why it ended.
    async fn listen(&mut self, body: Body, subscription: usize) -> String {
        let mut pieces = Box::pin(pieces(body));
        let leave_at = Instant::now() + self.chance.millis(1_000, 8_000);
        // A stream sends nothing for seconds, so a lost connection does not show. When the clients have stopped, all
        // faults are mended: a connection that is opened then lasts to the end.
        let is_last = self.common.stops();
        let mut left_out = None;
        loop {
            let look_at = Instant::now() + LOOK_EVERY;
            tokio::select! {
                piece = pieces.next() => match piece {
                    Some(Ok(piece)) => {
                        if let Err(why) = self.hear(subscription, piece, &mut left_out) {
                            return why;
                        }
                    }
                    Some(Err(why)) => return why,
                    None => return "the node ended the stream".to_owned(),
                },
                () = sleep_until(look_at) => {}
            }
            if !is_last && (self.common.stops() || Instant::now() > leave_at) {
                return "moves to another node".to_owned();
            }
        }
    }

    fn hear(&mut self, subscription: usize, piece: Piece, left_out: &mut Option<(u64, u64)>) -> Result<(), String> {
        let at = |position: &str| place(position).ok_or_else(|| format!("an invalid position {position:?}"));
        match piece {
            Piece::Stands(position) => {
                let place = at(&position)?;
                self.after = Some((position, place));
            }
            Piece::Event { position, kind, seq, payload } => {
                let place = at(&position)?;
                let session_id = payload["session_id"].as_str().unwrap_or_default().to_owned();
                let skipped = left_out.take();
                self.recorder.heard(subscription, Received { place, seq, skipped, kind, session_id, payload });
                self.after = Some((position, place));
            }
            Piece::Skipped(range) => *left_out = skipped(&range),
            Piece::Nothing => {}
        }
        Ok(())
    }
}

/// The pieces of a stream: each ends with an empty line.
fn pieces(body: Body) -> impl Stream<Item = Result<Piece, String>> {
    let begun = (body.into_data_stream(), Vec::new());
    futures::stream::unfold(begun, |(mut chunks, mut bytes)| async move {
        loop {
            if let Some(end) = bytes.windows(2).position(|pair| pair == b"\n\n") {
                let rest = bytes.split_off(end + 2);
                let piece = std::str::from_utf8(&bytes).map_err(|error| error.to_string()).and_then(piece);
                return Some((piece, (chunks, rest)));
            }
            match chunks.next().await? {
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(error) => return Some((Err(error.to_string()), (chunks, Vec::new()))),
            }
        }
    })
}

fn piece(text: &str) -> Result<Piece, String> {
    let (mut position, mut kind, mut seq, mut data) = (None, None, None, String::new());
    for (name, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        match name {
            "id" => position = Some(value.to_owned()),
            "event" => kind = Some(value.to_owned()),
            "seq" => seq = value.parse().ok(),
            "data" => data.push_str(value),
            _other => {}
        }
    }
    let read = || serde_json::from_str(&data).map_err(|error| format!("{error} in {text:?}"));
    match (kind, position, seq) {
        (Some(kind), Some(position), Some(seq)) => Ok(Piece::Event { position, kind, seq, payload: read()? }),
        (Some(kind), _, _) if kind == "skipped" => Ok(Piece::Skipped(read()?)),
        (Some(kind), _, _) if kind == "lagged" => Ok(Piece::Nothing),
        (Some(kind), _, _) => Err(format!("an unexpected {kind}")),
        (None, Some(position), _) => Ok(Piece::Stands(position)),
        (None, None, _) => Ok(Piece::Nothing),
    }
}
