//! The oracles: what must hold of every run. Pure functions over a finished `History`; one file per law.
//!
//! `tests/laws/oracles.rs` shows for each that it can fail. No bug is planted in the machine or the records, which the judge
//! uses too.

mod agreement;
mod chains;
mod dedup;
mod delivery;
mod fresh;
mod groups;
mod linear;
mod minted;
mod once;
mod progress;
pub mod replay;
mod rest;
mod revisions;
mod time;
mod versions;

use crate::history::{History, Moment};
use replay::Replay;
use versions::Versions;

/// A law that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The oracle that noticed, by the name of its file.
    pub oracle: &'static str,
    pub words: String,
    /// Where in the run to look, if that is known.
    pub at: Option<Moment>,
}

/// One broken law repeats itself; the first ones of each oracle tell the story.
const TOLD_MAX: usize = 5;

/// What an oracle finds, in the order in which it finds it.
#[derive(Default)]
struct Findings {
    oracle: &'static str,
    broken: Vec<Broken>,
}

impl Findings {
    fn of(oracle: &'static str) -> Findings {
        Findings { oracle, broken: Vec::new() }
    }

    fn add(&mut self, at: Option<Moment>, words: String) {
        if self.broken.len() < TOLD_MAX {
            self.broken.push(Broken { oracle: self.oracle, words, at });
        }
    }

    fn check(&mut self, holds: bool, at: Option<Moment>, words: impl FnOnce() -> String) {
        if !holds {
            self.add(at, words());
        }
    }
}

/// Every law that did not hold in this run.
pub fn judge(history: &History) -> Vec<Broken> {
    let replay = match Replay::of(history) {
        Ok(replay) => replay,
        Err(words) => return vec![Broken { oracle: "replay", words, at: None }],
    };
    let versions = Versions::of(&replay);
    [
        agreement::check(history, &replay),
        once::check(history, &replay),
        dedup::check(history, &replay),
        minted::check(history),
        revisions::check(history, &replay),
        chains::check(history),
        time::check(history, &replay),
        fresh::check(history, &replay, &versions),
        rest::check(history, &replay),
        linear::check(history, &replay),
        delivery::check(history, &replay, &versions),
        progress::check(history),
    ]
    .into_iter()
    .flat_map(|findings| findings.broken)
    .collect()
}
