//! Owns: the gRPC watch on the client port.
//! Never: which events match (`events`), what a stream may be asked for (`subscribe`).

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

use super::subscribe::{self, Asked, Ended, ended};
use crate::access::{Credentials, Identity};
use crate::events::current::CurrentFeed;
use crate::events::position::ClusterTag;
use crate::events::stream::{Item, Stream};
use crate::machine::ids::Position;
use crate::proto::watch::events_server::{Events, EventsServer};
use crate::proto::watch::watch_response::What;
use crate::proto::watch::{Event, Nothing, Place, Skipped, WatchRequest, WatchResponse};

/// How often a quiet watch sends its position.
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// The path prefix of watch requests.
pub const PATH: &str = "/session_manager.watch.v1.Events/";

pub struct WatchService {
    pub feed: Arc<CurrentFeed>,
    pub credentials: Arc<Credentials>,
    pub identity: Arc<Identity>,
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
        let opened = subscribe::open(&self.feed, asked, &self.identity).await;
        let stream = opened.map_err(|refused| Status::new(refused.kind().row().grpc, refused.to_string()))?;
        let ended = ended(self.credentials.clone(), self.identity.clone(), self.shutdown.clone());
        let watch = Watch { stream, ended };
        let begun = place(watch.stream.begun, &watch.stream.cluster);
        let first = futures::stream::iter([Ok(response(What::Begun(begun)))]);
        let rest = futures::stream::unfold(watch, |watch| async move {
            let what = watch.next().await?;
            Some((Ok(response(what)), watch))
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

struct Watch {
    stream: Stream,
    ended: Ended,
}

impl Watch {
    async fn next(&self) -> Option<What> {
        loop {
            let item = tokio::select! {
                item = timeout(PROGRESS_EVERY, self.stream.next()) => item,
                () = self.ended.clone() => return None,
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
        Item::Skipped(session_id, range) => What::Skipped(Skipped {
            session_id: session_id.as_str().to_owned(),
            first_seq: range.first,
            last_seq: range.last,
        }),
        Item::Compacted(oldest, cluster) => What::Compacted(place(oldest, &cluster)),
    }
}

fn place(position: Position, cluster: &ClusterTag) -> Place {
    Place { position: cluster.print(position) }
}
