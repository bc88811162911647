//! The program `session-manager`. All code is in the library, so that tests and the simulation run the same code.

use std::process::ExitCode;

/// Messages are larger than the blocks that the system allocator caches for reuse, and an entry causes allocations of a
/// dozen times its size on three nodes. Tests and the simulation keep the system allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    session_manager::cli::run()
}
