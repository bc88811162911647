//! Owns: one function call over HTTP, and what its caller knows afterwards. It works over any byte stream: the
//! simulation brings simulated sockets, the cluster tests bring TCP.
//! Never: which node to ask, what a call means, or whether it may be retried.

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

/// Larger than any page that a test asks for.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// What a client knows after a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Acknowledged, with the response.
    Answered(Value),
    /// Final: any error but `session/storage`. Nothing was changed.
    Refused { code: String, message: String },
    /// `session/storage`, or no node listens at the address: certainly not executed.
    Unavailable(String),
    /// `session/storage: outcome unknown`, a broken connection, the client's own deadline, or the end of the run: the
    /// call may have been executed, once, at any time after it was sent.
    Unknown(String),
}

pub type Connection = SendRequest<Body>;

/// Opens an HTTP connection over the stream that `connect` yields.
pub async fn open<S>(connect: impl Future<Output = io::Result<S>>, connect_max: Duration) -> Result<Connection, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let opened = timeout(connect_max, async {
        let stream = connect.await.map_err(|error| error.to_string())?;
        let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The driver ends with the connection. The call that an error breaks reports the error.
        tokio::spawn(driver);
        Ok(connection)
    });
    opened.await.unwrap_or_else(|_| Err(format!("no connection within {} ms", connect_max.as_millis())))
}

/// Sends one call once. Returns the connection too when it can serve another call.
pub async fn call(
    mut connection: Connection,
    token: Option<&str>,
    function: &str,
    body: &Value,
    call_max: Duration,
) -> (Outcome, Option<Connection>) {
    let mut request = Request::post(format!("/v1/call/{function}"))
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::from(body.to_string())).expect("a function id is a valid path");
    // From here on a failure does not say whether the node executed the call.
    let answered = timeout(call_max, async {
        let response = connection.send_request(request).await?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), RESPONSE_BYTES_MAX).await;
        Ok::<_, hyper::Error>((status, body))
    });
    let failed = match answered.await {
        Ok(Ok((status, Ok(body)))) => return (outcome(status.is_success(), &body), Some(connection)),
        Ok(Ok((_, Err(error)))) => Outcome::Unknown(error.to_string()),
        // hyper cancels a request only before it writes the first byte of it.
        Ok(Err(error)) if error.is_canceled() => Outcome::Unavailable(error.to_string()),
        Ok(Err(error)) => Outcome::Unknown(error.to_string()),
        Err(_) => Outcome::Unknown(format!("no answer within {} ms", call_max.as_millis())),
    };
    (failed, None)
}

/// What a response says about the call.
pub fn outcome(success: bool, body: &[u8]) -> Outcome {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        let message = format!("the response is not JSON: {}", String::from_utf8_lossy(body));
        return Outcome::Refused { code: "not_json".to_owned(), message };
    };
    if success {
        return Outcome::Answered(value);
    }
    let code = value["error"]["code"].as_str().unwrap_or("none").to_owned();
    let message = value["error"]["message"].as_str().unwrap_or_default().to_owned();
    match code.as_str() {
        "session/storage" if message.contains("outcome unknown") => Outcome::Unknown(message),
        "session/storage" => Outcome::Unavailable(message),
        _final => Outcome::Refused { code, message },
    }
}
