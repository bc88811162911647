//! The oracles: the laws that every run must satisfy. Pure functions over a finished `History`, one file per law.
//!
//! `tests/laws/oracles.rs` shows for each that it can fail. The oracles use the machine and the record formats
//! themselves, so no bug is planted there.

mod agreement;
mod chains;
mod dedup;
mod delivery;
mod elections;
mod fresh;
mod gateway;
mod groups;
mod linear;
mod minted;
pub mod model;
mod once;
mod progress;
pub mod replay;
mod rest;
mod revisions;
mod tenancy;
mod time;
pub mod turns;
mod versions;

use crate::history::{History, Moment};
use groups::Groups;
use replay::Replay;
use versions::Versions;

/// A violation of a law.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The oracle that found it, by the name of its file.
    pub oracle: &'static str,
    pub words: String,
    /// When it happened, if known.
    pub at: Option<Moment>,
}

/// One bug breaks a law many times. The first violations of each oracle are enough to find it.
const FINDINGS_MAX: usize = 5;

/// The violations that one oracle found, in order.
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
        if self.broken.len() < FINDINGS_MAX {
            self.broken.push(Broken { oracle: self.oracle, words, at });
        }
    }

    fn check(&mut self, holds: bool, at: Option<Moment>, words: impl FnOnce() -> String) {
        if !holds {
            self.add(at, words());
        }
    }
}

/// All violations of a run.
pub fn check_all(history: &History) -> Vec<Broken> {
    let replay = match Replay::of(history) {
        Ok(replay) => replay,
        Err(words) => return vec![Broken { oracle: "replay", words, at: None }],
    };
    let (versions, groups) = (Versions::of(&replay), Groups::of(history, &replay));
    [
        agreement::check(history, &replay),
        tenancy::check(history, &replay, &versions),
        once::check(&replay, &groups),
        dedup::check(history, &replay),
        minted::check(history),
        revisions::check(history, &replay),
        chains::check(history),
        time::check(history, &replay),
        fresh::check(history, &replay, &versions, &groups),
        rest::check(history, &replay),
        linear::check(history, &replay, &groups),
        delivery::check(history, &replay, &versions),
        progress::check(history),
        elections::check(history),
        turns::check(history, &replay),
        model::check(history, &replay),
        gateway::check(history, &replay),
    ]
    .into_iter()
    .flat_map(|findings| findings.broken)
    .collect()
}
