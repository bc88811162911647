//! Owns: the client port: accepting connections within a limit, refusing past it, and draining at shutdown.
//! Never: what a request asks for (`http`), what a frame means (`bus`).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use futures::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bus::Bus;
use super::cluster::{NoCluster, Operator};
use super::errors::Kind;
use super::gateway::Gateway;
use super::history;
use super::http::{self, Certified, Health, HealthCheck, ListNodes, Place, Port};
use super::impatient::Impatient;
use super::lateness;
use super::origin::Allowed;
use super::preface;
use super::probes::Readiness;
use super::scrapes::Scrapes;
use crate::access::tls::ServerTls;
use crate::access::{Credentials, Identity};
use crate::metrics::{Counter, Durations, Page, catalogue};
use crate::sockets::{Listening, RealSockets, Sockets, Stream};

/// Refused connections that are closed gracefully at the same time. Further ones get the answer and are dropped.
const REFUSALS_MAX: usize = 64;
/// How long a refused client may take to read the answer.
const REFUSAL_MAX: Duration = Duration::from_millis(200);
/// Pause after a failed accept: the process is out of descriptors, so an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Write buffer of one gRPC stream, in addition to its queued events. Small, because many streams may stall at once.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// HTTP/2 pings find a client that vanished without closing.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct EndpointSettings {
    /// `host:port`. Port 0 picks a free one.
    pub listen: String,
    pub sockets: Arc<dyn Sockets>,
    /// The default leaves room for the node's files within the usual limit of 1024 descriptors.
    pub connections_max: usize,
    /// How long the head of a request may take, and how long a kept-alive connection may be idle.
    pub head_read_max: Duration,
    pub body_bytes_max: usize,
    /// Host names and web pages besides those of this machine.
    pub allowed: Allowed,
    /// A connection that takes no byte for this long, although there is something to send, is closed. More than the
    /// limit of WebSockets, which close with a reason.
    pub write_stall_max: Duration,
    pub health: HealthCheck,
    pub ready: Arc<Readiness>,
    pub scrapes: Arc<Scrapes>,
    pub nodes: ListNodes,
    /// The cluster, for operators.
    pub operator: Arc<dyn Operator>,
    /// Whether the node keeps its figures of the last hour.
    pub keeps_history: bool,
    /// With it, the port speaks TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Who is let in.
    pub credentials: Arc<Credentials>,
    /// The limits that can change while the port is open.
    pub live: Arc<LiveLimits>,
}

/// The limits of an open port.
#[derive(Default)]
pub struct LiveLimits {
    connections_max: AtomicUsize,
    body_bytes_max: AtomicUsize,
    allowed: RwLock<Arc<Allowed>>,
    places: Places,
    refused: Counter,
    lateness: Durations,
}

/// One permit per connection.
struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Places {
        Places(Arc::new(Semaphore::new(0)))
    }
}

impl LiveLimits {
    /// Other limits from now on. Existing connections above a lower limit stay until they end.
    pub fn change(&self, connections_max: usize, body_bytes_max: usize, allowed: Allowed) {
        self.body_bytes_max.store(body_bytes_max, Ordering::Relaxed);
        *self.allowed.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(allowed);
        let before = self.connections_max.swap(connections_max, Ordering::Relaxed);
        if connections_max >= before {
            self.places.0.add_permits(connections_max - before);
            return;
        }
        let fewer = before - connections_max;
        let taken = fewer - self.places.0.forget_permits(fewer);
        let (places, taken) = (self.places.0.clone(), u32::try_from(taken).unwrap_or(u32::MAX));
        if taken > 0 {
            tokio::spawn(async move {
                if let Ok(permits) = places.acquire_many(taken).await {
                    permits.forget();
                }
            });
        }
    }

    pub fn allowed(&self) -> Arc<Allowed> {
        self.allowed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds the figures of the port to a page.
    pub fn measure(&self, page: &mut Page) {
        let max = self.connections_max.load(Ordering::Relaxed);
        page.whole(catalogue::CONNECTIONS, max.saturating_sub(self.places.0.available_permits()) as u64);
        page.whole(catalogue::CONNECTIONS_LIMIT, max as u64);
        page.whole(catalogue::CONNECTIONS_REFUSED, self.refused.value());
        page.durations(catalogue::TASK_LATENESS, &[], &self.lateness);
    }

    /// How late the tasks of the port run.
    pub fn lateness(&self) -> &Durations {
        &self.lateness
    }

    pub fn body_bytes_max(&self) -> usize {
        self.body_bytes_max.load(Ordering::Relaxed)
    }
}

impl EndpointSettings {
    pub fn new(listen: impl Into<String>) -> EndpointSettings {
        EndpointSettings {
            listen: listen.into(),
            sockets: Arc::new(RealSockets),
            connections_max: 800,
            head_read_max: Duration::from_secs(10),
            body_bytes_max: 64 << 20,
            allowed: Allowed::default(),
            write_stall_max: Duration::from_secs(40),
            health: Arc::new(|| Health { role: "single", trouble: None }),
            ready: Readiness::new(Arc::new(|| std::future::ready(Vec::new()).boxed())),
            scrapes: Scrapes::new(Arc::new(|_| {})),
            nodes: Arc::new(Vec::new),
            operator: Arc::new(NoCluster),
            keeps_history: false,
            tls: None,
            credentials: Credentials::open(),
            live: Arc::default(),
        }
    }
}

/// Opens the port and serves it until `shutdown`. The task ends when every connection is drained or closed.
pub async fn serve(
    settings: EndpointSettings,
    bus: Arc<Bus>,
    shutdown: CancellationToken,
) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = settings.sockets.listen(&settings.listen).await?;
    let address = listener.address()?;
    settings.live.change(settings.connections_max, settings.body_bytes_max, settings.allowed.clone());
    let port = Port {
        gateway: Gateway::new(bus.clone(), shutdown.clone()),
        bus,
        health: settings.health.clone(),
        ready: settings.ready.clone(),
        scrapes: settings.scrapes.clone(),
        nodes: settings.nodes.clone(),
        operator: settings.operator.clone(),
        history: Arc::default(),
        credentials: settings.credentials.clone(),
        limits: settings.live.clone(),
        speaks_tls: settings.tls.is_some(),
        shutdown,
        connections: TaskTracker::new(),
    };
    tokio::spawn(lateness::measure(settings.live.clone(), port.bus.clone(), port.shutdown.clone()));
    if settings.keeps_history {
        tokio::spawn(history::keep(port.clone()));
    }
    Ok((address, tokio::spawn(accept_all(listener, settings, port))))
}

async fn accept_all(listener: Box<dyn Listening>, settings: EndpointSettings, port: Port) {
    let places = settings.live.places.0.clone();
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let routes = http::routes(port.clone());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = port.shutdown.cancelled() => break,
        };
        let (mut stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let connection =
                    Connection { peer, place: Arc::new(place), port: port.clone(), routes: routes.clone() };
                let settings = settings.clone();
                port.connections.spawn(async move { connection.open(stream, &settings).await });
            }
            Err(_) => {
                settings.live.refused.count();
                let answer = refusal(settings.live.connections_max.load(Ordering::Relaxed));
                // Not awaited: the answer fits into the socket's buffer.
                let written = stream.write_all(answer.as_bytes()).now_or_never();
                if written.is_some_and(|written| written.is_ok())
                    && let Ok(turn) = refusals.clone().try_acquire_owned()
                {
                    tokio::spawn(async move {
                        let _ = timeout(REFUSAL_MAX, hang_up(stream)).await;
                        drop(turn);
                    });
                }
            }
        }
    }
    drop(listener);
    drain(&port).await;
}

/// Waits for calls in flight and for close frames, within a bound. New calls are refused, because `shutdown` is
/// cancelled.
async fn drain(port: &Port) {
    port.connections.close();
    let close_frames = Duration::from_secs(3);
    if timeout(port.bus.settings().drain_max + close_frames, port.connections.wait()).await.is_err() {
        tracing::warn!(connections = port.connections.len(), "some connections did not end in time");
    }
}

/// Runs a connection of hyper. At shutdown it may finish its requests within `drain_max`. `None` when that was not enough.
///
/// A macro, because hyper has no trait for `graceful_shutdown`, and the compiler cannot prove that a generic async function
/// over these connections is `Send`.
macro_rules! until_shutdown {
    ($connection:expr, $shutdown:expr, $drain_max:expr) => {{
        let connection = $connection;
        tokio::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = $shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                timeout($drain_max, connection.as_mut()).await.ok()
            }
        }
    }};
}

/// One accepted connection, until it ends or is upgraded to a WebSocket.
struct Connection {
    peer: SocketAddr,
    place: Place,
    port: Port,
    routes: Router,
}

impl Connection {
    /// Makes the TLS handshake, if the port speaks TLS, and serves the connection.
    async fn open(self, stream: Stream, settings: &EndpointSettings) {
        let Some(tls) = &settings.tls else { return self.serve(stream, None, settings).await };
        match timeout(settings.head_read_max, tls.accept(stream)).await {
            Ok(Ok((stream, certificate))) => {
                let identity = certificate.and_then(|certificate| tls.client(&certificate));
                self.serve(Box::new(stream), identity, settings).await;
            }
            Ok(Err(error)) => tracing::debug!(peer = %self.peer, %error, "a TLS handshake failed"),
            Err(_) => tracing::debug!(peer = %self.peer, "a TLS handshake took too long"),
        }
    }

    /// `certified` is the client in the certificate that the connection presented.
    async fn serve(self, stream: Stream, certified: Option<Arc<Identity>>, settings: &EndpointSettings) {
        let (head_read_max, write_stall_max) = (settings.head_read_max, settings.write_stall_max);
        let (peer, shutdown) = (self.peer, self.port.shutdown.clone());
        let drain_max = self.port.bus.settings().drain_max;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request: Request = request.map(axum::body::Body::new);
            if let Some(identity) = &certified {
                request.extensions_mut().insert(Certified(identity.clone()));
            }
            let answered = http::answer(self.port.clone(), self.routes.clone(), request, peer, self.place.clone());
            async move { Ok::<_, Infallible>(answered.await) }
        });
        // A client that sends nothing is closed like one that never completes its first request.
        let Ok(Ok((http2, stream))) = timeout(head_read_max, preface::begin(stream)).await else { return };
        let stream = TokioIo::new(Impatient::new(stream, write_stall_max));
        let ended = if http2 {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(KEEP_ALIVE)
                .max_send_buf_size(SEND_BUFFER_BYTES)
                .serve_connection(stream, service);
            until_shutdown!(connection, shutdown, drain_max)
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_read_max)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(stream, service)
                .with_upgrades();
            until_shutdown!(connection, shutdown, drain_max)
        };
        if let Some(Err(error)) = ended {
            tracing::debug!(%peer, %error, "a connection ended with an error");
        }
    }
}

/// The HTTP answer to a connection past the limit, whatever protocol the client wanted to speak.
fn refusal(connections_max: usize) -> String {
    let row = Kind::TooManyConnections.row();
    let message = format!("this node serves {connections_max} connections at a time; try again later");
    let body = serde_json::json!({ "error": { "code": row.code, "message": message } }).to_string();
    let (status, length) = (row.http_status, body.len());
    format!(
        "HTTP/1.1 {status} Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         retry-after: 5\r\nconnection: close\r\n\r\n{body}"
    )
}

/// Closes a connection whose client may still be sending. Closing with unread bytes would reset the connection, and the
/// client could lose the answer.
async fn hang_up(mut stream: Stream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = [0u8; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
