//! Owns: a node before it has a cluster: it answers the probes of its orchestrator at the port for clients, refuses calls
//! with the reason, and finds its cluster.
//! Never: how a cluster is found (`replication/formation`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::store::OpenError;
use super::{Environment, StartError, data_dir};
use crate::access::tls::{PeerTls, ServerTls};
use crate::config::Config;
use crate::replication::formation::discovery::Discover;
use crate::replication::formation::forming::{self, FormSettings};
use crate::replication::listener::PeerAccess;
use crate::sockets::{Listening, Stream};

/// Connections at the same time. Probes are few, and clients are told to come back.
const CONNECTIONS_MAX: usize = 64;
/// How long one connection may take.
const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept: the process is out of descriptors, so an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Finds the cluster of a node with `discover`. Returns the id of the node in it.
pub async fn find_cluster(config: &Config, environment: &Environment) -> Result<u64, StartError> {
    config.validate().map_err(StartError::Config)?;
    let (Some(place), Some(peer_listen), Some(dir)) = (&config.discover, config.peer_listen, config.adapter.data_dir())
    else {
        return Ok(config.node_id);
    };
    let in_dir = |why| StartError::Data { data_dir: dir.to_owned(), why: OpenError::DataDir(why) };
    data_dir::check(&*environment.disk, &config.adapter).map_err(in_dir)?;
    let discover = place.parse().unwrap_or(Discover::Addresses(Vec::new()));
    let tls = config.peer_tls().map(|files| PeerTls::load(files, None)).transpose().map_err(StartError::Tls)?;
    let access = match tls {
        Some(tls) => PeerAccess::Certificates(tls),
        None if config.insecure_no_auth && config.insecure_no_tls => PeerAccess::Everybody,
        None => PeerAccess::ThisMachine,
    };
    let settings = FormSettings {
        data_dir: dir.to_owned(),
        name: config.node_name(),
        peer_listen,
        peer_advertise: config.peer_advertise.clone(),
        access,
        expect: config.bootstrap_expect,
        discover,
        rejoin: config.rejoin,
        disk: environment.disk.clone(),
        sockets: environment.sockets.clone(),
    };
    let waits = watch::Sender::new("looking for other nodes".to_owned());
    let _door = open_door(config, environment, &waits).await?;
    forming::find_cluster(&settings, &waits).await.map_err(StartError::Form)
}

/// Answers at the port for clients until it is dropped. A port that is chosen at the start is not known to anybody yet.
async fn open_door(
    config: &Config,
    environment: &Environment,
    waits: &watch::Sender<String>,
) -> Result<Option<AbortOnDropHandle<()>>, StartError> {
    if config.listen.port() == 0 {
        return Ok(None);
    }
    let tls = config.client_tls().map(|files| ServerTls::for_clients(files, config.peer_ca.clone()));
    let tls = tls.transpose().map_err(StartError::Tls)?;
    let listening = environment.sockets.listen(&config.listen.to_string()).await;
    let listening = listening.map_err(|why| StartError::Listen { address: config.listen, why })?;
    let serving = serve(listening, tls, waits.subscribe());
    Ok(Some(AbortOnDropHandle::new(tokio::spawn(serving))))
}

async fn serve(listening: Box<dyn Listening>, tls: Option<Arc<ServerTls>>, waits: watch::Receiver<String>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listening.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (tls, waits) = (tls.clone(), waits.clone());
        tokio::spawn(async move {
            // Whoever takes longer is cut off.
            let _ = timeout(CONNECTION_MAX, answer(stream, tls, waits)).await;
            drop(place);
        });
    }
}

async fn answer(stream: Stream, tls: Option<Arc<ServerTls>>, waits: watch::Receiver<String>) {
    let stream: Stream = match tls {
        None => stream,
        Some(tls) => match tls.accept(stream).await {
            Ok((stream, _)) => Box::new(stream),
            Err(_) => return,
        },
    };
    let respond = service_fn(move |request: Request<Incoming>| {
        let response = respond(request.uri().path(), &waits.borrow());
        async move { Ok::<_, Infallible>(response) }
    });
    // A connection that breaks off needs no answer.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), respond)
        .await;
}

/// Probes need no credentials and learn nothing but that the node waits; callers learn why.
fn respond(path: &str, waits: &str) -> Response<Body> {
    let (status, kind, text) = match path {
        "/livez" => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        "/readyz" => {
            let text = "cluster: this node looks for the other nodes of its cluster\n".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, "text/plain", text)
        }
        _other => {
            let message = "this node has no cluster yet: it looks for the other nodes; retry";
            tracing::debug!(waits, "a call came before the cluster was found");
            let error = json!({ "error": { "code": "session/storage", "message": message } });
            (StatusCode::SERVICE_UNAVAILABLE, "application/json", error.to_string())
        }
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
