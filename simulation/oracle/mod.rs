//! Owns: the list of oracles: pure functions over a recorded history, each in a file of its own.

mod state_hash;

use crate::history::{History, Moment};

/// A law that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The oracle that noticed, by the name of its file.
    pub oracle: &'static str,
    pub words: String,
    /// Where in the run to look, if that is known.
    pub at: Option<Moment>,
}

/// Every law that did not hold in this run.
pub fn judge(history: &History) -> Vec<Broken> {
    state_hash::check(history)
}
