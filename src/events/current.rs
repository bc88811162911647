//! Owns: which feed is served now. A reload that replaces the data of a running node replaces its feed; subscribers
//! move along.
//! Never: dispatch.

use std::sync::{Arc, PoisonError, RwLock};

use super::feed::Feed;

/// The feed of the data that is served now.
pub struct CurrentFeed(RwLock<Arc<Feed>>);

impl CurrentFeed {
    pub fn new(feed: Arc<Feed>) -> Arc<CurrentFeed> {
        Arc::new(CurrentFeed(RwLock::new(feed)))
    }

    /// Runs `work` on the feed. The feed cannot be replaced meanwhile, so `work` must be short.
    pub fn read<R>(&self, work: impl FnOnce(&Arc<Feed>) -> R) -> R {
        work(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves `next` from now on. Every binding moves there after it received all events of the old feed.
    pub fn swap(&self, next: Arc<Feed>) -> Arc<Feed> {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        current.move_bindings(&next);
        std::mem::replace(&mut current, next)
    }
}
