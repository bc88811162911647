//! The laws of the client port: whatever bytes arrive on a socket, as HTTP or as frames of the bus, every connection ends
//! or is answered, the next client is served, and nothing of a dead connection stays.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use session_manager::events::current::CurrentFeed;
use session_manager::events::deliver::{Feed, FeedSettings};
use session_manager::proposal::local::LocalAdapter;
use session_manager::proposal::mint::SystemMint;
use session_manager::requests::{Limits, functions};
use session_manager::surface::bus::{Bus, BusSettings};
use session_manager::surface::calls::{Calls, Runtime};
use session_manager::surface::endpoint::{self, EndpointSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::spoil::{Harm, Twist, harms, spoil, twist, twist_value};
use super::{inputs, requests};

/// Nothing a client does may take this long.
const HANGS: Duration = Duration::from_secs(30);

struct Door {
    address: String,
    bus: Arc<Bus>,
    shutdown: CancellationToken,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn door() -> Door {
    let feed = Feed::new(FeedSettings::default());
    let shutdown = CancellationToken::new();
    tokio::spawn(feed.clone().dispatch(shutdown.clone()));
    let adapter = Arc::new(LocalAdapter::memory(Arc::new(SystemMint::default()), feed.clone()));
    let limits = Limits { default_list_limit: 50, max_list_limit: 500 };
    let calls = Calls::new(Runtime {
        adapter,
        limits,
        legacy_names: true,
        authoritative: true,
        call_timeout: Duration::from_secs(30),
    });
    let bus = Bus::new(
        BusSettings { message_bytes_max: 1 << 20, ..BusSettings::default() },
        Arc::new(calls),
        CurrentFeed::new(feed),
    );
    let settings = EndpointSettings { body_bytes_max: 1 << 20, ..EndpointSettings::new("127.0.0.1:0") };
    let (address, _) = endpoint::serve(settings, bus.clone(), shutdown.clone()).await.expect("a free port");
    Door { address: address.to_string(), bus, shutdown }
}

impl Door {
    /// Sends bytes and our end of them, and reads what comes until the other end.
    async fn send(&self, bytes: &[u8]) -> Vec<u8> {
        let talk = async {
            let mut socket = TcpStream::connect(&self.address).await.expect("it listens");
            let mut heard = Vec::new();
            // The other side may hang up before it read everything: that is its good right.
            let _ = socket.write_all(bytes).await;
            let _ = socket.shutdown().await;
            let _ = socket.read_to_end(&mut heard).await;
            heard
        };
        tokio::time::timeout(HANGS, talk).await.expect("the connection hangs")
    }

    async fn still_serves(&self) {
        let heard = self.send(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(heard.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&heard));
        let gone = async {
            while self.bus.workers() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(HANGS, gone).await.expect("a worker outlives its connection");
    }
}

/// A masked frame, as clients send them. `head` is the first byte: FIN and the opcode.
fn frame(head: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![head];
    match payload.len() {
        short @ 0..126 => bytes.push(0x80 | short as u8),
        long @ 126..65_536 => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(long as u16).to_be_bytes());
        }
        longer => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(longer as u64).to_be_bytes());
        }
    }
    let mask = [1, 2, 3, 4];
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A good frame of each kind a client may send.
fn good_frame(kind: usize, function: usize) -> Value {
    let id = functions()[function % functions().len()].id;
    match kind % 9 {
        0 => json!({"type": "registerfunction", "id": "f", "description": "d", "request_format": {}}),
        1 => json!({"type": "registertriggertype", "id": "t", "description": "d", "trigger_request_format": {}}),
        2 => json!({"type": "registertrigger", "id": "b", "trigger_type": "session::message-added", "function_id": "f",
            "config": {"session_id": "s"}, "metadata": {"after": "node.0.1.0"}}),
        3 => json!({"type": "unregistertrigger", "id": "b"}),
        4 => json!({"type": "unregisterfunction", "id": "f"}),
        5 => json!({"type": "reattach", "previous_worker_id": "w", "reattach_token": "t"}),
        6 => json!({"type": "invocationresult", "invocation_id": "i", "result": {"a": 1}}),
        7 => json!({"type": "invokefunction", "invocation_id": "j", "function_id": "engine::functions::list"}),
        _eight => json!({"type": "invokefunction", "invocation_id": "i", "function_id": id, "data": requests::good(id),
            "metadata": {"x": 1}, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}),
    }
}

/// What one client sends.
#[derive(Debug, Clone)]
enum Sent {
    Raw(Vec<u8>),
    Http {
        function: usize,
        twists: Vec<Twist>,
        harms: Vec<Harm>,
    },
    /// Frames whose JSON is twisted, and then harm to the bytes on the wire.
    Frames {
        frames: Vec<(usize, usize, Vec<Twist>, u8)>,
        harms: Vec<Harm>,
    },
    /// Frames of any head and payload.
    Garbage(Vec<(u8, Vec<u8>)>),
}

fn sent() -> impl Strategy<Value = Sent> {
    let some_harms = || prop_oneof![Just(Vec::new()), harms()];
    // Mostly whole text frames; now and then another opcode, a fragment, a reserved bit.
    let head = prop_oneof![6 => Just(0x81u8), 1 => any::<u8>()];
    prop_oneof![
        1 => vec(any::<u8>(), 0..300).prop_map(Sent::Raw),
        3 => (any::<usize>(), vec(twist(), 0..3), some_harms())
            .prop_map(|(function, twists, harms)| Sent::Http { function, twists, harms }),
        5 => (vec((any::<usize>(), any::<usize>(), vec(twist(), 0..3), head), 1..6), some_harms())
            .prop_map(|(frames, harms)| Sent::Frames { frames, harms }),
        2 => vec((any::<u8>(), vec(any::<u8>(), 0..200)), 1..5).prop_map(Sent::Garbage),
    ]
}

fn bytes_of(sent: &Sent) -> Vec<u8> {
    match sent {
        Sent::Raw(bytes) => bytes.clone(),
        Sent::Http { function, twists, harms } => {
            let id = functions()[function % functions().len()].id;
            let mut body = requests::good(id);
            twist_value(&mut body, twists);
            let body = body.to_string();
            let head = format!("POST /v1/call/{id} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
            let mut bytes = (head + &body).into_bytes();
            spoil(&mut bytes, harms);
            bytes
        }
        Sent::Frames { frames, harms } => {
            let mut bytes = Vec::new();
            for (kind, function, twists, head) in frames {
                let mut value = good_frame(*kind, *function);
                twist_value(&mut value, twists);
                bytes.extend(frame(*head, value.to_string().as_bytes()));
            }
            spoil(&mut bytes, harms);
            [UPGRADE, &bytes].concat()
        }
        Sent::Garbage(frames) => {
            let frames: Vec<u8> = frames.iter().flat_map(|(head, payload)| frame(*head, payload)).collect();
            [UPGRADE, &frames].concat()
        }
    }
}

#[test]
fn whatever_a_client_sends_the_next_one_is_served() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let door = runtime.block_on(door());
    let law = |clients: Vec<Sent>| {
        runtime.block_on(async {
            for sent in &clients {
                door.send(&bytes_of(sent)).await;
            }
            door.still_serves().await;
        });
        Ok(())
    };
    TestRunner::new(inputs(1)).run(&vec(sent(), 1..4), law).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn good_frames_are_answered_one_by_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let door = door().await;
        let calls: Vec<u8> = (0..functions().len())
            .flat_map(|function| frame(0x81, good_frame(8, function).to_string().as_bytes()))
            .collect();
        let mut socket = TcpStream::connect(&door.address).await.expect("it listens");
        socket.write_all(&[UPGRADE, &calls].concat()).await.expect("it reads");
        let mut heard = Vec::new();
        let answers = |heard: &[u8]| String::from_utf8_lossy(heard).matches("\"invocationresult\"").count();
        while answers(&heard) < functions().len() {
            let read = tokio::time::timeout(HANGS, socket.read_buf(&mut heard)).await.expect("an answer is missing");
            assert!(read.expect("it answers") > 0, "only {} calls were answered", answers(&heard));
        }
        drop(socket);
        door.still_serves().await;
    });
}
