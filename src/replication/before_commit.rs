//! Owns: two planted bugs (`planted.rs`): a leader that publishes or answers before the commit. Only the simulation
//! reaches this code; a release build contains no call to it.

use openraft::async_runtime::WatchReceiver;

use super::RAFT_GROUP;
use super::apply::committed;
use super::attempt::Attempt;
use super::leader_write::LeaderWrite;
use crate::machine::{self, Outcome};
use crate::storage::log::command::Order;
use crate::storage::with_view;

/// What the commit would bring if no other entry came before it.
fn guess(leader: &LeaderWrite, order: &Order) -> Option<Outcome> {
    with_view(&**leader.replica.store(), |view| machine::apply(view, order.stamped())).ok()
}

/// Publishes the events of a command that is not in the log yet.
pub fn publish(leader: &LeaderWrite, order: &Order) {
    let Some(outcome) = guess(leader, order) else { return };
    let last = leader.replica.raft().metrics().borrow_watched().last_log_index.unwrap_or(0);
    leader.sink.publish(committed(RAFT_GROUP, last + 1, outcome.events, None));
}

/// Answers a command at once and replicates it in the background.
pub fn answer(leader: &LeaderWrite, order: Order) -> Attempt {
    let Some(outcome) = guess(leader, &order) else { return Attempt::Unknown("the state cannot be read".to_owned()) };
    let raft = leader.replica.raft().clone();
    tokio::spawn(async move { raft.client_write(order).await });
    Attempt::Answered(outcome.answer)
}
