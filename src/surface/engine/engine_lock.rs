//! Owns: the lock of a shared engine, in the replicated state. Each replica that wants to serve writes its own entry;
//! the replica that sees only its own entry holds the lock. A replica removes its entry after it has written its final
//! cursor, so a replica that sees no other entry is guaranteed to read that cursor.
//!
//! Leadership alone is not enough: it can move twice before the first leader has registered anything, and then two
//! replicas see an engine that none of them serves.
//! Never: whether the owner of an entry is alive; the engine knows (`control`).

use std::sync::Arc;

use super::delivery_cursors::cursor_key;
use super::{EngineSettings, Sharing};
use crate::events::feed::Feed;
use crate::proposal::AdapterError;
use crate::proposal::cursor::Cursors;

/// This replica's entry in the lock of an engine, and access to the entries of the others.
#[derive(Clone)]
pub struct EngineLock {
    feed: Arc<Feed>,
    cursors: Cursors,
    /// The common prefix of all entries of this engine. It ends with a line break, which no namespace contains.
    prefix: String,
    worker: String,
}

impl EngineLock {
    /// `None`: the engine is not shared, so it needs no lock.
    pub fn new(settings: &EngineSettings, feed: Arc<Feed>, cursors: Cursors) -> Option<EngineLock> {
        let prefix = format!("serving/{}\n", cursor_key(settings));
        let worker = settings.name.clone();
        (settings.sharing == Sharing::Shared).then_some(EngineLock { feed, cursors, prefix, worker })
    }

    /// Whether the lock is stored in the data of this feed.
    pub fn is_stored_with(&self, feed: &Arc<Feed>) -> bool {
        Arc::ptr_eq(&self.feed, feed)
    }

    /// Writes this replica's entry. From then on other replicas wait.
    pub async fn request(&self) -> Result<(), AdapterError> {
        self.cursors.advance(&self.entry_of(&self.worker), self.feed.now()).await
    }

    /// The workers that have an entry besides this one.
    pub async fn others(&self) -> Result<Vec<String>, AdapterError> {
        let entries = self.cursors.starting(&self.prefix).await?;
        let workers = entries.iter().filter_map(|(name, _)| name.strip_prefix(&self.prefix));
        Ok(workers.filter(|worker| *worker != self.worker).map(str::to_owned).collect())
    }

    /// Removes the entry of a replica that is gone and cannot remove it itself.
    pub async fn remove_entry_of(&self, worker: &str) -> Result<(), AdapterError> {
        self.cursors.forget(&self.entry_of(worker)).await
    }

    /// Removes this replica's entry.
    pub async fn release(&self) -> Result<(), AdapterError> {
        self.remove_entry_of(&self.worker).await
    }

    fn entry_of(&self, worker: &str) -> String {
        format!("{}{worker}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::feed::FeedSettings;
    use crate::events::{Committed, EventSink};
    use crate::mint::SystemMint;
    use crate::proposal::local::LocalAdapter;

    struct NoSubscribers;

    impl EventSink for NoSubscribers {
        fn publish(&self, _: Vec<Arc<Committed>>) {}
    }

    fn settings(name: &str, namespace: Option<&str>, sharing: Sharing) -> EngineSettings {
        let (url, name, namespace) = ("ws://e".to_owned(), name.to_owned(), namespace.map(str::to_owned));
        EngineSettings { url, namespace, name, node_id: 1, sharing }
    }

    #[tokio::test]
    async fn of_two_replicas_that_request_the_lock_at_once_at_most_one_sees_no_other() {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(NoSubscribers));
        let cursors = Cursors::new(Arc::new(adapter));
        let feed = Feed::new(FeedSettings::default());
        let lock_of = |name, namespace| {
            let settings = settings(name, namespace, Sharing::Shared);
            EngineLock::new(&settings, feed.clone(), cursors.clone()).unwrap()
        };
        let (a, b, elsewhere) = (lock_of("a", None), lock_of("b", None), lock_of("c", Some("default2")));
        for lock in [&a, &b, &elsewhere] {
            lock.request().await.unwrap();
        }
        assert_eq!(a.others().await, Ok(vec!["b".to_owned()]));
        assert_eq!(b.others().await, Ok(vec!["a".to_owned()]));
        // A replica that lost its leadership releases the lock, and may request it again later.
        a.release().await.unwrap();
        assert_eq!(b.others().await, Ok(Vec::new()));
        a.request().await.unwrap();
        assert_eq!(b.others().await, Ok(vec!["a".to_owned()]));
        b.remove_entry_of("a").await.unwrap();
        assert_eq!(b.others().await, Ok(Vec::new()));
        assert_eq!(elsewhere.others().await, Ok(Vec::new()), "another namespace has its own lock");
    }

    #[test]
    fn an_engine_that_is_not_shared_has_no_lock() {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(NoSubscribers));
        let cursors = Cursors::new(Arc::new(adapter));
        let feed = Feed::new(FeedSettings::default());
        assert!(EngineLock::new(&settings("a", None, Sharing::Own), feed, cursors).is_none());
    }
}
