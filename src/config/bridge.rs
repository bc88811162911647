//! Owns: what a bridge is told about its main, and what can be said against it before anything is dialled.

use std::net::{IpAddr, SocketAddr};

use axum::http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// More mains than any cluster has members.
const URLS_MAX: usize = 32;

/// Where a bridge finds its main. Give `url` or `urls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BridgeConfig {
    /// The main's bus, such as ws://127.0.0.1:49134.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The buses of a cluster's nodes, tried in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// How long one call may take, attempts at other nodes included.
    #[schemars(range(min = 100, max = 30_000))]
    pub timeout_ms: u64,
}

impl Default for BridgeConfig {
    fn default() -> BridgeConfig {
        BridgeConfig { url: None, urls: Vec::new(), timeout_ms: 5_000 }
    }
}

impl BridgeConfig {
    /// Every url with the key it stands under.
    pub fn mains(&self) -> Vec<(String, String)> {
        let one = self.url.iter().map(|url| ("adapter.config.url".to_owned(), url.clone()));
        let many = self.urls.iter().enumerate().map(|(at, url)| (format!("adapter.config.urls[{at}]"), url.clone()));
        one.chain(many).collect()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |why: String| Err(ConfigError(why));
        match (&self.url, self.urls.len()) {
            (None, 0) => {
                return wrong("adapter.config.url: missing, give the main's bus as ws://host:port".to_owned());
            }
            (Some(_), 1..) => {
                return wrong("adapter.config.urls: url is given too, put all of them into urls".to_owned());
            }
            (None, count) if count > URLS_MAX => {
                return wrong(format!("adapter.config.urls: {count} are too many, give at most {URLS_MAX}"));
            }
            (Some(_), 0) | (None, _) => {}
        }
        // Beyond half a minute a repetition could come too late to be recognised.
        if !(100..=30_000).contains(&self.timeout_ms) {
            return wrong(format!(
                "adapter.config.timeout_ms: {} is out of bounds, give 100 to 30000 (a call may wait for an election, \
                 and a repeated one must still be recognised)",
                self.timeout_ms
            ));
        }
        let mains = self.mains();
        for (at, (key, url)) in mains.iter().enumerate() {
            host_and_port(url).map_err(|why| ConfigError(format!("{key}: {:?} {why}", shown(url))))?;
            if mains[..at].iter().any(|(_, earlier)| earlier == url) {
                return wrong(format!("{key}: {} is given twice", shown(url)));
            }
        }
        Ok(())
    }

    /// Refuses a url that leads to the address this node listens on. Not a matter of the file alone: an argument may
    /// change the address.
    pub fn refuse_own_address(&self, listen: SocketAddr) -> Result<(), ConfigError> {
        for (key, url) in self.mains() {
            if host_and_port(&url).is_ok_and(|(host, port)| reaches(&host, port, listen)) {
                let shown = shown(&url);
                return Err(ConfigError(format!(
                    "{key}: {shown} is this node's own address, name the bus of its main"
                )));
            }
        }
        Ok(())
    }
}

/// A url as it may be logged: without user and query, which may hold a secret.
pub fn shown(url: &str) -> String {
    let plain = url.split('?').next().unwrap_or_default();
    match (plain.split_once("://"), plain.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        (None, Some((_, place))) => place.to_owned(),
        (_, None) => plain.to_owned(),
    }
}

/// What a bus URL names.
fn host_and_port(url: &str) -> Result<(String, u16), String> {
    let uri: Uri = url.parse().map_err(|error| format!("is no URL ({error}): write ws://host:port"))?;
    let port = match (uri.scheme_str(), uri.port_u16()) {
        (Some("ws" | "wss"), Some(port)) => port,
        (Some("ws"), None) => 80,
        (Some("wss"), None) => 443,
        _ => return Err("is no bus: write ws://host:port or wss://host:port".to_owned()),
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("names a user: a bus takes its token from III_TOKEN".to_owned());
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("names no host: write ws://host:port")?;
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}

/// Whether a url leads to the address this node listens on. Port 0 is not known yet; then the main is asked who it is.
fn reaches(host: &str, port: u16, listen: SocketAddr) -> bool {
    let named: Option<IpAddr> = host.parse().ok();
    let same_host = host == "localhost" || named == Some(listen.ip());
    port != 0 && port == listen.port() && same_host
}
