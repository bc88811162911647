//! Owns: `GET /v1/events`, the change feed as server-sent events. The position is the id, the type is the event name,
//! the payload is the data. A browser's EventSource reconnects by itself and resumes where it was.
//! Never: which events match (`events`), what a stream may be asked for (`subscribe`).

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, sleep_until, timeout};

use super::errors::Kind;
use super::event_stream::{PIECE_BYTES, Printer, event_stream};
use super::http::{Port, error, identity_of};
use super::login;
use super::subscribe::{self, Asked, Ended, StreamError, ended};
use crate::events::delivery::SeqRange;
use crate::events::position::ClusterTag;
use crate::events::stream::{Item, Stream, open_streams};
use crate::machine::ids::Position;
use crate::machine::json::Json;

/// How often a quiet stream sends its position, so that proxies and clients keep the connection.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a client waits before it reconnects, in milliseconds.
const RETRY_MS: u32 = 500;
/// Queued events are written together, up to this size.
const CHUNK_BYTES: usize = 16 << 10;
/// A stream beside so many others writes no more than once in a millisecond, beside twice as many once in two
/// milliseconds, and so on; it gathers events meanwhile. An event may be for all streams, and if each wrote it at once,
/// no processor would be left to calls.
const STREAMS_PER_MS: usize = 16;
/// The longest time that events are gathered. A queue has room for those of a busy node in this time.
const GATHER_MS_MAX: usize = 20;

/// Answers the request with a stream, or with one JSON error instead of it.
pub async fn events(State(port): State<Port>, request: Request) -> Response {
    if let Err(refused) = port.limits.allowed().check_origin(request.headers()) {
        return refused.into_response();
    }
    let identity = identity_of(&request);
    let opened = match read(&request) {
        Ok(asked) => subscribe::open(port.bus.feed(), asked, &identity).await,
        Err(refused) => Err(refused),
    };
    match opened {
        Ok(stream) => {
            let ended = ended(port.credentials, identity, port.shutdown);
            stream_of(stream, ended)
        }
        Err(refused) => error(refused.kind(), &refused.to_string()),
    }
}

/// Reads the query, and the header with the last event that an EventSource received.
fn read(request: &Request) -> Result<Asked, StreamError> {
    let query: Query<Vec<(String, String)>> =
        Query::try_from_uri(request.uri()).map_err(|error| StreamError::Query(error.to_string()))?;
    let mut asked = Asked { after_name: "after", ..Asked::default() };
    let once = |place: &mut Option<String>, name: &str, value: String| match place.replace(value) {
        Some(_) => Err(StreamError::Repeated(name.to_owned())),
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
            login::QUERY => {}
            other => return Err(StreamError::UnknownField(other.to_owned())),
        }
    }
    // A client that reconnects has received more than its URL says, so the header wins.
    if let Some(last) = last_event_id(request.headers())? {
        (asked.after, asked.after_name) = (Some(last), "Last-Event-ID");
    }
    Ok(asked)
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, StreamError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().map_err(|_| StreamError::LastEventIdUnreadable)?;
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn stream_of(stream: Stream, ended: Ended) -> Response {
    let begin = format!("retry: {RETRY_MS}\n{}\n", id(&stream.cluster, stream.begun));
    event_stream(begin, FeedPrinter { stream, ended, written: None })
}

/// Prints events of the feed.
struct FeedPrinter {
    stream: Stream,
    ended: Ended,
    /// When events were printed last.
    written: Option<Instant>,
}

impl Printer for FeedPrinter {
    /// Prints what waits in the stream, up to a limit.
    async fn print_next(&mut self) -> Option<VecDeque<Bytes>> {
        let first = tokio::select! {
            first = timeout(HEARTBEAT, self.stream.next()) => first,
            () = self.ended.clone() => return None,
        };
        let Ok(mut item) = first else { return Some(VecDeque::from([Bytes::from(self.heartbeat())])) };
        let gather_for = gather_for(open_streams());
        if let Some(written) = self.written.filter(|_| !gather_for.is_zero()) {
            sleep_until(written + gather_for).await;
        }
        self.written = Some(Instant::now());
        let mut text = String::new();
        loop {
            if let Some(large) = print(&item, &mut text) {
                return Some(VecDeque::from([Bytes::from(text), large, Bytes::from_static(b"\n\n")]));
            }
            if text.len() >= CHUNK_BYTES {
                break;
            }
            match self.stream.try_next() {
                Some(next) => item = next,
                None => break,
            }
        }
        Some(VecDeque::from([Bytes::from(text)]))
    }
}

/// The least time between two writes of a stream beside so many open ones.
fn gather_for(streams: usize) -> Duration {
    Duration::from_millis((streams / STREAMS_PER_MS).min(GATHER_MS_MAX) as u64)
}

impl FeedPrinter {
    /// An id without data moves the client's position without firing an event.
    fn heartbeat(&self) -> String {
        match self.stream.stands() {
            Some((position, cluster)) => format!(": quiet\n{}\n", id(&cluster, position)),
            None => ": quiet\n\n".to_owned(),
        }
    }
}

/// The text of a payload, shared by all streams that send it.
struct Shared(Json);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.text().as_bytes()
    }
}

/// Prints an event. The payload of a large one is returned instead: streams that stall must not hold a copy each.
fn print(item: &Item, text: &mut String) -> Option<Bytes> {
    match item {
        Item::Event(committed, cluster) => {
            let kind = committed.event.kind().trigger_type();
            text.push_str(&id(cluster, committed.position));
            // `seq` is the event's sequence number in its session. Clients ignore fields they do not know.
            // Writing to a string cannot fail.
            let _ = writeln!(text, "event: {kind}");
            if committed.event.kind().is_published() {
                let _ = writeln!(text, "seq: {}", committed.event.seq);
            }
            let payload = committed.payload();
            if payload.text().len() > PIECE_BYTES && !payload.text().contains(['\n', '\r']) {
                text.push_str("data: ");
                return Some(Bytes::from_owner(Shared(payload.clone())));
            }
            for line in payload.text().lines() {
                let _ = writeln!(text, "data: {line}");
            }
            text.push('\n');
        }
        Item::Lagged => text.push_str("event: lagged\ndata: {}\n\n"),
        Item::Skipped(session_id, SeqRange { first, last }) => {
            let data = serde_json::json!({ "session_id": session_id.as_str(), "first": first, "last": last });
            let _ = write!(text, "event: skipped\ndata: {data}\n\n");
        }
        Item::Compacted(oldest, cluster) => {
            let oldest = cluster.print(*oldest);
            let name = Kind::Compacted.row().sse_event.unwrap_or_default();
            let _ = write!(text, "event: {name}\ndata: {{\"oldest\":\"{oldest}\"}}\n\n");
        }
    }
    None
}

fn id(cluster: &ClusterTag, position: Position) -> String {
    format!("id: {}\n", cluster.print(position))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::access::{Credentials, Identity};
    use crate::events::current::CurrentFeed;
    use crate::events::feed::{Feed, FeedSettings};
    use crate::events::filter::{Filter, Kinds};
    use crate::events::{Committed, EventSink};
    use crate::machine::event::{Event, EventKind, Happened};
    use crate::machine::json::Object;

    fn publish(feed: &Feed, index: u64) {
        let happened = Happened::Published { kind: EventKind::Deleted, role: None, payload: Json::adopt("{}") };
        let event = Event { session_id: "s".into(), seq: index, happened, metadata: None };
        feed.publish(vec![Arc::new(Committed::new(Position { group: 0, index, ordinal: 0 }, event))]);
    }

    #[tokio::test(start_paused = true)]
    async fn beside_many_streams_events_in_quick_succession_are_written_together() {
        let feed = Feed::new(FeedSettings { cluster: ClusterTag::new("c"), ..FeedSettings::default() });
        let shutdown = CancellationToken::new();
        tokio::spawn(feed.clone().dispatch(shutdown.clone()));
        let current = CurrentFeed::new(feed.clone());
        let filter = || Filter::of_stream(Kinds::PUBLISHED, None, None, Object::new());
        let open = || Stream::open_on(&current, &feed, filter(), None).unwrap().unwrap();
        let _others: Vec<_> = (0..GATHER_MS_MAX * STREAMS_PER_MS).map(|_| open()).collect();
        let ended = ended(Credentials::open(), Identity::open(), shutdown);
        let mut printer = FeedPrinter { stream: open(), ended, written: None };
        let events = |printed: Option<VecDeque<Bytes>>| {
            let text: Vec<u8> = printed.unwrap().into_iter().flatten().collect();
            String::from_utf8(text).unwrap().matches("event: session::deleted").count()
        };
        let begun = Instant::now();
        publish(&feed, 1);
        assert_eq!(events(printer.print_next().await), 1);
        assert!(begun.elapsed() < gather_for(open_streams()), "the first one is written at once");
        let publishing = async {
            for index in 2..=10 {
                publish(&feed, index);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let (printed, ()) = tokio::join!(printer.print_next(), publishing);
        assert_eq!(events(printed), 9);
        assert_eq!(gather_for(STREAMS_PER_MS - 1), Duration::ZERO, "few streams wait for nothing");
    }

    fn asked(uri: &str, last: Option<&str>) -> Result<Asked, StreamError> {
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
        let words = asked("/v1/events?sesion=a", None).unwrap_err().to_string();
        assert!(words.starts_with("`sesion` is not a filter of /v1/events"), "{words}");
        for name in ["session", "metadata", "after"] {
            let words = asked(&format!("/v1/events?{name}=a&{name}=b"), None).unwrap_err().to_string();
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
