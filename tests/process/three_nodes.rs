//! Owns: a cluster of three processes of the program.

use std::net::SocketAddr;
use std::path::Path;

use session_manager::dev::{Plan, form};

use super::node::NodeProcess;

pub struct ThreeNodes(pub Vec<NodeProcess>);

impl ThreeNodes {
    /// Returns when all three are voters and follow a leader. A second start over the same directory brings them back.
    pub async fn start(dir: &Path) -> ThreeNodes {
        ThreeNodes::start_with(dir, &[]).await
    }

    /// The same, with more arguments for every node.
    pub async fn start_with(dir: &Path, more: &[&str]) -> ThreeNodes {
        let plan = Plan::prepare(dir, Some(3), None).expect("free ports");
        let start = |seat: &session_manager::dev::Seat| {
            let (node, client, peer) = (seat.node.to_string(), seat.client.to_string(), seat.peer.to_string());
            let mut arguments = vec!["--node-id", &node, "--listen", &client, "--peer-listen", &peer];
            if seat.node > 1 {
                arguments.push("--join");
            }
            arguments.extend(more);
            NodeProcess::start(&seat.data_dir, &arguments)
        };
        let nodes = plan.seats.iter().map(start).collect();
        form(&plan, None, &mut []).await.expect("the nodes form a cluster");
        ThreeNodes(nodes)
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|node| node.address).collect()
    }
}
