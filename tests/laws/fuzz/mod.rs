//! The laws of bad input: whatever bytes come in, nothing panics, nothing hangs, memory stays in proportion to the
//! input, a refusal changes nothing, and what is accepted reads back as it was.
//!
//! One file per door. `FUZZ_CASES` is the number of inputs per law (default 48, a few seconds in all; 20,000 make an
//! afternoon). A failure prints the smallest input it could find.

mod doors;
mod log;
mod memory;
mod peers;
mod requests;
mod snapshots;
mod spoil;
mod words;

use proptest::prelude::ProptestConfig;

const CASES: u32 = 48;

/// How many inputs a law is tried with. `cost` is how many times dearer one is than a parse.
fn inputs(cost: u32) -> ProptestConfig {
    let cases = std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    ProptestConfig { cases: (cases / cost).max(1), failure_persistence: None, ..ProptestConfig::default() }
}
