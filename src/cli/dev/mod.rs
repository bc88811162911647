//! Owns: `session-manager dev`: a cluster of real processes on this machine, from start to stop.
//! Never: anything a node could do better; the children are the same program, reached through its doors.

pub mod child;
pub mod form;
pub mod plan;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use self::child::Child;
use self::plan::{Plan, Seat};
use super::serve::wait_for_signal;
use super::{EXIT_FAILED, EXIT_UNUSABLE, client_runtime, fail};
use crate::observe::{CLIENT_LEVEL, LogFormat, start_logging};

const EXAMPLES: &str = "\
Examples:
  session-manager dev
  session-manager dev --nodes 3 --base-port 50000 --respawn
  session-manager dev --json | jq -r .client

Each node is a process of its own, with its data and its log below the data directory. Kill any of them and see what
the others do: kill -9 PID. A second start over the same directory brings the same cluster back. Ctrl-C stops all.";

/// How often the children are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A node that ends right after its start is not started again faster than this.
const RESPAWN_PAUSE: Duration = Duration::from_millis(200);
/// A node closes its store within this time, or is killed: a kill loses nothing either.
const STOP_MAX: Duration = Duration::from_secs(15);

/// Run a cluster on this machine, for development
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DevArgs {
    /// How many nodes [default: those there are, else 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: Option<u16>,

    /// The first of two ports per node: clients, then peers; free ports when left out
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,

    /// Where the nodes keep their data
    #[arg(long, value_name = "DIR", default_value = "./data/dev")]
    data_dir: PathBuf,

    /// Start a node again when it ends
    #[arg(long)]
    respawn: bool,

    /// Print one JSON line per node: node, client, peer, pid, data_dir; again when a node was started again
    #[arg(long)]
    json: bool,
}

pub fn run(args: DevArgs) -> ExitCode {
    if let Err(error) = start_logging(LogFormat::Text, CLIENT_LEVEL) {
        return fail(EXIT_UNUSABLE, error);
    }
    let plan = match Plan::prepare(&args.data_dir, args.nodes, args.base_port) {
        Ok(plan) => plan,
        Err(why) => return fail(EXIT_UNUSABLE, why),
    };
    let runtime = match client_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    runtime.block_on(async {
        let mut children = match plan.seats.iter().map(Child::start).collect::<Result<Vec<_>, _>>() {
            Ok(children) => children,
            Err(why) => return fail(EXIT_UNUSABLE, why),
        };
        let ended = tokio::select! {
            ended = attend(&plan, &mut children, &args) => ended,
            () = wait_for_signal() => Ok(()),
        };
        stop(children).await;
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => fail(EXIT_FAILED, why),
        }
    })
}

/// Waits until all nodes are one cluster, says where they are, and looks after them for ever.
async fn attend(plan: &Plan, children: &mut [Child], args: &DevArgs) -> Result<(), String> {
    form::form(plan, children).await?;
    for child in children.iter() {
        introduce(child.seat(), child.pid(), args.json);
    }
    if !args.json {
        eprintln!("\n{} nodes are one cluster. Ctrl-C stops them.", children.len());
        eprintln!("  session-manager cluster status --peer {}", plan.seats[0].peer);
    }
    loop {
        for child in children.iter_mut() {
            look_after(child, args)?;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn look_after(child: &mut Child, args: &DevArgs) -> Result<(), String> {
    if let Some(how) = child.has_ended() {
        eprintln!("node {} (pid {}) ended: {how}; its log: {}", child.seat().node, child.pid(), child.log().display());
        if !args.respawn {
            eprintln!("  start it again: {}", child.command_line());
        }
    }
    if args.respawn && child.is_down_since(RESPAWN_PAUSE) {
        child.start_again()?;
        introduce(child.seat(), child.pid(), args.json);
    }
    Ok(())
}

fn introduce(seat: &Seat, pid: u32, as_json: bool) {
    let (node, client, peer) = (seat.node, format!("ws://{}", seat.client), seat.peer.to_string());
    let data_dir = seat.data_dir.display().to_string();
    let line = if as_json {
        json!({ "node": node, "client": client, "peer": peer, "pid": pid, "data_dir": data_dir }).to_string()
    } else {
        format!("node {node}  {client}  http://{}  peer {peer}  pid {pid}  {data_dir}", seat.client)
    };
    // Whoever read the first lines may be gone; the cluster stays.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Lets every node close its store; whoever takes too long is killed.
pub async fn stop(mut children: Vec<Child>) {
    for child in &mut children {
        child.ask_to_end();
    }
    let begun = Instant::now();
    while begun.elapsed() < STOP_MAX {
        if children.iter_mut().all(Child::is_down) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    for child in children.iter_mut().filter_map(|child| (!child.is_down()).then_some(child)) {
        eprintln!("node {} does not stop; it is killed", child.seat().node);
        child.kill();
    }
}
