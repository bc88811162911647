//! Owns: the sockets of a simulated host, behind the product's own interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use futures::FutureExt;
use futures::future::BoxFuture;
use session_manager::sockets::{Listening, Sockets, Stream};
use turmoil::net::{TcpListener, TcpStream};

/// The network of one host.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedSockets {
    /// The address of this host. It replaces the loopback address of the configuration.
    pub host: IpAddr,
}

struct Port {
    listener: TcpListener,
    address: SocketAddr,
}

impl Sockets for SimulatedSockets {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listening>>> {
        async move {
            let wanted: SocketAddr = address.parse().map_err(io::Error::other)?;
            let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), wanted.port())).await?;
            let address = SocketAddr::new(self.host, listener.local_addr()?.port());
            let port: Box<dyn Listening> = Box::new(Port { listener, address });
            Ok(port)
        }
        .boxed()
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Stream>> {
        async move {
            let stream: Stream = Box::new(TcpStream::connect(address).await?);
            Ok(stream)
        }
        .boxed()
    }
}

impl Listening for Port {
    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        async move {
            let (stream, peer) = self.listener.accept().await?;
            let stream: Stream = Box::new(stream);
            Ok((stream, peer))
        }
        .boxed()
    }
}
