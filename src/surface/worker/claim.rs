//! Owns: who of several replicas may serve an engine they share, in the replicated state: a replica writes its claim before
//! it serves, and takes it back after its last word. Whoever finds no claim beside its own finds that word as well.
//!
//! That a replica leads is not enough: leadership may move twice before the first of them has registered anything, and
//! then two find that nobody serves.
//! Never: whether the replica behind a claim is still there; the engine knows.

use std::sync::Arc;

use super::ledger::attach_name;
use super::{EngineSettings, Sharing};
use crate::events::deliver::Feed;
use crate::proposal::Undone;
use crate::proposal::cursor::Cursors;

/// One replica's claim to an engine, among those of the others.
#[derive(Clone)]
pub struct Claim {
    feed: Arc<Feed>,
    cursors: Cursors,
    /// What the names of all claims to this engine begin with. No namespace has a line break.
    prefix: String,
    worker: String,
}

impl Claim {
    /// `None`: nobody else serves this engine.
    pub fn new(settings: &EngineSettings, feed: Arc<Feed>, cursors: Cursors) -> Option<Claim> {
        let prefix = format!("serving/{}\n", attach_name(settings));
        let worker = settings.name.clone();
        (settings.sharing == Sharing::Shared).then_some(Claim { feed, cursors, prefix, worker })
    }

    /// Whether it stands in the data of this feed.
    pub fn is_in(&self, feed: &Arc<Feed>) -> bool {
        Arc::ptr_eq(&self.feed, feed)
    }

    /// From now on whoever else wants to serve waits.
    pub async fn stake(&self) -> Result<(), Undone> {
        self.cursors.advance(&self.name_of(&self.worker), self.feed.now()).await
    }

    /// The workers that have a claim beside this one.
    pub async fn others(&self) -> Result<Vec<String>, Undone> {
        let claims = self.cursors.starting(&self.prefix).await?;
        let workers = claims.iter().filter_map(|(name, _)| name.strip_prefix(&self.prefix));
        Ok(workers.filter(|worker| *worker != self.worker).map(str::to_owned).collect())
    }

    /// Its replica is gone, and will not take it back.
    pub async fn strike(&self, worker: &str) -> Result<(), Undone> {
        self.cursors.forget(&self.name_of(worker)).await
    }

    pub async fn take_back(&self) -> Result<(), Undone> {
        self.strike(&self.worker).await
    }

    fn name_of(&self, worker: &str) -> String {
        format!("{}{worker}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::deliver::FeedSettings;
    use crate::events::{Committed, EventSink};
    use crate::proposal::local::LocalAdapter;
    use crate::proposal::mint::SystemMint;

    struct Nobody;

    impl EventSink for Nobody {
        fn publish(&self, _: Vec<Arc<Committed>>) {}
    }

    fn settings(name: &str, namespace: Option<&str>, sharing: Sharing) -> EngineSettings {
        let (url, name, namespace) = ("ws://e".to_owned(), name.to_owned(), namespace.map(str::to_owned));
        EngineSettings { url, namespace, name, node_id: 1, sharing }
    }

    #[tokio::test]
    async fn of_two_that_claim_an_engine_at_once_at_most_one_finds_itself_alone() {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(Nobody));
        let cursors = Cursors::new(Arc::new(adapter));
        let feed = Feed::new(FeedSettings::default());
        let of = |name, namespace| {
            let settings = settings(name, namespace, Sharing::Shared);
            Claim::new(&settings, feed.clone(), cursors.clone()).unwrap()
        };
        let (a, b, elsewhere) = (of("a", None), of("b", None), of("c", Some("default2")));
        for claim in [&a, &b, &elsewhere] {
            claim.stake().await.unwrap();
        }
        assert_eq!(a.others().await, Ok(vec!["b".to_owned()]));
        assert_eq!(b.others().await, Ok(vec!["a".to_owned()]));
        // The one that no longer leads takes its claim back, and may claim again later.
        a.take_back().await.unwrap();
        assert_eq!(b.others().await, Ok(Vec::new()));
        a.stake().await.unwrap();
        assert_eq!(b.others().await, Ok(vec!["a".to_owned()]));
        b.strike("a").await.unwrap();
        assert_eq!(b.others().await, Ok(Vec::new()));
        assert_eq!(elsewhere.others().await, Ok(Vec::new()), "another namespace is another engine");
    }

    #[test]
    fn an_engine_of_its_own_is_claimed_by_nobody_else() {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(Nobody));
        let cursors = Cursors::new(Arc::new(adapter));
        let feed = Feed::new(FeedSettings::default());
        assert!(Claim::new(&settings("a", None, Sharing::Own), feed, cursors).is_none());
    }
}
