//! Owns: `session-manager cluster`: what an operator asks of a cluster, through the peer address of any of its nodes.
//! Never: state; the nodes decide what is possible and say why not.

pub mod admin;
pub mod survey;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::admin::{Admin, AdminError};
use self::survey::Survey;
use super::{EXIT_REFUSED, EXIT_UNUSABLE, client_runtime, fail};
use crate::observe::{CLIENT_LEVEL, LogFormat, start_logging};
use crate::proto::admin::{ChangeResponse, Member};

/// Where a node listens for its peers unless told otherwise.
pub const DEFAULT_PEER: &str = "127.0.0.1:49135";

const EXAMPLES: &str = "\
Examples:
  session-manager cluster status
  session-manager cluster status --peer 10.0.0.2:49135 --json
  session-manager cluster add 4 10.0.0.4:49135     a learner: receives everything, votes on nothing
  session-manager cluster promote 4                a voter, once it has caught up
  session-manager cluster transfer-leader 2
  session-manager cluster remove 3
  session-manager cluster snapshot

To replace a node whose disk is gone: remove it, start an empty node with a new id, add and promote that.
Any member may be asked. Exit code 1: the cluster said no, or (status) not every member is well.
Exit code 2: the node cannot be reached, or is not a session-manager.";

/// See and change who belongs to a cluster
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ClusterArgs {
    #[command(subcommand)]
    verb: Verb,

    /// The peer address of any member
    #[arg(long, global = true, value_name = "ADDRESS", env = "SESSION_MANAGER_PEER", default_value = DEFAULT_PEER)]
    peer: String,

    /// The cluster that is meant: a node of another one refuses
    #[arg(long, global = true, value_name = "ID", default_value = "")]
    cluster_id: String,

    /// Print JSON
    #[arg(long, global = true)]
    json: bool,

    /// How long to wait for an answer
    #[arg(long, global = true, value_name = "MS", default_value_t = 30_000)]
    timeout_ms: u64,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Every member: role, term, log, lag, health and the hash of its state
    Status,
    /// Found a cluster on a node that was started to join one
    Init,
    /// Add a node as a learner
    Add {
        /// Its node id
        node: u64,
        /// Its peer address, host:port
        address: String,
    },
    /// Make a learner a voter
    Promote {
        /// Its node id
        node: u64,
    },
    /// Remove a member
    Remove {
        /// Its node id
        node: u64,
        /// Even when too few voters would be left within reach to form a quorum: the cluster may then stand still
        /// until they are back
        #[arg(long)]
        force: bool,
    },
    /// Let another voter lead
    TransferLeader {
        /// Its node id; the voter that is furthest when left out
        node: Option<u64>,
    },
    /// Build a snapshot on the node that is asked
    Snapshot,
}

pub fn run(args: ClusterArgs) -> ExitCode {
    if let Err(error) = start_logging(LogFormat::Text, CLIENT_LEVEL) {
        return fail(EXIT_UNUSABLE, error);
    }
    let runtime = match client_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    match runtime.block_on(carry_out(&args)) {
        Ok(Done { text, json, well }) => {
            if args.json {
                println!("{}", if std::io::stdout().is_terminal() { format!("{json:#}") } else { json.to_string() });
            } else {
                println!("{}", text.trim_end());
            }
            if well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_REFUSED) }
        }
        Err(error) => fail(exit_code(&error), error),
    }
}

fn exit_code(error: &AdminError) -> u8 {
    match error {
        AdminError::Unreachable { .. } | AdminError::NotAPeer { .. } => EXIT_UNUSABLE,
        AdminError::Refused(_) | AdminError::Unavailable(_) | AdminError::Late { .. } => EXIT_REFUSED,
    }
}

/// What is printed, for people and for programs.
struct Done {
    text: String,
    json: Value,
    well: bool,
}

impl Done {
    fn survey(survey: &Survey) -> Done {
        Done { text: survey.table(), json: survey.json(), well: survey.is_healthy() }
    }

    fn change(what: String, change: &ChangeResponse) -> Done {
        let members: Vec<Value> = change.members.iter().map(member_json).collect();
        let voters = change.members.iter().filter(|member| member.voter).count();
        let learners = change.members.len() - voters;
        let text = format!("{what}; {voters} voters, {learners} learners, node {} leads", change.leader);
        Done { text, json: json!({ "leader": change.leader, "members": members }), well: true }
    }
}

async fn carry_out(args: &ClusterArgs) -> Result<Done, AdminError> {
    let call_max = Duration::from_millis(args.timeout_ms);
    let connect = || Admin::connect(&args.peer, &args.cluster_id, call_max);
    Ok(match &args.verb {
        Verb::Status => Done::survey(&Survey::take(&args.peer, &args.cluster_id, call_max).await?),
        Verb::Init => {
            connect().await?.init().await?;
            Done::survey(&Survey::take(&args.peer, &args.cluster_id, call_max).await?)
        }
        Verb::Add { node, address } => {
            let change = connect().await?.add_learner(*node, address).await?;
            Done::change(format!("node {node} at {address} is a learner"), &change)
        }
        Verb::Promote { node } => {
            let change = connect().await?.promote(*node).await?;
            Done::change(format!("node {node} is a voter"), &change)
        }
        Verb::Remove { node, force } => {
            let change = connect().await?.remove(*node, *force).await.map_err(|error| insist(error, *node))?;
            Done::change(format!("node {node} is removed"), &change)
        }
        Verb::TransferLeader { node } => {
            let change = connect().await?.transfer_leader(node.unwrap_or_default()).await?;
            Done::change("leadership is handed over".to_owned(), &change)
        }
        Verb::Snapshot => {
            let built = connect().await?.snapshot().await?;
            let text = format!("a snapshot up to entry {} is on disk at {}", built.index, args.peer);
            Done { text, json: json!({ "index": built.index }), well: true }
        }
    })
}

/// A refusal that can be overruled says with which words.
fn insist(error: AdminError, node: u64) -> AdminError {
    match error {
        AdminError::Refused(why) if why.ends_with("use force") => {
            AdminError::Refused(format!("{why} (`session-manager cluster remove {node} --force`)"))
        }
        other => other,
    }
}

fn member_json(member: &Member) -> Value {
    json!({ "node": member.node, "address": member.address, "voter": member.voter, "lag": member.lag })
}
