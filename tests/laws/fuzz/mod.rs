//! The laws of invalid input: for any bytes, nothing panics, nothing hangs, memory is proportional to the input, a
//! refusal changes nothing, and what is accepted reads back unchanged.
//!
//! One file per kind of input. `FUZZ_CASES` is the number of inputs per law (default 48, a few seconds in all; 20,000
//! take some hours). A failure prints the smallest input that it found.

mod client_port;
mod log;
pub mod memory;
mod peer_messages;
mod requests;
mod snapshots;
mod corruption;
mod short_texts;

use proptest::prelude::ProptestConfig;

const CASES: u32 = 48;

/// How many inputs a law is tried with. `cost` is how many times more expensive one input is than a parse.
fn inputs(cost: u32) -> ProptestConfig {
    let cases = std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    ProptestConfig { cases: (cases / cost).max(1), failure_persistence: None, ..ProptestConfig::default() }
}
