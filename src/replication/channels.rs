//! Owns: the connections to peers: one per address and purpose, opened on first use, dropped when a call times out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::runtime::Handle;
use tonic::ConnectError;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::access::tls::PeerTls;
use crate::proto::admin::admin_client::AdminClient;
use crate::proto::formation::formation_client::FormationClient;
use crate::proto::peer::peer_client::PeerClient;
use crate::sockets::{Sockets, Stream};

/// The largest message between nodes: one read of the log, or one entry of the largest size.
pub const MESSAGE_BYTES_MAX: usize = 80 << 20;

/// Peers are near, so a peer that does not accept a connection within this time is down.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// A peer that vanished is detected after the sum of both, even on an idle connection.
const KEEPALIVE_EVERY: Duration = Duration::from_millis(1000);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1000);
/// The bytes in flight on one call and on one connection before the receiver must acknowledge.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The use of a connection. A large transfer for one purpose never delays another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Entries.
    Log,
    /// Heartbeats and votes.
    Heartbeat,
    Snapshot,
    /// Read indexes, invitations, administration.
    Call,
    /// Forwarded mutations.
    Forward,
}

/// Why an address cannot be dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelError {
    NoAddress,
    InvalidAddress(String),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::NoAddress => f.write_str("its address is not known: it was started without peer_listen"),
            ChannelError::InvalidAddress(address) => write!(f, "{address:?} is no address: write host:port"),
        }
    }
}

impl std::error::Error for ChannelError {}

pub struct Channels {
    sockets: Arc<dyn Sockets>,
    tls: Option<Arc<PeerTls>>,
    /// The runtime of the connections for forwarded mutations.
    clients: Handle,
    open: Mutex<BTreeMap<(String, Purpose), Channel>>,
}

/// Runs the tasks of a connection on one runtime, whichever thread opened it.
#[derive(Clone)]
struct OnRuntime(Handle);

impl<F> hyper::rt::Executor<F> for OnRuntime
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

impl Channels {
    /// Forwarded mutations may be large, and a connection encodes them. So it runs on the runtime of the `clients`.
    pub fn new(sockets: Arc<dyn Sockets>, tls: Option<Arc<PeerTls>>, clients: Handle) -> Channels {
        Channels { sockets, tls, clients, open: Mutex::default() }
    }

    pub fn peer(&self, address: &str, purpose: Purpose) -> Result<PeerClient<Channel>, ChannelError> {
        let client = PeerClient::new(self.channel(address, purpose)?);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    pub fn admin(&self, address: &str) -> Result<AdminClient<Channel>, ChannelError> {
        Ok(AdminClient::new(self.channel(address, Purpose::Call)?))
    }

    pub fn formation(&self, address: &str) -> Result<FormationClient<Channel>, ChannelError> {
        Ok(FormationClient::new(self.channel(address, Purpose::Call)?))
    }

    /// Drops the connection for calls on which one timed out.
    pub fn forget_calls(&self, address: &str) {
        self.forget(address, Purpose::Call);
    }

    /// Drops a connection on which a call timed out; the next call opens a new one.
    pub fn forget(&self, address: &str, purpose: Purpose) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&(address.to_owned(), purpose));
    }

    fn channel(&self, address: &str, purpose: Purpose) -> Result<Channel, ChannelError> {
        if address.is_empty() {
            return Err(ChannelError::NoAddress);
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = open.get(&(address.to_owned(), purpose)) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|_| ChannelError::InvalidAddress(address.to_owned()))?;
        let endpoint = match purpose {
            Purpose::Forward => endpoint.executor(OnRuntime(self.clients.clone())),
            Purpose::Log | Purpose::Heartbeat | Purpose::Snapshot | Purpose::Call => endpoint,
        };
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_EVERY)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect_with_connector_lazy(connector(self.sockets.clone(), self.tls.clone()));
        open.insert((address.to_owned(), purpose), channel.clone());
        Ok(channel)
    }
}

/// Dials the address of a channel.
fn connector(
    sockets: Arc<dyn Sockets>,
    tls: Option<Arc<PeerTls>>,
) -> impl tower::Service<Uri, Response = TokioIo<Stream>, Error = ConnectError, Future: Send> + Send {
    service_fn(move |uri: Uri| {
        let address = uri.authority().map(ToString::to_string).unwrap_or_default();
        let connecting = sockets.connect(address);
        let tls = tls.clone();
        async move {
            let connected = async {
                let stream = connecting.await?;
                Ok::<Stream, std::io::Error>(match &tls {
                    Some(tls) => Box::new(tls.connect(stream).await?),
                    None => stream,
                })
            };
            connected.await.map(TokioIo::new).map_err(|error| ConnectError(error.into()))
        }
    })
}

/// True if the call cannot have reached the peer because no connection was established.
pub fn never_sent(status: &tonic::Status) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
