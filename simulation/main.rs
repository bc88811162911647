//! The product under deterministic faults of network, disk and clock.
//!
//!     cargo sim -- --seeds 1..200                   many seeds, over all scenarios
//!     cargo sim -- --seeds 1..200 --scenario disk   … or one
//!     cargo sim -- --minutes 10 --jobs 2            as many as fit into ten minutes
//!     cargo sim -- --seed 17 --scenario disk --trace trace.txt
//!     cargo sim -- --planted                        bugs put in on purpose: how many seeds find each
//!
//! Without arguments, as `cargo test` calls it, it runs the short set of CI. One seed per process: the runner starts itself
//! for each. `architecture/testing.md` says what is broken, what is checked, and what is not.

#[cfg(not(tokio_unstable))]
compile_error!(
    "the simulation seeds tokio's scheduler: build it with --cfg tokio_unstable, as .cargo/config.toml does"
);

mod arguments;
mod bridge;
mod caught;
mod determinism;
mod disk;
mod door;
#[allow(dead_code, reason = "the oracles read it")]
mod history;
mod host;
mod listener;
mod nemesis;
mod network;
mod one;
mod operator;
mod oracle;
mod process;
mod recorder;
mod runner;
mod scenario;
mod workload;
mod world;

use std::process::ExitCode;

use arguments::Wanted;
use session_manager::planted;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments::read(&arguments) {
        Ok(Wanted::One { seed, scenario, bug, trace, quiet }) => {
            if let Some(bug) = bug {
                planted::plant(bug);
            }
            one::run(seed, scenario, bug, trace.as_deref(), quiet)
        }
        Ok(Wanted::Many(campaign)) => runner::run(&campaign),
        Ok(Wanted::Planted { bugs, jobs }) => caught::run(&bugs, caught::in_turn, jobs),
        Ok(Wanted::ShortSet) => runner::short_set(),
        Ok(Wanted::Nothing(why)) => {
            println!("{why}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("cargo sim: {why}\n\n{}", arguments::USAGE);
            ExitCode::from(2)
        }
    }
}
