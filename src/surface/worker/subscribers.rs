//! Owns: the bindings an engine handed to us, in the feed under this attach point's name.
//! Never: delivery (pump), filters (events).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pump::Pump;
use super::sdk::{Bindings, EngineBinding};
use crate::events::bindings::{Binding, BindingKey};
use crate::events::current::CurrentFeed;
use crate::events::deliver::Feed;
use crate::machine::ids::Position;
use crate::surface::subscription::Subscription;

/// The number of the engine among the owners of bindings. Clients of the embedded bus count from one.
pub const ENGINE: u64 = 0;

/// What one binding may cost the node, and how many there may be.
const BINDINGS_MAX: usize = 64 << 10;

/// The bindings of one engine.
pub struct Subscribers {
    feed: Arc<CurrentFeed>,
    pump: Arc<Pump>,
    rows: Mutex<Rows>,
    /// Where bindings that name no position begin, after another replica served them: what it has not delivered.
    resume: Option<Position>,
}

#[derive(Default)]
struct Rows {
    by_id: BTreeMap<String, Row>,
    /// Rises when the connection is lost: bindings the engine does not repeat afterwards are gone.
    connection: u64,
}

struct Row {
    connection: u64,
}

impl Subscribers {
    pub fn new(feed: Arc<CurrentFeed>, pump: Arc<Pump>, resume: Option<Position>) -> Arc<Subscribers> {
        Arc::new(Subscribers { feed, pump, rows: Mutex::default(), resume })
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(
        &self,
        feed: &Feed,
        trigger_type: &'static str,
        asked: &EngineBinding,
        after: Option<Position>,
    ) -> Result<(), String> {
        let metadata = asked.metadata.clone().filter(|metadata| !metadata.is_null());
        let read = Subscription::read(feed, trigger_type, &asked.function_id, &asked.config, metadata)?;
        feed.bind(Binding {
            key: BindingKey { owner: ENGINE, id: asked.id.as_str().into() },
            function_id: asked.function_id.as_str().into(),
            filter: read.filter,
            sidecar_fields: read.sidecar_fields,
            after: read.after.max(after),
            to: self.pump.outlet(asked.namespace.as_deref()),
        })
    }

    /// The connection is lost: what the engine does not repeat after it is back is no longer wanted.
    pub fn doubt(&self) {
        self.rows().connection += 1;
    }

    /// Drops the bindings that were not repeated since the last doubt.
    pub fn sweep(&self) {
        let mut rows = self.rows();
        let now = rows.connection;
        let gone: Vec<String> =
            rows.by_id.iter().filter(|(_, row)| row.connection < now).map(|(id, _)| id.clone()).collect();
        for id in gone {
            rows.by_id.remove(&id);
            self.feed.read(|feed| feed.unbind(&BindingKey { owner: ENGINE, id: id.as_str().into() }));
            tracing::debug!(id, "a binding ended while the engine was out of reach");
        }
    }

    pub fn len(&self) -> usize {
        self.rows().by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Another replica serves them from now on.
    pub fn release(&self) {
        self.rows().by_id.clear();
        self.feed.read(|feed| feed.unbind_owner(ENGINE));
    }
}

impl Bindings for Subscribers {
    fn bind(&self, trigger_type: &'static str, asked: EngineBinding) -> Result<(), String> {
        let mut rows = self.rows();
        if rows.by_id.len() >= BINDINGS_MAX && !rows.by_id.contains_key(&asked.id) {
            return Err(format!("this node keeps {BINDINGS_MAX} bindings of one engine already"));
        }
        let bound = self.feed.read(|feed| {
            self.put(feed, trigger_type, &asked, self.resume).or_else(|why| {
                // What we remember for a subscriber is a courtesy; what it names itself must be kept.
                if self.resume.is_some() { self.put(feed, trigger_type, &asked, None) } else { Err(why) }
            })
        });
        if let Err(why) = &bound {
            tracing::debug!(id = asked.id, function_id = asked.function_id, why, "a binding was refused");
            return bound;
        }
        let connection = rows.connection;
        rows.by_id.insert(asked.id, Row { connection });
        Ok(())
    }

    fn unbind(&self, id: &str) {
        self.rows().by_id.remove(id);
        self.feed.read(|feed| feed.unbind(&BindingKey { owner: ENGINE, id: id.into() }));
    }
}
