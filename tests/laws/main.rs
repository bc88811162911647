//! The laws: what holds for every input and for every file of the house.
//!
//! `house` reads the source; `sequences` and `paths` run the machine over real stores (`workshop`). `model` is the plain
//! second opinion that `sequences` compares the machine with; it shares no logic with it. `fuzz` sends bad input to
//! every door (`FUZZ_CASES` inputs per law).

mod fuzz;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../../simulation/history.rs"]
mod history;
mod house;
mod model;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../../simulation/oracle/mod.rs"]
mod oracle;
mod oracles;
mod paths;
mod sequences;
mod workshop;
