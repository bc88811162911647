//! Owns: plain HTTP on the client port (a hint, health, calls with a JSON body), the upgrade to the bus, and the guard
//! against web pages of other sites. Never: a listener, or what a call does.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::bus::calls::Failure;
use super::bus::{Bus, connection};
use super::endpoint::LiveLimits;
use super::sidecar::NAME;
use super::watch::WatchService;
use super::{sse, watch};

/// A body that trickles in for longer than this is given up.
const BODY_READ_MAX: Duration = Duration::from_secs(60);

/// What `GET /health` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `leader`, `follower`, …; `single` where there is no cluster.
    pub role: &'static str,
    /// Why the node cannot serve at the moment, if so.
    pub trouble: Option<String>,
}

pub type HealthCheck = Arc<dyn Fn() -> Health + Send + Sync>;

/// What every request may need.
#[derive(Clone)]
pub struct Door {
    pub bus: Arc<Bus>,
    pub health: HealthCheck,
    pub limits: Arc<LiveLimits>,
    pub shutdown: CancellationToken,
    /// Sockets live on here after their upgrade.
    pub sockets: TaskTracker,
}

/// A connection's place among those that are allowed; held as long as anything of it lives.
pub type Place = Arc<OwnedSemaphorePermit>;

/// What may stand in the query of a call: what the bus carries in the metadata.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Terms {
    consistency: Option<String>,
}

/// The plain routes. Upgrades are taken out before.
pub fn routes(door: Door) -> Router {
    Router::new()
        .route("/", get(hint))
        .route("/health", get(health))
        .route("/v1/call/{*function}", post(call))
        .route("/v1/events", get(sse::events))
        .fallback(not_found)
        .with_state(door)
}

/// Answers one request.
pub async fn answer(door: Door, routes: Router, request: Request, peer: SocketAddr, place: Place) -> Response {
    let upgrades = wants_websocket(request.headers());
    if (upgrades || request.method() == axum::http::Method::POST)
        && let Err(why) = check_origin(request.headers())
    {
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    if upgrades {
        return upgrade(door, request, peer, place);
    }
    if request.uri().path().starts_with(watch::PATH) {
        let service = WatchService { feed: door.bus.feed().clone(), shutdown: door.shutdown };
        return watch::answer(service, request).await;
    }
    // The router never fails; its error type has no values.
    routes.oneshot(request).await.unwrap_or_else(|never| match never {})
}

async fn hint() -> &'static str {
    "session-manager\n\n\
     This port speaks the iii bus over WebSocket: point an iii SDK at ws://<this host>:<this port>.\n\
     It also takes plain calls: POST /v1/call/<function> with a JSON body, for example\n\n\
     \x20 curl -d '{}' http://<this host>:<this port>/v1/call/session::create\n\n\
     GET /v1/events streams what happens, as server-sent events: filter with ?session=…&type=…&roles=…&metadata=…,\n\
     resume with ?after=<position> or the header Last-Event-ID.\n\
     GET /health says how the node is.\n"
}

async fn health(State(door): State<Door>) -> Response {
    let health = (door.health)();
    let code = if health.trouble.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let status = health.trouble.as_deref().unwrap_or("ok");
    let body = json!({ "status": status, "version": env!("CARGO_PKG_VERSION"), "role": health.role });
    (code, axum::Json(body)).into_response()
}

async fn not_found(request: Request) -> Response {
    let words = format!("nothing at {} {}; see GET / for what there is", request.method(), request.uri().path());
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented(words).into_http();
    }
    error(StatusCode::NOT_FOUND, "not_found", &words)
}

async fn call(
    State(door): State<Door>,
    Path(function_id): Path<String>,
    terms: Result<Query<Terms>, QueryRejection>,
    request: Request,
) -> Response {
    let sidecar = match terms {
        Ok(Query(terms)) => terms.consistency.map(|word| json!({ NAME: { "consistency": word } }).to_string()),
        Err(rejection) => return error(StatusCode::BAD_REQUEST, "invalid_query", &rejection.body_text()),
    };
    let body = match read_body(&door, request).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match door.bus.call(&function_id, body, sidecar).await {
        Ok(result) => json_text(StatusCode::OK, result),
        Err(failure) => explain(failure),
    }
}

/// Reads the body as text. An empty one stands for `{}`, so that `curl -X POST` will do.
async fn read_body(door: &Door, request: Request) -> Result<String, Response> {
    let bytes_max = door.limits.body_bytes_max();
    let too_large = || {
        let words = format!("the body is larger than {bytes_max} bytes");
        error(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", &words)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let expected = announced.unwrap_or(bytes_max);
    if expected > bytes_max {
        return Err(too_large());
    }
    let read = async {
        let _room = door.bus.room_for(expected).await;
        to_bytes(request.into_body(), bytes_max).await
    };
    let bytes = match tokio::time::timeout(BODY_READ_MAX, read).await {
        Ok(Ok(bytes)) => bytes,
        // With no length announced, the limit is the only thing in a body that fails on a healthy connection.
        Ok(Err(_)) => return Err(too_large()),
        Err(_) => return Err(error(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not arrive in time")),
    };
    if bytes.is_empty() {
        return Ok("{}".to_owned());
    }
    String::from_utf8(bytes.into())
        .map_err(|_| error(StatusCode::BAD_REQUEST, "invalid_payload", "the body is not UTF-8 text"))
}

fn explain(failure: Failure) -> Response {
    match failure {
        Failure::Service(failed) => {
            let status = StatusCode::from_u16(failed.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            error(status, failed.code, &failed.message)
        }
        Failure::Bus(failed) => {
            let status = match failed.code.as_ref() {
                "function_not_found" | "NOT_FOUND" => StatusCode::NOT_FOUND,
                "shutting_down" => StatusCode::SERVICE_UNAVAILABLE,
                "timeout" => StatusCode::GATEWAY_TIMEOUT,
                "invocation_stopped" => StatusCode::BAD_GATEWAY,
                _ => StatusCode::BAD_REQUEST,
            };
            error(status, &failed.code, &failed.message)
        }
        Failure::Remote(raw) => json_text(StatusCode::BAD_GATEWAY, format!("{{\"error\":{raw}}}")),
    }
}

pub fn error(status: StatusCode, code: &str, message: &str) -> Response {
    json_text(status, json!({ "error": { "code": code, "message": message } }).to_string())
}

fn json_text(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case("websocket")))
}

/// Any path is the bus, as with the engine; `<path>/otel` is where SDKs send telemetry.
fn upgrade(door: Door, mut request: Request, peer: SocketAddr, place: Place) -> Response {
    let version = request.headers().get(header::SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY).cloned() else {
        return error(StatusCode::BAD_REQUEST, "bad_upgrade", "the header Sec-WebSocket-Key is missing");
    };
    if version != Some(b"13".as_slice()) {
        let refused = error(StatusCode::UPGRADE_REQUIRED, "bad_upgrade", "only WebSocket version 13 is spoken here");
        return ([(header::SEC_WEBSOCKET_VERSION, "13")], refused).into_response();
    }
    let telemetry = request.uri().path().ends_with("/otel");
    let upgraded = hyper::upgrade::on(&mut request);
    let sockets = door.sockets.clone();
    sockets.spawn(async move {
        let _place = place;
        let Ok(upgraded) = upgraded.await else { return };
        let socket = TokioIo::new(upgraded);
        if telemetry {
            connection::discard(door.bus, socket, door.shutdown).await;
        } else {
            connection::serve(door.bus, socket, Some(peer), door.shutdown).await;
        }
    });
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    let Ok(accept) = accept else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "bad_upgrade", "the handshake failed");
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    // Tells the SDK that this end does not delay small frames, so that its end need not either.
    headers.insert("x-iii-capabilities", HeaderValue::from_static("tcp-nodelay"));
    response
}

/// There is no authentication yet, so a web page must not reach the node through a visitor's browser: browsers name
/// the page's origin on upgrades and POSTs, and only pages of this machine pass. Programs send no origin.
pub fn check_origin(headers: &HeaderMap) -> Result<(), String> {
    for origin in headers.get_all(header::ORIGIN) {
        let text = origin.to_str().unwrap_or("<unreadable>");
        if !is_loopback(text) {
            return Err(format!(
                "refused: this request comes from the web origin {text}, and only pages served from this machine \
                 (localhost) may talk to this node\n"
            ));
        }
    }
    Ok(())
}

fn is_loopback(origin: &str) -> bool {
    let Some((_scheme, authority)) = origin.split_once("://") else { return false };
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_machine_may_call() {
        for origin in ["http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:5"] {
            assert!(is_loopback(origin), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://192.168.0.7",
            "http://evil.example:80@localhost",
            "file://",
        ] {
            assert!(!is_loopback(origin), "{origin}");
        }
    }
}
