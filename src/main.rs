//! The program `session-manager`. Everything is in the library, so that tests and the simulation run the same code.

use std::process::ExitCode;

fn main() -> ExitCode {
    session_manager::cli::run()
}
