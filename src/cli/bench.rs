//! Owns: `session-manager bench`: threads, signals and the exit code. The measurements are in the room `bench`.

use std::process::ExitCode;

use super::error::CliError;
use super::signals::wait_for_signal;
use super::{EXIT_REFUSED, log_to_stderr};
use crate::bench::{self, BenchArgs};
use crate::observe::LogFormat;

pub fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, "warn")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::Runtime)?;
    let measuring = Box::pin(bench::run(args));
    let goals_met = runtime.block_on(async {
        // A signal drops the measurement, and with it the servers that it started.
        tokio::select! {
            goals_met = measuring => goals_met.map_err(CliError::from),
            () = wait_for_signal() => Err(CliError::Interrupted),
        }
    })?;
    Ok(if goals_met { ExitCode::SUCCESS } else { ExitCode::from(EXIT_REFUSED) })
}
