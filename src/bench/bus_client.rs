//! Owns: a bus client that uses little CPU, because it shares the machine with the servers it measures. It writes
//! frames by hand, runs several closed loops ("lanes") on one connection and reads only the start of an answer. The
//! protocol is that of the SDKs.

use std::sync::Arc;
use std::time::Instant;

use axum::http::header::AUTHORIZATION;
use futures::{FutureExt, SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::error::BenchError;
use super::target::{Stream, Target};
use super::window::{ANSWER_MAX, Tally, Window};

/// The start of an answer, up to its result, is shorter than this because our ids are short.
const HEAD_BYTES: usize = 200;

/// The WebSocket library fills its buffer with zeros before each read, and the default of 128 KiB would cost the client
/// more than everything else.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// One connection to a node's bus.
pub struct Bus {
    socket: WebSocketStream<Stream>,
    node: String,
}

/// The calls of the closed loops of one connection. A lane has at most one call in progress.
pub trait Lanes: Send + 'static {
    fn function(&self) -> &'static str;
    fn count(&self) -> usize;
    /// Appends the JSON body of the lane's next call.
    fn body(&mut self, lane: usize, out: &mut String);
    /// Checks an answer: the text of the frame from the result on, not parsed.
    fn check(&mut self, lane: usize, answer: &str) -> Result<(), BenchError>;
}

impl Bus {
    pub async fn connect(node: &Target) -> Result<Bus, BenchError> {
        let address = &node.address;
        let failed = |error: Error| {
            let why = format!("not an iii bus: {error}");
            BenchError::Connect { address: address.clone(), why }
        };
        let connect = async {
            let stream = node.connect().await?;
            let mut request = format!("ws://{address}/").into_client_request().map_err(failed)?;
            if let Some(bearer) = &node.authorization {
                request.headers_mut().insert(AUTHORIZATION, (**bearer).clone());
            }
            let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
            let (socket, _) = client_async_with_config(request, stream, Some(config)).await.map_err(failed)?;
            Ok(Bus { socket, node: address.clone() })
        };
        timeout(ANSWER_MAX, connect).await.unwrap_or_else(|_| Err(no_answer(address)))
    }

    /// Queues a frame for the next flush.
    pub async fn feed(&mut self, frame: String) -> Result<(), BenchError> {
        let fed = self.socket.feed(Message::text(frame)).await;
        fed.map_err(|error| broken(&self.node, error))
    }

    pub async fn flush(&mut self) -> Result<(), BenchError> {
        self.socket.flush().await.map_err(|error| broken(&self.node, error))
    }

    /// The next text frame.
    pub async fn next(&mut self) -> Result<Utf8Bytes, BenchError> {
        loop {
            let arrived = match timeout(ANSWER_MAX, self.socket.next()).await {
                Ok(arrived) => arrived,
                Err(_) => return Err(no_answer(&self.node)),
            };
            if let Some(text) = self.text(arrived)? {
                return Ok(text);
            }
        }
    }

    /// A text frame that has already arrived.
    fn ready(&mut self) -> Result<Option<Utf8Bytes>, BenchError> {
        match self.socket.next().now_or_never() {
            Some(arrived) => self.text(arrived),
            None => Ok(None),
        }
    }

    fn text(&self, arrived: Option<Result<Message, Error>>) -> Result<Option<Utf8Bytes>, BenchError> {
        match arrived {
            Some(Ok(Message::Text(text))) => Ok(Some(text)),
            Some(Ok(Message::Close(why))) => {
                let why = why.map_or_else(|| "no reason given".to_owned(), |why| why.reason.to_string());
                Err(broken(&self.node, format!("closed by the node: {why}")))
            }
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(broken(&self.node, error)),
            None => Err(broken(&self.node, "end of stream")),
        }
    }

    /// One call, with no other call in progress on the connection.
    pub async fn call(&mut self, function: &str, body: &str) -> Result<String, BenchError> {
        self.feed(invoke("0", function, body)).await?;
        self.flush().await?;
        loop {
            let frame = self.next().await?;
            if let Some(answer) = Answer::of(&frame) {
                let refused = |why: &str| BenchError::Refused { call: function.to_owned(), why: why.to_owned() };
                return answer.result.map(str::to_owned).map_err(refused);
            }
        }
    }

    /// Runs closed loops until the window closes: each lane calls, waits for its answer, and calls again.
    pub async fn run(mut self, mut lanes: impl Lanes, window: Arc<Window>) -> Result<Tally, BenchError> {
        let mut tally = Tally::default();
        let mut sent = vec![Instant::now(); lanes.count()];
        for (lane, sent) in sent.iter_mut().enumerate() {
            *sent = Instant::now();
            self.feed(next_call(&mut lanes, lane)).await?;
        }
        self.flush().await?;
        let mut in_progress = sent.len();
        while in_progress > 0 {
            // Flush only when no frame is waiting: answers that arrive together lead to one write.
            let frame = match self.ready()? {
                Some(frame) => frame,
                None => {
                    self.flush().await?;
                    self.next().await?
                }
            };
            let Some(answer) = Answer::of(&frame) else { continue };
            let lane: usize = answer.invocation_id.parse().unwrap_or(usize::MAX);
            let Some(sent) = sent.get_mut(lane) else {
                return Err(broken(&self.node, format!("an answer to an unknown call {:?}", answer.invocation_id)));
            };
            let refused = |why: &str| BenchError::Refused { call: lanes.function().to_owned(), why: why.to_owned() };
            match answer.result.map_err(refused).and_then(|result| lanes.check(lane, result)) {
                Ok(()) => tally.done(&window, sent.elapsed()),
                Err(error) => tally.failed(&window, &error),
            }
            if window.is_closed() {
                in_progress -= 1;
                continue;
            }
            *sent = Instant::now();
            self.feed(next_call(&mut lanes, lane)).await?;
        }
        Ok(tally)
    }
}

fn no_answer(node: &str) -> BenchError {
    BenchError::NoAnswer { address: node.to_owned(), limit: ANSWER_MAX }
}

fn broken(node: &str, why: impl std::fmt::Display) -> BenchError {
    BenchError::Broken { address: node.to_owned(), why: why.to_string() }
}

fn next_call(lanes: &mut impl Lanes, lane: usize) -> String {
    let mut frame = head(&lane.to_string(), lanes.function());
    lanes.body(lane, &mut frame);
    frame.push('}');
    frame
}

pub fn invoke(id: &str, function: &str, body: &str) -> String {
    let mut frame = head(id, function);
    frame.push_str(body);
    frame.push('}');
    frame
}

/// The frame of a call up to its body.
fn head(id: &str, function: &str) -> String {
    let mut frame = String::with_capacity(1536);
    frame.push_str(r#"{"type":"invokefunction","invocation_id":""#);
    frame.push_str(id);
    frame.push_str(r#"","function_id":""#);
    frame.push_str(function);
    frame.push_str(r#"","data":"#);
    frame
}

/// The answer to a call.
#[derive(Debug, PartialEq)]
pub struct Answer<'a> {
    pub invocation_id: &'a str,
    /// The text from the result to the end of the frame, or the text of the error.
    pub result: Result<&'a str, &'a str>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(default)]
    invocation_id: Option<&'a str>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl<'a> Answer<'a> {
    /// `None` for a frame that is not an answer. If the start of the frame has the usual form, the rest is not parsed.
    pub fn of(frame: &'a str) -> Option<Answer<'a>> {
        Answer::by_head(frame).or_else(|| Answer::parsed(frame))
    }

    fn by_head(frame: &'a str) -> Option<Answer<'a>> {
        let rest = frame.strip_prefix(r#"{"type":"invocationresult","invocation_id":""#)?;
        let (invocation_id, rest) = rest.split_at_checked(rest.bytes().take(HEAD_BYTES).position(|b| b == b'"')?)?;
        let rest = rest.strip_prefix(r#"","function_id":""#)?;
        let (_, rest) = rest.split_at_checked(rest.bytes().take(HEAD_BYTES).position(|b| b == b'"')?)?;
        let result = rest.strip_prefix(r#"","result":"#)?;
        Some(Answer { invocation_id, result: Ok(result) })
    }

    fn parsed(frame: &'a str) -> Option<Answer<'a>> {
        let fields: Fields = serde_json::from_str(frame).ok()?;
        if fields.kind != "invocationresult" {
            return None;
        }
        let result = match fields.error {
            Some(error) => Err(error.get()),
            None => Ok(fields.result.map_or("null", RawValue::get)),
        };
        Some(Answer { invocation_id: fields.invocation_id?, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_recognised_in_any_order_of_its_fields() {
        let usual = r#"{"type":"invocationresult","invocation_id":"17","function_id":"f","result":{"a":1}}"#;
        assert_eq!(Answer::of(usual), Some(Answer { invocation_id: "17", result: Ok("{\"a\":1}}") }));
        let other = r#"{"result":{"a":1},"invocation_id":"17","type":"invocationresult"}"#;
        assert_eq!(Answer::of(other), Some(Answer { invocation_id: "17", result: Ok("{\"a\":1}") }));
        let refused = r#"{"type":"invocationresult","invocation_id":"1","function_id":"f","error":{"code":"x"}}"#;
        assert_eq!(Answer::of(refused), Some(Answer { invocation_id: "1", result: Err("{\"code\":\"x\"}") }));
        assert_eq!(Answer::of(r#"{"type":"workerregistered","worker_id":"w"}"#), None);
        assert_eq!(Answer::of("garbage"), None);
    }
}
