//! Owns: the gRPC watch, spoken on the client port beside HTTP and the bus.
//! Never: what matches (events), what may be asked (subscribe).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response as HttpResponse;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};
use tower::Service;

use super::subscribe::{self, Asked, Refused};
use crate::events::current::CurrentFeed;
use crate::events::position::ClusterTag;
use crate::events::stream::{Item, Stream};
use crate::machine::ids::Position;
use crate::proto::watch::events_server::{Events, EventsServer};
use crate::proto::watch::watch_response::What;
use crate::proto::watch::{Event, Nothing, Place, WatchRequest, WatchResponse};

/// How often a quiet watch says how far it has come.
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// Requests to this path are for the watch.
pub const PATH: &str = "/session_manager.watch.v1.Events/";

pub struct WatchService {
    pub feed: Arc<CurrentFeed>,
    pub shutdown: CancellationToken,
}

/// Answers one gRPC request.
pub async fn answer(service: WatchService, request: Request) -> HttpResponse {
    let answered = EventsServer::new(service).call(request).await;
    answered.unwrap_or_else(|never| match never {}).map(Body::new)
}

type Responses = Pin<Box<dyn futures::Stream<Item = Result<WatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Events for WatchService {
    type WatchStream = Responses;

    async fn watch(&self, request: tonic::Request<WatchRequest>) -> Result<Response<Responses>, Status> {
        let asked = read(request.into_inner());
        let stream = subscribe::open(&self.feed, asked).await.map_err(|refused| match refused {
            Refused::Invalid(words) => Status::invalid_argument(words),
            Refused::Compacted(words) => Status::out_of_range(words),
            Refused::Unavailable(words) => Status::unavailable(words),
        })?;
        let taker = Taker { stream, shutdown: self.shutdown.clone() };
        let begun = place(taker.stream.begun, &taker.stream.cluster);
        let first = futures::stream::iter([Ok(response(What::Begun(begun)))]);
        let rest = futures::stream::unfold(taker, |taker| async move {
            let what = taker.next().await?;
            Some((Ok(response(what)), taker))
        });
        Ok(Response::new(Box::pin(futures::StreamExt::chain(first, rest))))
    }
}

fn read(request: WatchRequest) -> Asked {
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    Asked {
        session: given(request.session_id),
        types: request.types,
        roles: request.roles,
        metadata: given(request.metadata),
        after: given(request.after),
        after_name: "after",
    }
}

fn response(what: What) -> WatchResponse {
    WatchResponse { what: Some(what) }
}

struct Taker {
    stream: Stream,
    shutdown: CancellationToken,
}

impl Taker {
    async fn next(&self) -> Option<What> {
        loop {
            let item = tokio::select! {
                item = timeout(PROGRESS_EVERY, self.stream.next()) => item,
                () = self.shutdown.cancelled() => return None,
            };
            match (item, self.stream.stands()) {
                (Ok(item), _) => return Some(spell(item)),
                (Err(_), Some((stands, cluster))) => return Some(What::Progress(place(stands, &cluster))),
                (Err(_), None) => {}
            }
        }
    }
}

fn spell(item: Item) -> What {
    match item {
        Item::Event(committed, cluster) => What::Event(Event {
            position: cluster.print(committed.position),
            seq: committed.event.seq,
            r#type: committed.event.kind().trigger_type().to_owned(),
            payload: committed.payload().text().to_owned(),
        }),
        Item::Lagged => What::Lagged(Nothing {}),
        Item::Compacted(oldest, cluster) => What::Compacted(place(oldest, &cluster)),
    }
}

fn place(position: Position, cluster: &ClusterTag) -> Place {
    Place { position: cluster.print(position) }
}
