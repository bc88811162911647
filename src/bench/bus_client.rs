//! Owns: a bus client that uses little CPU, because it shares the machine with the servers it measures. It writes
//! frames by hand, runs several closed loops ("lanes") on one connection and reads only the start of an answer. The
//! protocol is that of the SDKs.

use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::error::BenchError;
use super::target::{Stream, Target};
use super::web_socket::WebSocket;
use super::window::{ANSWER_MAX, Tally, Window};

/// The start of an answer, up to its result, is shorter than this because our ids are short.
const HEAD_BYTES: usize = 200;

/// One connection to a node's bus.
pub struct Bus {
    socket: WebSocket<Stream>,
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
        let connect = async {
            let stream = node.connect().await?;
            let socket = WebSocket::open(stream, address, node.authorization.as_deref()).await.map_err(|error| {
                BenchError::Connect { address: address.clone(), why: format!("not an iii bus: {error}") }
            })?;
            Ok(Bus { socket, node: address.clone() })
        };
        timeout(ANSWER_MAX, connect).await.unwrap_or_else(|_| Err(no_answer(address)))
    }

    /// Queues a frame for the next flush.
    pub fn feed(&mut self, frame: &str) {
        self.socket.feed(frame);
    }

    pub async fn flush(&mut self) -> Result<(), BenchError> {
        self.socket.flush().await.map_err(|error| broken(&self.node, error))
    }

    /// The next text frame.
    pub async fn next(&mut self) -> Result<Utf8Bytes, BenchError> {
        match timeout(ANSWER_MAX, self.socket.next()).await {
            Ok(arrived) => arrived.map_err(|error| broken(&self.node, error)),
            Err(_) => Err(no_answer(&self.node)),
        }
    }

    /// A text frame that has already arrived.
    fn ready(&mut self) -> Result<Option<Utf8Bytes>, BenchError> {
        self.socket.ready().map_err(|error| broken(&self.node, error))
    }

    /// One call, with no other call in progress on the connection.
    pub async fn call(&mut self, function: &str, body: &str) -> Result<String, BenchError> {
        self.feed(&invoke("0", function, body));
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
            self.feed(&next_call(&mut lanes, lane));
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
            self.feed(&next_call(&mut lanes, lane));
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
