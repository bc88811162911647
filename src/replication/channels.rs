//! Owns: the connections to peers: one per address and purpose, opened when first used, dropped when they hang.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::ConnectError;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::proto::admin::admin_client::AdminClient;
use crate::proto::peer::peer_client::PeerClient;
use crate::sockets::{Sockets, Stream};

/// The largest message between nodes: one read of the log, or one entry of the largest size.
pub const MESSAGE_BYTES_MAX: usize = 80 << 20;

/// Peers are near: whoever does not take a connection by then is down.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// A peer that vanished without a word is noticed after both together, also on an idle connection.
const KEEPALIVE_EVERY: Duration = Duration::from_millis(1000);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1000);
/// What may be under way on one call and on one connection before the receiver has to say that it took it.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// What a connection is for. A large transfer for one purpose never holds up another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Entries and votes.
    Log,
    Heartbeat,
    Snapshot,
    /// Forwarded calls, read indexes, invitations, administration.
    Call,
}

pub struct Channels {
    sockets: Arc<dyn Sockets>,
    open: Mutex<BTreeMap<(String, Purpose), Channel>>,
}

impl Channels {
    pub fn new(sockets: Arc<dyn Sockets>) -> Channels {
        Channels { sockets, open: Mutex::default() }
    }

    pub fn peer(&self, address: &str, purpose: Purpose) -> Result<PeerClient<Channel>, String> {
        let client = PeerClient::new(self.channel(address, purpose)?);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    pub fn admin(&self, address: &str) -> Result<AdminClient<Channel>, String> {
        Ok(AdminClient::new(self.channel(address, Purpose::Call)?))
    }

    /// Drops a connection that hangs; the next call opens a new one.
    pub fn forget(&self, address: &str, purpose: Purpose) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&(address.to_owned(), purpose));
    }

    fn channel(&self, address: &str, purpose: Purpose) -> Result<Channel, String> {
        if address.is_empty() {
            return Err("its address is not known: it was started without peer_listen".to_owned());
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = open.get(&(address.to_owned(), purpose)) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|_| format!("{address:?} is no address: write host:port"))?;
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_EVERY)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect_with_connector_lazy(connector(self.sockets.clone()));
        open.insert((address.to_owned(), purpose), channel.clone());
        Ok(channel)
    }
}

/// Dials the address a channel was made for.
fn connector(
    sockets: Arc<dyn Sockets>,
) -> impl tower::Service<Uri, Response = TokioIo<Stream>, Error = ConnectError, Future: Send> + Send {
    service_fn(move |uri: Uri| {
        let address = uri.authority().map(ToString::to_string).unwrap_or_default();
        let connecting = sockets.connect(address);
        async move { connecting.await.map(TokioIo::new).map_err(|error| ConnectError(error.into())) }
    })
}

/// True when the call certainly did not reach the other side: no connection came about.
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
