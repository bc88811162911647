//! Owns: the nodes of a local cluster and their addresses. They are chosen once and kept beside the data, because the
//! members of a cluster know each other by address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::DevError;

const FILE: &str = "dev.json";
const NODES: u16 = 3;
/// Below the ephemeral ports: an outgoing connection must not take a node's port while the node is down.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The addresses and the data directory of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub node: u64,
    pub client: SocketAddr,
    pub peer: SocketAddr,
    /// Not stored: it follows the directory that the plan is read from, which may be moved.
    #[serde(skip)]
    pub data_dir: PathBuf,
    /// Further arguments of its process.
    #[serde(skip)]
    pub arguments: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub seats: Vec<Seat>,
}

impl Plan {
    /// Reads the plan of an earlier start, or makes one. Adds seats if more nodes are asked for.
    pub fn prepare(dir: &Path, nodes: Option<u16>, base_port: Option<u16>) -> Result<Plan, DevError> {
        let in_dir = |why: std::io::Error| DevError::Directory { dir: dir.to_owned(), why };
        std::fs::create_dir_all(dir).map_err(in_dir)?;
        let dir = &std::path::absolute(dir).map_err(in_dir)?;
        let file = dir.join(FILE);
        let mut plan = read(&file, in_dir)?.unwrap_or(Plan { seats: Vec::new() });
        let existing = plan.seats.len() as u16;
        let nodes = nodes.unwrap_or(if existing > 0 { existing } else { NODES });
        if nodes < existing {
            return Err(DevError::FewerNodes { dir: dir.clone(), existing });
        }
        if let (Some(base), Some(first)) = (base_port, plan.seats.first())
            && first.client.port() != base
        {
            return Err(DevError::OtherPorts { dir: dir.clone(), existing: first.client.port() });
        }
        let mut ports = Ports::from(base_port);
        for node in existing + 1..=nodes {
            let (client, peer) = ports.pair(node)?;
            plan.seats.push(Seat {
                node: u64::from(node),
                client,
                peer,
                data_dir: PathBuf::new(),
                arguments: Vec::new(),
            });
        }
        for seat in &mut plan.seats {
            seat.data_dir = dir.join(format!("node-{}", seat.node));
        }
        let text = serde_json::to_string_pretty(&plan).map_err(|why| DevError::PlanFile { file: file.clone(), why })?;
        std::fs::write(&file, text).map_err(in_dir)?;
        Ok(plan)
    }
}

fn read(file: &Path, unreadable: impl Fn(std::io::Error) -> DevError) -> Result<Option<Plan>, DevError> {
    match std::fs::read(file) {
        Ok(text) => {
            let plan = serde_json::from_slice(&text);
            plan.map(Some).map_err(|why| DevError::PlanFile { file: file.to_owned(), why })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

enum Ports {
    /// Consecutive ports from this one on.
    From(u16),
    /// The next free ports from this one on.
    Free(u16),
}

impl Ports {
    fn from(base: Option<u16>) -> Ports {
        // A random start, so that two clusters that start at the same time rarely probe the same ports.
        let span = u128::from(PORTS.end - PORTS.start);
        let start = (uuid::Uuid::new_v4().as_u128() % span) as u16;
        base.map_or(Ports::Free(PORTS.start + start), Ports::From)
    }

    fn pair(&mut self, node: u16) -> Result<(SocketAddr, SocketAddr), DevError> {
        match self {
            Ports::From(base) => {
                let client = base.checked_add(2 * (node - 1)).filter(|client| *client < u16::MAX);
                let client = client.ok_or(DevError::BasePort { base: *base, node })?;
                Ok((loopback(client), loopback(client + 1)))
            }
            Ports::Free(next) => {
                let mut free = || {
                    for _ in PORTS {
                        let port = *next;
                        *next = if port + 1 < PORTS.end { port + 1 } else { PORTS.start };
                        if TcpListener::bind(loopback(port)).is_ok() {
                            return Ok(loopback(port));
                        }
                    }
                    Err(DevError::NoFreePort { start: PORTS.start, end: PORTS.end })
                };
                Ok((free()?, free()?))
            }
        }
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_start_uses_the_same_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let first = Plan::prepare(dir.path(), None, None).unwrap();
        assert_eq!(first.seats.len(), 3);
        assert_eq!(Plan::prepare(dir.path(), None, None).unwrap(), first);
        let grown = Plan::prepare(dir.path(), Some(5), None).unwrap();
        assert_eq!(grown.seats[..3], first.seats[..]);
        assert_eq!(grown.seats.len(), 5);
        assert!(Plan::prepare(dir.path(), Some(3), None).unwrap_err().to_string().contains("a cluster of 5 nodes"));
        assert!(Plan::prepare(dir.path(), None, Some(1)).unwrap_err().to_string().contains("--base-port"));
    }

    #[test]
    fn ports_are_counted_from_the_base() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::prepare(dir.path(), Some(2), Some(21_000)).unwrap();
        let ports: Vec<(u16, u16)> = plan.seats.iter().map(|seat| (seat.client.port(), seat.peer.port())).collect();
        assert_eq!(ports, [(21_000, 21_001), (21_002, 21_003)]);
        let dir = tempfile::tempdir().unwrap();
        assert!(
            Plan::prepare(dir.path(), Some(3), Some(65_533))
                .unwrap_err()
                .to_string()
                .contains("no ports left for node 2")
        );
    }

    #[test]
    fn a_damaged_plan_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(Plan::prepare(dir.path(), None, None).unwrap_err().to_string().contains(FILE));
    }
}
