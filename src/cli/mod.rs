//! The program: one file per subcommand.
//!
//! Owns: arguments, exit codes and what is printed. Reads: running nodes, only through their public ports; data
//! directories of stopped nodes, through `replication/new_cluster.rs`. Never: state, storage, the wire.

mod backup;
mod bench;
mod call;
mod certs;
pub mod cluster;
mod connect;
mod demo;
mod dev;
mod error;
mod manifest;
mod operator;
mod recover;
mod restore;
mod serve;
mod signals;
mod source;
mod tail;
mod token;
mod top;
pub mod transfer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::error::CliError;
use crate::observe::{LogFormat, start_logging};

/// The node answered a call with an error, or a benchmark missed a goal.
const EXIT_REFUSED: u8 = 1;
/// The node stopped while it ran: its disk or its consensus failed. A restart recovers from disk.
const EXIT_FAILED: u8 = 1;
/// The command could not start: bad arguments, bad configuration, a busy port, a directory that cannot be used.
const EXIT_UNUSABLE: u8 = 2;

const ABOUT: &str = "\
A durable, replicated, reactive store of branching conversations.

Without a subcommand it runs a node, like `session-manager serve`. Clients talk to a node with an iii SDK (WebSocket), \
with plain HTTP, or with the subcommands `call` and `tail`.";

const EXAMPLES: &str = "\
Examples:
  session-manager                                  run one node on 127.0.0.1:49134, data in ./data
  session-manager dev                              run a cluster of three nodes on this machine
  session-manager call session::create '{\"title\": \"Hello\"}'
  session-manager call session::list
  session-manager tail                             print events as they happen
  session-manager demo                             fill a node with conversations to look at
  session-manager cluster status                   show the members of a cluster
  session-manager backup cluster.backup            write the whole state of a cluster to a file
  session-manager --config session-manager.yaml    run a node with settings from a file

Exit codes: 0 success; 1 a call was refused or the node failed while running; 2 it could not start.
`session-manager SUBCOMMAND --help` explains each subcommand with examples.";

#[derive(Debug, Parser)]
#[command(
    name = "session-manager",
    version,
    about = "A durable, replicated, reactive store of branching conversations",
    long_about = ABOUT,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true
)]
struct Program {
    /// Print name, version, description, default configuration and supported targets as JSON, and exit
    #[arg(long)]
    manifest: bool,

    #[command(flatten)]
    serve: serve::ServeArgs,

    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    // Boxed: it has many more arguments than the others.
    Serve(Box<serve::ServeArgs>),
    Call(call::CallArgs),
    Tail(tail::TailArgs),
    Export(transfer::export::ExportArgs),
    Import(transfer::import::ImportArgs),
    Dev(dev::DevArgs),
    Demo(demo::DemoArgs),
    Cluster(cluster::ClusterArgs),
    Top(top::TopArgs),
    Backup(backup::BackupArgs),
    Verify(restore::VerifyArgs),
    Restore(restore::RestoreArgs),
    Recover(recover::RecoverArgs),
    Token(token::TokenArgs),
    Certs(certs::CertsArgs),
    Bench(crate::bench::BenchArgs),
}

/// Parses the arguments and runs the command they name.
pub fn run() -> ExitCode {
    disable_core_dumps();
    let program = Program::parse();
    let outcome = match program.command {
        None if program.manifest => manifest::print(),
        None => serve::run(program.serve),
        Some(Subcommands::Serve(args)) => serve::run(*args),
        Some(Subcommands::Call(args)) => call::run(args),
        Some(Subcommands::Tail(args)) => tail::run(args),
        Some(Subcommands::Export(args)) => transfer::export::run(args),
        Some(Subcommands::Import(args)) => transfer::import::run(args),
        Some(Subcommands::Dev(args)) => dev::run(args),
        Some(Subcommands::Demo(args)) => demo::run(args),
        Some(Subcommands::Cluster(args)) => cluster::run(args),
        Some(Subcommands::Top(args)) => top::run(args),
        Some(Subcommands::Backup(args)) => backup::run(args),
        Some(Subcommands::Verify(args)) => restore::verify(args),
        Some(Subcommands::Restore(args)) => restore::restore(args),
        Some(Subcommands::Recover(args)) => recover::run(args),
        Some(Subcommands::Token(args)) => token::run(args),
        Some(Subcommands::Certs(args)) => certs::run(args),
        Some(Subcommands::Bench(args)) => bench::run(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("session-manager: {error}");
        ExitCode::from(error.exit_code())
    })
}

/// A core dump would hold tokens and messages in a file that nobody guards. The limit does not count for a dump that is
/// piped to a program, so such a dump gets no memory.
fn disable_core_dumps() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
        // A system that forbids it has its reasons.
        let _ = setrlimit(Resource::Core, limit);
    }
    #[cfg(target_os = "linux")]
    let _ = std::fs::write("/proc/self/coredump_filter", "0");
}

fn log_to_stderr(format: LogFormat, level: &str) -> Result<(), CliError> {
    start_logging(format, level).map_err(|error| CliError::Logging(error.to_string()))
}

/// A client command needs one thread. The SDK starts its own for the connection.
fn client_runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn check(command: &clap::Command) {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name} has no description");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            assert!(argument.get_help().is_some(), "{name}: {} has no help", argument.get_id());
        }
        command.get_subcommands().for_each(check);
    }

    #[test]
    fn every_command_and_every_flag_is_explained() {
        let mut program = Program::command();
        program.build();
        check(&program);
        for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(examples.contains("Examples:"), "{} shows no examples", command.get_name());
        }
    }
}
