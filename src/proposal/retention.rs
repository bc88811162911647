//! Owns: retention of the feed. The leader chooses a position by its clock and settings and proposes a trim through the
//! log, so that every node drops the same records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Adapter, Proposal};
use crate::events::stored::StoredFeed;
use crate::machine::Command;
use crate::machine::apply::feed_order::FeedOrder;
use crate::machine::ids::FeedPlace;
use crate::machine::refusal::Fault;
use crate::machine::view::View;
use crate::mint::Mint;
use crate::storage::state::feed_record;

/// The time between two checks: a busy cluster writes a few megabytes of feed meanwhile.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Records dropped by one trim: little work for apply.
const TRIM_MAX: usize = 4096;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The bounds of the feed. Records beyond either bound are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub bytes_max: u64,
    pub age_max: Duration,
}

/// The task that trims the feed.
pub struct Keeper {
    pub adapter: Arc<dyn Adapter>,
    pub history: Arc<dyn StoredFeed>,
    /// Whether this node proposes the trims.
    pub is_leader: Box<dyn Fn() -> bool + Send + Sync>,
    pub mint: Arc<dyn Mint>,
    pub retention: Retention,
}

impl Keeper {
    /// Trims the feed until shutdown. A failed trim is retried at the next check.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = shutdown.cancelled() => return,
            }
            while (self.is_leader)() && self.trim().await {}
        }
    }

    /// Proposes one trim, if the feed exceeds its bounds. Returns true if there may be more to trim.
    async fn trim(&self) -> bool {
        let now_ms = self.mint.stamp().at_ms;
        let mut chosen = Ok(None);
        self.history.read_view(&mut |view| chosen = choose(view, now_ms, self.retention));
        let (upto, more) = match chosen {
            Ok(Some(chosen)) => chosen,
            Ok(None) => return false,
            Err(fault) => {
                tracing::warn!(%fault, "the feed cannot be read, so it is not trimmed");
                return false;
            }
        };
        let trim = Command::Feed(FeedOrder::Trim { upto });
        match self.adapter.propose(Proposal::new(trim, Instant::now() + CALL_TIMEOUT)).await {
            Ok(_) => {
                tracing::debug!(index = upto.index, "the feed is trimmed");
                more
            }
            Err(error) => {
                tracing::debug!(%error, "the feed was not trimmed; retrying later");
                false
            }
        }
    }
}

/// The last record to drop, and whether there may be more to drop.
fn choose(view: &dyn View, now_ms: i64, retention: Retention) -> Result<Option<(FeedPlace, bool)>, Fault> {
    let mut bytes = view.feed_edge()?.bytes;
    let age_max_ms = i64::try_from(retention.age_max.as_millis()).unwrap_or(i64::MAX);
    let oldest_ms = now_ms.saturating_sub(age_max_ms);
    // The first record shows whether there is anything to do. Mostly there is not.
    let first = view.feed_records(None, 1)?;
    let too_old = |at_ms: i64| at_ms < oldest_ms;
    if bytes <= retention.bytes_max && !first.iter().any(|(_, line)| too_old(line.at_ms)) {
        return Ok(None);
    }
    let lines = view.feed_records(None, TRIM_MAX)?;
    let mut upto = None;
    for (rank, (place, line)) in lines.iter().enumerate() {
        if bytes <= retention.bytes_max && !too_old(line.at_ms) {
            break;
        }
        bytes = bytes.saturating_sub(feed_record::size(line));
        upto = Some((*place, rank + 1 == TRIM_MAX));
    }
    Ok(upto)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Committed, EventSink};
    use crate::machine::apply::create::CreateSession;
    use crate::mint::SystemMint;
    use crate::proposal::local::LocalAdapter;

    struct NoSubscribers;

    impl EventSink for NoSubscribers {
        fn publish(&self, _: Vec<Arc<Committed>>) {}
    }

    async fn keeper(events: usize, retention: Retention) -> Keeper {
        let mint = Arc::new(SystemMint::default());
        let adapter = Arc::new(LocalAdapter::memory(mint.clone(), Arc::new(NoSubscribers)));
        for _ in 0..events {
            let session = CreateSession { title: String::new(), description: String::new(), metadata: None };
            let deadline = Instant::now() + CALL_TIMEOUT;
            adapter.propose(Proposal::new(Command::Create(session), deadline)).await.unwrap();
        }
        Keeper { adapter: adapter.clone(), history: adapter, is_leader: Box::new(|| true), mint, retention }
    }

    fn kept(keeper: &Keeper) -> (usize, u64) {
        let mut kept = None;
        keeper.history.read_view(&mut |view| {
            kept = Some((view.feed_records(None, 99).unwrap().len(), view.feed_edge().unwrap().bytes));
        });
        kept.unwrap()
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_feed_is_trimmed_to_its_bytes_and_no_further() {
        let all = kept(&keeper(20, Retention { bytes_max: u64::MAX, age_max: LONG }).await);
        let half = keeper(20, Retention { bytes_max: all.1 / 2, age_max: LONG }).await;
        assert!(!half.trim().await);
        assert_eq!(kept(&half).0, 10);
        assert!(!half.trim().await);
        assert_eq!(kept(&half).0, 10);
    }

    #[tokio::test]
    async fn records_that_are_too_old_are_dropped_however_few_they_are() {
        let keeper = keeper(3, Retention { bytes_max: u64::MAX, age_max: Duration::ZERO }).await;
        while keeper.mint.stamp().at_ms == 0 {}
        tokio::time::sleep(Duration::from_millis(5)).await;
        keeper.trim().await;
        assert_eq!(kept(&keeper), (0, 0));
    }
}
