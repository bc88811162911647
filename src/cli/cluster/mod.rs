//! Owns: `session-manager cluster`: an operator's commands, sent to the peer address of any member.
//! Never: state; the nodes decide what is possible and say why not.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::call::print;
use super::error::CliError;
use super::operator::OperatorArgs;
use super::{EXIT_REFUSED, client_runtime, log_to_stderr};
use crate::admin::survey::Survey;
use crate::admin::{Admin, AdminError};
use crate::observe::{CLIENT_LEVEL, LogFormat};
use crate::proto::admin::{ChangeResponse, Member};

const ABOUT: &str = "\
Show and change the members of a cluster.

Every command talks to the peer address (--peer-listen) of one node. It can be any member. A new node starts as a \
learner: it receives the log and does not vote. Promote it to make it a voter.";

const EXAMPLES: &str = "\
Examples:
  session-manager cluster status
  session-manager cluster status --peer 127.0.0.1:49200 --json
  session-manager cluster add 4 127.0.0.1:49400      add node 4 as a learner
  session-manager cluster promote 4                  make it a voter, once it has caught up
  session-manager cluster update-member 4 10.0.0.9:49135   its address has changed
  session-manager cluster transfer-leader 2          let node 2 lead
  session-manager cluster remove 3
  session-manager cluster finalize                   after an upgrade: use what is new
  session-manager cluster snapshot

To replace a node whose disk is lost: remove it, start an empty node with a new id and --join, add it, promote it.
Exit codes: 1 the cluster refused, or (status) not every member is healthy; 2 the node cannot be reached.";

/// Show and change the members of a cluster
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct ClusterArgs {
    #[command(subcommand)]
    verb: Verb,

    #[command(flatten)]
    operator: OperatorArgs,

    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,

    /// How long to wait for an answer, in milliseconds
    #[arg(long, global = true, value_name = "MS", default_value_t = 30_000)]
    timeout_ms: u64,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show every member: role, term, log position, lag, health and the hash of its state
    Status,
    /// Found a cluster on a node that was started with --join
    Init,
    /// Add a node as a learner: it receives the log and does not vote
    Add {
        /// The id of the node (--node-id)
        node: u64,
        /// The peer address of the node (--peer-listen): HOST:PORT
        address: String,
    },
    /// Record the new peer address of a member. The member must answer there, with the data directory it had
    UpdateMember {
        /// The id of the node
        node: u64,
        /// The peer address of the node from now on: HOST:PORT
        address: String,
    },
    /// Make a learner a voter
    Promote {
        /// The id of the node
        node: u64,
    },
    /// Remove a member
    Remove {
        /// The id of the node
        node: u64,
        /// Remove it even if too few of the remaining voters can be reached to form a quorum. The cluster then accepts
        /// no writes until they are back
        #[arg(long)]
        force: bool,
    },
    /// Transfer leadership to another voter
    TransferLeader {
        /// The id of the node [default: the voter with the longest log]
        node: Option<u64>,
    },
    /// Transfer leadership to another voter if the node at --peer leads; run it before you stop that node
    StepDown {
        /// Then wait this long, in milliseconds, so that load balancers send no more connections to the node
        #[arg(long, value_name = "MS", default_value_t = 0)]
        then_wait_ms: u64,
    },
    /// End an upgrade: raise the level of the cluster to the newest that every member knows. After that, the previous
    /// build can no longer run in this cluster
    Finalize,
    /// Write a snapshot on the node at --peer
    Snapshot,
}

pub fn run(args: ClusterArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, CLIENT_LEVEL)?;
    let Report { text, json, healthy } = client_runtime()?.block_on(execute(&args))?;
    if args.json {
        print(&json);
    } else {
        println!("{}", text.trim_end());
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(EXIT_REFUSED) })
}

/// The result of a command, for people and for programs.
struct Report {
    text: String,
    json: Value,
    healthy: bool,
}

impl Report {
    fn survey(survey: &Survey) -> Report {
        Report { text: survey.table(), json: survey.json(), healthy: survey.is_healthy() }
    }

    fn change(what: String, change: &ChangeResponse) -> Report {
        let members: Vec<Value> = change.members.iter().map(member_json).collect();
        let voters = change.members.iter().filter(|member| member.voter).count();
        let learners = change.members.len() - voters;
        let text = format!("{what}; {voters} voters, {learners} learners, node {} leads", change.leader);
        Report { text, json: json!({ "leader": change.leader, "members": members }), healthy: true }
    }
}

async fn execute(args: &ClusterArgs) -> Result<Report, CliError> {
    let call_max = Duration::from_millis(args.timeout_ms);
    let OperatorArgs { peer, cluster_id, .. } = &args.operator;
    let tls = args.operator.tls()?;
    let tls = tls.as_ref();
    let connect = || Admin::connect_over(tls, peer, cluster_id, call_max);
    Ok(match &args.verb {
        Verb::Status => Report::survey(&Survey::take(tls, peer, cluster_id, call_max).await?),
        Verb::Init => {
            connect().await?.init().await?;
            Report::survey(&Survey::take(tls, peer, cluster_id, call_max).await?)
        }
        Verb::Add { node, address } => {
            let change = connect().await?.add_learner(*node, address).await?;
            Report::change(format!("node {node} at {address} is a learner"), &change)
        }
        Verb::UpdateMember { node, address } => {
            let change = connect().await?.update_member(*node, address).await?;
            Report::change(format!("node {node} is at {address}"), &change)
        }
        Verb::Promote { node } => {
            let change = connect().await?.promote(*node).await?;
            Report::change(format!("node {node} is a voter"), &change)
        }
        Verb::Remove { node, force } => {
            let removed = connect().await?.remove(*node, *force).await;
            let change = removed.map_err(|error| remove_error(error, *node, *force))?;
            Report::change(format!("node {node} is removed"), &change)
        }
        Verb::TransferLeader { node } => {
            let change = connect().await?.transfer_leader(node.unwrap_or_default()).await?;
            Report::change("leadership is transferred".to_owned(), &change)
        }
        Verb::StepDown { then_wait_ms } => {
            let mut admin = connect().await?;
            let status = admin.status().await?;
            let others = status.members.iter().any(|member| member.voter && member.node != status.node);
            let leads = status.leader == status.node;
            let transferred = if leads && others { Some(admin.transfer_leader(0).await) } else { None };
            // The node stops in any case, so its connections get their time in any case.
            tokio::time::sleep(Duration::from_millis(*then_wait_ms)).await;
            let moved = transferred.transpose()?.map(|change| change.leader);
            let text = moved.map_or("the node did not lead".to_owned(), |leader| format!("node {leader} leads now"));
            Report { text, json: json!({ "leader": moved }), healthy: true }
        }
        Verb::Finalize => {
            let level = connect().await?.finalize().await?.level;
            Report { text: format!("the cluster is at level {level}"), json: json!({ "level": level }), healthy: true }
        }
        Verb::Snapshot => {
            let built = connect().await?.snapshot().await?;
            let text = format!("a snapshot up to entry {} is on disk at {}", built.index, peer);
            Report { text, json: json!({ "index": built.index }), healthy: true }
        }
    })
}

/// A refusal that `--force` may override says so.
fn remove_error(error: AdminError, node: u64, force: bool) -> CliError {
    match error {
        AdminError::Refused(_) if !force => CliError::RemoveRefused { error, node },
        other => CliError::Admin(other),
    }
}

fn member_json(member: &Member) -> Value {
    json!({ "node": member.node, "address": member.address, "voter": member.voter, "lag": member.lag, "name": member.name })
}
