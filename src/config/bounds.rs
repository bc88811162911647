//! Owns: the bounds of every setting and the reason for each.

use super::bridge::host_and_port;
use super::{AdapterConfig, Collector, Config, ConfigError};
use crate::access::credentials::Sources;
use crate::replication::formation::discovery::Discover;

/// A token must not live much longer than its issuer wants.
const JWT_LEEWAY_SECS_MAX: u64 = 300;

/// The bounds of one number.
struct Bound {
    key: &'static str,
    value: u64,
    min: u64,
    max: u64,
    why: &'static str,
}

pub fn check(config: &Config) -> Result<(), ConfigError> {
    for Bound { key, value, min, max, why } in numbers(config) {
        if value < min || value > max {
            return Err(ConfigError::OutOfBounds { key, value, min, max, why });
        }
    }
    at_most(("default_list_limit", config.default_list_limit), ("max_list_limit", config.max_list_limit))?;
    at_most(
        ("outbound_queue_bytes", config.outbound_queue_bytes),
        ("outbound_total_bytes", config.outbound_total_bytes),
    )?;
    if config.adapter.data_dir().is_some_and(|data_dir| data_dir.as_os_str().is_empty()) {
        return Err(ConfigError::key("adapter.config.data_dir", "empty", "name a directory, such as ./data"));
    }
    if let AdapterConfig::Bridge(bridge) = &config.adapter {
        bridge.check()?;
    }
    config.session_model.check()?;
    names(config)?;
    access(config)?;
    election_times(config)?;
    cluster(config)
}

/// One lost or late heartbeat must not cost a leader its leadership.
fn election_times(config: &Config) -> Result<(), ConfigError> {
    let (heartbeat, lease) = (config.heartbeat_ms, config.leader_lease_ms);
    if lease < 3 * heartbeat {
        let problem = format!("{lease} is less than three times heartbeat_ms ({heartbeat})");
        return Err(ConfigError::key("leader_lease_ms", problem, format!("give at least {}", 3 * heartbeat)));
    }
    if config.peer_timeout_ms < lease {
        let problem = format!("{} is less than leader_lease_ms ({lease})", config.peer_timeout_ms);
        return Err(ConfigError::key("peer_timeout_ms", problem, format!("give at least {lease}")));
    }
    Ok(())
}

/// What clients and web pages are told, or must say.
fn names(config: &Config) -> Result<(), ConfigError> {
    if let Some(url) = &config.otlp_endpoint {
        Collector::parse(url)?;
    }
    if let Some(url) = &config.advertise {
        host_and_port(url).map_err(|wrong| wrong.at("advertise", url))?;
    }
    match config.allowed_origins.iter().find(|origin| !is_origin(origin)) {
        Some(origin) => {
            let fix = "write it as browsers send it, such as https://app.example, without a path";
            Err(ConfigError::key("allowed_origins", format!("{origin:?} is no origin of web pages"), fix))
        }
        None => Ok(()),
    }
}

/// Whether a setting is an origin as browsers send it.
fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else { return false };
    let is_word = |c: char| c.is_ascii_alphanumeric() || ".-_:[]+".contains(c);
    !scheme.is_empty() && !authority.is_empty() && scheme.chars().chain(authority.chars()).all(is_word)
}

/// Closed by default: a port that other machines can reach needs TLS and credentials.
fn access(config: &Config) -> Result<(), ConfigError> {
    for (one, given, other) in [
        ("tls_cert", &config.tls_cert, ("tls_key", &config.tls_key)),
        ("tls_key", &config.tls_key, ("tls_cert", &config.tls_cert)),
        ("peer_cert", &config.peer_cert, ("peer_key", &config.peer_key)),
        ("peer_key", &config.peer_key, ("peer_cert", &config.peer_cert)),
    ] {
        if given.is_some() && other.1.is_none() {
            return Err(ConfigError::key(other.0, "missing", format!("{one} needs it: name the file in PEM")));
        }
    }
    if let Some(jwt) = &config.jwt
        && jwt.leeway_secs > JWT_LEEWAY_SECS_MAX
    {
        let problem = format!("{} is more than {JWT_LEEWAY_SECS_MAX}", jwt.leeway_secs);
        return Err(ConfigError::key("jwt.leeway_secs", problem, "clocks that differ more need to be set"));
    }
    if config.peer_ca.is_some() && config.peer_tls().is_none() {
        let fix = "name the files of this node (`session-manager certs node ID HOST` makes them)";
        return Err(ConfigError::key("peer_cert, peer_key", "missing; peer_ca needs them", fix));
    }
    if config.listen.ip().is_loopback() {
        return Ok(());
    }
    let address = config.listen;
    let mut missing = Vec::new();
    if config.client_tls().is_none() && !config.insecure_no_tls {
        missing.push("tls_cert: node.pem, tls_key: node.key (`session-manager certs` makes them)");
    }
    let has_credentials = config.credentials() != Sources::default();
    if !has_credentials && !config.insecure_no_auth {
        missing.push("token_file: tokens (`session-manager token create` prints its lines)");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let problem = format!("{address} can be reached from other machines");
    let fix = format!("add {}; or use 127.0.0.1:{}", missing.join(" and "), address.port());
    Err(ConfigError::key("listen", problem, fix))
}

fn at_most((smaller, value): (&'static str, usize), (larger, bound): (&'static str, usize)) -> Result<(), ConfigError> {
    if value > bound {
        return Err(ConfigError::MoreThan { smaller, value, larger, bound });
    }
    Ok(())
}

/// The settings of a cluster member.
fn cluster(config: &Config) -> Result<(), ConfigError> {
    if config.node_id == 0 {
        return Err(ConfigError::key("node_id", "0 is not a node id", "give a number from 1 on"));
    }
    if config.join && config.peer_listen.is_none() {
        let fix = "set peer_listen to host:port, such as 127.0.0.1:49200";
        return Err(ConfigError::key("join", "a cluster cannot add a node without peer_listen", fix));
    }
    discovery(config)?;
    if config.max_level == Some(0) {
        return Err(ConfigError::key("max_level", "levels begin at 1", "give 1 to stay with version 0.1"));
    }
    let Some(address) = config.peer_listen else { return Ok(()) };
    if !matches!(config.adapter, AdapterConfig::Raft(_)) {
        let problem = format!("the {} adapter has no peers", config.adapter.name());
        return Err(ConfigError::key("peer_listen", problem, "remove it, or use the raft adapter"));
    }
    // Every client of this port can act as a member or an operator. Its certificates are both TLS and credentials.
    let is_open = config.insecure_no_auth && config.insecure_no_tls;
    if !address.ip().is_loopback() && config.peer_tls().is_none() && !is_open {
        let problem = format!("{address} can be reached from other machines");
        let fix = "add peer_ca: ca.pem, peer_cert: node.pem, peer_key: node.key (`session-manager certs` makes them)";
        return Err(ConfigError::key("peer_listen", problem, format!("{fix}; or use 127.0.0.1:{}", address.port())));
    }
    if address.ip().is_unspecified() && config.peer_advertise.is_none() {
        let problem = format!("{address} is no address that peers can connect to");
        return Err(ConfigError::key("peer_advertise", problem, "give HOST:PORT, as the other nodes reach this one"));
    }
    Ok(())
}

/// The settings of a node that finds its cluster by itself.
fn discovery(config: &Config) -> Result<(), ConfigError> {
    let Some(discover) = &config.discover else {
        let needs = [
            ("bootstrap_expect", config.bootstrap_expect.is_some()),
            ("name", config.name.is_some()),
            ("rejoin", config.rejoin),
            ("reap_after_secs", config.reap_after_secs.is_some()),
        ];
        return match needs.into_iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(ConfigError::key(key, "it needs discover", "say where the other nodes are")),
            None => Ok(()),
        };
    };
    let place: Discover = match discover.parse() {
        Ok(place) => place,
        Err(why) => return Err(ConfigError::key("discover", why.to_string(), "such as dns:peers.example:49200")),
    };
    if config.join {
        return Err(ConfigError::key("join", "discover joins by itself", "remove one of them"));
    }
    match config.peer_listen {
        None => return Err(ConfigError::key("peer_listen", "missing; discover needs it", "give HOST:PORT")),
        Some(address) if address.port() == 0 => {
            let fix = "give the port that the other nodes know";
            return Err(ConfigError::key("peer_listen", "port 0 is another one at every start", fix));
        }
        Some(_) => {}
    }
    let name = config.node_name();
    if name.is_empty() || name.len() > 255 || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let fix = "give 1 to 255 characters without spaces, such as the name of the pod";
        return Err(ConfigError::key("name", format!("{name:?} is no name"), fix));
    }
    if let Some(after) = config.reap_after_secs
        && !(60..=31_536_000).contains(&after)
    {
        let fix = "give 60 to 31536000 seconds: a restart takes some, and a year is for ever";
        return Err(ConfigError::key("reap_after_secs", format!("{after} is out of bounds"), fix));
    }
    let Some(expect) = config.bootstrap_expect else { return Ok(()) };
    if expect % 2 == 0 || expect > 7 {
        let fix = "give 1, 3, 5 or 7: with an even number, one more node protects no better";
        return Err(ConfigError::key("bootstrap_expect", format!("{expect} nodes cannot found a cluster"), fix));
    }
    if let Discover::Addresses(addresses) = place
        && addresses.len() >= 2 * expect
        && addresses.len() > 1
    {
        let problem = format!("{expect} of {} nodes could found a cluster twice", addresses.len());
        return Err(ConfigError::key("bootstrap_expect", problem, "give more than half of the nodes in discover"));
    }
    Ok(())
}

fn numbers(config: &Config) -> [Bound; 16] {
    [
        Bound {
            key: "default_list_limit",
            value: config.default_list_limit as u64,
            min: 1,
            max: 10_000,
            why: "a page has at least one item and is built in memory",
        },
        Bound {
            key: "max_list_limit",
            value: config.max_list_limit as u64,
            min: 1,
            max: 10_000,
            why: "a page has at least one item and is built in memory",
        },
        Bound {
            key: "max_connections",
            value: config.max_connections as u64,
            min: 1,
            max: 65_536,
            why: "each connection takes a socket and its buffers",
        },
        Bound {
            key: "max_message_bytes",
            value: config.max_message_bytes as u64,
            min: 64 << 10,
            max: 64 << 20,
            why: "SDKs send frames of up to 64 MiB, and ordinary messages need 64 KiB",
        },
        Bound {
            key: "call_memory_bytes",
            value: config.call_memory_bytes as u64,
            min: 1 << 20,
            max: 64 << 30,
            why: "the memory that calls in flight may take together",
        },
        Bound {
            key: "outbound_queue_bytes",
            value: config.outbound_queue_bytes as u64,
            min: 64 << 10,
            max: 1 << 30,
            why: "room for some events, and no slow client may use up the memory",
        },
        Bound {
            key: "outbound_total_bytes",
            value: config.outbound_total_bytes as u64,
            min: 1 << 20,
            max: 16 << 30,
            why: "the memory that all slow clients may take together",
        },
        Bound {
            key: "feed_retention_bytes",
            value: config.feed_retention_bytes,
            min: 1 << 20,
            max: 64 << 30,
            why: "an event takes about 100 bytes: 1 MiB lasts seconds under load, 64 GiB longer than any client needs",
        },
        Bound {
            key: "feed_retention_secs",
            value: config.feed_retention_secs,
            min: 60,
            max: 10 * 365 * 24 * 3600,
            why: "a reconnect takes seconds, and ten years are more than any client needs",
        },
        Bound {
            key: "min_free_bytes",
            value: config.min_free_bytes.unwrap_or(0),
            min: 0,
            max: 1 << 40,
            why: "a node that needs more than 1 TiB free would never accept a write",
        },
        Bound {
            key: "otlp_sample_percent",
            value: u64::from(config.otlp_sample_percent),
            min: 0,
            max: 100,
            why: "it is a part of a hundred",
        },
        Bound {
            key: "call_timeout_ms",
            value: config.call_timeout_ms,
            min: 100,
            max: 600_000,
            why: "a disk or an election may take 100 ms, and no call may hang",
        },
        Bound {
            key: "heartbeat_ms",
            value: config.heartbeat_ms,
            min: 10,
            max: 5_000,
            why: "more than 100 heartbeats a second are load, and a leader silent for longer looks dead",
        },
        Bound {
            key: "leader_lease_ms",
            value: config.leader_lease_ms,
            min: 30,
            max: 30_000,
            why: "a busy process may stand still for 30 ms, and writes wait this long for a lost leader",
        },
        Bound {
            key: "election_timeout_ms",
            value: config.election_timeout_ms,
            min: 20,
            max: 30_000,
            why: "nodes that ask for votes at the same time split them, and writes wait this long for a leader",
        },
        Bound {
            key: "peer_timeout_ms",
            value: config.peer_timeout_ms,
            min: 100,
            max: 60_000,
            why: "a follower answers after its disk, and a lost connection is noticed after this time",
        },
    ]
}
