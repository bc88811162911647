//! Owns: what subscribers hear after the data under them was swapped: the sessions that vanished, then all that are there
//! now, as if they had just been made.
//! Never: a commit. These events tell of a state, so nothing keeps them and nobody can resume among them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::events::Committed;
use crate::events::deliver::Feed;
use crate::machine::entry::Body;
use crate::machine::event::{Event, Happened};
use crate::machine::ids::{Position, SessionId};
use crate::machine::session::SessionMeta;
use crate::machine::{Found, Query};
use crate::proposal::{Adapter, Undone};

/// How long one question to a store may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// A pause now and then, so that subscribers can keep up with a store that is much larger than their queues.
const EVENTS_BEFORE_A_PAUSE: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);
/// Above every ordinal of a commit: events of a replay stand after the last commit and before the next.
const ORDINAL_BASE: u32 = 1 << 31;

/// Tells the subscribers of `feed` what `new` holds, and what of `old` it does not.
pub async fn replay(old: Vec<SessionMeta>, new: &dyn Adapter, feed: &Arc<Feed>, now_ms: i64) -> Result<u32, Undone> {
    let mut teller = Teller::new(feed);
    let metas = sessions(new).await?;
    let present: BTreeSet<&SessionId> = metas.iter().map(|meta| &meta.session_id).collect();
    for gone in old.iter().filter(|meta| !present.contains(&meta.session_id)) {
        teller.tell(gone, Happened::Deleted { timestamp: now_ms }).await;
    }
    for meta in &metas {
        teller.tell(meta, Happened::created(meta)).await;
        let query = Query::Entries(meta.session_id.clone());
        let Found::Entries(entries) = new.ask(query, Instant::now() + PATIENCE).await? else { continue };
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
            teller.tell(meta, Happened::MessageAdded(entry)).await;
            if let Some(updated) = updated {
                teller.tell(meta, updated).await;
            }
        }
    }
    Ok(teller.told)
}

/// Every session of a store.
pub async fn sessions(adapter: &dyn Adapter) -> Result<Vec<SessionMeta>, Undone> {
    match adapter.ask(Query::Metas, Instant::now() + PATIENCE).await? {
        Found::Metas(metas) => Ok(metas),
        other => Err(Undone::Unavailable(format!("asked for sessions, answered {other:?}"))),
    }
}

struct Teller<'a> {
    feed: &'a Arc<Feed>,
    after: Position,
    told: u32,
}

impl<'a> Teller<'a> {
    fn new(feed: &'a Arc<Feed>) -> Teller<'a> {
        let after = feed.position().unwrap_or(Position { group: 0, index: 0, ordinal: 0 });
        Teller { feed, after, told: 0 }
    }

    async fn tell(&mut self, meta: &SessionMeta, happened: Happened) {
        let ordinal = ORDINAL_BASE.saturating_add(self.told);
        let event = Event { session_id: meta.session_id.clone(), seq: 0, happened, metadata: meta.metadata.clone() };
        self.feed.tell(&Arc::new(Committed::new(Position { ordinal, ..self.after }, event))).await;
        self.told = self.told.saturating_add(1);
        if self.told.is_multiple_of(EVENTS_BEFORE_A_PAUSE) {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
