//! Owns: the list of oracles: pure functions over a recorded history, each in a file of its own.

mod state_hash;

use crate::history::History;

/// Everything that was violated, in words.
pub fn judge(history: &History) -> Vec<String> {
    state_hash::judge(history)
}
