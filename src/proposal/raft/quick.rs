//! Owns: what the leader answers without a log entry: a mutation that would change nothing, such as an append under an
//! id that is taken or an update of a revision that is gone.
//! Never: answer from a state that may be behind. A look says only that it is worth asking; the answer counts when this
//! node has proved that it still leads and has applied everything acknowledged before.

use std::time::Instant;

use tokio::time::timeout_at;

use super::leading::Leading;
use crate::machine::refusal::Fault;
use crate::machine::{self, Command, Stamped};
use crate::replication::forward::Attempt;
use crate::storage::look;

/// The answer, where the log is not needed for it. `None`: only the log can tell, or this node cannot prove anything now.
pub async fn answer(leading: &Leading, stamped: &Stamped, deadline: Instant) -> Option<Attempt> {
    // An earlier attempt may be in the log, waiting to be applied: its repetition has to come after it.
    if stamped.repeated || !seems_idle(leading, &stamped.command) {
        return None;
    }
    let index = timeout_at(deadline.into(), leading.replica.reads().index()).await.ok()?.ok()?;
    timeout_at(deadline.into(), leading.replica.await_applied(index)).await.ok()?.ok()?;
    let stamped = Stamped { stamp: leading.mint.stamp(), ..stamped.clone() };
    let outcome = look(&**leading.replica.store(), |view| machine::apply(view, &stamped)).ok()?;
    let idle = outcome.changes.is_empty() && outcome.events.is_empty();
    idle.then_some(Attempt::Answered(outcome.answer))
}

/// Whether the state here looks as if the command would change nothing. Costs one read, of commands that say what they
/// expect; others are not looked at.
fn seems_idle(leading: &Leading, command: &Command) -> bool {
    let seems = match command {
        Command::Append(append) => {
            let Some(entry_id) = &append.entry_id else { return false };
            look(&**leading.replica.store(), |view| Ok::<_, Fault>(view.entry(&append.session_id, entry_id)?.is_some()))
        }
        Command::UpdateMessage(update) => {
            let Some(expected) = update.expected_revision else { return false };
            look(&**leading.replica.store(), |view| {
                let entry = view.entry(&update.session_id, &update.entry_id)?;
                Ok::<_, Fault>(entry.is_some_and(|entry| entry.revision != expected))
            })
        }
        Command::Create(_)
        | Command::Ensure(_)
        | Command::SetMeta(_)
        | Command::SetStatus(_)
        | Command::Delete(_)
        | Command::AppendMany(_)
        | Command::Fork(_)
        | Command::SetActiveLeaf(_)
        | Command::Store(_)
        | Command::Feed(_) => return false,
    };
    // A state that cannot be read is reported by whoever needs it.
    seems.unwrap_or(false)
}
