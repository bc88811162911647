//! Owns: `session-manager verify` and `session-manager restore`.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::call::print;
use super::error::CliError;
use super::{client_runtime, log_to_stderr};
use crate::machine::toolpath::time;
use crate::observe::{CLIENT_LEVEL, LogFormat};
use crate::replication::new_cluster::{self, Contents, Founded, NewClusterError};
use crate::storage::backup::BackupReader;

const VERIFY_EXAMPLES: &str = "\
Examples:
  session-manager verify cluster.backup
  session-manager verify cluster.backup --json
  zstd -dc cluster.backup.zst | session-manager verify -

Exit codes: 1 the file is damaged, cut short, no backup, or of a newer version.";

const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// Check every byte of a backup, and show what it holds
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub struct VerifyArgs {
    /// The backup; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

const RESTORE_ABOUT: &str = "\
Make a backup the first node of a new cluster.

The new cluster has all sessions and the same state hash, and an id of its own: positions that clients got from the old \
cluster are refused by name, and clients read the feed from its oldest event instead. Start the node with \
`session-manager serve`, and add others to it. The file is checked to its last byte before anything is written.";

const RESTORE_EXAMPLES: &str = "\
Examples:
  session-manager restore cluster.backup --data-dir /var/lib/session-manager
  session-manager restore cluster.backup --data-dir data --node-id 1 && session-manager serve --node-id 1 --data-dir data

Exit codes: 1 the backup or the directory cannot be used, and nothing was changed.";

/// Make a backup the first node of a new cluster
#[derive(Debug, Args)]
#[command(long_about = RESTORE_ABOUT, after_help = RESTORE_EXAMPLES)]
pub struct RestoreArgs {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Data directory of the new node: empty or new
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Id of the new node
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    node_id: u64,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn verify(args: VerifyArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, CLIENT_LEVEL)?;
    let file = &args.file;
    let contents = if file == Path::new("-") {
        let backup = BackupReader::new(io::stdin().lock(), file, None).map_err(NewClusterError::Backup)?;
        new_cluster::verify(backup, file, &mut progress(file))?
    } else {
        let backup = BackupReader::open(file).map_err(NewClusterError::Backup)?;
        new_cluster::verify(backup, file, &mut progress(file))?
    };
    show(&contents, None, args.json);
    Ok(ExitCode::SUCCESS)
}

pub fn restore(args: RestoreArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, CLIENT_LEVEL)?;
    if args.file == Path::new("-") {
        let why = "a backup is read twice: store it in a file first".to_owned();
        return Err(CliError::Operation(why));
    }
    let mut progress = progress(&args.file);
    let restored = new_cluster::restore(&args.file, &args.data_dir, args.node_id, &mut progress);
    let (founded, contents) = client_runtime()?.block_on(restored)?;
    show(&contents, Some((&founded, &args.data_dir)), args.json);
    Ok(ExitCode::SUCCESS)
}

/// Says on a terminal how much was checked, once per second.
fn progress(file: &Path) -> impl FnMut(u64) {
    let mib = |bytes: u64| bytes >> 20;
    let of = std::fs::metadata(file).map_or_else(|_| String::new(), |file| format!(" of {}", mib(file.len())));
    let mut shown = Instant::now();
    move |bytes| {
        if io::stderr().is_terminal() && shown.elapsed() >= SHOWN_EVERY {
            shown = Instant::now();
            eprintln!("checked {}{of} MiB", mib(bytes));
        }
    }
}

fn show(contents: &Contents, founded: Option<(&Founded, &Path)>, as_json: bool) {
    let Contents { head, sessions, entries, keys, content_hash } = contents;
    let content_hash = format!("{content_hash:032x}");
    if as_json {
        let mut value = json!({
            "cluster_id": head.cluster_id, "node": head.node, "index": head.index, "state_hash": head.state_hash,
            "taken_at": time::print(head.taken_at_ms), "version": head.version, "sessions": sessions,
            "entries": entries, "keys": keys, "content_hash": content_hash,
            "bytes": head.snapshot_bytes,
        });
        if let Some((founded, dir)) = founded {
            value["restored"] = json!({
                "cluster_id": founded.cluster_id, "node": founded.node_id, "data_dir": dir.display().to_string(),
            });
        }
        print(&value);
        return;
    }
    println!("the backup is intact");
    println!("cluster {}, node {}, {}", head.cluster_id, head.node, time::print(head.taken_at_ms));
    println!("entry {} of the log, state hash {}", head.index, head.state_hash);
    println!("content hash {content_hash}");
    println!("{sessions} sessions with {entries} entries, {keys} keys, {} bytes", head.snapshot_bytes);
    if let Some((founded, dir)) = founded {
        let (node, dir) = (founded.node_id, dir.display());
        println!("restored as node {node} of the new cluster {}", founded.cluster_id);
        println!("start it with: session-manager serve --node-id {node} --data-dir {dir}");
    }
}
