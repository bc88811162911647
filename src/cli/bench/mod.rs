//! `session-manager bench`: figures against goals, measured through public doors.
//!
//! Owns: one file per figure, the HTTP caller and the statistics they share. Never: a shortcut past the doors.

mod figures;
mod growth;
mod http;
mod load;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{EXIT_UNUSABLE, fail};
use crate::observe::{LogFormat, start_logging};

const EXAMPLES: &str = "\
Examples:
  session-manager bench growth
  session-manager bench growth --json > growth.json

Use a release build, and a machine that does nothing else.";

/// Measure a figure against its goal
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    figure: Figure,
}

#[derive(Debug, Subcommand)]
enum Figure {
    Growth(growth::GrowthArgs),
}

pub fn run(args: BenchArgs) -> ExitCode {
    if let Err(error) = start_logging(LogFormat::Text, "warn") {
        return fail(EXIT_UNUSABLE, error);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    match args.figure {
        Figure::Growth(args) => runtime.block_on(growth::run(args)),
    }
}
