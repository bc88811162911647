//! Owns: every setting of a node, with its default, its bound and the reason for both; and the way from YAML to it.
//! Never: open, bind or create anything. A configuration that is accepted here is well-formed, not yet possible.

mod bounds;
mod bridge;
mod expand;
mod spelling;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

pub use bridge::{BridgeConfig, shown};

use crate::requests::Limits;

/// The settings of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the data lives.
    pub adapter: AdapterConfig,
    /// Page size of session::list and session::messages when a request names none.
    #[schemars(range(min = 1, max = 10_000))]
    pub default_list_limit: usize,
    /// The largest page a request can ask for.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_list_limit: usize,
    /// Whether the snake_case function ids of version 0.1.2 answer too.
    pub legacy_names: bool,
    /// Where clients connect: host:port, loopback only.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
    /// Which member of its cluster this node is; never changes for a data directory. Raft only.
    #[schemars(range(min = 1))]
    pub node_id: u64,
    /// Where the other nodes and `session-manager cluster` reach this one: host:port, loopback only. Raft only; a node
    /// without it stays alone.
    #[serde(deserialize_with = "peer_address")]
    pub peer_listen: Option<SocketAddr>,
    /// An empty data directory waits until a cluster invites it, instead of founding one. Raft only.
    pub join: bool,
    /// How new the answers of reads are. Raft only.
    pub consistency: Consistency,
    /// Connections served at once.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_connections: usize,
    /// The largest message a client may send.
    #[schemars(range(min = 65_536, max = 67_108_864))]
    pub max_message_bytes: usize,
    /// What may wait for one slow client before it is disconnected.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub outbound_queue_bytes: usize,
    /// What may wait for all clients together.
    #[schemars(range(min = 1_048_576, max = 17_179_869_184_u64))]
    pub outbound_total_bytes: usize,
    /// How much of the change feed is kept for subscribers that come back. In a cluster the leader's setting counts.
    #[schemars(range(min = 1_048_576, max = 68_719_476_736_u64))]
    pub feed_retention_bytes: u64,
    /// How long the change feed is kept, however little it is.
    #[schemars(range(min = 60, max = 315_360_000))]
    pub feed_retention_secs: u64,
    /// How long a call may take when its door sets no deadline of its own.
    #[schemars(range(min = 100, max = 600_000))]
    pub call_timeout_ms: u64,
}

/// How new the answers of reads are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// At least as new as everything acknowledged anywhere before the question.
    Linearizable,
    /// As new as this node happens to be: faster, and answered without a leader too.
    Local,
}

/// The place where the data lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "name", content = "config", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdapterConfig {
    /// A member of a replicated cluster; alone, a cluster of one.
    Raft(DataDir),
    /// One process over one JSONL file per session.
    Fs(DataDir),
    /// An edge: the data lives at a main, reached over the main's bus.
    Bridge(BridgeConfig),
}

/// What an adapter with files needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataDir {
    /// The directory of its files; `~` is the home directory.
    #[schemars(with = "String")]
    pub data_dir: PathBuf,
}

/// What an error says at most.
const WORDS_CHARS_MAX: usize = 1000;

/// The port the public SDKs connect to unless told otherwise.
const PORT: u16 = 49134;

impl Default for Config {
    fn default() -> Config {
        Config {
            adapter: AdapterConfig::Raft(DataDir::default()),
            default_list_limit: 50,
            max_list_limit: 500,
            legacy_names: true,
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT),
            node_id: 1,
            peer_listen: None,
            join: false,
            consistency: Consistency::Linearizable,
            max_connections: 4096,
            max_message_bytes: 64 << 20,
            outbound_queue_bytes: 32 << 20,
            outbound_total_bytes: 512 << 20,
            feed_retention_bytes: 128 << 20,
            feed_retention_secs: 7 * 24 * 3600,
            call_timeout_ms: 30_000,
        }
    }
}

impl Default for DataDir {
    fn default() -> DataDir {
        DataDir { data_dir: PathBuf::from("./data") }
    }
}

impl AdapterConfig {
    pub fn name(&self) -> &'static str {
        match self {
            AdapterConfig::Raft(_) => "raft",
            AdapterConfig::Fs(_) => "fs",
            AdapterConfig::Bridge(_) => "bridge",
        }
    }

    /// A bridge has none: it keeps no data.
    pub fn data_dir(&self) -> Option<&Path> {
        match self {
            AdapterConfig::Raft(config) | AdapterConfig::Fs(config) => Some(&config.data_dir),
            AdapterConfig::Bridge(_) => None,
        }
    }

    /// Without effect on a bridge.
    pub fn set_data_dir(&mut self, data_dir: PathBuf) {
        match self {
            AdapterConfig::Raft(config) | AdapterConfig::Fs(config) => config.data_dir = data_dir,
            AdapterConfig::Bridge(_) => {}
        }
    }
}

/// Why a configuration is not accepted: the key, what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let in_file = |why: String| ConfigError(format!("configuration {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| in_file(error.to_string()))?;
        Config::from_yaml(&text).map_err(|error| in_file(error.0))
    }

    /// Reads and checks YAML (or JSON, which is YAML). What is left out has its default.
    pub fn from_yaml(text: &str) -> Result<Config, ConfigError> {
        let read = Config::from_yaml_with(text, &|name| std::env::var(name).ok());
        read.map_err(|ConfigError(why)| ConfigError(shortened(why)))
    }

    fn from_yaml_with(text: &str, variable: expand::Variables<'_>) -> Result<Config, ConfigError> {
        let spelled = spelling::read(text)?;
        let expanded = expand::variables(spelled, variable)?;
        let mut config: Config = spelling::config(expanded)?;
        if let Some(data_dir) = config.adapter.data_dir() {
            let data_dir = expand::home(data_dir, variable)?;
            config.adapter.set_data_dir(data_dir);
        }
        config.validate()?;
        Ok(config)
    }

    /// Checks what types cannot say. To be called again after a setting was overridden.
    pub fn validate(&self) -> Result<(), ConfigError> {
        bounds::check(self)
    }

    /// What requests are checked against.
    pub fn limits(&self) -> Limits {
        Limits { default_list_limit: self.default_list_limit, max_list_limit: self.max_list_limit }
    }

    /// The JSON Schema of the YAML file.
    pub fn schema() -> serde_json::Value {
        serde_json::to_value(schemars::schema_for!(Config)).unwrap_or_default()
    }

    /// The defaults as a file one can start from.
    pub fn default_yaml() -> &'static str {
        include_str!("config/default.yaml")
    }
}

/// Words quote the value they complain about, however long it is: a log line and `session::config-status` need its head.
fn shortened(mut why: String) -> String {
    if let Some((end, _)) = why.char_indices().nth(WORDS_CHARS_MAX) {
        why.truncate(end);
        why.push('…');
    }
    why
}

/// An address in words a person writes: `127.0.0.1:49134`, `[::1]:49134`, `localhost:49134`.
fn listen_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    address(&String::deserialize(deserializer)?)
}

/// The same, where there may be none.
fn peer_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| address(&text)).transpose()
}

fn address<E: serde::de::Error>(text: &str) -> Result<SocketAddr, E> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| E::custom(format!("{text:?} is no address: write host:port, such as 127.0.0.1:{PORT}")))
}

#[cfg(test)]
mod tests;
