//! The laws: properties of every input, and rules for every file of the repository.
//!
//! `house` checks the source and `documents` the pages. `sequences`, `paths` and `bounded` run the machine over real stores
//! (`applied_log`). `model` is a second implementation in plain JSON that `sequences` compares the machine with; they
//! share no logic. `tenants` shows that a scope hides everything outside it. `oracles` and the files named after one
//! oracle show that each oracle of the simulation can fail. `fuzz` sends invalid input to every parser (`FUZZ_CASES`
//! inputs per law).

mod applied_log;
mod bounded;
mod documents;
mod drivers;
mod event_names;
mod fake_run;
mod fuzz;
mod gateway_oracle;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../../simulation/history.rs"]
mod history;
mod house;
#[allow(dead_code, reason = "the oracles need only the outcome of a call")]
#[path = "../../simulation/http_call.rs"]
mod http_call;
mod model;
mod model_oracle;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../../simulation/oracle/mod.rs"]
mod oracle;
mod operations;
mod oracles;
mod paths;
mod sequences;
mod session_model;
mod tenancy_oracle;
mod tenants;
mod turn_oracle;
mod turns;
