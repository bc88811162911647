//! Owns: where the other nodes are said to be: a DNS name, a list of addresses, or a file with one address per line.
//! Never: whether a node is there.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tokio::net::lookup_host;

/// More addresses are a mistake: a cluster has far fewer nodes.
const ADDRESSES_MAX: usize = 64;

/// A place that names the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discover {
    /// Every address of this name, with this port. Asked anew each time.
    Dns {
        name: String,
        port: u16,
    },
    Addresses(Vec<String>),
    /// Read anew each time.
    File(PathBuf),
}

/// Why a place is none, or names no node now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiscoverError {
    NoPlace(String),
    Dns { name: String, why: String },
    File { path: PathBuf, why: String },
    NotAnAddress { path: PathBuf, line: usize, text: String },
    TooMany { found: usize },
}

impl fmt::Display for DiscoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiscoverError::NoPlace(text) => {
                write!(f, "{text:?} names no nodes: write dns:NAME:PORT, file:PATH, or HOST:PORT,HOST:PORT,…")
            }
            DiscoverError::Dns { name, why } => write!(f, "the name {name:?} has no address: {why}"),
            DiscoverError::File { path, why } => write!(f, "{}: {why}", path.display()),
            DiscoverError::NotAnAddress { path, line, text } => {
                write!(f, "{}: line {line}: {text:?} is no address: write host:port", path.display())
            }
            DiscoverError::TooMany { found } => {
                write!(f, "{found} addresses are more than the {ADDRESSES_MAX} that a cluster could have")
            }
        }
    }
}

impl std::error::Error for DiscoverError {}

impl FromStr for Discover {
    type Err = DiscoverError;

    fn from_str(text: &str) -> Result<Discover, DiscoverError> {
        let wrong = || DiscoverError::NoPlace(text.to_owned());
        if let Some(path) = text.strip_prefix("file:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Discover::File(path.into())) };
        }
        if let Some(rest) = text.strip_prefix("dns:") {
            let (name, port) = host_and_port(rest).ok_or_else(wrong)?;
            return Ok(Discover::Dns { name: name.to_owned(), port });
        }
        let addresses: Vec<String> = text.split(',').map(|address| address.trim().to_owned()).collect();
        match addresses.iter().all(|address| host_and_port(address).is_some()) {
            true => Ok(Discover::Addresses(addresses)),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Discover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Discover::Dns { name, port } => write!(f, "dns:{name}:{port}"),
            Discover::Addresses(addresses) => f.write_str(&addresses.join(",")),
            Discover::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let is_name = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/' || c == ',');
    Some((host, port.parse().ok().filter(|port| *port > 0)?)).filter(|_| is_name)
}

impl Discover {
    /// The addresses now.
    pub async fn addresses(&self) -> Result<Vec<String>, DiscoverError> {
        let found = match self {
            Discover::Addresses(addresses) => addresses.clone(),
            Discover::Dns { name, port } => {
                let failed = |error: std::io::Error| DiscoverError::Dns { name: name.clone(), why: error.to_string() };
                let found = lookup_host((name.as_str(), *port)).await.map_err(failed)?;
                let mut addresses: Vec<String> = found.map(|address| address.to_string()).collect();
                addresses.sort();
                addresses.dedup();
                addresses
            }
            Discover::File(path) => {
                let failed = |error: std::io::Error| DiscoverError::File { path: path.clone(), why: error.to_string() };
                let text = tokio::fs::read_to_string(path).await.map_err(failed)?;
                let lines = text.lines().map(str::trim).enumerate();
                let named = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
                let addresses = named.map(|(at, line)| match host_and_port(line) {
                    Some(_) => Ok(line.to_owned()),
                    None => {
                        Err(DiscoverError::NotAnAddress { path: path.clone(), line: at + 1, text: line.to_owned() })
                    }
                });
                addresses.collect::<Result<Vec<_>, _>>()?
            }
        };
        if found.len() > ADDRESSES_MAX {
            return Err(DiscoverError::TooMany { found: found.len() });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_back_and_nothing_else_is_one() {
        for text in ["dns:peers.example:49200", "file:/etc/nodes", "127.0.0.1:1,node-2.example:49200", "[::1]:7"] {
            assert_eq!(text.parse::<Discover>().unwrap().to_string(), text);
        }
        for text in ["", "dns:peers", "dns::1", "dns:peers:0", "file:", "peers", "a:1,,b:2", "a:x", "http://a:1"] {
            assert!(text.parse::<Discover>().unwrap_err().to_string().contains("dns:NAME:PORT"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_file_is_read_anew_and_a_wrong_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes");
        let discover = Discover::File(path.clone());
        assert!(discover.addresses().await.is_err());
        std::fs::write(&path, "# the nodes\n\na:1\n b:2 \n").unwrap();
        assert_eq!(discover.addresses().await.unwrap(), ["a:1", "b:2"]);
        std::fs::write(&path, "a:1\nnowhere\n").unwrap();
        assert!(discover.addresses().await.unwrap_err().to_string().contains("line 2: \"nowhere\""));
    }
}
