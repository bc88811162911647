//! The laws of the client port: for any bytes on a socket, as HTTP or as frames of the bus, the connection is answered
//! or closed, the next client is served, and no state of a closed connection remains.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use session_manager::events::current::CurrentFeed;
use session_manager::events::feed::{Feed, FeedSettings};
use session_manager::mint::SystemMint;
use session_manager::proposal::local::LocalAdapter;
use session_manager::requests::functions;
use session_manager::surface::bus::{Bus, BusSettings};
use session_manager::surface::calls::{Calls, Runtime};
use session_manager::surface::endpoint::{self, EndpointSettings};
use session_manager::surface::gate::Gate;
use session_manager::surface::socket::SocketLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::corruption::{Corruption, JsonChange, change_json, corrupt, corruptions, json_change};
use super::{inputs, requests};

/// No request may take this long.
const HANGS: Duration = Duration::from_secs(30);

struct ClientPort {
    address: String,
    bus: Arc<Bus>,
    shutdown: CancellationToken,
}

impl Drop for ClientPort {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn client_port() -> ClientPort {
    let feed = Feed::new(FeedSettings::default());
    let shutdown = CancellationToken::new();
    tokio::spawn(feed.clone().dispatch(shutdown.clone()));
    let adapter = Arc::new(LocalAdapter::memory(Arc::new(SystemMint::default()), feed.clone()));
    let calls = Calls::new(Runtime::new(adapter));
    let bus = Bus::new(
        BusSettings {
            socket: SocketLimits { message_bytes_max: 1 << 20, ..SocketLimits::default() },
            ..BusSettings::default()
        },
        Gate::new(Arc::new(calls)),
        CurrentFeed::new(feed),
    );
    let settings = EndpointSettings { body_bytes_max: 1 << 20, ..EndpointSettings::new("127.0.0.1:0") };
    let (address, _) = endpoint::serve(settings, bus.clone(), shutdown.clone()).await.expect("a free port");
    ClientPort { address: address.to_string(), bus, shutdown }
}

impl ClientPort {
    /// Sends bytes, closes the sending side, and reads until the other side closes.
    async fn send(&self, bytes: &[u8]) -> Vec<u8> {
        let talk = async {
            let mut socket = TcpStream::connect(&self.address).await.expect("it listens");
            let mut heard = Vec::new();
            // The other side may close before it has read everything.
            let _ = socket.write_all(bytes).await;
            let _ = socket.shutdown().await;
            let _ = socket.read_to_end(&mut heard).await;
            heard
        };
        tokio::time::timeout(HANGS, talk).await.expect("the connection hangs")
    }

    async fn still_serves(&self) {
        let heard = self.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
        assert!(heard.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&heard));
        let gone = async {
            while self.bus.clients() > 0 {
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

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A valid frame of each kind that a client may send.
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
        json_changes: Vec<JsonChange>,
        corruptions: Vec<Corruption>,
    },
    /// Frames whose JSON is changed, and whose bytes are corrupted afterwards.
    Frames {
        frames: Vec<(usize, usize, Vec<JsonChange>, u8)>,
        corruptions: Vec<Corruption>,
    },
    /// Frames with any first byte and payload.
    Garbage(Vec<(u8, Vec<u8>)>),
}

fn sent() -> impl Strategy<Value = Sent> {
    let some_corruptions = || prop_oneof![Just(Vec::new()), corruptions()];
    // Mostly whole text frames; sometimes another opcode, a fragment or a reserved bit.
    let head = prop_oneof![6 => Just(0x81u8), 1 => any::<u8>()];
    prop_oneof![
        1 => vec(any::<u8>(), 0..300).prop_map(Sent::Raw),
        3 => (any::<usize>(), vec(json_change(), 0..3), some_corruptions())
            .prop_map(|(function, json_changes, corruptions)| Sent::Http { function, json_changes, corruptions }),
        5 => (vec((any::<usize>(), any::<usize>(), vec(json_change(), 0..3), head), 1..6), some_corruptions())
            .prop_map(|(frames, corruptions)| Sent::Frames { frames, corruptions }),
        2 => vec((any::<u8>(), vec(any::<u8>(), 0..200)), 1..5).prop_map(Sent::Garbage),
    ]
}

fn bytes_of(sent: &Sent) -> Vec<u8> {
    match sent {
        Sent::Raw(bytes) => bytes.clone(),
        Sent::Http { function, json_changes, corruptions } => {
            let id = functions()[function % functions().len()].id;
            let mut body = requests::good(id);
            change_json(&mut body, json_changes);
            let body = body.to_string();
            let head =
                format!("POST /v1/call/{id} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
            let mut bytes = (head + &body).into_bytes();
            corrupt(&mut bytes, corruptions);
            bytes
        }
        Sent::Frames { frames, corruptions } => {
            let mut bytes = Vec::new();
            for (kind, function, json_changes, head) in frames {
                let mut value = good_frame(*kind, *function);
                change_json(&mut value, json_changes);
                bytes.extend(frame(*head, value.to_string().as_bytes()));
            }
            corrupt(&mut bytes, corruptions);
            [UPGRADE, &bytes].concat()
        }
        Sent::Garbage(frames) => {
            let frames: Vec<u8> = frames.iter().flat_map(|(head, payload)| frame(*head, payload)).collect();
            [UPGRADE, &frames].concat()
        }
    }
}

#[test]
fn after_any_bytes_the_next_client_is_served() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let port = runtime.block_on(client_port());
    let law = |clients: Vec<Sent>| {
        runtime.block_on(async {
            for sent in &clients {
                port.send(&bytes_of(sent)).await;
            }
            port.still_serves().await;
        });
        Ok(())
    };
    TestRunner::new(inputs(1)).run(&vec(sent(), 1..4), law).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn valid_frames_are_all_answered() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let port = client_port().await;
        let calls: Vec<u8> = (0..functions().len())
            .flat_map(|function| frame(0x81, good_frame(8, function).to_string().as_bytes()))
            .collect();
        let mut socket = TcpStream::connect(&port.address).await.expect("it listens");
        socket.write_all(&[UPGRADE, &calls].concat()).await.expect("it reads");
        let mut heard = Vec::new();
        let answers = |heard: &[u8]| String::from_utf8_lossy(heard).matches("\"invocationresult\"").count();
        while answers(&heard) < functions().len() {
            let read = tokio::time::timeout(HANGS, socket.read_buf(&mut heard)).await.expect("an answer is missing");
            assert!(read.expect("it answers") > 0, "only {} calls were answered", answers(&heard));
        }
        drop(socket);
        port.still_serves().await;
    });
}
