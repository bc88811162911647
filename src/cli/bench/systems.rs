//! Owns: starting and ending what is measured, and running lanes of closed loops on it through the chosen door.

use std::sync::Arc;
use std::time::Instant;

use super::args::{DoorName, LoadArgs};
use super::bus::{Bus, Lanes};
use super::etcd::{Etcd, Operations};
use super::http::Caller;
use super::nodes::Nodes;
use super::window::{Clients, Sample, Tally, Window, measure};

pub struct Systems {
    pub ours: Nodes,
    pub etcd: Option<Etcd>,
    pub args: LoadArgs,
}

impl Systems {
    pub async fn start(args: LoadArgs) -> Result<Systems, String> {
        let parent = args.data_dir.clone().unwrap_or_else(std::env::temp_dir);
        let ours = match args.node.as_slice() {
            [] => Nodes::start(args.nodes, &parent).await?,
            urls => Nodes::running(urls).await?,
        };
        let etcd = match (args.etcd.as_slice(), args.with_etcd) {
            ([], false) => None,
            ([], true) => Some(Etcd::start(ours.addresses.len() as u16, &parent).await?),
            (addresses, _) => Some(Etcd::running(addresses).await?),
        };
        Ok(Systems { ours, etcd, args })
    }

    /// What was measured, in words for the report.
    pub fn words(&self) -> Vec<String> {
        let whose = if self.args.node.is_empty() { "started for this run" } else { "running already" };
        let door = match self.args.door {
            DoorName::Bus => "the bus",
            DoorName::Http => "HTTP",
        };
        let (count, version) = (self.ours.addresses.len(), env!("CARGO_PKG_VERSION"));
        let ours = format!("session-manager {version}: {count} nodes, {whose}, spoken to over {door}");
        std::iter::once(ours).chain(self.etcd.iter().map(Etcd::words)).collect()
    }

    pub async fn stop(self) {
        self.ours.stop().await;
    }

    /// The number of connections for so many clients.
    pub fn connections(&self, clients: usize) -> usize {
        self.args.connections.map_or(clients, usize::from).min(clients)
    }

    /// One round on our nodes. `lanes` makes the loops of one connection, one for each of the clients it is given.
    pub async fn run_ours<L: Lanes>(
        &self,
        what: &str,
        clients: usize,
        mut lanes: impl FnMut(Vec<usize>) -> L,
    ) -> Result<Sample, String> {
        let window = Arc::new(Window::default());
        let connections = match self.args.door {
            DoorName::Bus => self.connections(clients),
            // A connection of HTTP/1.1 carries one call at a time.
            DoorName::Http => clients,
        };
        let mut tasks = Clients::new();
        for connection in 0..connections {
            let node = &self.ours.addresses[connection % self.ours.addresses.len()];
            let lanes = lanes((connection..clients).step_by(connections).collect());
            match self.args.door {
                DoorName::Bus => tasks.spawn(Bus::connect(node).await?.run(lanes, window.clone())),
                DoorName::Http => tasks.spawn(over_http(node.clone(), lanes, window.clone())),
            };
        }
        measure(what, window, tasks, &self.ours.processes, self.args.seconds).await
    }

    /// One round on the peer, with as many clients and connections; `None` when there is no peer.
    pub async fn run_etcd<O: Operations>(
        &self,
        what: &str,
        clients: usize,
        operations: impl Fn(usize) -> O,
    ) -> Result<Option<Sample>, String> {
        let Some(etcd) = &self.etcd else { return Ok(None) };
        let spread = (clients, self.connections(clients));
        etcd.run(what, spread, self.args.seconds, operations).await.map(Some)
    }
}

async fn over_http(node: String, mut lanes: impl Lanes, window: Arc<Window>) -> Result<Tally, String> {
    let mut caller = Caller::connect(&node).await?;
    let mut tally = Tally::default();
    while !window.is_closed() {
        let mut body = String::with_capacity(1536);
        lanes.body(0, &mut body);
        let sent = Instant::now();
        let answered = caller.call(lanes.function(), body).await;
        let checked = answered.and_then(|answer| {
            let text = std::str::from_utf8(&answer).map_err(|error| error.to_string())?;
            lanes.check(0, text)
        });
        match checked {
            Ok(()) => tally.done(&window, sent.elapsed()),
            Err(why) => tally.failed(&window, || why),
        }
    }
    Ok(tally)
}
