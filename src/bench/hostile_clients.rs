//! Owns: the hostile clients of `bench hostile`: what each kind sends, holds and leaves unread. They cost little CPU here:
//! each waits a second after it was refused, and what they send was made before.
//! Never: what honest clients see.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::error::BenchError;
use super::target::{Stream, Target};
use super::usage::cpu_of_this_thread;

/// A client that was refused or closed comes again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The clients of one kind begin within this time, not in one moment.
const BEGIN_WITHIN: Duration = Duration::from_secs(1);
/// A client that asked for a page leaves it unread for so long, and then comes again.
const PAGE_UNREAD: Duration = Duration::from_secs(10);
/// The same for a stream. The node closes it before.
const STREAM_UNREAD: Duration = Duration::from_secs(60);
/// A client with bindings leaves after this time.
const BOUND_FOR: Duration = Duration::from_secs(10);
/// A connection attempt that the node does not accept.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The node gives up a call that a worker does not answer after ten minutes.
const HOLD_MAX: Duration = Duration::from_secs(600);

const LARGE_BODY_BYTES: usize = 8 << 20;
const ANNOUNCED_BYTES: usize = 32 << 20;
/// More than may arrive without a reservation, so these clients hold one.
const BEGUN_BYTES: usize = 300 << 10;
const METADATA_BYTES: usize = 2 << 20;
const BINDINGS: usize = 2000;
const STUCK_BODY_BYTES: usize = 64 << 10;
const STUCK: &str = "stuck::work";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// JSON bodies of 8 MiB that are refused: `create` and `append` with nested empty objects
    Bodies,
    /// Bodies of 32 MiB that are announced; one byte or 300 KiB of them arrive
    Announced,
    /// Pages of 8 MiB that are asked for and never read
    Pages,
    /// Event streams that are never read
    Streams,
    /// Connections to the client port that say nothing
    Idle,
    /// Connections to the peer port that say nothing
    Peers,
    /// Bus clients that register functions with 2 MiB of metadata, one every second
    Registrations,
    /// Bus clients with 2,000 bindings that leave after ten seconds
    Bindings,
    /// Calls with 64 KiB to a worker function that never answers
    Calls,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Bodies,
        Kind::Announced,
        Kind::Pages,
        Kind::Streams,
        Kind::Idle,
        Kind::Peers,
        Kind::Registrations,
        Kind::Bindings,
        Kind::Calls,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Bodies => "refused bodies",
            Kind::Announced => "announced bodies",
            Kind::Pages => "unread pages",
            Kind::Streams => "unread streams",
            Kind::Idle => "idle connections",
            Kind::Peers => "idle peer connections",
            Kind::Registrations => "large registrations",
            Kind::Bindings => "bindings that leave",
            Kind::Calls => "unanswered calls",
        }
    }
}

/// Hostile clients that run. Dropping them ends them all at once.
pub struct Crowd {
    over: CancellationToken,
    thread: Option<JoinHandle<Result<(), BenchError>>>,
    cpu: mpsc::Receiver<Duration>,
    attack: Arc<Attack>,
}

/// What a crowd did.
pub struct Outcome {
    /// Connections that it opened.
    pub opened: u64,
    /// CPU time that it took here.
    pub cpu: Duration,
}

impl Crowd {
    /// So many clients of each kind, spread over the nodes, with a thread of their own.
    pub fn start(kinds: &[Kind], count: usize, nodes: &Prey) -> Result<Crowd, BenchError> {
        let attack = Arc::new(Attack::new(nodes));
        let over = CancellationToken::new();
        let (cpu_is, cpu) = mpsc::channel();
        let (until, attacking, kinds) = (over.clone(), attack.clone(), kinds.to_vec());
        let thread = std::thread::Builder::new().name("hostile".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(BenchError::Runtime)?;
            runtime.block_on(async {
                let mut clients = JoinSet::new();
                for kind in kinds {
                    for nth in 0..count {
                        let begin = BEGIN_WITHIN * nth as u32 / count as u32;
                        clients.spawn(attacking.clone().attack(kind, nth, begin));
                    }
                }
                until.cancelled().await;
            });
            drop(runtime);
            // Nobody asks for it if the measurement failed.
            let _ = cpu_is.send(cpu_of_this_thread().unwrap_or_default());
            Ok(())
        });
        Ok(Crowd { over, thread: Some(thread.map_err(BenchError::Runtime)?), cpu, attack })
    }

    pub async fn end(mut self) -> Result<Outcome, BenchError> {
        self.over.cancel();
        let thread = self.thread.take();
        let ended = tokio::task::spawn_blocking(move || thread.map(JoinHandle::join)).await?;
        if let Some(Ok(ended)) = ended {
            ended?;
        }
        let opened = self.attack.opened.load(Ordering::Relaxed);
        Ok(Outcome { opened, cpu: self.cpu.try_recv().unwrap_or_default() })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

/// The nodes under attack.
pub struct Prey {
    pub targets: Vec<Target>,
    pub peers: Vec<SocketAddr>,
    /// A session whose page is large.
    pub large_session: String,
}

/// What all hostile clients send.
struct Attack {
    targets: Vec<Target>,
    peers: Vec<SocketAddr>,
    refused: [Bytes; 2],
    begun: [Bytes; 2],
    page: Bytes,
    registration: Bytes,
    bindings: Bytes,
    stuck: Bytes,
    opened: AtomicU64,
}

/// The client leaves, or the node closed its connection.
struct Gone;

type Visit = Result<(), Gone>;

impl From<std::io::Error> for Gone {
    fn from(_: std::io::Error) -> Gone {
        Gone
    }
}

/// An array of small objects of this length. As a tree it would take about a hundred times as much memory.
fn small_objects(bytes: usize) -> String {
    const OBJECT: &str = r#"{"":{}},"#;
    format!("[{}0]", OBJECT.repeat(bytes / OBJECT.len()))
}

fn post(function: &str, length: usize, body: &str) -> Bytes {
    let head = format!(
        "POST /v1/call/{function} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    Bytes::from(head + body)
}

/// A text frame of a client. The mask is zero, so that it need not be made anew for each connection.
fn frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match text.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        middle @ 126..0x1_0000 => {
            frame.push(0x80 | 126);
            frame.extend((middle as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

impl Attack {
    fn new(prey: &Prey) -> Attack {
        let objects = small_objects(LARGE_BODY_BYTES);
        let create = format!(r#"{{"metadata":{{"k":{objects}}}}}"#);
        let append = format!(r#"{{"session_id":"none","message":{{"role":"robot","details":{objects}}}}}"#);
        let page = format!(r#"{{"session_id":"{}"}}"#, prey.large_session);
        let metadata = small_objects(METADATA_BYTES);
        // The id is new in each frame, so the frame ends with it.
        let registration = format!(r#"{{"type":"registerfunction","metadata":{metadata},"id":"#);
        let binding = |nth: usize| {
            let config = format!(r#"{{"session_id":"nobody-{nth}"}}"#);
            let what = r#""trigger_type":"session::message-added","function_id":"f""#;
            frame(&format!(r#"{{"type":"registertrigger","id":"b{nth}",{what},"config":{config}}}"#))
        };
        Attack {
            targets: prey.targets.clone(),
            peers: prey.peers.clone(),
            refused: [post("session::create", create.len(), &create), post("session::append", append.len(), &append)],
            begun: [1, BEGUN_BYTES].map(|begun| post("session::append", ANNOUNCED_BYTES, &" ".repeat(begun))),
            page: post("session::messages", page.len(), &page),
            registration: Bytes::from(registration),
            bindings: Bytes::from((0..BINDINGS).flat_map(binding).collect::<Vec<u8>>()),
            stuck: post(STUCK, STUCK_BODY_BYTES, &format!("\"{}\"", "x".repeat(STUCK_BODY_BYTES - 2))),
            opened: AtomicU64::new(0),
        }
    }

    /// One client. It comes again whenever it is refused or closed.
    async fn attack(self: Arc<Attack>, kind: Kind, nth: usize, begin: Duration) {
        sleep(begin).await;
        loop {
            // Why a visit ended makes no difference.
            let _ = self.visit(kind, nth).await;
            sleep(AGAIN_AFTER).await;
        }
    }

    async fn visit(&self, kind: Kind, nth: usize) -> Visit {
        // Clients of one node alternate between two forms.
        let node = nth % self.targets.len();
        let form = nth / self.targets.len() % 2;
        if kind == Kind::Peers {
            let Some(peer) = self.peers.get(node) else { return Err(Gone) };
            let mut stream = timeout(CONNECT_MAX, TcpStream::connect(peer)).await.map_err(|_| Gone)??;
            self.opened.fetch_add(1, Ordering::Relaxed);
            return read_until_closed(&mut stream).await;
        }
        let mut stream =
            timeout(CONNECT_MAX, self.targets[node].connect()).await.map_err(|_| Gone)?.map_err(|_| Gone)?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        match kind {
            Kind::Bodies => send_and_read_some(stream, &self.refused[form]).await,
            Kind::Announced => {
                stream.write_all(&self.begun[form]).await?;
                read_until_closed(&mut stream).await
            }
            Kind::Pages => {
                stream.write_all(&self.page).await?;
                sleep(PAGE_UNREAD).await;
                Ok(())
            }
            Kind::Streams => {
                stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await?;
                sleep(STREAM_UNREAD).await;
                Ok(())
            }
            Kind::Idle | Kind::Peers => read_until_closed(&mut stream).await,
            Kind::Registrations => {
                upgrade(&mut stream).await?;
                self.register_for_ever(stream, nth).await
            }
            Kind::Bindings => {
                upgrade(&mut stream).await?;
                let (mut reader, mut writer) = tokio::io::split(stream);
                let write = async {
                    writer.write_all(&self.bindings).await?;
                    std::future::pending::<Visit>().await
                };
                let bound = timeout(BOUND_FOR, async {
                    tokio::select! {
                        written = write => written,
                        read = read_until_closed(&mut reader) => read,
                    }
                });
                bound.await.unwrap_or(Ok(()))
            }
            Kind::Calls if nth < self.targets.len() => {
                upgrade(&mut stream).await?;
                stream.write_all(&frame(&format!(r#"{{"type":"registerfunction","id":"{STUCK}"}}"#))).await?;
                read_until_closed(&mut stream).await
            }
            Kind::Calls => {
                stream.write_all(&self.stuck).await?;
                let mut answer = [0; 1024];
                timeout(HOLD_MAX, stream.read(&mut answer)).await.map_err(|_| Gone)??;
                Ok(())
            }
        }
    }

    /// Registers one large function after the other, until the node closes the connection.
    async fn register_for_ever(&self, stream: Stream, nth: usize) -> Visit {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let register = async {
            for function in 0.. {
                let id = format!(r#""hostile::{nth}::{function}"}}"#);
                let length = self.registration.len() + id.len();
                let mut head = vec![0x81, 0x80 | 127];
                head.extend((length as u64).to_be_bytes());
                head.extend([0; 4]);
                writer.write_all(&head).await?;
                writer.write_all(&self.registration).await?;
                writer.write_all(id.as_bytes()).await?;
                sleep(AGAIN_AFTER).await;
            }
            Ok(())
        };
        tokio::select! {
            registered = register => registered,
            read = read_until_closed(&mut reader) => read,
        }
    }
}

/// Sends a request. Its answer may come before the end, and ends the visit.
async fn send_and_read_some(stream: Stream, request: &[u8]) -> Visit {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut answer = [0; 1024];
    let send = async {
        writer.write_all(request).await?;
        std::future::pending::<Visit>().await
    };
    tokio::select! {
        sent = send => sent,
        read = reader.read(&mut answer) => Ok(read.map(drop)?),
    }
}

async fn read_until_closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Visit {
    let mut part = vec![0; 4096];
    while stream.read(&mut part).await? > 0 {}
    Ok(())
}

/// Opens the bus on a connection.
async fn upgrade(stream: &mut Stream) -> Visit {
    stream
        .write_all(
            b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
              sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        )
        .await?;
    // The rest of the answer and the greeting are read with what follows.
    let mut first = [0; 12];
    timeout(CONNECT_MAX, stream.read_exact(&mut first)).await.map_err(|_| Gone)??;
    if &first == b"HTTP/1.1 101" { Ok(()) } else { Err(Gone) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_three_forms_of_a_length() {
        assert_eq!(frame("ab"), [0x81, 0x82, 0, 0, 0, 0, b'a', b'b']);
        assert_eq!(frame(&"x".repeat(300))[..8], [0x81, 0x80 | 126, 1, 44, 0, 0, 0, 0]);
        assert_eq!(frame(&"x".repeat(0x1_0000))[..10], [0x81, 0x80 | 127, 0, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_body_of_small_objects_is_json() {
        assert!(serde_json::from_str::<serde::de::IgnoredAny>(&small_objects(1000)).is_ok());
    }
}
