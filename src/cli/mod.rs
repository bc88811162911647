//! The program: one file per subcommand.
//!
//! Owns: arguments, exit codes, what is printed. Reaches a running node only through its public doors.
//! Never: state, storage, the wire.

mod call;
mod connect;
mod manifest;
mod tail;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The answer of a call was an error.
pub const EXIT_REFUSED: u8 = 1;
/// The program could not do what was asked: bad arguments, bad configuration, a port or a directory it cannot have.
pub const EXIT_UNUSABLE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  session-manager                                     run a node: 127.0.0.1:49134, data in ./data
  session-manager --listen 0.0.0.0:49134 --data-dir /var/lib/session-manager
  session-manager call session::create '{\"title\": \"Hello\"}'
  session-manager tail
  session-manager --manifest";

/// A durable, reactive store of branching conversations. Without a subcommand it serves.
#[derive(Debug, Parser)]
#[command(name = "session-manager", version, about, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
struct Program {
    /// Print what this worker is, as JSON, and exit: name, version, description, default_config, supported_targets
    #[arg(long)]
    manifest: bool,

    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Call(call::CallArgs),
    Tail(tail::TailArgs),
}

/// Parses the arguments and runs what they ask for.
pub fn run() -> ExitCode {
    let program = Program::parse();
    if program.manifest {
        return manifest::print();
    }
    match program.command {
        None => ExitCode::SUCCESS,
        Some(Subcommands::Call(args)) => call::run(args),
        Some(Subcommands::Tail(args)) => tail::run(args),
    }
}

/// One line on stderr, and the exit code for it.
fn fail(code: u8, why: impl Display) -> ExitCode {
    eprintln!("session-manager: {why}");
    ExitCode::from(code)
}

/// A client command needs one thread; the SDK brings its own for the connection.
fn client_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
