//! Owns: `session-manager dev`: starts a cluster of node processes on this machine, reports it and restarts nodes.
//! Never: a node's work; the children are this same program, reached through their ports.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::error::CliError;
use super::signals::wait_for_signal;
use super::{client_runtime, log_to_stderr};
use crate::access::tls::CertificateFiles;
use crate::dev::{Child, DevError, Plan, Seat, Security, form, stop};
use crate::observe::{CLIENT_LEVEL, LogFormat};

const ABOUT: &str = "\
Run a cluster of node processes on this machine, for development and tests.

Each node is a separate process with its own data and log below the data directory. When all nodes are one cluster, \
one line per node is printed with its addresses and pid. Ctrl-C stops all nodes. The next start with the same directory \
brings the same cluster back.";

const EXAMPLES: &str = "\
Examples:
  session-manager dev
  session-manager dev --nodes 5 --base-port 50000
  session-manager dev --secure               TLS on all ports, and a token
  session-manager dev --respawn              then `kill -9 PID` any node and watch the others continue
  session-manager dev --json | jq -r .client";

const POLL_EVERY: Duration = Duration::from_millis(20);
/// A node that exits right after its start is not restarted faster than this.
const RESPAWN_PAUSE: Duration = Duration::from_millis(200);

/// Run a cluster on this machine, for development
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct DevArgs {
    /// Number of nodes [default: as many as the data directory holds, else 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: Option<u16>,

    /// First port; each node takes two, one for clients and one for peers [default: free ports]
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,

    /// Directory for the data and the logs of all nodes
    #[arg(long, value_name = "DIR", default_value = "./data/dev")]
    data_dir: PathBuf,

    /// Use TLS on all ports, and let in only clients with a token. Certificates and token are made below the data
    /// directory at the first start, and how to use them is printed
    #[arg(long)]
    secure: bool,

    /// Restart a node when its process exits
    #[arg(long)]
    respawn: bool,

    /// Print one JSON object per node (node, client, peer, pid, data_dir; with --secure also ca, token_file), and
    /// another one after each restart
    #[arg(long)]
    json: bool,
}

pub fn run(args: DevArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, CLIENT_LEVEL)?;
    let mut plan = Plan::prepare(&args.data_dir, args.nodes, args.base_port)?;
    let security = args.secure.then(|| Security::prepare(&args.data_dir, &mut plan)).transpose()?;
    let started = Started { plan, security, respawn: args.respawn, json: args.json };
    client_runtime()?.block_on(async {
        let mut children = started.plan.seats.iter().map(Child::start).collect::<Result<Vec<_>, _>>()?;
        let ended = tokio::select! {
            ended = started.supervise(&mut children) => ended,
            () = wait_for_signal() => Ok(()),
        };
        stop(children).await;
        ended.map(|()| ExitCode::SUCCESS).map_err(CliError::Supervise)
    })
}

/// A cluster whose processes are started.
struct Started {
    plan: Plan,
    security: Option<Security>,
    respawn: bool,
    json: bool,
}

impl Started {
    /// Waits until all nodes are one cluster, prints their addresses, and watches them for ever.
    async fn supervise(&self, children: &mut [Child]) -> Result<(), DevError> {
        form(&self.plan, self.security.as_ref().map(|security| &security.operator), children).await?;
        for child in children.iter() {
            self.print_node(child.seat(), child.pid());
        }
        if !self.json {
            eprintln!("\n{} nodes are one cluster. Ctrl-C stops them.", children.len());
            eprintln!("{}", self.advice(&self.plan.seats[0]));
        }
        loop {
            for child in children.iter_mut() {
                self.check(child)?;
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Reports a node that exited, and restarts it with `--respawn`.
    fn check(&self, child: &mut Child) -> Result<(), DevError> {
        if let Some(how) = child.take_exit_status() {
            let (node, pid, log) = (child.seat().node, child.pid(), child.log());
            eprintln!("node {node} (pid {pid}) exited: {how}; its log: {}", log.display());
            if !self.respawn {
                eprintln!("  restart it with: {}", child.command_line());
            }
        }
        if self.respawn && child.is_down_for(RESPAWN_PAUSE) {
            child.restart()?;
            self.print_node(child.seat(), child.pid());
        }
        Ok(())
    }

    fn print_node(&self, seat: &Seat, pid: u32) {
        let (node, peer, data_dir) = (seat.node, seat.peer.to_string(), seat.data_dir.display().to_string());
        let s = if self.security.is_some() { "s" } else { "" };
        let client = format!("ws{s}://{}", seat.client);
        let line = if self.json {
            let mut line = json!({ "node": node, "client": client, "peer": peer, "pid": pid, "data_dir": data_dir });
            if let Some(security) = &self.security {
                line["ca"] = json!(security.authority());
                line["token_file"] = json!(security.token_file());
            }
            line.to_string()
        } else {
            format!("node {node}  {client}  http{s}://{}  peer {peer}  pid {pid}  {data_dir}", seat.client)
        };
        // The reader of the output may have closed it; the cluster keeps running.
        let _ = writeln!(std::io::stdout(), "{line}");
    }

    /// How to use the cluster.
    fn advice(&self, seat: &Seat) -> String {
        let Some(security) = &self.security else {
            return format!("  session-manager cluster status --peer {}", seat.peer);
        };
        let (ca, token) = (security.authority().display().to_string(), security.token_file().display().to_string());
        let CertificateFiles { certificate, key } = security.operator_files();
        let (client, peer, cert, key) = (seat.client, seat.peer, certificate.display(), key.display());
        format!(
            "SDKs in Rust and Python need nothing else; Node takes the token in `headers`:\n  \
             export III_URL=wss://{client} SSL_CERT_FILE='{ca}' NODE_EXTRA_CA_CERTS='{ca}'\n  \
             export III_TOKEN=\"$(cat '{token}')\"\n\
             Without the variables:\n  \
             session-manager call session::list --url wss://{client} --ca '{ca}' --token-file '{token}'\n  \
             curl --cacert '{ca}' -H \"authorization: Bearer $(cat '{token}')\" -d '{{}}' \
             https://{client}/v1/call/session::list\n  \
             session-manager cluster status --peer {peer} --ca '{ca}' --cert '{cert}' --key '{key}'"
        )
    }
}
