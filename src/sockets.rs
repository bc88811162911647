//! Owns: the sockets a node listens on and connects to, behind a trait, so that the simulation can replace the network.
//! Never: what is sent over them.

use std::io;
use std::net::SocketAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// One connection, accepted or opened.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Socket for S {}

pub type Stream = Box<dyn Socket>;

/// A network.
pub trait Sockets: Send + Sync + 'static {
    /// Listens on `host:port`. Port 0 picks a free one.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listening>>>;

    /// Connects to `host:port`.
    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Stream>>;
}

/// An open listener.
pub trait Listening: Send + Sync + 'static {
    /// The address that others connect to.
    fn address(&self) -> io::Result<SocketAddr>;

    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>>;
}

/// The network of the operating system. Nagle's algorithm is off, because messages are small and peers wait for them.
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
        async move { Ok(without_delay(TcpStream::connect(address).await?)) }.boxed()
    }
}

impl Listening for TcpListener {
    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            Ok((without_delay(stream), peer))
        }
        .boxed()
    }
}

fn without_delay(stream: TcpStream) -> Stream {
    // Without it everything still works, only slower.
    let _ = stream.set_nodelay(true);
    Box::new(stream)
}
