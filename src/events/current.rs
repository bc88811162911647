//! Owns: which feed is the one that is served: a node whose data is swapped while it runs gets another, and its
//! subscribers go along.
//! Never: dispatch.

use std::sync::{Arc, PoisonError, RwLock};

use super::deliver::Feed;

/// The feed of the data that is served now.
pub struct CurrentFeed(RwLock<Arc<Feed>>);

impl CurrentFeed {
    pub fn new(feed: Arc<Feed>) -> Arc<CurrentFeed> {
        Arc::new(CurrentFeed(RwLock::new(feed)))
    }

    /// Works on the feed while it cannot be swapped. Must not take long.
    pub fn read<R>(&self, work: impl FnOnce(&Arc<Feed>) -> R) -> R {
        work(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves `next` from now on: every binding moves there, after it got everything the old feed had for it.
    pub fn swap(&self, next: Arc<Feed>) -> Arc<Feed> {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        current.move_bindings(&next);
        std::mem::replace(&mut current, next)
    }
}
