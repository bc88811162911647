//! Owns: the outcome of one attempt at a mutation, and the order of attempts that other nodes forward under one
//! request id.
//! Never: stamp, retry or send anything.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::machine::ids::RequestId;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Stamped};
use crate::storage::log::command::Order;

/// The largest command the log accepts. Requests are bounded far below this where they arrive.
pub const COMMAND_BYTES_MAX: usize = 64 << 20;

/// The outcome of one attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Attempt {
    /// The state machine answered or refused.
    Answered(Result<Answer, Refusal>),
    /// Nothing was written: the node is not the leader. Holds the leader as far as that node knows it.
    NotLeader(Option<u64>),
    /// Nothing was written.
    Unavailable(String),
    /// Nothing was written, and a retry within the time of the caller is not worthwhile.
    Full(String),
    /// The mutation may or may not have been written.
    Unknown(String),
}

/// Why a command is not proposed.
pub enum NotProposed {
    TooLarge { bytes: usize },
    DeadlinePassed,
}

impl From<NotProposed> for Attempt {
    fn from(error: NotProposed) -> Attempt {
        match error {
            NotProposed::TooLarge { bytes } => Attempt::Answered(Err(Refusal::RequestInvalid(format!(
                "the request takes {bytes} bytes; at most {COMMAND_BYTES_MAX} can be stored at once"
            )))),
            NotProposed::DeadlinePassed => {
                Attempt::Unavailable("the deadline passed before the mutation was proposed".to_owned())
            }
        }
    }
}

/// Encodes a command for the log.
pub fn encode(stamped: Stamped, deadline: Instant) -> Result<Order, NotProposed> {
    let order = Order::new(stamped);
    let bytes = order.encoded().len();
    if bytes > COMMAND_BYTES_MAX {
        return Err(NotProposed::TooLarge { bytes });
    }
    if Instant::now() >= deadline {
        return Err(NotProposed::DeadlinePassed);
    }
    Ok(order)
}

/// Retried request ids to remember: many times what all nodes have in flight when a leader is lost.
const RETRIED_MAX: usize = 64 << 10;

/// The forwarded attempts of this node, by request id. A first attempt that is delayed on the network may arrive after
/// its own retry was applied. It must be treated as a retry then, or the mutation would be applied twice.
#[derive(Default)]
pub struct ForwardedAttempts {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    in_progress: BTreeSet<u128>,
    retried: BTreeSet<u128>,
    /// The ids in `retried`, oldest first.
    retried_order: VecDeque<u128>,
}

/// One attempt in progress.
pub struct ForwardedAttempt {
    attempts: Arc<ForwardedAttempts>,
    id: u128,
    /// True for a retry, and for a first attempt that arrives after a retry.
    pub is_retry: bool,
}

impl ForwardedAttempts {
    /// Registers an attempt. `None` while another attempt under the same id is in progress.
    pub fn begin(self: &Arc<ForwardedAttempts>, id: RequestId, is_retry: bool) -> Option<ForwardedAttempt> {
        let mut seen = self.lock();
        if !seen.in_progress.insert(id.0) {
            return None;
        }
        let is_retry = is_retry || seen.retried.contains(&id.0);
        if is_retry && seen.retried.insert(id.0) {
            seen.retried_order.push_back(id.0);
        }
        if seen.retried_order.len() > RETRIED_MAX
            && let Some(oldest) = seen.retried_order.pop_front()
        {
            seen.retried.remove(&oldest);
        }
        Some(ForwardedAttempt { attempts: self.clone(), id: id.0, is_retry })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ForwardedAttempt {
    fn drop(&mut self) {
        self.attempts.lock().in_progress.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_attempt_that_comes_after_its_retry_counts_as_one() {
        let attempts = Arc::new(ForwardedAttempts::default());
        let id = RequestId(5);
        drop(attempts.begin(id, true).unwrap());
        assert!(attempts.begin(id, false).unwrap().is_retry);
        assert!(!attempts.begin(RequestId(6), false).unwrap().is_retry);
    }

    #[test]
    fn two_attempts_under_one_id_are_never_in_progress_together() {
        let attempts = Arc::new(ForwardedAttempts::default());
        let first = attempts.begin(RequestId(5), false).unwrap();
        assert!(attempts.begin(RequestId(5), true).is_none());
        drop(first);
        assert!(attempts.begin(RequestId(5), true).unwrap().is_retry);
    }
}
