//! Owns: what the feed asks of the state it stands before: the kept lines, how far they reach, how far they are applied.
//! Never: the state itself; whoever holds it answers.

use futures::future::BoxFuture;

use crate::machine::feed::Record;
use crate::machine::ids::{FeedPlace, Position};
use crate::machine::query::feed::{self, FeedLimits, FeedPage};
use crate::machine::refusal::Fault;
use crate::machine::view::View;

use super::position::ClusterTag;

/// Read at once for one subscriber: a page holds the state still, and many may read at the same time.
pub const PAGE_MAX: FeedLimits = FeedLimits { records: 128, body_bytes: 256 << 10 };
/// For one that has no room for more.
pub const PAGE_MIN: FeedLimits = FeedLimits { records: 8, body_bytes: 16 << 10 };

/// A state with the feed of its events.
pub trait History: Send + Sync + 'static {
    /// Calls `look` once with the state of one moment.
    fn look(&self, look: &mut dyn FnMut(&dyn View));

    /// The place of the last change that is visible here.
    fn applied(&self) -> FeedPlace;

    /// Returns once the state here holds everything that was answered anywhere before now.
    fn catch_up(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// One look with a result.
fn look<R>(history: &dyn History, read: impl FnOnce(&dyn View) -> Result<R, Fault>) -> Result<R, Fault> {
    let mut read = Some(read);
    let mut result = None;
    history.look(&mut |view| result = read.take().map(|read| read(view)));
    result.unwrap_or_else(|| Err(Fault("the state was not looked at".to_owned())))
}

/// Why a subscriber cannot go on from where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// The events after it are not all kept any more; all after this one are.
    Compacted(FeedPlace),
    Fault(String),
}

/// The events after a place of which `wanted` passes the lines.
pub fn page(
    history: &dyn History,
    after: FeedPlace,
    limits: FeedLimits,
    wanted: &dyn Fn(&Record) -> bool,
) -> Result<FeedPage, Unread> {
    let read = look(history, |view| {
        let edge = view.feed_edge()?;
        match edge.trimmed.filter(|trimmed| *trimmed > after) {
            Some(trimmed) => Ok(Err(Unread::Compacted(trimmed))),
            None => feed::page(view, Some(after), limits, wanted).map(Ok),
        }
    });
    read.unwrap_or_else(|fault| Err(Unread::Fault(fault.0)))
}

/// Everything after this place is kept. Before its first event a state keeps all there is; one that came to its age
/// without keeping events knows nothing of what was before now.
pub fn oldest(history: &dyn History) -> Result<FeedPlace, String> {
    let applied = history.applied();
    let known = look(history, |view| Ok((view.feed_edge()?.trimmed, view.clock_ms()?)));
    let (trimmed, clock_ms) = known.map_err(|fault| fault.0)?;
    Ok(trimmed.unwrap_or(if clock_ms == 0 { FeedPlace::BEGINNING } else { applied }))
}

/// The last event that is kept.
pub fn newest(history: &dyn History) -> Option<FeedPlace> {
    look(history, |view| view.feed_edge()).ok()?.newest
}

/// In words, for whoever asked to go on after a position that is not kept.
pub fn compacted(cluster: &ClusterTag, after: Position, oldest: Position) -> String {
    let (asked, oldest) = (cluster.print(after), cluster.print(oldest));
    format!(
        "compacted: cannot resume after {asked}, the oldest is {oldest}; read the state and resume after {oldest}, or \
         begin without a position"
    )
}
