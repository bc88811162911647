//! Owns: one keep-alive HTTP connection to a node, with one call at a time.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use bytes::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;

use super::error::BenchError;
use super::target::Target;

/// Larger than any page that a benchmark reads.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

pub struct Caller {
    connection: SendRequest<Body>,
    node: Target,
    /// What the last refusal said about when to come back (`retry-after`).
    retry_after: Option<Duration>,
}

impl Caller {
    pub async fn connect(node: &Target) -> Result<Caller, BenchError> {
        let failed = |why: String| BenchError::Connect { address: node.address.clone(), why };
        let handshake = handshake(TokioIo::new(node.connect().await?)).await;
        let (connection, driver) = handshake.map_err(|error| failed(error.to_string()))?;
        // The driver ends when the caller is dropped. Its errors appear in the call that they break.
        tokio::spawn(driver);
        Ok(Caller { connection, node: node.clone(), retry_after: None })
    }

    /// The bytes of the response, not parsed: a benchmark measures the node, not this program's JSON parser.
    pub async fn call(&mut self, function: &str, body: String) -> Result<Bytes, BenchError> {
        let broken = |why: String| BenchError::Broken { address: self.node.address.clone(), why };
        let mut request = Request::post(format!("/v1/call/{function}"))
            .header(HOST, &self.node.address)
            .header(CONTENT_TYPE, "application/json");
        if let Some(bearer) = &self.node.authorization {
            request = request.header(AUTHORIZATION, (**bearer).clone());
        }
        let request = request.body(Body::from(body)).map_err(|error| broken(error.to_string()))?;
        self.connection.ready().await.map_err(|error| broken(error.to_string()))?;
        let response = self.connection.send_request(request).await.map_err(|error| broken(error.to_string()))?;
        let status = response.status();
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        self.retry_after = seconds.map(Duration::from_secs);
        let body = to_bytes(Body::new(response.into_body()), RESPONSE_BYTES_MAX)
            .await
            .map_err(|error| broken(error.to_string()))?;
        if status.is_success() {
            return Ok(body);
        }
        Err(BenchError::Refused { call: function.to_owned(), why: String::from_utf8_lossy(&body).into_owned() })
    }

    /// When the call that was refused last should be tried again, if the node said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    pub async fn parsed<R: DeserializeOwned>(&mut self, function: &'static str, body: String) -> Result<R, BenchError> {
        let response = self.call(function, body).await?;
        serde_json::from_slice(&response)
            .map_err(|error| BenchError::UnexpectedAnswer { call: function, answer: error.to_string() })
    }
}
