//! Owns: every setting of a node with its default, its bounds and the reasons for both; parsing it from YAML. Never:
//! open, bind or create anything. A configuration that is accepted here is well-formed; whether the node can use it
//! shows when the node starts.

mod bounds;
mod bridge;
mod error;
mod expand;
mod otlp;
mod session_model;
mod spelling;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

pub use bridge::{BridgeConfig, shown};
pub use error::ConfigError;
pub use otlp::Collector;
pub use session_model::SessionModelConfig;

use crate::access::Role;
use crate::access::credentials::Sources;
use crate::access::jwt::JwtConfig;
use crate::access::tls::{CertificateFiles, PeerFiles};
use crate::requests::Limits;

/// The settings of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the data is stored.
    pub adapter: AdapterConfig,
    /// Page size of session::list and session::messages if a request names none.
    #[schemars(range(min = 1, max = 10_000))]
    pub default_list_limit: usize,
    /// The largest page size that a request can ask for.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_list_limit: usize,
    /// Whether the snake_case function ids of version 0.1.2 are accepted too.
    pub legacy_names: bool,
    /// Address for clients: host:port. Beyond loopback it needs TLS and credentials.
    #[serde(deserialize_with = "listen_address")]
    pub listen: SocketAddr,
    /// Host names under which clients reach the node, besides localhost and IP addresses. Requests that name another
    /// host are refused, because a web page could have sent them.
    pub allowed_hosts: Vec<String>,
    /// Web pages of these origins may call, such as `https://app.example`, besides pages served from this machine.
    pub allowed_origins: Vec<String>,
    /// Id of this node in its cluster; never changes for a data directory. Raft only.
    #[schemars(range(min = 1))]
    pub node_id: u64,
    /// Address for the other nodes and for `session-manager cluster`: host:port. Beyond loopback it needs
    /// `peer_ca`. Without it no other node can join. Raft only.
    #[serde(deserialize_with = "peer_address")]
    pub peer_listen: Option<SocketAddr>,
    /// With an empty data directory, wait until a cluster adds this node, instead of founding a cluster. Raft only.
    pub join: bool,
    /// Name of this node for people, such as that of its pod; unique in its cluster. With `discover` only.
    pub name: Option<String>,
    /// Where the other nodes are: dns:NAME:PORT, file:PATH, or HOST:PORT,HOST:PORT,…. The nodes found a cluster
    /// together, or join the one that is there, and get their ids from it. Raft only.
    pub discover: Option<String>,
    /// How many nodes found a cluster together: an odd number, and more than half of the nodes that start at first.
    /// Without it, this node joins a cluster and never founds one. With `discover` only.
    #[schemars(range(min = 1, max = 7))]
    pub bootstrap_expect: Option<usize>,
    /// A node that was removed from its cluster sets its data aside and joins as a new one. With `discover` only.
    pub rejoin: bool,
    /// Seconds after which a member that does not answer is removed, as long as a quorum stays. Without it: never.
    #[schemars(range(min = 60, max = 31_536_000))]
    pub reap_after_secs: Option<u64>,
    /// The leader never raises the level of the cluster beyond this one.
    pub max_level: Option<u32>,
    /// Consistency of reads. Raft only.
    pub consistency: Consistency,
    /// Clients connected at the same time.
    #[schemars(range(min = 1, max = 65_536))]
    pub max_connections: usize,
    /// The largest message a client may send.
    #[schemars(range(min = 65_536, max = 67_108_864))]
    pub max_message_bytes: usize,
    /// Memory for calls in flight, in bytes. A call counts four times its body. Further calls wait.
    #[schemars(range(min = 1_048_576, max = 68_719_476_736_u64))]
    pub call_memory_bytes: usize,
    /// Bytes buffered for one slow client. Above this it is disconnected.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub outbound_queue_bytes: usize,
    /// Bytes buffered for all clients together.
    #[schemars(range(min = 1_048_576, max = 17_179_869_184_u64))]
    pub outbound_total_bytes: usize,
    /// Bytes of the event feed that are kept for subscribers that resume. In a cluster the leader's setting applies.
    #[schemars(range(min = 1_048_576, max = 68_719_476_736_u64))]
    pub feed_retention_bytes: u64,
    /// Seconds that events are kept for subscribers that resume. In a cluster the leader's setting applies.
    #[schemars(range(min = 60, max = 315_360_000))]
    pub feed_retention_secs: u64,
    /// Bytes that must stay free on the disk of a node. With less, the cluster accepts deletes and reads only. Without
    /// it: a twentieth of the disk, 32 to 512 MiB. 0: never refuse. Raft only.
    #[schemars(range(min = 0, max = 1_099_511_627_776_u64))]
    pub min_free_bytes: Option<u64>,
    /// OpenTelemetry collector for traces: http://HOST:4318 or https://HOST. Without it, nothing is traced.
    pub otlp_endpoint: Option<String>,
    /// Of a hundred calls without a `traceparent`, how many are traced. A `traceparent` decides for its own call.
    #[schemars(range(min = 0, max = 100))]
    pub otlp_sample_percent: u32,
    /// File with the tokens of callers, one JSON object per line. With it, every caller needs a token.
    #[schemars(with = "Option<String>")]
    pub token_file: Option<PathBuf>,
    /// How JWTs of callers are verified. With it, every caller needs a token or a JWT.
    pub jwt: Option<JwtConfig>,
    /// Certificate chain of the client port, in PEM. With it, the port speaks TLS.
    #[schemars(with = "Option<String>")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert`, in PEM.
    #[schemars(with = "Option<String>")]
    pub tls_key: Option<PathBuf>,
    /// Authority of the cluster, in PEM. With it, peers and operators need certificates of this authority.
    #[schemars(with = "Option<String>")]
    pub peer_ca: Option<PathBuf>,
    /// Certificate of this node for its peers, in PEM. Without it: `tls_cert`.
    #[schemars(with = "Option<String>")]
    pub peer_cert: Option<PathBuf>,
    /// Private key of `peer_cert`, in PEM.
    #[schemars(with = "Option<String>")]
    pub peer_key: Option<PathBuf>,
    /// The address of this node for its peers, HOST:PORT, if it differs from `peer_listen`. A name is resolved at every
    /// connect.
    pub peer_advertise: Option<String>,
    /// The URL of this node for clients, such as wss://node-1.example:49134. Members tell it to clients and bridges.
    /// Without it: the address in `listen`, unless that is 0.0.0.0.
    pub advertise: Option<String>,
    /// Listen beyond loopback without credentials. Everybody who reaches the port may do everything.
    pub insecure_no_auth: bool,
    /// Listen beyond loopback without TLS. Everybody on the way reads tokens and messages.
    pub insecure_no_tls: bool,
    /// Role of calls that arrive through an iii engine. Without it: `app` if callers need credentials, else everything.
    pub engine_role: Option<Role>,
    /// The numbers of the session model.
    pub session_model: SessionModelConfig,
    /// Deadline of a call that brings none.
    #[schemars(range(min = 100, max = 600_000))]
    pub call_timeout_ms: u64,
    /// Time between two heartbeats of a leader. Raft only, and the same on all nodes, as the next three.
    #[schemars(range(min = 10, max = 5_000))]
    pub heartbeat_ms: u64,
    /// Followers grant no vote for this long after the last heartbeat.
    #[schemars(range(min = 30, max = 30_000))]
    pub leader_lease_ms: u64,
    /// After the lease, a follower waits 1 to 1.5 times this long before it asks for votes.
    #[schemars(range(min = 20, max = 30_000))]
    pub election_timeout_ms: u64,
    /// The longest wait for a peer's answer to log entries.
    #[schemars(range(min = 100, max = 60_000))]
    pub peer_timeout_ms: u64,
}

/// Consistency of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// A read sees every write that was acknowledged before it started, on any node.
    Linearizable,
    /// A read sees the state of this node, which may be stale. Faster, and works without a leader.
    Local,
}

/// Where the data is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "name", content = "config", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdapterConfig {
    /// A replicated log; a single node is a cluster of one.
    Raft(DataDir),
    /// One JSONL file per session, used by one process.
    Fs(DataDir),
    /// No data: every call is forwarded to a main over the main's bus.
    Bridge(BridgeConfig),
}

/// The settings of an adapter that stores files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataDir {
    /// The directory for the files; a leading `~` is the home directory.
    #[schemars(with = "String")]
    pub data_dir: PathBuf,
}

/// The default port of the public SDKs.
const PORT: u16 = 49134;

impl Default for Config {
    fn default() -> Config {
        Config {
            adapter: AdapterConfig::Raft(DataDir::default()),
            default_list_limit: 50,
            max_list_limit: 500,
            legacy_names: true,
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT),
            allowed_hosts: Vec::new(),
            node_id: 1,
            peer_listen: None,
            join: false,
            name: None,
            discover: None,
            bootstrap_expect: None,
            rejoin: false,
            reap_after_secs: None,
            max_level: None,
            consistency: Consistency::Linearizable,
            max_connections: 4096,
            max_message_bytes: 64 << 20,
            call_memory_bytes: 512 << 20,
            outbound_queue_bytes: 32 << 20,
            outbound_total_bytes: 512 << 20,
            feed_retention_bytes: 128 << 20,
            feed_retention_secs: 7 * 24 * 3600,
            min_free_bytes: None,
            otlp_endpoint: None,
            otlp_sample_percent: 1,
            token_file: None,
            jwt: None,
            tls_cert: None,
            tls_key: None,
            peer_ca: None,
            peer_cert: None,
            peer_key: None,
            peer_advertise: None,
            advertise: None,
            allowed_origins: Vec::new(),
            insecure_no_auth: false,
            insecure_no_tls: false,
            engine_role: None,
            session_model: SessionModelConfig::default(),
            call_timeout_ms: 30_000,
            heartbeat_ms: 40,
            leader_lease_ms: 135,
            election_timeout_ms: 90,
            peer_timeout_ms: 2_000,
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

    /// `None` for a bridge, which stores no data.
    pub fn data_dir(&self) -> Option<&Path> {
        match self {
            AdapterConfig::Raft(config) | AdapterConfig::Fs(config) => Some(&config.data_dir),
            AdapterConfig::Bridge(_) => None,
        }
    }

    /// Has no effect on a bridge.
    pub fn set_data_dir(&mut self, data_dir: PathBuf) {
        match self {
            AdapterConfig::Raft(config) | AdapterConfig::Fs(config) => config.data_dir = data_dir,
            AdapterConfig::Bridge(_) => {}
        }
    }
}

impl Config {
    /// Reads a file. Arguments may complete it, so the rules of `validate` are not checked yet.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::File { path: path.to_owned(), why: error.to_string() })?;
        let config = Config::parse(&text, &|name| std::env::var(name).ok());
        config.map_err(|error| error.in_document(path.display()))
    }

    /// Reads and checks YAML (or JSON, which is YAML). A missing key has its default.
    pub fn from_yaml(text: &str) -> Result<Config, ConfigError> {
        Config::from_yaml_with(text, &|name| std::env::var(name).ok())
    }

    fn from_yaml_with(text: &str, variable: expand::Variables<'_>) -> Result<Config, ConfigError> {
        let config = Config::parse(text, variable)?;
        config.validate()?;
        Ok(config)
    }

    fn parse(text: &str, variable: expand::Variables<'_>) -> Result<Config, ConfigError> {
        let value = spelling::read(text)?;
        let expanded = expand::variables(value, variable)?;
        let mut config: Config = spelling::config(expanded)?;
        if let Some(data_dir) = config.adapter.data_dir() {
            let data_dir = expand::home(data_dir, variable)?;
            config.adapter.set_data_dir(data_dir);
        }
        Ok(config)
    }

    /// Checks the rules that types cannot express. Call it again after overriding a setting.
    pub fn validate(&self) -> Result<(), ConfigError> {
        bounds::check(self)
    }

    /// The limits that requests are checked against.
    pub fn limits(&self) -> Limits {
        Limits {
            default_list_limit: self.default_list_limit,
            max_list_limit: self.max_list_limit,
            model: self.session_model.terms(),
        }
    }

    /// Where spans go. `validate` refuses an endpoint that cannot be read.
    pub fn otlp_collector(&self) -> Option<Collector> {
        Collector::parse(self.otlp_endpoint.as_deref()?).ok()
    }

    /// Where the credentials of callers come from.
    pub fn credentials(&self) -> Sources {
        // On a port with TLS, clients may present certificates of the cluster's authority. Then nobody needs a token,
        // and nobody is let in with neither.
        let certificates = self.client_tls().is_some() && self.peer_ca.is_some() && !self.insecure_no_auth;
        Sources { token_file: self.token_file.clone(), jwt: self.jwt.clone(), certificates }
    }

    /// The certificate of the client port.
    pub fn client_tls(&self) -> Option<CertificateFiles> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(CertificateFiles { certificate, key })
    }

    /// The name of this node for people: the one it is given, or the one of its machine.
    pub fn node_name(&self) -> String {
        let of_machine = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        self.name.clone().unwrap_or_else(of_machine)
    }

    /// The certificates between nodes.
    pub fn peer_tls(&self) -> Option<PeerFiles> {
        let certificate = self.peer_cert.clone().or_else(|| self.tls_cert.clone())?;
        let key = self.peer_key.clone().or_else(|| self.tls_key.clone())?;
        Some(PeerFiles { own: CertificateFiles { certificate, key }, authority: self.peer_ca.clone()? })
    }

    /// The JSON Schema of the YAML file.
    pub fn schema() -> serde_json::Value {
        serde_json::to_value(schemars::schema_for!(Config)).unwrap_or_default()
    }

    /// A file with every setting at its default, with comments.
    pub fn default_yaml() -> &'static str {
        include_str!("config/default.yaml")
    }
}

/// Reads `127.0.0.1:49134`, `[::1]:49134` or `localhost:49134`.
fn listen_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    address(&String::deserialize(deserializer)?)
}

/// The same for an optional address.
fn peer_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| address(&text)).transpose()
}

fn address<E: serde::de::Error>(text: &str) -> Result<SocketAddr, E> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    numeric
        .parse()
        .map_err(|_| E::custom(format!("{text:?} is not an address: write host:port, such as 127.0.0.1:{PORT}")))
}

#[cfg(test)]
mod tests;
