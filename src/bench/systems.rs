//! Owns: starting and stopping the measured systems, and running closed loops on them over the chosen protocol.

use std::sync::Arc;
use std::time::Instant;

use super::args::{DoorName, LoadArgs};
use super::bus_client::{Bus, Lanes};
use super::error::BenchError;
use super::etcd::{Etcd, Operations};
use super::http_client::Caller;
use super::nodes::{Nodes, Wire};
use super::peers::{Peer, PeerName};
use super::report::System;
use super::target::Target;
use super::window::{Clients, Sample, Tally, Window, measure};
use super::{nats, postgres};

pub struct Systems {
    pub ours: Nodes,
    /// The same program with TLS and a token.
    pub secure: Option<Nodes>,
    pub etcd: Option<Etcd>,
    pub postgres: Option<Peer>,
    pub nats: Option<Peer>,
    /// What was asked for and is not installed.
    missing: Vec<PeerName>,
    pub args: LoadArgs,
}

impl Systems {
    /// `settings` are those of nodes that are started here, beside the defaults.
    pub async fn start(args: LoadArgs, settings: &str) -> Result<Systems, BenchError> {
        let parent = args.data_dir.clone().unwrap_or_else(std::env::temp_dir);
        let ours = match args.node.as_slice() {
            [] => Nodes::start(args.nodes, &parent, Wire::Plain, settings).await?,
            urls => Nodes::running(urls, args.keys()).await?,
        };
        let secure = match args.with_tls {
            true => Some(Nodes::start(args.nodes, &parent, Wire::Tls, settings).await?),
            false => None,
        };
        let installed = |peer: PeerName| args.with.contains(&peer).then(|| peer.program()).flatten();
        let count = ours.targets.len() as u16;
        let etcd = match (args.etcd.as_slice(), args.with_etcd || installed(PeerName::Etcd).is_some()) {
            ([], false) => None,
            ([], true) => Some(Etcd::start(count, &parent).await?),
            (addresses, _) => Some(Etcd::running(addresses).await?),
        };
        let postgres = match installed(PeerName::Postgres) {
            Some(program) => Some(postgres::start(&program, &parent).await?),
            None => None,
        };
        let nats = match installed(PeerName::Nats) {
            Some(program) => Some(nats::start(&program, count, &parent).await?),
            None => None,
        };
        let missing = args.with.iter().copied().filter(|peer| peer.program().is_none()).collect();
        Ok(Systems { ours, secure, etcd, postgres, nats, missing, args })
    }

    /// One line per system for the report.
    pub fn descriptions(&self) -> Vec<String> {
        let whose = if self.args.node.is_empty() { "started for this run" } else { "already running" };
        let door = match self.args.door {
            DoorName::Bus => "the bus",
            DoorName::Http => "HTTP",
        };
        let (count, version) = (self.ours.targets.len(), env!("CARGO_PKG_VERSION"));
        let ours = format!("session-manager {version}: {count} nodes, {whose}, over {door}");
        let peers = self.postgres.iter().chain(&self.nats).map(|peer| peer.description.clone());
        let missing = self.missing.iter().map(|peer| format!("{peer:?}: missing, install {}", peer.package()));
        let secure =
            self.secure.iter().map(|_| format!("{}: the same with mutual TLS and a token", System::Secure.name()));
        std::iter::once(ours)
            .chain(secure)
            .chain(self.etcd.iter().map(Etcd::description))
            .chain(peers)
            .chain(missing)
            .collect()
    }

    pub async fn stop(self) {
        self.ours.stop().await;
        if let Some(secure) = self.secure {
            secure.stop().await;
        }
    }

    /// The number of connections that so many clients share.
    pub fn connections(&self, clients: usize) -> usize {
        self.args.connections.map_or(clients, usize::from).min(clients)
    }

    /// Our own nodes, each cluster with its name in the report.
    pub fn own(&self) -> impl Iterator<Item = (System, &Nodes)> {
        std::iter::once((System::Ours, &self.ours)).chain(self.secure.iter().map(|nodes| (System::Secure, nodes)))
    }

    /// One round on nodes of ours. `lanes` makes the loops of one connection, one for each of the given clients.
    pub async fn run_ours<L: Lanes>(
        &self,
        nodes: &Nodes,
        workload: &str,
        clients: usize,
        mut lanes: impl FnMut(Vec<usize>) -> L,
    ) -> Result<Sample, BenchError> {
        let window = Arc::new(Window::default());
        let connections = match self.args.door {
            DoorName::Bus => self.connections(clients),
            // HTTP/1.1 has one call at a time on a connection.
            DoorName::Http => clients,
        };
        let mut tasks = Clients::new();
        for connection in 0..connections {
            let node = &nodes.targets[connection % nodes.targets.len()];
            let lanes = lanes((connection..clients).step_by(connections).collect());
            match self.args.door {
                DoorName::Bus => tasks.spawn(Bus::connect(node).await?.run(lanes, window.clone())),
                DoorName::Http => tasks.spawn(over_http(node.clone(), lanes, window.clone())),
            };
        }
        measure(workload, window, tasks, &nodes.processes, self.args.seconds).await
    }

    /// One round on etcd with the same clients and connections. `None` without etcd.
    pub async fn run_etcd<O: Operations>(
        &self,
        workload: &str,
        clients: usize,
        operations: impl Fn(usize) -> O,
    ) -> Result<Option<Sample>, BenchError> {
        let Some(etcd) = &self.etcd else { return Ok(None) };
        let spread = (clients, self.connections(clients));
        etcd.run(workload, spread, self.args.seconds, operations).await.map(Some)
    }
}

async fn over_http(node: Target, mut lanes: impl Lanes, window: Arc<Window>) -> Result<Tally, BenchError> {
    let mut caller = Caller::connect(&node).await?;
    let mut tally = Tally::default();
    while !window.is_closed() {
        let mut body = String::with_capacity(1536);
        lanes.body(0, &mut body);
        let sent = Instant::now();
        let answered = caller.call(lanes.function(), body).await;
        let checked = answered.and_then(|answer| {
            let text = String::from_utf8_lossy(&answer);
            lanes.check(0, &text)
        });
        match checked {
            Ok(()) => tally.done(&window, sent.elapsed()),
            Err(error) => tally.failed(&window, &error),
        }
    }
    Ok(tally)
}
