//! The program `session-manager`. Everything is in the library, so that tests and the simulation run the same code.

use std::process::ExitCode;

/// A message is larger than what the system's allocator keeps at hand for reuse, and every entry allocates a dozen times
/// its size on its way through three nodes. Only the program has it: tests and the simulation keep the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    session_manager::cli::run()
}
