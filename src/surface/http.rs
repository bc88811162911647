//! Owns: routing on the client port: plain HTTP (a hint, health, calls with a JSON body), which path upgrades to which
//! WebSocket protocol, and the order of the checks of a request.
//! Never: a listener, or what a call does.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::bus::client::realm_of;
use super::bus::connection::{self, Entrant};
use super::bus::{Bus, outbound};
use super::cluster::Operator;
use super::endpoint::LiveLimits;
use super::errors::{CallError, Kind};
use super::fair_share::CallerKey;
use super::gate::{Call, Caller, Door, Gate, check_open, trace_of};
use super::gateway::{self, Gateway};
use super::history::History;
use super::probes::Readiness;
use super::scrapes::Scrapes;
use super::sidecar::NAME;
use super::socket::handshake::{self, HandshakeError};
use super::socket::intake::{Pace, Room, capacity_for};
use super::socket::{self, CloseReason, Text};
use super::watch::WatchService;
use super::{
    account, cluster, console, feed_status, history, login, model, openapi, origin, probes, scrapes, sse, watch,
};
use crate::access::{Action, Credentials, Identity, LoginError, audit};
use crate::requests::Printed;

/// The largest piece of a response that is handed to a connection at once. The rest waits here, where it is counted.
const PIECE_BYTES: usize = 64 << 10;
/// The most that is read of the body of a refused request, and for how long.
const DISCARDED_BYTES_MAX: usize = 16 << 10;
const DISCARD_MAX: Duration = Duration::from_millis(200);
/// The same while the node is busy: a refusal takes less than 50 ms.
const DISCARD_MAX_BUSY: Duration = Duration::from_millis(20);
/// Larger responses count towards the bound of unread responses.
const COUNTED_BYTES: usize = 1 << 20;

/// What `GET /health` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `leader`, `follower`, …; `single` for a node without a cluster.
    pub role: &'static str,
    /// Why the node cannot serve now. `None` when it can.
    pub trouble: Option<String>,
}

pub type HealthCheck = Arc<dyn Fn() -> Health + Send + Sync>;

/// A node that clients can go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUrl {
    pub node: u64,
    pub url: String,
    pub leads: bool,
}

pub type ListNodes = Arc<dyn Fn() -> Vec<NodeUrl> + Send + Sync>;

/// What requests on one port need.
#[derive(Clone)]
pub struct Port {
    pub bus: Arc<Bus>,
    pub gateway: Arc<Gateway>,
    pub health: HealthCheck,
    pub ready: Arc<Readiness>,
    pub scrapes: Arc<Scrapes>,
    pub nodes: ListNodes,
    pub operator: Arc<dyn Operator>,
    pub history: Arc<History>,
    pub credentials: Arc<Credentials>,
    pub limits: Arc<LiveLimits>,
    pub speaks_tls: bool,
    /// Cancelled when this port closes.
    pub shutdown: CancellationToken,
    /// The connections of this port. WebSockets run here after their upgrade.
    pub connections: TaskTracker,
}

/// The client in the certificate that a connection presented, as an extension of its requests.
#[derive(Clone)]
pub struct Certified(pub Arc<Identity>);

/// The permit of one connection. Held as long as any part of the connection lives.
pub type Place = Arc<OwnedSemaphorePermit>;

/// Why a request is refused before a call or a stream starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpError {
    NoRoute {
        method: String,
        path: String,
    },
    /// A WebSocket upgrade on a path without a WebSocket.
    NoSocket {
        path: String,
    },
    /// The adapter of this node has no turns and no journals.
    NoGateway,
    Query(String),
    BodyTooLarge {
        max: usize,
    },
    BodyTimeout,
    BodyNotText,
    /// The request names a host that is not this one.
    ForeignHost {
        host: String,
    },
    /// No room for the body became free in time.
    NoRoom,
    /// Clients leave too many large responses unread.
    UnreadResponses,
    /// A web page of another site sent the request.
    ForeignOrigin {
        origin: String,
    },
    /// The caller has no credentials, or wrong ones.
    Login(LoginError),
    Handshake(HandshakeError),
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpError::NoRoute { method, path } => write!(f, "nothing at {method} {path}; see GET / for what there is"),
            HttpError::NoSocket { path } => {
                write!(
                    f,
                    "no WebSocket at {path}: the iii bus is at /, so use ws://<host>:<port> without a path; the gateway \
                     is at /ws"
                )
            }
            HttpError::NoGateway => {
                f.write_str("the gateway needs a node with the adapter raft; this one has another adapter")
            }
            HttpError::Query(why) => f.write_str(why),
            HttpError::BodyTooLarge { max } => write!(f, "the body is larger than {max} bytes"),
            HttpError::BodyTimeout => f.write_str("the body did not arrive in time"),
            HttpError::BodyNotText => f.write_str("the body is not UTF-8 text"),
            HttpError::ForeignHost { host } => write!(
                f,
                "refused: this node does not answer to the host name {host:?}; use localhost or an IP address, or add \
                 the name to the setting allowed_hosts"
            ),
            HttpError::NoRoom => f.write_str("the node is busy: no room for the body became free in time; try again"),
            HttpError::UnreadResponses => {
                f.write_str("the node is busy: too many large responses wait for clients that do not read; try again")
            }
            HttpError::ForeignOrigin { origin } => write!(
                f,
                "refused: this request comes from the web origin {origin}, and only pages served from this machine \
                 (localhost) and those in the setting allowed_origins may talk to this node"
            ),
            HttpError::Login(error) => error.fmt(f),
            HttpError::Handshake(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HttpError {}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        match &self {
            // Plain text, because a person reads it in the browser's console.
            HttpError::ForeignOrigin { .. } => (StatusCode::FORBIDDEN, format!("{self}\n")).into_response(),
            HttpError::Handshake(HandshakeError::Version) => {
                ([(header::SEC_WEBSOCKET_VERSION, "13")], error(self.kind(), &self.to_string())).into_response()
            }
            HttpError::Login(_) => {
                ([(header::WWW_AUTHENTICATE, "Bearer")], error(self.kind(), &self.to_string())).into_response()
            }
            HttpError::NoRoute { .. }
            | HttpError::NoSocket { .. }
            | HttpError::NoGateway
            | HttpError::Query(_)
            | HttpError::BodyTooLarge { .. }
            | HttpError::BodyTimeout
            | HttpError::BodyNotText
            | HttpError::NoRoom
            | HttpError::UnreadResponses
            | HttpError::ForeignHost { .. }
            | HttpError::Handshake(HandshakeError::KeyMissing) => error(self.kind(), &self.to_string()),
        }
    }
}

/// The query of a call: what bus clients send in the metadata.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Terms {
    consistency: Option<String>,
    /// Read before (`login`).
    #[serde(rename = "token")]
    _token: Option<serde::de::IgnoredAny>,
}

/// The plain HTTP routes. WebSocket upgrades and gRPC are routed before.
pub fn routes(port: Port) -> Router {
    Router::new()
        .route("/", get(front))
        .route(console::PATH, get(console::index))
        .route("/console/", get(|| async { Redirect::permanent(console::PATH) }))
        .route("/console/{name}", get(console::file))
        .route("/health", get(health))
        .route("/livez", get(probes::livez))
        .route("/readyz", get(probes::readyz))
        .route("/metrics", get(scrapes::metrics))
        .route("/v1/nodes", get(nodes))
        .route("/v1/call/{*function}", post(call))
        .route("/v1/events", get(sse::events))
        .route("/v1/feed", get(feed_status::feed))
        .route("/v1/cluster", get(cluster::status))
        .route("/v1/cluster/{operation}", post(cluster::operate))
        .route("/v1/history", get(history::history))
        .route("/v1/me", get(account::me))
        .route("/v1/login", post(account::login))
        .route("/v1/logout", post(account::logout))
        .route("/v1/openapi.json", get(openapi::document))
        .fallback(not_found)
        .with_state(port)
}

/// Answers one request.
pub async fn answer(port: Port, routes: Router, request: Request, peer: SocketAddr, place: Place) -> Response {
    let from = account::From { peer, arrived: Instant::now() };
    let allowed = port.limits.allowed();
    // Behind TLS the certificate proves the name, so a page of another site cannot pass for this one.
    if !port.speaks_tls
        && let Err(refused) = allowed.check_host(&request)
    {
        return refused.into_response();
    }
    let reader = allowed.reader(request.headers());
    if origin::is_preflight(&request) {
        return origin::preflight(reader);
    }
    let upgrades = handshake::is_requested(request.headers());
    if (upgrades || request.method() == Method::POST)
        && let Err(refused) = allowed.check_origin(request.headers())
    {
        return refused.into_response();
    }
    origin::readable_by(reader, admitted(port, routes, request, upgrades, from, place).await)
}

/// Answers a request whose host and origin are right.
async fn admitted(
    port: Port,
    routes: Router,
    mut request: Request,
    upgrades: bool,
    from: account::From,
    place: Place,
) -> Response {
    let peer = from.peer;
    // The session model has tokens of its own.
    if model::owns(request.uri().path()) {
        return match upgrades {
            true => model::upgrade(port, request, peer, place).await,
            false => model::answer(port, request, peer).await,
        };
    }
    let certified = request.extensions().get::<Certified>().map(|Certified(identity)| identity.clone());
    let login = login::check(&port.credentials, request.headers(), request.uri(), certified.as_ref(), peer.ip());
    // A client of the gateway may present its credentials later.
    let may_come_later = upgrades && gateway::owns(request.uri().path()) && login == Err(LoginError::Missing);
    if let Err(refused) = &login
        && !may_come_later
        && (upgrades || !is_open(request.uri().path()))
        && !request.uri().path().ends_with("/otel")
    {
        let door = match upgrades {
            true if gateway::owns(request.uri().path()) => Door::Gateway,
            true => Door::Bus,
            false => Door::Http,
        };
        audit::refused_login(peer.ip(), door.name(), refused);
        port.bus.gate().refused_login(door);
    }
    if upgrades {
        return upgrade(port, request, login, peer, place).unwrap_or_else(IntoResponse::into_response);
    }
    if !is_open(request.uri().path()) {
        match login {
            Ok(identity) => request.extensions_mut().insert(identity),
            Err(refused) if is_grpc(request.headers()) => {
                let refused = HttpError::Login(refused);
                return tonic::Status::new(refused.kind().row().grpc, refused.to_string()).into_http();
            }
            Err(refused) => {
                discard_small(request.into_body(), DISCARD_MAX).await;
                return HttpError::Login(refused).into_response();
            }
        };
    }
    if request.uri().path().starts_with(watch::PATH) {
        let identity = identity_of(&request);
        let service = WatchService {
            feed: port.bus.feed().clone(),
            credentials: port.credentials,
            identity,
            shutdown: port.shutdown,
        };
        return watch::answer(service, request).await;
    }
    request.extensions_mut().insert(from);
    // The router never fails: its error type has no values.
    routes.oneshot(request).await.unwrap_or_else(|never| match never {})
}

/// Reads the body of a refused request if it is small and has arrived. An answer before the end of a body resets the
/// stream of HTTP/2, and some clients then lose the answer. A larger body is not worth the wait.
async fn discard_small(body: Body, at_most: Duration) {
    let mut pieces = body.into_data_stream();
    let small = async {
        let mut bytes = 0;
        while let Some(Ok(piece)) = pieces.next().await {
            bytes += piece.len();
            if bytes > DISCARDED_BYTES_MAX {
                return;
            }
        }
    };
    // The refusal is the same in any case.
    let _ = timeout(at_most, small).await;
}

/// What needs no credentials: load balancers and people look there first. The console is a page without data.
const OPEN_PATHS: [&str; 7] = ["/", "/health", "/livez", "/readyz", "/v1/login", "/v1/logout", "/v1/openapi.json"];

fn is_open(path: &str) -> bool {
    OPEN_PATHS.contains(&path) || console::owns(path)
}

/// The answer to a caller whose role does not allow what a path is for.
pub fn forbidden(request: &Request, action: Action) -> Option<Response> {
    let identity = identity_of(request);
    if identity.may(action) {
        return None;
    }
    audit::refused_call(&identity, Door::Http, request.uri().path());
    let refused = CallError::forbidden(&identity, action);
    Some(error(refused.kind(), &refused.message()))
}

/// The caller of a request that passed the check.
pub fn identity_of(request: &Request) -> Arc<Identity> {
    request.extensions().get::<Arc<Identity>>().cloned().unwrap_or_else(Identity::open)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// A browser gets the console, a program a hint.
async fn front(headers: HeaderMap) -> Response {
    match console::wants_page(&headers) {
        true => Redirect::to(console::PATH).into_response(),
        false => hint().into_response(),
    }
}

fn hint() -> &'static str {
    "session-manager\n\n\
     This port speaks the iii bus over WebSocket: point an iii SDK at ws://<this host>:<this port>.\n\
     It also takes plain calls: POST /v1/call/<function> with a JSON body, for example\n\n\
     \x20 curl -d '{}' http://<this host>:<this port>/v1/call/session::create\n\n\
     GET /v1/events streams what happens, as server-sent events: filter with ?session=…&type=…&roles=…&metadata=…,\n\
     resume with ?after=<position> or the header Last-Event-ID.\n\
     GET /console shows conversations and the cluster in a browser. GET /v1/openapi.json describes all of this.\n\
     GET /v1/nodes lists the nodes of the cluster. GET /health says how the node is,\n\
     GET /livez and GET /readyz?verbose answer the probes of an orchestrator, GET /metrics those of Prometheus.\n"
}

async fn health(State(port): State<Port>) -> Response {
    let mut health = (port.health)();
    health.trouble = health.trouble.or_else(|| port.bus.gate().trouble());
    let code = if health.trouble.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let status = health.trouble.as_deref().unwrap_or("ok");
    let body = json!({ "status": status, "version": env!("CARGO_PKG_VERSION"), "role": health.role });
    (code, axum::Json(body)).into_response()
}

/// Where else a client can go.
async fn nodes(State(port): State<Port>, request: Request) -> Response {
    if let Some(refused) = forbidden(&request, Action::Read) {
        return refused;
    }
    let nodes = (port.nodes)();
    let nodes = nodes.iter().map(|node| json!({ "node": node.node, "url": node.url, "leader": node.leads }));
    axum::Json(json!({ "nodes": nodes.collect::<Vec<_>>() })).into_response()
}

async fn not_found(request: Request) -> Response {
    let missing = HttpError::NoRoute { method: request.method().to_string(), path: request.uri().path().to_owned() };
    if is_grpc(request.headers()) {
        return tonic::Status::new(missing.kind().row().grpc, missing.to_string()).into_http();
    }
    missing.into_response()
}

async fn call(
    State(port): State<Port>,
    Path(function): Path<String>,
    terms: Result<Query<Terms>, QueryRejection>,
    request: Request,
) -> Response {
    let metadata = match terms {
        Ok(Query(terms)) => terms.consistency.map(|word| json!({ NAME: { "consistency": word } }).to_string()),
        Err(rejection) => return HttpError::Query(rejection.body_text()).into_response(),
    };
    let caller = Caller { door: Door::Http, identity: identity_of(&request) };
    let account::From { peer, arrived } = account::origin_of(&request);
    let key = CallerKey::of(&caller.identity, CallerKey::Connection(peer));
    let gate = port.bus.gate();
    if let Err(refused) = gate.check_access(&caller.identity, &function) {
        gate.refused_early(&caller, &function);
        return error(refused.kind(), &refused.message());
    }
    let forwards = port.bus.forwards(&realm_of(&caller.identity), &function);
    if !forwards && let Err(busy) = gate.check_queue(&key) {
        discard_small(request.into_body(), DISCARD_MAX_BUSY).await;
        return try_later(gate, &busy, arrived);
    }
    let trace = trace_of(request.headers().get("traceparent").and_then(|value| value.to_str().ok()));
    let (body, room) = match read_body(&port, request).await {
        Ok(read) => read,
        Err(refused) => return refused.into_response(),
    };
    let deadline = gate.deadline();
    // A call to another client's function may take minutes. It must not hold what this node's functions need.
    let admitted = match forwards {
        true => check_open(&function, &port.shutdown).map(|()| None),
        false => gate.admit(key, &function, body.len(), deadline, &port.shutdown).await.map(Some),
    };
    let mut admitted = match admitted {
        Ok(admitted) => admitted,
        Err(busy) => return try_later(gate, &busy, arrived),
    };
    drop(room);
    let answer = async {
        let is_crowded = port.bus.has_crowded_responses();
        let call = Call { function, body, metadata, deadline, caller, trace, is_crowded };
        let answer = port.bus.call(call).await?;
        if let Some(admitted) = &mut admitted {
            admitted.answers(answer.len());
        }
        Ok(answer)
    };
    match answer.await {
        Ok(result) => large_text(&port, result),
        // The error object of the client that served the call is forwarded unchanged.
        Err(CallError::Client(raw)) => json_text(status(Kind::ClientFailed), format!("{{\"error\":{raw}}}")),
        Err(failed) => error(failed.kind(), &failed.message()),
    }
}

/// Reads the body as text. An empty one stands for `{}`, so that `curl -X POST` works. Memory is reserved as bytes
/// arrive, not as they are announced, and a body that holds some must keep arriving.
pub async fn read_body(port: &Port, request: Request) -> Result<(Text, Room), HttpError> {
    let max = port.limits.body_bytes_max();
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|announced: usize| announced > max) {
        return Err(HttpError::BodyTooLarge { max });
    }
    let mut room = port.bus.intake().room();
    let mut pace = Pace::new();
    let mut wait_max = port.bus.gate().service().call_timeout();
    let mut parts = request.into_body().into_data_stream();
    let mut bytes = Vec::new();
    loop {
        let part = match timeout_at(pace.due, parts.next()).await {
            Ok(Some(Ok(part))) => part,
            Ok(None) => break,
            // The connection is lost, so nobody reads this answer.
            Ok(Some(Err(_))) => return Err(HttpError::BodyTimeout),
            Err(_) => return Err(HttpError::BodyTimeout),
        };
        if bytes.len() + part.len() > max {
            return Err(HttpError::BodyTooLarge { max });
        }
        let asked = Instant::now();
        let capacity = capacity_for(bytes.len() + part.len(), bytes.capacity(), announced);
        if timeout(wait_max, room.grow_to(bytes.len() + part.len(), capacity)).await.is_err() {
            return Err(HttpError::NoRoom);
        }
        wait_max = wait_max.saturating_sub(asked.elapsed());
        bytes.reserve_exact(capacity - bytes.len());
        bytes.extend_from_slice(&part);
        pace.arrived(bytes.len(), asked.elapsed());
    }
    if bytes.is_empty() {
        return Ok((Text::from_static("{}"), room));
    }
    let text = Text::try_from(Bytes::from(bytes)).map_err(|_| HttpError::BodyNotText)?;
    Ok((text, room))
}

/// A response. A large one is counted until the client has read it.
fn large_text(port: &Port, printed: Printed) -> Response {
    let length = printed.len();
    if length <= PIECE_BYTES {
        return json_text(StatusCode::OK, printed.into_text());
    }
    // Only reads have large responses, so a refusal here leaves no outcome unknown.
    let room = match length > COUNTED_BYTES {
        true => match port.bus.room_for_response(length) {
            Some(room) => Some(room),
            None => return HttpError::UnreadResponses.into_response(),
        },
        false => None,
    };
    // The parts of a page are shared with what they come from: they are not copied.
    let (first, shared) = printed.into_parts();
    let shared = shared.into_iter().flat_map(|(shared, text)| [shared, Bytes::from(text)]);
    let parts = std::iter::once(Bytes::from(first)).chain(shared).filter(|part| !part.is_empty());
    let pieces = parts.flat_map(|mut part| {
        std::iter::from_fn(move || {
            let piece = part.split_to(part.len().min(PIECE_BYTES));
            (!piece.is_empty()).then_some(piece)
        })
    });
    let pieces = futures::stream::iter(pieces).map(move |piece| {
        let _counted = &room;
        Ok::<_, Infallible>(piece)
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CONTENT_LENGTH, HeaderValue::from(length)),
    ];
    (StatusCode::OK, headers, Body::from_stream(pieces)).into_response()
}

/// A call that was not admitted. Nothing was done, and the node may have room in a moment.
fn try_later(gate: &Gate, busy: &CallError, arrived: Instant) -> Response {
    let later = [(header::RETRY_AFTER, HeaderValue::from(gate.tells_refusal(arrived.elapsed())))];
    (later, error(busy.kind(), &busy.message())).into_response()
}

/// An error response with the status and code of the table.
pub fn error(kind: Kind, message: &str) -> Response {
    json_text(status(kind), json!({ "error": { "code": kind.row().code, "message": message } }).to_string())
}

fn status(kind: Kind) -> StatusCode {
    StatusCode::from_u16(kind.row().http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn json_text(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// The protocols that a WebSocket upgrade can open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketRoute {
    /// The iii bus.
    Bus,
    /// Telemetry of the SDKs, which this node reads and drops.
    Telemetry,
    /// Front-ends that follow agents live.
    Gateway,
}

impl SocketRoute {
    /// The SDKs connect to the URL they are given, `ws://<host>:<port>` by default, and send telemetry to the same URL
    /// with `/otel` appended. They would keep any path in that URL. An engine accepts all of them; this node serves the
    /// bus at `/` only, so that other protocols can have paths of their own. A proxy that publishes the bus under a
    /// prefix has to remove the prefix.
    fn of_path(path: &str) -> Option<SocketRoute> {
        match path.trim_matches('/') {
            "" => Some(SocketRoute::Bus),
            "otel" => Some(SocketRoute::Telemetry),
            path if gateway::PATHS.contains(&path) => Some(SocketRoute::Gateway),
            _unknown => None,
        }
    }
}

fn upgrade(
    port: Port,
    mut request: Request,
    login: Result<Arc<Identity>, LoginError>,
    peer: SocketAddr,
    place: Place,
) -> Result<Response, HttpError> {
    let path = request.uri().path();
    let route = SocketRoute::of_path(path).ok_or_else(|| HttpError::NoSocket { path: path.to_owned() })?;
    if route == SocketRoute::Gateway && !port.bus.gate().service().keeps_turns() {
        return Err(HttpError::NoGateway);
    }
    let version = gateway::connection::version(request.uri().query());
    let (mut response, upgraded) = handshake::accept(&mut request).map_err(HttpError::Handshake)?;
    if route == SocketRoute::Gateway && login::has_bearer_protocol(request.headers()) {
        // A browser gives up unless the answer names one of the protocols that it offered.
        let chosen = HeaderValue::from_static(login::BEARER_PROTOCOL);
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, chosen);
    }
    let connections = port.connections.clone();
    connections.spawn(async move {
        let _place = place;
        let Ok(upgraded) = upgraded.await else { return };
        let connection = TokioIo::new(upgraded);
        match (route, login) {
            // A role that may neither read nor subscribe has no use for the bus.
            (SocketRoute::Bus, Ok(identity)) if !identity.may(Action::Read) => {
                audit::refused_call(&identity, Door::Bus, "connect");
                let refused = CallError::forbidden(&identity, Action::Read).message();
                let close = CloseReason::new(1008, "the role does not allow the bus");
                socket::refuse(connection, outbound::auth_error(&refused), close).await;
            }
            (SocketRoute::Bus, Ok(identity)) => {
                let entrant = Entrant { identity, credentials: port.credentials, peer: Some(peer) };
                connection::serve(port.bus, connection, entrant, port.shutdown).await;
            }
            // Answered as an engine does it: SDKs read the frame and report it.
            (SocketRoute::Bus, Err(refused)) => {
                let frame = outbound::auth_error(&refused.to_string());
                let close = CloseReason::new(1008, "the credentials were refused");
                socket::refuse(connection, frame, close).await;
            }
            (SocketRoute::Gateway, login) => {
                let entrant = gateway::connection::Entrant { login, credentials: port.credentials, peer, version };
                gateway::connection::serve(port.gateway, connection, entrant, port.shutdown).await;
            }
            // Node's SDK opens it without credentials and retries for ever if it is refused.
            (SocketRoute::Telemetry, _) => {
                let message_bytes_max = port.bus.settings().socket.message_bytes_max;
                socket::discard(connection, message_bytes_max, port.bus.intake(), port.shutdown).await;
            }
        }
    });
    // Tells the SDK that this end sends small frames without delay, so that the SDK does the same.
    response.headers_mut().insert("x-iii-capabilities", HeaderValue::from_static("tcp-nodelay"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_web_socket_is_chosen_by_its_path() {
        for (path, route) in [
            ("/", Some(SocketRoute::Bus)),
            ("", Some(SocketRoute::Bus)),
            ("/otel", Some(SocketRoute::Telemetry)),
            ("//otel", Some(SocketRoute::Telemetry)),
            ("/ws", Some(SocketRoute::Gateway)),
            ("/gateway", Some(SocketRoute::Gateway)),
            ("/ws/x", None),
            ("/v1/events", None),
            ("/any/path", None),
            ("/any/otel", None),
        ] {
            assert_eq!(SocketRoute::of_path(path), route, "{path}");
        }
    }
}
