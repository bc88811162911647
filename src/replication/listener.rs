//! Owns: the port where peers and operators reach this node, from binding to the last call.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::error;

use super::admin_service::AdminService;
use super::channels::MESSAGE_BYTES_MAX;
use super::peer_service::PeerService;
use super::replica::StartError;
use crate::proto::admin::admin_server::AdminServer;
use crate::proto::peer::peer_server::PeerServer;
use crate::sockets::{Listening, Sockets, Stream};

/// Calls under way at the end are given this long; connections stay open by themselves.
const DRAIN: Duration = Duration::from_millis(500);
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A port that is taken, and serves nothing yet.
pub struct Bound {
    pub address: SocketAddr,
    socket: Box<dyn Listening>,
}

/// Takes the port.
pub async fn bind(sockets: &dyn Sockets, address: SocketAddr) -> Result<Bound, StartError> {
    // Whoever reaches this port is a member or an operator, so nothing beyond this machine may.
    if !address.ip().is_loopback() {
        let why = "it can be reached from other machines, and this build has no authentication between nodes: use \
                   127.0.0.1"
            .to_owned();
        return Err(StartError::PeerListen { address, why });
    }
    let taken = |error: io::Error| StartError::PeerListen { address, why: error.to_string() };
    let socket = sockets.listen(&address.to_string()).await.map_err(taken)?;
    Ok(Bound { address: socket.address().map_err(taken)?, socket })
}

/// A port that serves.
pub struct Listener {
    serving: std::sync::Mutex<Option<JoinHandle<()>>>,
    close: CancellationToken,
}

impl Listener {
    pub fn serve(bound: Bound, peers: PeerService, admin: AdminService) -> Listener {
        let close = peers.closing.clone();
        let peers = PeerServer::new(peers)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .add_service(peers)
            .add_service(AdminServer::new(admin));
        let incoming = stream::unfold(bound.socket, |socket| async move {
            let accepted = socket.accept().await.map(|(stream, _)| PeerStream(stream));
            Some((accepted, socket))
        });
        let closed = close.clone();
        let serving = tokio::spawn(async move {
            let served = server.serve_with_incoming_shutdown(incoming, closed.cancelled_owned());
            if let Err(why) = served.await {
                error!(%why, "the peer port broke off");
            }
        });
        Listener { serving: std::sync::Mutex::new(Some(serving)), close }
    }

    /// Takes no new calls, lets those under way end, and breaks off what takes too long.
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

/// A connection as tonic wants it. Who is at the other end is said in every call, not by the address.
struct PeerStream(Stream);

impl Connected for PeerStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
