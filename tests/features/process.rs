//! Owns: the processes of scenarios: nodes, clusters of them, and commands that run to completion.

#[path = "../process/node.rs"]
#[allow(dead_code)] // the process tests use the rest
mod node;
#[path = "../process/plain_http.rs"]
#[allow(dead_code)] // the process tests use the rest
pub mod plain_http;
#[path = "../process/three_nodes.rs"]
#[allow(dead_code)] // the process tests use the rest
mod three_nodes;

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

pub use node::{NodeProcess, command, tail_of};
pub use three_nodes::ThreeNodes;

/// Outside the range of ephemeral ports, so that no outgoing connection takes it before the node does.
pub fn free_port() -> SocketAddr {
    let from = 20_000 + (uuid::Uuid::new_v4().as_u128() % 9_000) as u16;
    let mut candidates = (from..from + 900).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    candidates.find(|address| std::net::TcpListener::bind(address).is_ok()).expect("a free port")
}

/// Runs the program to completion.
pub async fn run(words: &[&str]) -> Output {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let running = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_session-manager"));
        command.args(words).env_remove("RUST_LOG").env_remove("III_URL").stdin(Stdio::null());
        command.output().expect("the binary runs")
    };
    tokio::task::spawn_blocking(running).await.expect("the command ran")
}
