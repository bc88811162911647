//! Owns: `session-manager recover`: the command after a quorum was lost for good.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::call::print;
use super::error::CliError;
use super::{client_runtime, log_to_stderr};
use crate::observe::{CLIENT_LEVEL, LogFormat};
use crate::replication::new_cluster::{Founded, Recovery, Survivor};

const ABOUT: &str = "\
Make one surviving node a cluster of its own, after the others were lost for good.

A cluster that has lost more than half of its voters accepts no writes. If they never come back, this command gives the \
data directory of one survivor a new cluster id and makes it the only member, with everything it has. Choose the survivor \
with the longest log: run the command without --i-know-what-i-lose on each, which changes nothing and prints it.

Writes that the lost nodes acknowledged and this one did not receive are gone. Writes that this one received and nobody \
acknowledged may appear. Nodes of the old cluster are refused: start them with empty directories and add them.";

const EXAMPLES: &str = "\
Examples:
  session-manager recover --data-dir data                              show what this node has, change nothing
  session-manager recover --data-dir data --i-know-what-i-lose

Exit codes: 1 the directory cannot be recovered, or is in use; 2 --i-know-what-i-lose is missing.";

/// Make one surviving node a new cluster, after a quorum was lost for good
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct RecoverArgs {
    /// Data directory of the stopped node
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Do it, although writes may be lost
    #[arg(long)]
    i_know_what_i_lose: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: RecoverArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, CLIENT_LEVEL)?;
    let dir = args.data_dir.display();
    let recovery = Recovery::open(&args.data_dir)?;
    let Survivor { node_id, cluster_id, last } = recovery.survivor().clone();
    if !args.i_know_what_i_lose {
        let (index, term) = (last.index, last.leader.term);
        return Err(CliError::Operation(format!(
            "node {node_id} of cluster {cluster_id} has entries up to {index}, of term {term}; what the others \
             acknowledged after that would be lost. Nothing was changed. To make it a cluster of its own, add \
             --i-know-what-i-lose"
        )));
    }
    let Founded { cluster_id: new, index, .. } = client_runtime()?.block_on(recovery.found())?;
    if args.json {
        print(&json!({ "cluster_id": new, "was": cluster_id, "node": node_id, "index": index }));
        return Ok(ExitCode::SUCCESS);
    }
    println!("node {node_id} is the only member of the new cluster {new}, with entries up to {index}");
    println!("it was a member of cluster {cluster_id}; start no other node of that one with its old data");
    println!("start it with: session-manager serve --node-id {node_id} --data-dir {dir}");
    Ok(ExitCode::SUCCESS)
}
