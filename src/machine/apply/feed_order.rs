//! Commands about the event feed: move or delete the cursor of an attach point, trim the feed.
//! They have no function in the API. The node that delivers and the leader propose them.

use crate::machine::change::{Change, FeedChange};
use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::{FeedPlace, Position};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// The longest name of an attach point.
pub const ATTACH_BYTES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub enum FeedOrder {
    /// This attach point has delivered all events up to `position`. The next node that serves it continues after it.
    Delivered { attach: String, position: Position },
    /// This attach point is removed: delete its cursor.
    Detached { attach: String },
    /// Drop the events up to this place. The leader chose it by its clock and its retention settings.
    Trim { upto: FeedPlace },
}

pub fn apply(view: &dyn View, stamp: &Stamp, order: &FeedOrder) -> Result<Outcome, Failure> {
    let change = match order {
        FeedOrder::Delivered { attach, position } => {
            if attach.is_empty() || attach.len() > ATTACH_BYTES_MAX {
                let words = format!("attach: give a name of 1 to {ATTACH_BYTES_MAX} bytes");
                return Err(Refusal::RequestInvalid(words).into());
            }
            // A node that no longer serves this attach point may still report; a cursor never moves back.
            if view.cursor(attach)?.is_some_and(|known| known >= *position) {
                return Ok(Outcome::unchanged(Answer::Stored));
            }
            FeedChange::SetCursor(attach.clone(), Some(*position))
        }
        FeedOrder::Detached { attach } => {
            if view.cursor(attach)?.is_none() {
                return Ok(Outcome::unchanged(Answer::Stored));
            }
            FeedChange::SetCursor(attach.clone(), None)
        }
        FeedOrder::Trim { upto } => {
            if view.feed_edge()?.trimmed.is_some_and(|trimmed| trimmed >= *upto) {
                return Ok(Outcome::unchanged(Answer::Stored));
            }
            FeedChange::Trim { upto: *upto }
        }
    };
    let changes = vec![Change::Feed(change), Change::Clock(stamp.at_ms)];
    Ok(Outcome { answer: Ok(Answer::Stored), changes, events: Vec::new() })
}
