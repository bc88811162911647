//! Owns: one keep-alive connection to a node's HTTP door, one call at a time.

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use bytes::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// Larger than any page the figures ask for.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

pub struct Caller {
    connection: SendRequest<Body>,
    node: String,
}

impl Caller {
    /// `node` is `host:port`.
    pub async fn connect(node: &str) -> Result<Caller, String> {
        let stream = TcpStream::connect(node).await.map_err(|error| format!("{node}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| format!("{node}: {error}"))?;
        let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| format!("{node}: {error}"))?;
        // The connection ends when the caller is dropped; an error shows in the call it breaks.
        tokio::spawn(driver);
        Ok(Caller { connection, node: node.to_owned() })
    }

    /// The response's bytes, unparsed: what a figure measures is the node, not this program's JSON reader.
    pub async fn call(&mut self, function: &str, body: String) -> Result<Bytes, String> {
        let failed = |why: String| format!("{function}: {why}");
        let request = Request::post(format!("/v1/call/{function}"))
            .header(HOST, &self.node)
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| failed(error.to_string()))?;
        self.connection.ready().await.map_err(|error| failed(error.to_string()))?;
        let response = self.connection.send_request(request).await.map_err(|error| failed(error.to_string()))?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), RESPONSE_BYTES_MAX)
            .await
            .map_err(|error| failed(error.to_string()))?;
        if status.is_success() { Ok(body) } else { Err(failed(String::from_utf8_lossy(&body).into_owned())) }
    }

    pub async fn ask<R: DeserializeOwned>(&mut self, function: &str, body: String) -> Result<R, String> {
        let response = self.call(function, body).await?;
        serde_json::from_slice(&response).map_err(|error| format!("{function}: {error}"))
    }
}
