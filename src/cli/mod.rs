//! The program: one file per subcommand.
//!
//! Owns: arguments, exit codes, what is printed. Reaches a running node only through its public doors.
//! Never: state, storage, the wire.

mod bench;
mod call;
pub mod cluster;
mod connect;
mod dev;
mod manifest;
mod serve;
mod source;
mod tail;
pub mod trial;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The answer of a call was an error.
pub const EXIT_REFUSED: u8 = 1;
/// The node broke off while it ran: a disk that fails, consensus that stopped. A restart recovers from disk.
pub const EXIT_FAILED: u8 = 1;
/// The program could not do what was asked: bad arguments, bad configuration, a port or a directory it cannot have.
pub const EXIT_UNUSABLE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  session-manager                                     run a node: 127.0.0.1:49134, data in ./data
  session-manager --listen 127.0.0.1:50000 --data-dir /var/lib/session-manager
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

    #[command(flatten)]
    serve: serve::ServeArgs,

    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Serve(serve::ServeArgs),
    Call(call::CallArgs),
    Tail(tail::TailArgs),
    Bench(bench::BenchArgs),
    Cluster(cluster::ClusterArgs),
    Dev(dev::DevArgs),
}

/// Parses the arguments and runs what they ask for.
pub fn run() -> ExitCode {
    let program = Program::parse();
    if program.manifest {
        return manifest::print();
    }
    match program.command {
        None => serve::run(program.serve),
        Some(Subcommands::Serve(args)) => serve::run(args),
        Some(Subcommands::Call(args)) => call::run(args),
        Some(Subcommands::Tail(args)) => tail::run(args),
        Some(Subcommands::Bench(args)) => bench::run(args),
        Some(Subcommands::Cluster(args)) => cluster::run(args),
        Some(Subcommands::Dev(args)) => dev::run(args),
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
