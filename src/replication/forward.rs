//! Owns: what one attempt at a mutation may come to, and that a forwarded attempt never overtakes its repetition.
//! Never: stamp or retry; `proposal` does.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::future::BoxFuture;

use crate::machine::ids::RequestId;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Stamped};

/// What came of one attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Attempt {
    /// The machine answered, or said no.
    Answered(Result<Answer, Refusal>),
    /// Nothing was written; the node that was asked does not lead. The leader as it knows it.
    NotLeader(Option<u64>),
    /// Nothing was written.
    Unavailable(String),
    /// It may or may not be written.
    Unknown(String),
}

/// Carries out what other nodes forward to this one. The stamp in `stamped` is not used: the leader gives its own.
pub trait Proposals: Send + Sync + 'static {
    fn attempt(&self, stamped: Stamped, deadline: Instant) -> BoxFuture<'_, Attempt>;
}

/// Repetitions remembered: many times what all nodes have in flight when a leader is lost.
const REPEATED_MAX: usize = 64 << 10;

/// The attempts that reached this node. A first attempt that was delayed on its way, until after its repetition was
/// carried out, must not count as a first one.
#[derive(Default)]
pub struct Arrivals {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    under_way: BTreeSet<u128>,
    repeated: BTreeSet<u128>,
    /// The same, oldest first.
    order: VecDeque<u128>,
}

/// One attempt under way.
pub struct Arrival {
    arrivals: Arc<Arrivals>,
    id: u128,
    /// True for a repetition, and for a first attempt that comes after one.
    pub repeated: bool,
}

impl Arrivals {
    /// `None` while another attempt under the same id is under way.
    pub fn enter(self: &Arc<Arrivals>, id: RequestId, repeated: bool) -> Option<Arrival> {
        let mut seen = self.lock();
        if !seen.under_way.insert(id.0) {
            return None;
        }
        let repeated = repeated || seen.repeated.contains(&id.0);
        if repeated && seen.repeated.insert(id.0) {
            seen.order.push_back(id.0);
        }
        if seen.order.len() > REPEATED_MAX
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.repeated.remove(&oldest);
        }
        Some(Arrival { arrivals: self.clone(), id: id.0, repeated })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.lock().under_way.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_attempt_that_comes_after_its_repetition_counts_as_one() {
        let arrivals = Arc::new(Arrivals::default());
        let id = RequestId(5);
        drop(arrivals.enter(id, true).unwrap());
        assert!(arrivals.enter(id, false).unwrap().repeated);
        assert!(!arrivals.enter(RequestId(6), false).unwrap().repeated);
    }

    #[test]
    fn two_attempts_under_one_id_are_never_under_way_together() {
        let arrivals = Arc::new(Arrivals::default());
        let first = arrivals.enter(RequestId(5), false).unwrap();
        assert!(arrivals.enter(RequestId(5), true).is_none());
        drop(first);
        assert!(arrivals.enter(RequestId(5), true).unwrap().repeated);
    }
}
