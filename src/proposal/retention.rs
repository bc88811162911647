//! Owns: how far back the feed is kept. Whoever leads looks at its clock and its settings, chooses a place, and orders
//! the trim through the log: every node drops the same lines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::Adapter;
use super::mint::Mint;
use crate::events::history::History;
use crate::machine::Command;
use crate::machine::apply::feed::FeedOrder;
use crate::machine::ids::FeedPlace;
use crate::machine::refusal::Fault;
use crate::machine::view::View;
use crate::storage::feed;

/// How often the feed is looked at: a few megabytes at the pace of a busy cluster.
const EVERY: Duration = Duration::from_secs(2);
/// Lines dropped by one order: a moment's work for apply.
const LINES_MAX: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(10);

/// How much of the feed is kept: what is past either bound goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub bytes_max: u64,
    pub age_max: Duration,
}

/// Who keeps the feed short.
pub struct Keeper {
    pub adapter: Arc<dyn Adapter>,
    pub history: Arc<dyn History>,
    /// Whether this node is the one to order it now.
    pub leads: Box<dyn Fn() -> bool + Send + Sync>,
    pub mint: Arc<dyn Mint>,
    pub retention: Retention,
}

impl Keeper {
    /// Tends the feed until shutdown. What cannot be ordered now is ordered later.
    pub async fn tend(self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = shutdown.cancelled() => return,
            }
            while (self.leads)() && self.trim().await {}
        }
    }

    /// One order, if there is too much. True: there may be more.
    async fn trim(&self) -> bool {
        let now_ms = self.mint.stamp().at_ms;
        let mut chosen = Ok(None);
        self.history.look(&mut |view| chosen = choose(view, now_ms, self.retention));
        let (upto, more) = match chosen {
            Ok(Some(chosen)) => chosen,
            Ok(None) => return false,
            Err(fault) => {
                tracing::warn!(%fault, "the feed cannot be read, so it is not trimmed");
                return false;
            }
        };
        let order = Command::Feed(FeedOrder::Trim { upto });
        match self.adapter.propose(order, Instant::now() + PATIENCE).await {
            Ok(_) => {
                tracing::debug!(index = upto.index, "the feed is trimmed");
                more
            }
            Err(error) => {
                tracing::debug!(%error, "the feed was not trimmed; later");
                false
            }
        }
    }
}

/// The last line to drop, and whether more may have to go.
fn choose(view: &dyn View, now_ms: i64, retention: Retention) -> Result<Option<(FeedPlace, bool)>, Fault> {
    let mut bytes = view.feed_edge()?.bytes;
    let age_max_ms = i64::try_from(retention.age_max.as_millis()).unwrap_or(i64::MAX);
    let oldest_ms = now_ms.saturating_sub(age_max_ms);
    // One line tells whether there is anything to do; most of the time there is not.
    let first = view.recorded(None, 1)?;
    let too_old = |at_ms: i64| at_ms < oldest_ms;
    if bytes <= retention.bytes_max && !first.iter().any(|(_, line)| too_old(line.at_ms)) {
        return Ok(None);
    }
    let lines = view.recorded(None, LINES_MAX)?;
    let mut upto = None;
    for (rank, (place, line)) in lines.iter().enumerate() {
        if bytes <= retention.bytes_max && !too_old(line.at_ms) {
            break;
        }
        bytes = bytes.saturating_sub(feed::line_bytes(line));
        upto = Some((*place, rank + 1 == LINES_MAX));
    }
    Ok(upto)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Committed, EventSink};
    use crate::machine::apply::create::CreateSession;
    use crate::proposal::local::LocalAdapter;
    use crate::proposal::mint::SystemMint;

    struct Nobody;

    impl EventSink for Nobody {
        fn publish(&self, _: Vec<Arc<Committed>>) {}
    }

    async fn keeper(events: usize, retention: Retention) -> Keeper {
        let mint = Arc::new(SystemMint::default());
        let adapter = Arc::new(LocalAdapter::memory(mint.clone(), Arc::new(Nobody)));
        for _ in 0..events {
            let session = CreateSession { title: String::new(), description: String::new(), metadata: None };
            let deadline = Instant::now() + PATIENCE;
            adapter.propose(Command::Create(session), deadline).await.unwrap();
        }
        Keeper { adapter: adapter.clone(), history: adapter, leads: Box::new(|| true), mint, retention }
    }

    fn kept(keeper: &Keeper) -> (usize, u64) {
        let mut kept = None;
        keeper.history.look(&mut |view| {
            kept = Some((view.recorded(None, 99).unwrap().len(), view.feed_edge().unwrap().bytes));
        });
        kept.unwrap()
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_feed_is_kept_within_its_bytes_and_no_shorter() {
        let all = kept(&keeper(20, Retention { bytes_max: u64::MAX, age_max: LONG }).await);
        let half = keeper(20, Retention { bytes_max: all.1 / 2, age_max: LONG }).await;
        assert!(!half.trim().await);
        assert_eq!(kept(&half).0, 10);
        assert!(!half.trim().await);
        assert_eq!(kept(&half).0, 10);
    }

    #[tokio::test]
    async fn what_is_too_old_goes_however_little_it_is() {
        let keeper = keeper(3, Retention { bytes_max: u64::MAX, age_max: Duration::ZERO }).await;
        while keeper.mint.stamp().at_ms == 0 {}
        tokio::time::sleep(Duration::from_millis(5)).await;
        keeper.trim().await;
        assert_eq!(kept(&keeper), (0, 0));
    }
}
