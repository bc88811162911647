//! Owns: a leader that does not wait for the commit: two bugs that the simulation plants (`planted.rs`).
//! Never: anything where none is planted.

use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;

use super::leading::Leading;
use crate::events::Committed;
use crate::machine;
use crate::machine::ids::Position;
use crate::planted::{self, Bug};
use crate::replication::GROUP;
use crate::replication::forward::Attempt;
use crate::storage::log::command::Order;
use crate::storage::look;

/// The answer of a leader that guesses what the commit will bring; `None` where it waits for it.
pub fn answer(leading: &Leading, order: &Order) -> Option<Attempt> {
    if !planted::has(Bug::AnswerBeforeCommit) && !planted::has(Bug::PublishBeforeCommit) {
        return None;
    }
    let outcome = look(&**leading.replica.store(), |view| machine::apply(view, order.stamped())).ok()?;
    let raft = leading.replica.raft().clone();
    if planted::has(Bug::PublishBeforeCommit) {
        let last = raft.metrics().borrow_watched().last_log_index.unwrap_or(0);
        let place = |ordinal| Position { group: GROUP, index: last + 1, ordinal };
        let events = (0..).zip(outcome.events).map(|(ordinal, event)| Arc::new(Committed::new(place(ordinal), event)));
        leading.sink.publish(events.collect());
        return None;
    }
    let order = order.clone();
    tokio::spawn(async move { raft.client_write(order).await });
    Some(Attempt::Answered(outcome.answer))
}
