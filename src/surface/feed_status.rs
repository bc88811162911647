//! Owns: `GET /v1/feed`: from where to where events can be read, and the subscribers with their lag.
//! Never: an event (`sse`).

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::http::{self, Port};
use crate::access::Action;
use crate::events::feed::{Feed, Subscriber};

/// The subscribers in one answer: those that are furthest behind.
const SUBSCRIBERS_MAX: usize = 200;
/// Streams have numbers from here on (`events::stream`).
const FIRST_STREAM: u64 = 1 << 63;

pub async fn feed(State(port): State<Port>, request: Request) -> Response {
    if let Some(refused) = http::forbidden(&request, Action::Events) {
        return refused;
    }
    // Who else listens, and to what, is the operator's business.
    let shows_subscribers = http::identity_of(&request).may(Action::Metrics);
    axum::Json(port.bus.feed().read(|feed| describe(feed, shows_subscribers))).into_response()
}

fn describe(feed: &Feed, shows_subscribers: bool) -> Value {
    let print = |position| feed.cluster().print(position);
    let subscribers = shows_subscribers.then(|| {
        let row = |one: &Subscriber| {
            json!({
                "subscriber": one.number & !FIRST_STREAM,
                "kind": if one.number >= FIRST_STREAM { "stream" } else { "bus" },
                "bindings": one.bindings,
                "function_id": Some(&*one.function_id).filter(|id| !id.is_empty()),
                "filter": one.filter,
                "behind": one.is_behind,
                "lag": one.lag,
                "position": one.position.map(print),
            })
        };
        feed.subscribers(SUBSCRIBERS_MAX).iter().map(row).collect::<Vec<_>>()
    });
    json!({
        "oldest": feed.oldest().ok().map(print),
        "newest": feed.position().map(print),
        "subscribers": subscribers,
    })
}
