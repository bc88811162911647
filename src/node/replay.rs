//! Owns: the events for subscribers after a reload has replaced the data: a deletion of each session that is gone, then all
//! sessions and entries of the new data as if they had just been created.
//! Never: a commit. These events are synthetic: not stored, not resumable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::events::Committed;
use crate::events::feed::Feed;
use crate::machine::entry::Body;
use crate::machine::event::{Event, Happened};
use crate::machine::ids::{Position, SessionId};
use crate::machine::session::SessionMeta;
use crate::machine::{Found, Query};
use crate::proposal::{Adapter, AdapterError, Freshness};

/// The time limit of one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// A pause after this many events, so that subscribers can keep up with a store much larger than their queues.
const EVENTS_BEFORE_A_PAUSE: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);
/// Above every ordinal of a commit: these events are ordered after the last commit and before the next.
const ORDINAL_BASE: u32 = 1 << 31;

/// Publishes the content of `new` to the subscribers of `feed`, and a deletion for each session of `old` that it lacks.
/// Returns the number of events.
pub async fn replay(
    old: Vec<SessionMeta>,
    new: &dyn Adapter,
    feed: &Arc<Feed>,
    now_ms: i64,
) -> Result<u32, AdapterError> {
    let mut publisher = Publisher::new(feed);
    let metas = sessions(new).await?;
    let present: BTreeSet<&SessionId> = metas.iter().map(|meta| &meta.session_id).collect();
    for gone in old.iter().filter(|meta| !present.contains(&meta.session_id)) {
        publisher.publish(gone, Happened::Deleted { timestamp: now_ms }).await;
    }
    for meta in &metas {
        publisher.publish(meta, Happened::created(meta)).await;
        let query = Query::Entries(meta.session_id.clone());
        let Found::Entries(entries) = new.ask(query, Freshness::Linearizable, Instant::now() + QUERY_TIMEOUT).await?
        else {
            continue;
        };
        for entry in entries {
            let updated = match &entry.body {
                Body::Message(message) if entry.revision > 0 => Some(Happened::MessageUpdated {
                    entry_id: entry.id.clone(),
                    message: message.clone(),
                    revision: entry.revision,
                    origin: entry.origin.clone(),
                    timestamp: entry.timestamp,
                }),
                Body::Message(_) | Body::Custom { .. } => None,
            };
            publisher.publish(meta, Happened::MessageAdded(entry)).await;
            if let Some(updated) = updated {
                publisher.publish(meta, updated).await;
            }
        }
    }
    Ok(publisher.published)
}

/// Every session of a store.
pub async fn sessions(adapter: &dyn Adapter) -> Result<Vec<SessionMeta>, AdapterError> {
    match adapter.ask(Query::Metas, Freshness::Linearizable, Instant::now() + QUERY_TIMEOUT).await? {
        Found::Metas(metas) => Ok(metas),
        other => Err(AdapterError::Unavailable(format!("asked for sessions, answered {other:?}"))),
    }
}

struct Publisher<'a> {
    feed: &'a Arc<Feed>,
    after: Position,
    published: u32,
}

impl<'a> Publisher<'a> {
    fn new(feed: &'a Arc<Feed>) -> Publisher<'a> {
        let after = feed.position().unwrap_or(Position { group: 0, index: 0, ordinal: 0 });
        Publisher { feed, after, published: 0 }
    }

    async fn publish(&mut self, meta: &SessionMeta, happened: Happened) {
        let ordinal = ORDINAL_BASE.saturating_add(self.published);
        let event = Event { session_id: meta.session_id.clone(), seq: 0, happened, metadata: meta.metadata.clone() };
        self.feed.deliver_synthetic(&Arc::new(Committed::new(Position { ordinal, ..self.after }, event))).await;
        self.published = self.published.saturating_add(1);
        if self.published.is_multiple_of(EVENTS_BEFORE_A_PAUSE) {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
