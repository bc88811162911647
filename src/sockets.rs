//! Owns: the sockets a node listens on and dials, behind a trait, so that the simulation can bring its own network.
//! Never: what is said over them.

use std::io;
use std::net::SocketAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// One connection, either way.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Socket for S {}

pub type Stream = Box<dyn Socket>;

/// A network.
pub trait Sockets: Send + Sync + 'static {
    /// Takes a port: `host:port`, port 0 for a free one.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listening>>>;

    /// Connects to `host:port`.
    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Stream>>;
}

/// A port that is taken.
pub trait Listening: Send + Sync + 'static {
    /// Where others reach it.
    fn address(&self) -> io::Result<SocketAddr>;

    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>>;
}

/// The machine's own network. Messages are small and waited for, so none is delayed to be joined with the next.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealSockets;

impl Sockets for RealSockets {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listening>>> {
        async move {
            let listener: Box<dyn Listening> = Box::new(TcpListener::bind(address).await?);
            Ok(listener)
        }
        .boxed()
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Stream>> {
        async move { Ok(undelayed(TcpStream::connect(address).await?)) }.boxed()
    }
}

impl Listening for TcpListener {
    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            Ok((undelayed(stream), peer))
        }
        .boxed()
    }
}

fn undelayed(stream: TcpStream) -> Stream {
    // Where this cannot be set, all still works.
    let _ = stream.set_nodelay(true);
    Box::new(stream)
}
