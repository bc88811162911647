//! Owns: which nodes a development cluster has, and where: chosen once, kept beside the data, since the members of a
//! cluster know each other by address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const FILE: &str = "dev.json";
const NODES: u16 = 3;
/// Below the ports that systems give to outgoing connections: one of those could take a node's port while it is down.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The place of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub node: u64,
    pub client: SocketAddr,
    pub peer: SocketAddr,
    /// Found again below whatever directory the plan is read from.
    #[serde(skip)]
    pub data_dir: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub seats: Vec<Seat>,
}

impl Plan {
    /// Reads the plan of an earlier start, or makes one, and more seats where more nodes are asked for.
    pub fn prepare(dir: &Path, nodes: Option<u16>, base_port: Option<u16>) -> Result<Plan, String> {
        let in_dir = |why: String| format!("{}: {why}", dir.display());
        std::fs::create_dir_all(dir).map_err(|error| in_dir(error.to_string()))?;
        let dir = &std::path::absolute(dir).map_err(|error| in_dir(error.to_string()))?;
        let mut plan = read(&dir.join(FILE)).map_err(in_dir)?.unwrap_or(Plan { seats: Vec::new() });
        let there = plan.seats.len() as u16;
        let nodes = nodes.unwrap_or(if there > 0 { there } else { NODES });
        if nodes < there {
            return Err(in_dir(format!(
                "a cluster of {there} nodes lives here: start all of them (--nodes {there}) and remove nodes with \
                 `session-manager cluster remove`, or choose another --data-dir"
            )));
        }
        if let (Some(base), Some(first)) = (base_port, plan.seats.first())
            && first.client.port() != base
        {
            let port = first.client.port();
            return Err(in_dir(format!(
                "the cluster that lives here has its ports from {port} on: leave --base-port out, or choose another \
                 --data-dir"
            )));
        }
        let mut ports = Ports::from(base_port);
        for node in there + 1..=nodes {
            let (client, peer) = ports.pair(node)?;
            plan.seats.push(Seat { node: u64::from(node), client, peer, data_dir: PathBuf::new() });
        }
        for seat in &mut plan.seats {
            seat.data_dir = dir.join(format!("node-{}", seat.node));
        }
        plan.write(&dir.join(FILE)).map_err(in_dir)?;
        Ok(plan)
    }

    fn write(&self, file: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(file, text).map_err(|error| error.to_string())
    }
}

fn read(file: &Path) -> Result<Option<Plan>, String> {
    match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| format!("its file {FILE}: {error}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Ports counted from a given one, or whichever are free.
enum Ports {
    From(u16),
    Free(u16),
}

impl Ports {
    fn from(base: Option<u16>) -> Ports {
        let span = u128::from(PORTS.end - PORTS.start);
        let somewhere = (uuid::Uuid::new_v4().as_u128() % span) as u16;
        base.map_or(Ports::Free(PORTS.start + somewhere), Ports::From)
    }

    fn pair(&mut self, node: u16) -> Result<(SocketAddr, SocketAddr), String> {
        match self {
            Ports::From(base) => {
                let client = base.checked_add(2 * (node - 1)).filter(|client| *client < u16::MAX);
                let client = client.ok_or_else(|| format!("--base-port {base}: no ports left for node {node}"))?;
                Ok((here(client), here(client + 1)))
            }
            Ports::Free(next) => {
                let mut free = || {
                    for _ in PORTS {
                        let port = *next;
                        *next = if port + 1 < PORTS.end { port + 1 } else { PORTS.start };
                        if TcpListener::bind(here(port)).is_ok() {
                            return Ok(here(port));
                        }
                    }
                    Err(format!("no port between {} and {} is free", PORTS.start, PORTS.end))
                };
                Ok((free()?, free()?))
            }
        }
    }
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_start_finds_the_same_places() {
        let dir = tempfile::tempdir().unwrap();
        let first = Plan::prepare(dir.path(), None, None).unwrap();
        assert_eq!(first.seats.len(), 3);
        assert_eq!(Plan::prepare(dir.path(), None, None).unwrap(), first);
        let grown = Plan::prepare(dir.path(), Some(5), None).unwrap();
        assert_eq!(grown.seats[..3], first.seats[..]);
        assert_eq!(grown.seats.len(), 5);
        assert!(Plan::prepare(dir.path(), Some(3), None).unwrap_err().contains("a cluster of 5 nodes"));
        assert!(Plan::prepare(dir.path(), None, Some(1)).unwrap_err().contains("--base-port"));
    }

    #[test]
    fn ports_are_counted_from_the_base() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::prepare(dir.path(), Some(2), Some(21_000)).unwrap();
        let ports: Vec<(u16, u16)> = plan.seats.iter().map(|seat| (seat.client.port(), seat.peer.port())).collect();
        assert_eq!(ports, [(21_000, 21_001), (21_002, 21_003)]);
        let dir = tempfile::tempdir().unwrap();
        assert!(Plan::prepare(dir.path(), Some(3), Some(65_533)).unwrap_err().contains("no ports left for node 2"));
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(Plan::prepare(dir.path(), None, None).unwrap_err().contains(FILE));
    }
}
