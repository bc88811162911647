//! Owns: how far each setting may go, and why.

use super::{AdapterConfig, Config, ConfigError};

/// The bounds of one number.
struct Bound {
    key: &'static str,
    value: u64,
    min: u64,
    max: u64,
    why: &'static str,
}

pub fn check(config: &Config) -> Result<(), ConfigError> {
    for bound in numbers(config) {
        let Bound { key, value, min, max, why } = bound;
        if value < min || value > max {
            return Err(ConfigError(format!("{key}: {value} is out of bounds, give {min} to {max} ({why})")));
        }
    }
    if config.default_list_limit > config.max_list_limit {
        let (default, max) = (config.default_list_limit, config.max_list_limit);
        return Err(ConfigError(format!(
            "default_list_limit: {default} is more than max_list_limit ({max}): lower the one or raise the other"
        )));
    }
    if config.outbound_queue_bytes > config.outbound_total_bytes {
        let (one, all) = (config.outbound_queue_bytes, config.outbound_total_bytes);
        return Err(ConfigError(format!(
            "outbound_queue_bytes: {one} is more than outbound_total_bytes ({all}): lower the one or raise the other"
        )));
    }
    if config.adapter.data_dir().is_some_and(|data_dir| data_dir.as_os_str().is_empty()) {
        return Err(ConfigError("adapter.config.data_dir: empty, name a directory such as ./data".to_owned()));
    }
    if let AdapterConfig::Bridge(bridge) = &config.adapter {
        bridge.check()?;
    }
    // Whoever reaches the port can read and write everything, so nothing beyond this machine may reach it.
    if !config.listen.ip().is_loopback() {
        return Err(ConfigError(format!(
            "listen: {} can be reached from other machines, and this build has no authentication: use 127.0.0.1:{} \
             and put an authenticating proxy before it",
            config.listen,
            config.listen.port()
        )));
    }
    cluster(config)
}

/// What only a member of a cluster may be told.
fn cluster(config: &Config) -> Result<(), ConfigError> {
    let wrong = |why: String| Err(ConfigError(why));
    if config.node_id == 0 {
        return wrong("node_id: 0 is no node id, ids begin at 1".to_owned());
    }
    if config.join && config.peer_listen.is_none() {
        return wrong("join: nobody can invite a node without peer_listen, set it to host:port".to_owned());
    }
    let Some(address) = config.peer_listen else { return Ok(()) };
    if !matches!(config.adapter, AdapterConfig::Raft(_)) {
        return wrong(format!("peer_listen: the {} adapter has no peers, use the raft adapter", config.adapter.name()));
    }
    // Whoever reaches this port is a member or an operator.
    if !address.ip().is_loopback() {
        return wrong(format!(
            "peer_listen: {address} can be reached from other machines, and this build has no authentication between \
             nodes: use 127.0.0.1:{}",
            address.port()
        ));
    }
    Ok(())
}

fn numbers(config: &Config) -> [Bound; 9] {
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
            why: "SDKs send and take frames of up to 64 MiB, and a smaller bound than 64 KiB shuts out plain messages",
        },
        Bound {
            key: "outbound_queue_bytes",
            value: config.outbound_queue_bytes as u64,
            min: 64 << 10,
            max: 1 << 30,
            why: "room for some events, without one slow client taking the memory of all",
        },
        Bound {
            key: "outbound_total_bytes",
            value: config.outbound_total_bytes as u64,
            min: 1 << 20,
            max: 16 << 30,
            why: "the memory that slow clients may take together",
        },
        Bound {
            key: "feed_retention_bytes",
            value: config.feed_retention_bytes,
            min: 1 << 20,
            max: 64 << 30,
            why: "a line is about a hundred bytes: less than 1 MiB is gone in a moment, more than 64 GiB is a log",
        },
        Bound {
            key: "feed_retention_secs",
            value: config.feed_retention_secs,
            min: 60,
            max: 10 * 365 * 24 * 3600,
            why: "a client that reconnects takes some seconds, and ten years are for ever",
        },
        Bound {
            key: "call_timeout_ms",
            value: config.call_timeout_ms,
            min: 100,
            max: 600_000,
            why: "a disk or an election may take a moment, but no call may hang",
        },
    ]
}
