//! Orders about the feed itself: how far a deliverer has come, and how far back the feed need not reach any more.
//! Nobody calls these by a function; the node that delivers and the leader propose them.

use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::{FeedPlace, Position};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::{Change, View};

/// The longest name of an attach point.
pub const ATTACH_BYTES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub enum FeedOrder {
    /// Everything up to `position` was delivered through this attach point; whoever takes it over goes on after it.
    Delivered { attach: String, position: Position },
    /// Nothing is delivered through this attach point any more; nobody will take it over.
    Detached { attach: String },
    /// Events up to this place are no longer kept. The leader chose it by its clock and its settings.
    Trim { upto: FeedPlace },
}

pub fn apply<V: View + ?Sized>(view: &V, stamp: &Stamp, order: &FeedOrder) -> Result<Outcome, Failure> {
    let change = match order {
        FeedOrder::Delivered { attach, position } => {
            if attach.is_empty() || attach.len() > ATTACH_BYTES_MAX {
                let words = format!("attach: give a name of 1 to {ATTACH_BYTES_MAX} bytes");
                return Err(Refusal::RequestInvalid(words).into());
            }
            // A deliverer that lost its place may still speak; a cursor never goes back.
            if view.cursor(attach)?.is_some_and(|known| known >= *position) {
                return Ok(Outcome::unchanged(Answer::Stored));
            }
            Change::SetCursor(attach.clone(), Some(*position))
        }
        FeedOrder::Detached { attach } => {
            if view.cursor(attach)?.is_none() {
                return Ok(Outcome::unchanged(Answer::Stored));
            }
            Change::SetCursor(attach.clone(), None)
        }
        FeedOrder::Trim { upto } => {
            if view.feed_edge()?.trimmed.is_some_and(|trimmed| trimmed >= *upto) {
                return Ok(Outcome::unchanged(Answer::Stored));
            }
            Change::TrimFeed { upto: *upto }
        }
    };
    let changes = vec![change, Change::SetClock(stamp.at_ms)];
    Ok(Outcome { answer: Ok(Answer::Stored), changes, events: Vec::new() })
}
