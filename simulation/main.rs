//! The product in a deterministic simulation with faults of network, disk, clock and processes.
//!
//!     cargo sim -- --seeds 1..200                   many seeds, over all scenarios
//!     cargo sim -- --seeds 1..200 --scenario disk   … or one
//!     cargo sim -- --minutes 10 --jobs 2            as many seeds as fit into ten minutes
//!     cargo sim -- --seed 17 --scenario disk --trace trace.txt
//!     cargo sim -- --planted                        for each planted bug, how many seeds it takes to find it
//!
//! Without arguments, as `cargo test` calls it, it runs the short set of CI. Each seed runs in a separate process,
//! which the runner starts. `architecture/testing.md` describes the faults, the checks, and what is not checked.

#[cfg(not(tokio_unstable))]
compile_error!(
    "the simulation seeds tokio's scheduler: build it with --cfg tokio_unstable, as .cargo/config.toml does"
);

mod arguments;
mod bridge;
mod caller;
mod caught;
mod determinism;
mod disk;
mod file_system;
mod frames;
mod gateway_client;
#[allow(dead_code, reason = "the oracles read it")]
mod history;
mod host;
mod http_call;
mod listener;
mod mint;
mod nemesis;
mod network;
mod operator;
mod oracle;
mod recorder;
mod runner;
mod scenario;
mod seed_process;
mod single_run;
mod tenant;
mod tenant_listener;
mod truncated;
mod workload;
mod world;

use std::process::ExitCode;

use arguments::Wanted;
use session_manager::planted;

/// As in the program. It takes less time than glibc's allocator and no randomness from the simulation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments::read(&arguments) {
        Ok(Wanted::One { seed, scenario, bug, trace, quiet }) => {
            if let Some(bug) = bug {
                planted::plant(bug);
            }
            single_run::run(seed, scenario, bug, trace.as_deref(), quiet)
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
