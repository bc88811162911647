//! Owns: where a measured node is, and how a client connects to it: with TLS or without, with a token or without.

use std::path::Path;
use std::sync::Arc;

use axum::http::HeaderValue;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::error::BenchError;
use crate::access::own_token;
use crate::access::tls::ClientTls;

pub type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// The address of a node, and what its clients need.
#[derive(Debug, Clone)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    tls: Option<ClientTls>,
    /// `Bearer TOKEN`.
    pub authorization: Option<Arc<HeaderValue>>,
}

impl Target {
    /// A node without TLS and credentials.
    pub fn plain(address: impl ToString) -> Target {
        Target { address: address.to_string(), tls: None, authorization: None }
    }

    /// A node by its URL: `ws://host:port`, `wss://…`, `http://…` or `https://…`.
    pub fn of(url: &str, keys: &Keys) -> Result<Target, BenchError> {
        let refused = |problem: &'static str| BenchError::NodeUrl { url: url.to_owned(), problem };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("not a URL of a node"))?;
        let rest = rest.trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| refused("no port"))?;
        if host.is_empty() || rest.contains('/') {
            return Err(refused("not a host and a port"));
        }
        port.parse::<u16>().map_err(|_| refused("the port is not a number below 65536"))?;
        let tls = match scheme {
            "ws" | "http" => None,
            "wss" | "https" => Some(ClientTls::load(keys.ca).map_err(BenchError::Tls)?.http1_only()),
            _other => return Err(refused("not a URL of a node")),
        };
        let token = own_token::read(keys.token_file).map_err(BenchError::Token)?;
        let bearer = |token: String| {
            let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            bearer.set_sensitive(true);
            Some(bearer)
        };
        Ok(Target { address: rest.to_owned(), tls, authorization: token.and_then(bearer).map(Arc::new) })
    }

    pub async fn connect(&self) -> Result<Stream, BenchError> {
        let failed =
            |error: std::io::Error| BenchError::Connect { address: self.address.clone(), why: error.to_string() };
        let stream = TcpStream::connect(&self.address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let Some(tls) = &self.tls else { return Ok(Either::Left(stream)) };
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host).trim_matches(['[', ']']);
        Ok(Either::Right(tls.connect(host, stream).await.map_err(failed)?))
    }
}

/// What the arguments name for clients of secure nodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keys<'a> {
    pub token_file: Option<&'a Path>,
    pub ca: Option<&'a Path>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_a_url_with_a_port() {
        let of = |url: &str| Target::of(url, &Keys::default());
        assert_eq!(of("ws://127.0.0.1:5").unwrap().address, "127.0.0.1:5");
        assert_eq!(of("http://[::1]:65535/").unwrap().address, "[::1]:65535");
        for wrong in ["", "127.0.0.1:5", "ftp://a:1", "ws://a", "ws://:5", "ws://a:70000", "ws://a:5/path"] {
            let why = of(wrong).unwrap_err().to_string();
            assert!(why.starts_with("--node"), "{why}");
        }
        let missing = Keys { ca: Some(Path::new("/no/such/ca.pem")), ..Keys::default() };
        assert!(Target::of("wss://127.0.0.1:5", &missing).unwrap_err().to_string().contains("/no/such/ca.pem"));
    }
}
