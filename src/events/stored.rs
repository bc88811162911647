//! Owns: what the feed asks of the state behind it: stored event records, how far back they reach, how far the state
//! applied.
//! Never: the state itself. The adapter that holds it implements `StoredFeed`.

use futures::future::BoxFuture;

use super::errors::ResumeError;
use crate::machine::feed_record::Record;
use crate::machine::ids::FeedPlace;
use crate::machine::query::feed_page::{self, FeedLimits, FeedPage};
use crate::machine::refusal::Fault;
use crate::machine::view::View;

/// The largest page read for one subscriber: reading a page blocks the state, and many subscribers may read at once.
pub const PAGE_MAX: FeedLimits = FeedLimits { records: 128, body_bytes: 256 << 10 };
/// The first page for a subscriber whose queue was full.
pub const PAGE_MIN: FeedLimits = FeedLimits { records: 8, body_bytes: 16 << 10 };

/// A state that stores the records of its events.
pub trait StoredFeed: Send + Sync + 'static {
    /// Calls `read` once with a consistent view of the state.
    fn read_view(&self, read: &mut dyn FnMut(&dyn View));

    /// The place of the last change that is visible here.
    fn applied(&self) -> FeedPlace;

    /// Returns once this state contains every change that any node acknowledged before the call. `Err` is always
    /// `ResumeError::Unavailable`.
    fn catch_up(&self) -> BoxFuture<'_, Result<(), ResumeError>>;
}

fn read<R>(stored: &dyn StoredFeed, read: impl FnOnce(&dyn View) -> Result<R, Fault>) -> Result<R, Fault> {
    let mut read = Some(read);
    let mut result = None;
    stored.read_view(&mut |view| result = read.take().map(|read| read(view)));
    result.unwrap_or_else(|| Err(Fault("the state gave no view to read".to_owned())))
}

/// Why no page could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageError {
    /// Events after the requested place are no longer stored. Everything after this place is.
    Compacted(FeedPlace),
    Fault(Fault),
}

/// Reads the events after a place whose records pass `wanted`.
pub fn page(
    stored: &dyn StoredFeed,
    after: FeedPlace,
    limits: FeedLimits,
    wanted: &dyn Fn(&Record) -> bool,
) -> Result<FeedPage, PageError> {
    let page = read(stored, |view| {
        let edge = view.feed_edge()?;
        match edge.trimmed.filter(|trimmed| *trimmed > after) {
            Some(trimmed) => Ok(Err(PageError::Compacted(trimmed))),
            None => feed_page::page(view, Some(after), limits, wanted).map(Ok),
        }
    });
    page.unwrap_or_else(|fault| Err(PageError::Fault(fault)))
}

/// Everything after this place is stored. A state without any change stores its whole history. A state that made
/// changes before it began to store events knows nothing of what came before now.
pub fn oldest(stored: &dyn StoredFeed) -> Result<FeedPlace, ResumeError> {
    let applied = stored.applied();
    let known = read(stored, |view| Ok((view.feed_edge()?.trimmed, view.clock_ms()?)));
    let (trimmed, clock_ms) = known.map_err(|fault| ResumeError::Unavailable(fault.0))?;
    Ok(trimmed.unwrap_or(if clock_ms == 0 { FeedPlace::BEGINNING } else { applied }))
}

/// The last event that is stored.
pub fn newest(stored: &dyn StoredFeed) -> Option<FeedPlace> {
    read(stored, |view| view.feed_edge()).ok()?.newest
}

/// How many bytes of records are stored.
pub fn bytes(stored: &dyn StoredFeed) -> Option<u64> {
    Some(read(stored, |view| view.feed_edge()).ok()?.bytes)
}
