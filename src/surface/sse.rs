//! Owns: `GET /v1/events`, the change feed as server-sent events: the position is the id, the type is the name, the
//! payload is the data. A browser's EventSource reconnects by itself and loses nothing.
//! Never: what matches (events), what may be asked (subscribe).

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::http::{Door, check_origin, error};
use super::subscribe::{self, Asked, Refused};
use crate::events::position::ClusterTag;
use crate::events::stream::{Item, Stream};
use crate::machine::ids::Position;

/// A sign of life for proxies and clients, with how far the stream has come.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How soon a client that lost the connection should come back, in milliseconds.
const RETRY_MS: u32 = 500;
/// Events that are ready together are written together, up to this.
const CHUNK_BYTES: usize = 16 << 10;

const FIELDS: &str = "session, type, roles, metadata and after";

/// Answers the request: a stream, or one JSON error before any of it.
pub async fn events(State(door): State<Door>, request: Request) -> Response {
    let headers = request.headers();
    if let Err(why) = check_origin(headers) {
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let origin = headers.get(header::ORIGIN).cloned();
    let asked = match read(&request) {
        Ok(asked) => asked,
        Err(words) => return error(StatusCode::BAD_REQUEST, "invalid_request", &words),
    };
    let feed = door.bus.feed();
    match subscribe::open(feed, asked).await {
        Ok(stream) => stream_of(stream, door.shutdown.clone(), origin),
        Err(refused @ Refused::Invalid(_)) => error(StatusCode::BAD_REQUEST, "invalid_request", refused.words()),
        Err(refused @ Refused::Compacted(_)) => error(StatusCode::GONE, "compacted", refused.words()),
        Err(refused @ Refused::Unavailable(_)) => {
            error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", refused.words())
        }
    }
}

/// Reads the query and the header with which an EventSource says where it was.
fn read(request: &Request) -> Result<Asked, String> {
    let query: Query<Vec<(String, String)>> =
        Query::try_from_uri(request.uri()).map_err(|error| format!("the query cannot be read: {error}"))?;
    let mut asked = Asked { after_name: "after", ..Asked::default() };
    let once = |place: &mut Option<String>, name: &str, value: String| match place.replace(value) {
        Some(_) => Err(format!("{name}: given more than once")),
        None => Ok(()),
    };
    for (name, value) in query.0 {
        let listed = || value.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned);
        match name.as_str() {
            "session" => once(&mut asked.session, &name, value)?,
            "type" => asked.types.extend(listed()),
            "roles" => asked.roles.extend(listed()),
            "metadata" => once(&mut asked.metadata, &name, value)?,
            "after" => once(&mut asked.after, &name, value)?,
            other => return Err(format!("`{other}` is not a filter of /v1/events: it takes {FIELDS}")),
        }
    }
    // A client that comes back knows better than the address it was given at first.
    if let Some(last) = last_event_id(request.headers())? {
        (asked.after, asked.after_name) = (Some(last), "Last-Event-ID");
    }
    Ok(asked)
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, String> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().map_err(|_| "Last-Event-ID: not a position: it holds unreadable bytes".to_owned())?;
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn stream_of(stream: Stream, shutdown: CancellationToken, origin: Option<HeaderValue>) -> Response {
    let begin = format!("retry: {RETRY_MS}\n{}\n", id(&stream.cluster, stream.begun));
    let taker = Taker { stream, shutdown };
    let rest = futures::stream::unfold(taker, |taker| async move { taker.chunk().await.map(|text| (text, taker)) });
    let chunks = futures::StreamExt::chain(futures::stream::iter([begin]), rest);
    let body = Body::from_stream(futures::StreamExt::map(chunks, |text| Ok::<_, Infallible>(Bytes::from(text))));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that buffer would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    // Checked before: a page of this machine.
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

struct Taker {
    stream: Stream,
    shutdown: CancellationToken,
}

impl Taker {
    /// The next piece of the stream; `None` at its end. Events that are ready together leave together.
    async fn chunk(&self) -> Option<String> {
        let first = tokio::select! {
            first = timeout(HEARTBEAT, self.stream.next()) => first,
            () = self.shutdown.cancelled() => return None,
        };
        let Ok(mut item) = first else { return Some(self.heartbeat()) };
        let mut text = String::new();
        loop {
            print(&item, &mut text);
            if text.len() >= CHUNK_BYTES {
                break;
            }
            match self.stream.try_next() {
                Some(next) => item = next,
                None => break,
            }
        }
        Some(text)
    }

    /// An id without data moves a client's place and calls nobody.
    fn heartbeat(&self) -> String {
        match self.stream.stands() {
            Some((position, cluster)) => format!(": quiet\n{}\n", id(&cluster, position)),
            None => ": quiet\n\n".to_owned(),
        }
    }
}

fn print(item: &Item, text: &mut String) {
    match item {
        Item::Event(committed, cluster) => {
            let kind = committed.event.kind().trigger_type();
            text.push_str(&id(cluster, committed.position));
            // Clients ignore fields they do not know; ours tells the sequence in the session.
            // Writing to a string cannot fail.
            let _ = writeln!(text, "event: {kind}\nseq: {}", committed.event.seq);
            for line in committed.payload().text().lines() {
                let _ = writeln!(text, "data: {line}");
            }
            text.push('\n');
        }
        Item::Lagged => text.push_str("event: lagged\ndata: {}\n\n"),
        Item::Compacted(oldest, cluster) => {
            let oldest = cluster.print(*oldest);
            let _ = write!(text, "event: compacted\ndata: {{\"oldest\":\"{oldest}\"}}\n\n");
        }
    }
}

fn id(cluster: &ClusterTag, position: Position) -> String {
    format!("id: {}\n", cluster.print(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(uri: &str, last: Option<&str>) -> Result<Asked, String> {
        let mut request = Request::builder().uri(uri);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        read(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn the_query_names_filters_and_nothing_else() {
        let uri =
            "/v1/events?session=a%20b&type=created,deleted&type=message-added&roles=user,&metadata=%7B%7D&after=x";
        let read = asked(uri, None).unwrap();
        assert_eq!(read.session.as_deref(), Some("a b"));
        assert_eq!(read.types, ["created", "deleted", "message-added"]);
        assert_eq!(read.roles, ["user"]);
        assert_eq!((read.metadata.as_deref(), read.after.as_deref()), (Some("{}"), Some("x")));
        let words = asked("/v1/events?sesion=a", None).unwrap_err();
        assert!(words.starts_with("`sesion` is not a filter of /v1/events"), "{words}");
        for name in ["session", "metadata", "after"] {
            let words = asked(&format!("/v1/events?{name}=a&{name}=b"), None).unwrap_err();
            assert_eq!(words, format!("{name}: given more than once"));
        }
    }

    #[test]
    fn a_client_that_comes_back_goes_on_from_its_last_event() {
        let read = asked("/v1/events?after=first", Some("last")).unwrap();
        assert_eq!((read.after.as_deref(), read.after_name), (Some("last"), "Last-Event-ID"));
        let fresh = asked("/v1/events?after=first", Some("")).unwrap();
        assert_eq!((fresh.after.as_deref(), fresh.after_name), (Some("first"), "after"));
    }
}
