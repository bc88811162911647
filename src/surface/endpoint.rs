//! Owns: the one client port: accepting within a limit, refusing past it, and draining at shutdown.
//! Never: what a request asks for (http), what a frame means (bus).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
use super::http::{self, Door, Health, HealthCheck, Place};
use super::preface;
use crate::sockets::{Listening, RealSockets, Sockets, Stream};

/// Connections past the limit that are closed with care at the same time; further ones are told and dropped.
const REFUSALS_MAX: usize = 64;
/// How long a refused client may take to read why.
const REFUSAL_MAX: Duration = Duration::from_millis(200);
/// A pause after a failed accept: the process is out of descriptors, and asking again at once would not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// What may wait to be written for one gRPC stream beside the events that wait for it: many may be stuck at once.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// A watcher that is gone without a word is found out by this.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct EndpointSettings {
    /// `host:port`; port 0 picks a free one.
    pub listen: String,
    pub sockets: Arc<dyn Sockets>,
    /// Fits, with the node's own files, into the 1024 descriptors a process has by default.
    pub connections_max: usize,
    /// How long a request's head may take, and how long a kept-alive connection may be silent.
    pub head_read_max: Duration,
    pub body_bytes_max: usize,
    pub health: HealthCheck,
    /// Where the numbers above are kept, so that they can change while the port is served.
    pub live: Arc<LiveLimits>,
}

/// The limits of a port that is served.
#[derive(Default)]
pub struct LiveLimits {
    connections_max: AtomicUsize,
    body_bytes_max: AtomicUsize,
    places: Places,
}

/// A place per connection. More or fewer, as the limit changes.
struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Places {
        Places(Arc::new(Semaphore::new(0)))
    }
}

impl LiveLimits {
    /// Other limits from now on. Connections beyond a lower one stay until they end.
    pub fn change(&self, connections_max: usize, body_bytes_max: usize) {
        self.body_bytes_max.store(body_bytes_max, Ordering::Relaxed);
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
            health: Arc::new(|| Health { role: "single", trouble: None }),
            live: Arc::default(),
        }
    }
}

/// Opens the port and serves it until `shutdown`. The handle ends when every connection has been drained or cut.
pub async fn serve(
    settings: EndpointSettings,
    bus: Arc<Bus>,
    shutdown: CancellationToken,
) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = settings.sockets.listen(&settings.listen).await?;
    let address = listener.address()?;
    settings.live.change(settings.connections_max, settings.body_bytes_max);
    let door = Door {
        bus,
        health: settings.health.clone(),
        limits: settings.live.clone(),
        shutdown,
        sockets: TaskTracker::new(),
    };
    Ok((address, tokio::spawn(accept_all(listener, settings, door))))
}

async fn accept_all(listener: Box<dyn Listening>, settings: EndpointSettings, door: Door) {
    let places = settings.live.places.0.clone();
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let routes = http::routes(door.clone());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = door.shutdown.cancelled() => break,
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
                    Connection { peer, place: Arc::new(place), door: door.clone(), routes: routes.clone() };
                door.sockets.spawn(connection.serve(stream, settings.head_read_max));
            }
            Err(_) => {
                let words = refusal(settings.live.connections_max.load(Ordering::Relaxed));
                // Without waiting: it fits into the socket's buffer, and most clients will see it even so.
                let told = stream.write_all(words.as_bytes()).now_or_never();
                if told.is_some_and(|written| written.is_ok())
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
    drain(&door).await;
}

/// Lets calls in flight finish within their bound, then ends what is left.
async fn drain(door: &Door) {
    door.bus.drain();
    door.sockets.close();
    let goodbyes = Duration::from_secs(3);
    if timeout(door.bus.settings().drain_max + goodbyes, door.sockets.wait()).await.is_err() {
        tracing::warn!(connections = door.sockets.len(), "some connections did not end in time");
    }
}

/// One accepted connection, until it ends or becomes a socket of the bus.
struct Connection {
    peer: SocketAddr,
    place: Place,
    door: Door,
    routes: Router,
}

impl Connection {
    async fn serve(self, stream: Stream, head_read_max: Duration) {
        let (peer, shutdown) = (self.peer, self.door.shutdown.clone());
        let drain_max = self.door.bus.settings().drain_max;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let request: Request = request.map(axum::body::Body::new);
            let answered = http::answer(self.door.clone(), self.routes.clone(), request, peer, self.place.clone());
            async move { Ok::<_, Infallible>(answered.await) }
        });
        // A client that says nothing is given up like one that never ends its first request.
        let Ok(Ok((http2, stream))) = timeout(head_read_max, preface::begin(stream)).await else { return };
        let stream = TokioIo::new(stream);
        let ended = if http2 {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(KEEP_ALIVE)
                .max_send_buf_size(SEND_BUFFER_BYTES)
                .serve_connection(stream, service);
            tokio::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    let Ok(ended) = timeout(drain_max, connection.as_mut()).await else { return };
                    ended
                }
            }
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_read_max)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(stream, service)
                .with_upgrades();
            tokio::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    let Ok(ended) = timeout(drain_max, connection.as_mut()).await else { return };
                    ended
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a connection ended badly");
        }
    }
}

/// Says in HTTP why there is no place, whatever the client wanted to speak.
fn refusal(connections_max: usize) -> String {
    let body = format!(
        r#"{{"error":{{"code":"too_many_connections","message":"this node serves {connections_max} connections at a time; try again later"}}}}"#
    );
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         retry-after: 5\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Closes a connection whose client may still be sending: closing with unread bytes would reset it, and the answer
/// could be lost.
async fn hang_up(mut stream: Stream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = [0u8; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
