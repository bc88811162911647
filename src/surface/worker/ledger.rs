//! Owns: how far the subscribers of one engine have come, kept in the replicated state: read by whoever takes the engine
//! over, written as the engine confirms what it has read.
//!
//! One cursor stands for all bindings, and one for each of them says from where on it counts: a binding that was made
//! after the last write must not get what happened before it, and one that still reads what it missed has not come as far
//! as the others. The engine keeps the bindings themselves.
//! Never: one write per event; a position of other data than that it was opened for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_128;

use super::subscribers::ENGINE;
use super::{EngineSettings, Sharing};
use crate::events::deliver::{Feed, Released};
use crate::machine::apply::feed::ATTACH_BYTES_MAX;
use crate::machine::ids::Position;
use crate::proposal::Undone;
use crate::proposal::cursor::{Cursors, GatheredCursor};

/// Notes on their way at once: an engine that hands over thousands of bindings must not crowd out the calls.
const NOTES_MAX: usize = 256;

/// How long a replica that lets go may take to write its last notes.
const LAST_NOTES_MAX: Duration = Duration::from_secs(5);

/// How far one engine's subscribers have come.
pub struct Ledger {
    feed: Arc<Feed>,
    cursors: Cursors,
    attach: String,
    /// Where whoever served before left off.
    left_at: Position,
    notes: Mutex<Notes>,
    gathered: Arc<GatheredCursor>,
    keeping: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
    runtime: Handle,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Notes {
    bindings: BTreeMap<String, Noted>,
    /// Recorded before, and not handed to us yet: until they are, the cursor must not pass what they are to get.
    awaited: BTreeSet<String>,
    /// The last position that was told.
    told: Option<Position>,
    /// Rises with every binding that begins to catch up.
    begun: u64,
}

/// What is known of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noted {
    /// Whoever takes over goes on from the cursor, but not from before this position.
    Recorded(Position),
    /// It named a position of its own and reads up to this one; if we are lost before, it begins there again.
    CatchingUp { upto: Position, begun: u64 },
}

/// Everything up to here was handed to the pump.
pub struct Reached {
    ledger: Arc<Ledger>,
    position: Position,
    /// Bindings that began to catch up later have not come so far.
    begun: u64,
    /// Whether every binding was there that is to be served.
    complete: bool,
}

impl Reached {
    /// The engine has read all of it.
    pub fn confirmed(&self, deliveries: u64) {
        self.ledger.confirmed(self, deliveries);
    }
}

/// The last words of a replica that let go, and that nobody heard: it says them itself before it serves again.
pub struct Unsaid {
    feed: Arc<Feed>,
    words: Vec<(String, Position)>,
}

impl Unsaid {
    /// Words of other data mean nothing here.
    pub async fn say(&self, feed: &Arc<Feed>, cursors: &Cursors) -> Result<(), Undone> {
        if Arc::ptr_eq(&self.feed, feed) {
            for (name, position) in &self.words {
                cursors.advance(name, *position).await?;
            }
        }
        Ok(())
    }
}

/// The name of an engine among the attach points: replicas that share one share its name.
pub fn attach_name(settings: &EngineSettings) -> String {
    let namespace = settings.namespace.as_deref().unwrap_or("default");
    match settings.sharing {
        Sharing::Shared => format!("engine/shared/{namespace}"),
        Sharing::Own => format!("engine/own/{}/{namespace}", settings.node_id),
    }
}

impl Ledger {
    /// Reads what whoever served before left. The first ever begins with what happens from now on.
    pub async fn open(
        feed: Arc<Feed>,
        cursors: Cursors,
        attach: String,
        unsaid: Option<&Unsaid>,
    ) -> Result<Arc<Ledger>, Undone> {
        if let Some(unsaid) = unsaid {
            unsaid.say(&feed, &cursors).await?;
        }
        let recorded = cursors.starting(&attach).await?;
        let known = recorded.iter().find(|(name, _)| *name == attach).map(|(_, position)| *position);
        let left_at = match known {
            Some(position) => position,
            None => {
                let now = feed.now();
                cursors.advance(&attach, now).await?;
                now
            }
        };
        let bindings: BTreeMap<String, Noted> = recorded
            .into_iter()
            .filter_map(|(name, floor)| Some((binding_of(&attach, &name)?.to_owned(), Noted::Recorded(floor))))
            .collect();
        let awaited = bindings.keys().cloned().collect();
        let gathered = cursors.gather(&attach);
        let stop = CancellationToken::new();
        let keeping = Mutex::new(Some(tokio::spawn(gathered.clone().keep(stop.clone()))));
        let notes = Mutex::new(Notes { bindings, awaited, told: Some(left_at), begun: 0 });
        let (runtime, room) = (Handle::current(), Arc::new(Semaphore::new(NOTES_MAX)));
        Ok(Arc::new(Ledger { feed, cursors, attach, left_at, notes, gathered, keeping, stop, runtime, room }))
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Never left half changed by a panic, so a poisoned lock is still good.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a ledger of that feed's positions.
    pub fn is_of(&self, feed: &Arc<Feed>) -> bool {
        Arc::ptr_eq(&self.feed, feed)
    }

    /// Where a binding goes on that was served before, by this replica or another one.
    pub fn resumes(&self, id: &str) -> Option<Position> {
        match self.notes().bindings.get(&*self.key_of(id))? {
            Noted::Recorded(floor) => Some(self.left_at.max(*floor)),
            Noted::CatchingUp { .. } => None,
        }
    }

    /// A binding stands that begins at `now`, or that reads from a position it `named` up to `now`.
    pub fn bound(self: &Arc<Ledger>, id: &str, named: Option<Position>, now: Position) {
        let id = &*self.key_of(id);
        let mut notes = self.notes();
        notes.awaited.remove(id);
        if notes.bindings.contains_key(id) {
            return;
        }
        match named {
            Some(_) => {
                notes.begun += 1;
                let catching_up = Noted::CatchingUp { upto: now, begun: notes.begun };
                notes.bindings.insert(id.to_owned(), catching_up);
            }
            None => {
                notes.bindings.insert(id.to_owned(), Noted::Recorded(now));
                // In the log before anything that is proposed after this returns: whatever the binding is to hear of
                // stands behind the note that it is to be heard.
                self.record(id, now);
            }
        }
    }

    /// Nobody wants it any more.
    pub fn unbound(self: &Arc<Ledger>, id: &str) {
        let id = &*self.key_of(id);
        let mut notes = self.notes();
        notes.awaited.remove(id);
        if let Some(Noted::Recorded(_)) = notes.bindings.remove(id) {
            self.forget(id);
        }
    }

    /// The engine does not know of those it has not handed over by now.
    pub fn wait_no_more(self: &Arc<Ledger>) {
        let mut notes = self.notes();
        for id in std::mem::take(&mut notes.awaited) {
            notes.bindings.remove(&id);
            self.forget(&id);
        }
    }

    /// How far the feed has handed out what the bindings want. To be asked before the pump's queue is looked at.
    pub fn reached(self: &Arc<Ledger>) -> Option<Reached> {
        // In this order: a binding that comes in between is one that has not come so far.
        let (begun, complete) = {
            let notes = self.notes();
            (notes.begun, notes.awaited.is_empty())
        };
        let position = self.feed.stands(ENGINE)?;
        Some(Reached { ledger: self.clone(), position, begun, complete })
    }

    fn confirmed(self: &Arc<Ledger>, reached: &Reached, deliveries: u64) {
        let position = reached.position;
        let mut notes = self.notes();
        for (id, noted) in &mut notes.bindings {
            if let Noted::CatchingUp { upto, begun } = *noted
                && upto <= position
                && begun <= reached.begun
            {
                *noted = Noted::Recorded(position);
                self.record(id, position);
            }
        }
        if reached.complete && notes.told < Some(position) {
            notes.told = Some(position);
            self.gathered.delivered(position, deliveries);
        }
    }

    /// What a binding is noted under: its id, or a digest of one that is too long for the name of a cursor.
    fn key_of<'a>(&self, id: &'a str) -> Cow<'a, str> {
        if name_of(&self.attach, id).len() <= ATTACH_BYTES_MAX {
            return id.into();
        }
        format!("~{:032x}", xxh3_128(id.as_bytes())).into()
    }

    fn record(self: &Arc<Ledger>, key: &str, floor: Position) {
        let (name, cursors) = (name_of(&self.attach, key), self.cursors.clone());
        self.order(async move { cursors.advance(&name, floor).await });
    }

    fn forget(self: &Arc<Ledger>, key: &str) {
        let (name, cursors) = (name_of(&self.attach, key), self.cursors.clone());
        self.order(async move { cursors.forget(&name).await });
    }

    /// Proposes at once, if there is room, and sees to the rest on the way.
    fn order(&self, proposal: impl Future<Output = Result<(), Undone>> + Send + 'static) {
        let room = self.room.clone();
        let mut proposal = async move {
            let _room = room.acquire().await;
            if let Err(error) = proposal.await {
                tracing::warn!(%error, "a binding of the engine was not written down: another replica may begin it anew");
            }
        }
        .boxed();
        let _here = self.runtime.enter();
        if (&mut proposal).now_or_never().is_none() {
            self.runtime.spawn(proposal);
        }
    }

    /// Writes how far it came, for whoever comes next. `released`: where its subscribers stood, and everything up to there
    /// is known to have arrived. Gives back what could not be written.
    pub async fn close(self: &Arc<Ledger>, released: Option<&Released>) -> Option<Unsaid> {
        if let Some(released) = released {
            self.arrived(released);
        }
        self.leave().await;
        let written = self.gathered.write_at_last().await;
        let noted = timeout(LAST_NOTES_MAX, self.room.acquire_many(NOTES_MAX as u32)).await.is_ok();
        if written && noted {
            return None;
        }
        tracing::warn!("the delivery cursor was not written: another replica may deliver some events again");
        Some(self.unsaid())
    }

    /// Writes how far it came, if that can be done at once: its data is about to be closed.
    pub async fn leave(&self) {
        self.stop.cancel();
        let keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeping) = keeping
            && let Err(error) = keeping.await
        {
            tracing::error!(%error, "the delivery cursor was not kept");
        }
    }

    /// Nothing is handed out here any more, and all that was has arrived.
    fn arrived(self: &Arc<Ledger>, released: &Released) {
        let mut notes = self.notes();
        if notes.awaited.is_empty() && notes.told < Some(released.stands) {
            notes.told = Some(released.stands);
            self.gathered.delivered(released.stands, 1);
        }
        // Those that came further than the cursor, which waits for others, and those that named a position of their own.
        let told = notes.told;
        for (id, seen) in &released.seen {
            let key = self.key_of(id);
            let Some(noted) = notes.bindings.get_mut(&*key) else { continue };
            let known = match noted {
                Noted::Recorded(floor) => told.max(Some(*floor)),
                Noted::CatchingUp { .. } => None,
            };
            if known < Some(*seen) {
                *noted = Noted::Recorded(*seen);
                self.record(&key, *seen);
            }
        }
    }

    fn unsaid(&self) -> Unsaid {
        let notes = self.notes();
        let told = notes.told.into_iter().map(|told| (self.attach.clone(), told));
        let further = notes.bindings.iter().filter_map(|(key, noted)| match noted {
            Noted::Recorded(floor) if notes.told < Some(*floor) => Some((name_of(&self.attach, key), *floor)),
            Noted::Recorded(_) | Noted::CatchingUp { .. } => None,
        });
        Unsaid { feed: self.feed.clone(), words: told.chain(further).collect() }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn name_of(attach: &str, binding: &str) -> String {
    format!("{attach}#{binding}")
}

fn binding_of<'a>(attach: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(attach)?.strip_prefix('#')
}

#[cfg(test)]
#[path = "ledger_test.rs"]
mod tests;
