//! Owns: the bindings an engine handed to us, in the feed under this attach point's name.
//! Never: delivery (pump), filters (events), how far they came (ledger).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ledger::{Ledger, Reached};
use super::pump::{Progress, Pump};
use super::sdk::{Bindings, EngineBinding};
use crate::events::bindings::{Binding, BindingKey};
use crate::events::current::CurrentFeed;
use crate::events::deliver::{Feed, Released};
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
}

#[derive(Default)]
struct Rows {
    by_id: BTreeMap<String, Row>,
    /// Rises when the connection is lost: bindings the engine does not repeat afterwards are gone.
    connection: u64,
    /// How far they came, for whoever serves them next; `None` where nobody could.
    ledger: Option<Arc<Ledger>>,
    /// Another replica is to serve them: what still comes here is noted for it.
    released: bool,
}

struct Row {
    connection: u64,
}

impl Subscribers {
    pub fn new(feed: Arc<CurrentFeed>, pump: Arc<Pump>, ledger: Option<Arc<Ledger>>) -> Arc<Subscribers> {
        Arc::new(Subscribers { feed, pump, rows: Mutex::new(Rows { ledger, ..Rows::default() }) })
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(
        &self,
        feed: &Feed,
        asked: &EngineBinding,
        read: Subscription,
        resumes: Option<Position>,
    ) -> Result<(), String> {
        let binding = Binding {
            key: key(&asked.id),
            function_id: asked.function_id.as_str().into(),
            filter: read.filter,
            sidecar_fields: read.sidecar_fields,
            after: resumes.or(read.after),
            to: self.pump.outlet(asked.namespace.as_deref()),
        };
        match resumes {
            Some(_) => feed.resume(binding),
            None => feed.bind(binding)?,
        }
        Ok(())
    }

    /// The connection is lost: what the engine does not repeat after it is back is no longer wanted.
    pub fn doubt(&self) {
        self.rows().connection += 1;
    }

    /// Drops the bindings that were not repeated since the last doubt, and those that another replica left and that the
    /// engine does not know any more.
    pub fn sweep(&self) {
        let mut rows = self.rows();
        let now = rows.connection;
        let gone: Vec<String> =
            rows.by_id.iter().filter(|(_, row)| row.connection < now).map(|(id, _)| id.clone()).collect();
        for id in gone {
            self.drop_row(&mut rows, &id);
            tracing::debug!(id, "a binding ended while the engine was out of reach");
        }
        if let Some(ledger) = &rows.ledger {
            ledger.wait_no_more();
        }
    }

    fn drop_row(&self, rows: &mut Rows, id: &str) {
        rows.by_id.remove(id);
        self.feed.read(|feed| feed.unbind(&key(id)));
        if let Some(ledger) = &rows.ledger {
            ledger.unbound(id);
        }
    }

    /// The data was swapped: from now on they come along in that of the new one. Gives the old ledger back.
    pub fn keep_in(&self, ledger: Option<Arc<Ledger>>) -> Option<Arc<Ledger>> {
        let mut rows = self.rows();
        if let Some(ledger) = &ledger {
            let now = self.feed.read(|feed| feed.now());
            rows.by_id.keys().for_each(|id| ledger.bound(id, None, now));
        }
        std::mem::replace(&mut rows.ledger, ledger)
    }

    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.rows().ledger.clone()
    }

    /// Another replica serves them from now on. Gives back how far they came here.
    pub fn release(&self) -> Option<Released> {
        let mut rows = self.rows();
        rows.by_id.clear();
        rows.released = true;
        self.feed.read(|feed| feed.release(ENGINE))
    }
}

fn key(id: &str) -> BindingKey {
    BindingKey { owner: ENGINE, id: id.into() }
}

impl Bindings for Subscribers {
    fn bind(&self, trigger_type: &'static str, asked: EngineBinding) -> Result<(), String> {
        let mut rows = self.rows();
        if rows.by_id.len() >= BINDINGS_MAX && !rows.by_id.contains_key(&asked.id) {
            return Err(format!("this node keeps {BINDINGS_MAX} bindings of one engine already"));
        }
        let bound = self.feed.read(|feed| {
            // In the moment of a swap the ledger may still be that of the data before.
            let ledger = rows.ledger.as_ref().filter(|ledger| ledger.is_of(feed));
            let now = feed.now();
            let metadata = asked.metadata.clone().filter(|metadata| !metadata.is_null());
            let read = Subscription::read(feed, trigger_type, &asked.function_id, &asked.config, metadata)?;
            let named = read.after;
            if !rows.released {
                let resumes = ledger.and_then(|ledger| ledger.resumes(&asked.id));
                self.put(feed, &asked, read, resumes)?;
            }
            if let Some(ledger) = ledger {
                ledger.bound(&asked.id, named, now);
            }
            Ok(())
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
        self.drop_row(&mut self.rows(), id);
    }
}

impl Progress for Subscribers {
    fn reached(&self) -> Option<Reached> {
        self.ledger()?.reached()
    }
}
