//! Owns: the port on which peers and operators call this node, from binding to the last call.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::{Connected, Router};
use tracing::{error, warn};

use super::admin_service::AdminService;
use super::channels::MESSAGE_BYTES_MAX;
use super::formation::service::{Member, Waiting};
use super::peer_service::PeerService;
use super::refusals::Refusals;
use super::replica::StartError;
use super::sender::Sender;
use crate::access::tls::PeerTls;
use crate::proto::admin::admin_server::AdminServer;
use crate::proto::formation::formation_server::FormationServer;
use crate::proto::peer::peer_server::PeerServer;
use crate::sockets::{Listening, Sockets, Stream};

/// The time for calls in progress to end at shutdown. Without it, open connections would never end.
const DRAIN: Duration = Duration::from_millis(500);
/// Connections at the same time. Members have a few each, and operators come and go.
const CONNECTIONS_MAX: usize = 256;
/// How long a new connection may say nothing.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// Pings find a peer that vanished without closing, and one that only holds its place.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// TLS handshakes at the same time. Further connections wait in the backlog of the socket.
const HANDSHAKES_MAX: usize = 64;
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept: the process is out of descriptors, so an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A port that is bound and does not serve yet.
pub struct Bound {
    pub address: SocketAddr,
    socket: Box<dyn Listening>,
    access: PeerAccess,
}

/// Who may use the port.
#[derive(Clone)]
pub enum PeerAccess {
    /// Every process on this machine.
    ThisMachine,
    /// Certificates of the cluster's authority.
    Certificates(Arc<PeerTls>),
    /// Everybody, because the operator wants it so.
    Everybody,
}

/// Binds the port.
pub async fn bind(sockets: &dyn Sockets, address: SocketAddr, access: PeerAccess) -> Result<Bound, StartError> {
    if !address.ip().is_loopback() && matches!(access, PeerAccess::ThisMachine) {
        let why =
            "it can be reached from other machines: set peer_ca, peer_cert and peer_key, or use 127.0.0.1".to_owned();
        return Err(StartError::PeerListen { address, why });
    }
    let failed = |error: io::Error| StartError::PeerListen { address, why: error.to_string() };
    let socket = sockets.listen(&address.to_string()).await.map_err(failed)?;
    Ok(Bound { address: socket.address().map_err(failed)?, socket, access })
}

/// A port that serves.
pub struct Listener {
    serving: std::sync::Mutex<Option<JoinHandle<()>>>,
    close: CancellationToken,
}

impl Listener {
    pub fn serve(bound: Bound, peers: PeerService, admin: AdminService, formation: Member) -> Listener {
        let close = peers.closing.clone();
        let peers = PeerServer::new(peers)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let services = server().add_service(peers).add_service(AdminServer::new(admin));
        Listener::run(bound, services.add_service(FormationServer::new(formation)), close)
    }

    /// Serves the port of a node that looks for a cluster.
    pub fn serve_waiting(bound: Bound, waiting: Waiting) -> Listener {
        Listener::run(bound, server().add_service(FormationServer::new(waiting)), CancellationToken::new())
    }

    fn run(bound: Bound, services: Router, close: CancellationToken) -> Listener {
        let door = Door { socket: bound.socket, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
        let incoming = match bound.access {
            PeerAccess::ThisMachine | PeerAccess::Everybody => stream::unfold(door, |door| async move {
                let (stream, _, place) = door.accept().await;
                Some((Ok(PeerStream::new(stream, place, Sender::default())), door))
            })
            .boxed(),
            PeerAccess::Certificates(tls) => handshakes(door, tls, close.clone()).boxed(),
        };
        let closed = close.clone();
        let serving = tokio::spawn(async move {
            let served = services.serve_with_incoming_shutdown(incoming, closed.cancelled_owned());
            if let Err(why) = served.await {
                error!(%why, "the peer port has failed");
            }
        });
        Listener { serving: std::sync::Mutex::new(Some(serving)), close }
    }

    /// Takes no new calls, waits for those in progress, and aborts those that take too long.
    pub async fn close(&self) {
        self.close.cancel();
        let serving = self.serving.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(mut serving) = serving else { return };
        if timeout(DRAIN, &mut serving).await.is_err() {
            serving.abort();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let serving = self.serving.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(serving) = serving.take() {
            serving.abort();
        }
    }
}

fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
}

/// Accepts connections up to a number.
struct Door {
    socket: Box<dyn Listening>,
    places: Arc<Semaphore>,
}

impl Door {
    async fn accept(&self) -> (Stream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            match self.socket.accept().await {
                Ok((stream, from)) => match self.places.clone().try_acquire_owned() {
                    Ok(place) => return (stream, from, place),
                    // Dropped, which closes it.
                    Err(_) => warn!(%from, "a connection to the peer port was refused: {CONNECTIONS_MAX} are open"),
                },
                Err(error) => {
                    warn!(%error, "a connection to the peer port could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Accepts connections and makes their TLS handshakes beside each other: a slow one delays no other.
fn handshakes(
    door: Door,
    tls: Arc<PeerTls>,
    close: CancellationToken,
) -> impl futures::Stream<Item = io::Result<PeerStream>> + Send {
    let (ready, accepted) = mpsc::channel(HANDSHAKES_MAX);
    tokio::spawn(async move {
        let follow = tls.follow_files();
        let accept = accept_secured(&door, &tls, &ready);
        tokio::select! {
            () = close.cancelled() => {}
            () = follow => {}
            () = accept => {}
        }
    });
    stream::unfold(accepted, |mut accepted| async move { accepted.recv().await.map(|next| (next, accepted)) })
}

async fn accept_secured(door: &Door, tls: &Arc<PeerTls>, ready: &mpsc::Sender<io::Result<PeerStream>>) {
    let (handshakes, refusals) = (Arc::new(Semaphore::new(HANDSHAKES_MAX)), Arc::new(Refusals::default()));
    loop {
        let Ok(handshake) = handshakes.clone().acquire_owned().await else { return };
        let (stream, address, place) = door.accept().await;
        let (tls, ready, refusals) = (tls.clone(), ready.clone(), refusals.clone());
        tokio::spawn(async move {
            match timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
                Ok(Ok((stream, certificate))) => {
                    let subject = certificate.and_then(|certificate| certificate.subject);
                    let sender = Sender::secured(tls.cluster.as_str().into(), subject);
                    // The port is closing if nobody receives it.
                    let _ = ready.send(Ok(PeerStream::new(Box::new(stream), place, sender))).await;
                }
                Ok(Err(error)) => refusals.note(address, &error),
                Err(_) => warn!(%address, "a TLS handshake at the peer port took too long"),
            }
            drop(handshake);
        });
    }
}

/// A connection as tonic requires it, with the certificate at its other end.
struct PeerStream {
    stream: Stream,
    /// Runs until the first bytes arrive. A connection that says nothing would keep its place for ever.
    silent: Option<Pin<Box<Sleep>>>,
    sender: Sender,
    _place: OwnedSemaphorePermit,
}

impl PeerStream {
    fn new(stream: Stream, place: OwnedSemaphorePermit, sender: Sender) -> PeerStream {
        PeerStream { stream, silent: Some(Box::pin(sleep(SILENT_MAX))), sender, _place: place }
    }
}

impl Connected for PeerStream {
    type ConnectInfo = Sender;

    fn connect_info(&self) -> Sender {
        self.sender.clone()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.silent = None;
        }
        if read.is_pending()
            && let Some(silent) = &mut self.silent
            && silent.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer says nothing")));
        }
        read
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
