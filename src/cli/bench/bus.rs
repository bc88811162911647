//! Owns: a client of the bus that costs as little as one can: frames written by hand, several closed loops ("lanes") on
//! one connection, an answer recognised by its head. It speaks what any SDK speaks.

use std::sync::Arc;
use std::time::Instant;

use futures::{FutureExt, SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::window::{ANSWER_MAX, Tally, Window};

/// The head of an answer is shorter than this, ids of ours being short.
const HEAD_BYTES: usize = 200;

/// One connection to a node's bus.
pub struct Bus {
    socket: WebSocketStream<TcpStream>,
    node: String,
}

/// What the closed loops of one connection ask. A lane has at most one call under way.
pub trait Lanes: Send + 'static {
    fn function(&self) -> &'static str;
    fn count(&self) -> usize;
    /// Appends the JSON body of the lane's next call.
    fn body(&mut self, lane: usize, out: &mut String);
    /// Looks at an answer: the text from the result on, unparsed.
    fn check(&mut self, lane: usize, answer: &str) -> Result<(), String>;
}

impl Bus {
    /// `node` is `host:port`.
    pub async fn connect(node: &str) -> Result<Bus, String> {
        let failed = |why: String| format!("{node}: {why}");
        let connect = async {
            let stream = TcpStream::connect(node).await.map_err(|error| failed(error.to_string()))?;
            stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
            let upgraded = client_async(format!("ws://{node}/"), stream).await;
            let (socket, _) = upgraded.map_err(|error| failed(format!("not an iii bus: {error}")))?;
            Ok(Bus { socket, node: node.to_owned() })
        };
        timeout(ANSWER_MAX, connect).await.unwrap_or_else(|_| Err(failed("no connection in time".to_owned())))
    }

    /// Puts a frame where the next flush takes it.
    pub async fn feed(&mut self, frame: String) -> Result<(), String> {
        let fed = self.socket.feed(Message::text(frame)).await;
        fed.map_err(|error| format!("{}: {error}", self.node))
    }

    pub async fn flush(&mut self) -> Result<(), String> {
        self.socket.flush().await.map_err(|error| format!("{}: {error}", self.node))
    }

    /// The next text frame.
    pub async fn next(&mut self) -> Result<Utf8Bytes, String> {
        loop {
            let arrived = match timeout(ANSWER_MAX, self.socket.next()).await {
                Ok(arrived) => arrived,
                Err(_) => return Err(format!("{}: no answer within {} s", self.node, ANSWER_MAX.as_secs())),
            };
            if let Some(text) = self.text(arrived)? {
                return Ok(text);
            }
        }
    }

    /// A text frame that is here already.
    fn ready(&mut self) -> Result<Option<Utf8Bytes>, String> {
        match self.socket.next().now_or_never() {
            Some(arrived) => self.text(arrived),
            None => Ok(None),
        }
    }

    fn text(
        &self,
        arrived: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
    ) -> Result<Option<Utf8Bytes>, String> {
        match arrived {
            Some(Ok(Message::Text(text))) => Ok(Some(text)),
            Some(Ok(Message::Close(why))) => {
                let why = why.map_or_else(|| "no reason given".to_owned(), |why| why.reason.to_string());
                Err(format!("{}: the node closed the connection: {why}", self.node))
            }
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(format!("{}: {error}", self.node)),
            None => Err(format!("{}: the connection was lost", self.node)),
        }
    }

    /// One call, alone on the connection.
    pub async fn call(&mut self, function: &str, body: &str) -> Result<String, String> {
        self.feed(invoke("0", function, body)).await?;
        self.flush().await?;
        loop {
            let frame = self.next().await?;
            if let Some(answer) = Answer::of(&frame) {
                return answer.result.map(str::to_owned).map_err(|error| format!("{function}: {error}"));
            }
        }
    }

    /// Runs closed loops until the window closes: each lane calls, waits for its answer, and calls again.
    pub async fn run(mut self, mut lanes: impl Lanes, window: Arc<Window>) -> Result<Tally, String> {
        let mut tally = Tally::default();
        let mut sent = vec![Instant::now(); lanes.count()];
        for (lane, sent) in sent.iter_mut().enumerate() {
            *sent = Instant::now();
            self.feed(next_call(&mut lanes, lane)).await?;
        }
        self.flush().await?;
        let mut under_way = sent.len();
        while under_way > 0 {
            // Answers that came together are answered together: one flush.
            let frame = match self.ready()? {
                Some(frame) => frame,
                None => {
                    self.flush().await?;
                    self.next().await?
                }
            };
            let Some(answer) = Answer::of(&frame) else { continue };
            let lane: usize = answer.invocation_id.parse().unwrap_or(usize::MAX);
            let Some(sent) = sent.get_mut(lane) else { return Err(format!("{}: an answer nobody asked", self.node)) };
            match answer.result.map_err(str::to_owned).and_then(|result| lanes.check(lane, result)) {
                Ok(()) => tally.done(&window, sent.elapsed()),
                Err(why) => tally.failed(&window, || why),
            }
            if window.is_closed() {
                under_way -= 1;
                continue;
            }
            *sent = Instant::now();
            self.feed(next_call(&mut lanes, lane)).await?;
        }
        Ok(tally)
    }
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

/// An answer to a call of ours.
#[derive(Debug, PartialEq)]
pub struct Answer<'a> {
    pub invocation_id: &'a str,
    /// The text of the result (with what stands after it in the frame), or of the error.
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
    /// `None` for a frame that is no answer. Where the head tells all, the rest of a long frame is not read.
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
