//! Owns: the HTTP upgrade to a WebSocket.
//! Never: which paths may be upgraded (`http`), what the socket speaks.

use std::fmt;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// Why an upgrade request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeError {
    KeyMissing,
    Version,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HandshakeError::KeyMissing => "the header Sec-WebSocket-Key is missing",
            HandshakeError::Version => "only WebSocket version 13 is spoken here",
        })
    }
}

impl std::error::Error for HandshakeError {}

/// True when a request asks for an upgrade to a WebSocket.
pub fn is_requested(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case("websocket")))
}

/// Accepts the upgrade: the response to send, and the connection once the response is sent.
pub fn accept(request: &mut Request) -> Result<(Response, OnUpgrade), HandshakeError> {
    let headers = request.headers();
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or(HandshakeError::KeyMissing)?;
    if headers.get(header::SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes) != Some(b"13") {
        return Err(HandshakeError::Version);
    }
    // The accept key is base64, which is always a valid header value.
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| HandshakeError::KeyMissing)?;
    let upgraded = hyper::upgrade::on(request);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Ok((response, upgraded))
}
