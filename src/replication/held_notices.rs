//! Owns: when the leader sends a request without entries, which only tells a follower that the commit moved. While nobody at
//! the follower listens for events, it waits shortly for the next entries, which tell the same: one request instead of two,
//! on both nodes.
//! Never: answer a request in the place of the follower, or hold one that somebody waits for.

use std::sync::Arc;
use std::time::Duration;

use openraft::raft::AppendEntriesRequest;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::types::Types;

/// A notice waits at most this long. Long enough for a client that sends its next command when it has an answer.
const HELD: Duration = Duration::from_millis(2);

/// Tells the streams of a leader that a follower waits for the commit after all. Clones share it.
#[derive(Clone, Default)]
pub struct Hurry(Arc<watch::Sender<()>>);

impl Hurry {
    /// A node is about to wait until it has applied what is committed.
    pub fn now(&self) {
        self.0.send_replace(());
    }
}

/// The notice to one follower that waits.
pub struct HeldNotice {
    request: Option<AppendEntriesRequest<Types>>,
    until: Instant,
    hurried: watch::Receiver<()>,
    /// What the follower said in its last answer.
    pub nobody_listens: bool,
}

impl HeldNotice {
    pub fn new(hurry: &Hurry) -> HeldNotice {
        HeldNotice { request: None, until: Instant::now(), hurried: hurry.0.subscribe(), nobody_listens: false }
    }

    /// Passes a request on, or holds it. A request that is held is dropped for a later one, which tells at least as much:
    /// requests have the order of the log, and their commit never goes back. The answer to the later one counts for both.
    pub fn pass(&mut self, request: AppendEntriesRequest<Types>) -> Option<AppendEntriesRequest<Types>> {
        let held = self.request.take();
        if !request.entries.is_empty() || !self.nobody_listens {
            return Some(request);
        }
        if held.is_none() {
            self.until = Instant::now() + HELD;
        }
        self.request = Some(request);
        None
    }

    pub fn is_held(&self) -> bool {
        self.request.is_some()
    }

    /// Waits until the notice that is held must be sent.
    pub async fn due(&mut self) {
        tokio::select! {
            biased;
            // An earlier hurry that nobody has seen ends the wait too: one request more does no harm.
            _ = self.hurried.changed() => {}
            () = sleep_until(self.until) => {}
        }
    }

    pub fn take(&mut self) -> Option<AppendEntriesRequest<Types>> {
        self.request.take()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::replication::types;
    use crate::storage::log::record::{Entry, LogId, Payload};

    /// A request of the leader of term 1 after entry `previous`, with as many entries.
    fn request(previous: u64, entries: u64, committed: u64) -> AppendEntriesRequest<Types> {
        let at = |index| LogId::new(1, 1, index);
        let entry = |index| Entry { id: at(index), payload: Payload::Blank };
        AppendEntriesRequest {
            vote: types::vote(crate::storage::log::record::Vote { term: 1, node: 1, committed: true }),
            prev_log_id: Some(types::log_id(at(previous))),
            entries: (previous + 1..=previous + entries).map(entry).collect(),
            leader_commit: Some(types::log_id(at(committed))),
        }
    }

    fn commit(request: Option<AppendEntriesRequest<Types>>) -> Option<u64> {
        request?.leader_commit.map(|committed| committed.index)
    }

    fn quiet(hurry: &Hurry) -> HeldNotice {
        HeldNotice { nobody_listens: true, ..HeldNotice::new(hurry) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_notice_waits_shortly_where_nobody_listens_and_entries_replace_it() {
        let mut held = quiet(&Hurry::default());
        assert_eq!(commit(held.pass(request(7, 0, 6))), None);
        assert!(held.is_held());
        assert_eq!(commit(held.pass(request(7, 2, 7))), Some(7));
        assert!(!held.is_held() && held.take().is_none());

        let begun = Instant::now();
        assert!(held.pass(request(9, 0, 8)).is_none());
        tokio::time::sleep(HELD / 2).await;
        assert!(held.pass(request(9, 0, 9)).is_none(), "a later notice replaces it and waits no longer");
        held.due().await;
        assert!(begun.elapsed() < HELD + Duration::from_millis(2), "{:?}", begun.elapsed());
        assert_eq!(commit(held.take()), Some(9));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_where_somebody_listens_or_reads() {
        let hurry = Hurry::default();
        let mut held = HeldNotice::new(&hurry);
        assert_eq!(commit(held.pass(request(7, 0, 7))), Some(7));
        let mut held = quiet(&hurry);
        assert!(held.pass(request(7, 0, 7)).is_none());
        assert!(held.due().now_or_never().is_none());
        hurry.now();
        assert!(held.due().now_or_never().is_some());
        assert_eq!(commit(held.take()), Some(7));
        // A read that began before the notice was there.
        hurry.now();
        assert!(held.pass(request(8, 0, 8)).is_none());
        assert!(held.due().now_or_never().is_some());
    }
}
