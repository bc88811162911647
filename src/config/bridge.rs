//! Owns: the settings of a bridge, and the checks on them that need no connection.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use axum::http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// More than any cluster has members.
const URLS_MAX: usize = 32;

const TIMEOUT_MS_MIN: u64 = 100;
/// After this long the main may have forgotten the request, and a retry would be executed a second time.
const TIMEOUT_MS_MAX: u64 = 30_000;

/// The main of a bridge. Give `url` or `urls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BridgeConfig {
    /// The address of the main, such as ws://127.0.0.1:49134.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The addresses of the nodes of a main cluster, tried in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// Deadline of one call in milliseconds, including attempts at other nodes.
    #[schemars(range(min = 100, max = 30_000))]
    pub timeout_ms: u64,
    /// File with the token for the main. Without it: the variable SESSION_MANAGER_TOKEN, or III_TOKEN.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub token_file: Option<PathBuf>,
    /// Authority of the main's certificate, in PEM, for wss://. Without it: the system's, or SSL_CERT_FILE.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ca: Option<PathBuf>,
}

impl Default for BridgeConfig {
    fn default() -> BridgeConfig {
        BridgeConfig { url: None, urls: Vec::new(), timeout_ms: 5_000, token_file: None, ca: None }
    }
}

impl BridgeConfig {
    /// Every URL with its key in the configuration.
    pub fn mains(&self) -> Vec<(String, String)> {
        let one = self.url.iter().map(|url| ("adapter.config.url".to_owned(), url.clone()));
        let many = self.urls.iter().enumerate().map(|(at, url)| (format!("adapter.config.urls[{at}]"), url.clone()));
        one.chain(many).collect()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match (&self.url, self.urls.len()) {
            (None, 0) => {
                let fix = "give the address of the main as ws://host:port";
                return Err(ConfigError::key("adapter.config.url", "missing", fix));
            }
            (Some(_), 1..) => {
                return Err(ConfigError::key("adapter.config.urls", "url is given too", "list all of them in urls"));
            }
            (None, count) if count > URLS_MAX => {
                let fix = format!("give at most {URLS_MAX}");
                return Err(ConfigError::key("adapter.config.urls", format!("{count} are too many"), fix));
            }
            (Some(_), 0) | (None, _) => {}
        }
        if !(TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&self.timeout_ms) {
            return Err(ConfigError::OutOfBounds {
                key: "adapter.config.timeout_ms",
                value: self.timeout_ms,
                min: TIMEOUT_MS_MIN,
                max: TIMEOUT_MS_MAX,
                why: "a call may wait for an election, and the main must still recognise a retry",
            });
        }
        let mains = self.mains();
        for (at, (key, url)) in mains.iter().enumerate() {
            host_and_port(url).map_err(|wrong| wrong.at(key, url))?;
            if mains[..at].iter().any(|(_, earlier)| earlier == url) {
                return Err(ConfigError::key(key, format!("{} is given twice", shown(url)), "remove one of them"));
            }
        }
        Ok(())
    }

    /// Refuses a URL of the address this node listens on. Checked at the start: an argument may change the address.
    pub fn refuse_own_address(&self, listen: SocketAddr) -> Result<(), ConfigError> {
        for (key, url) in self.mains() {
            if host_and_port(&url).is_ok_and(|(host, port)| reaches(&host, port, listen)) {
                let problem = format!("{} is this node's own address", shown(&url));
                return Err(ConfigError::key(key, problem, "give the address of the main"));
            }
        }
        Ok(())
    }
}

/// A URL without user and query, which may hold secrets. Only this form is logged.
pub fn shown(url: &str) -> String {
    let plain = url.split('?').next().unwrap_or_default();
    match (plain.split_once("://"), plain.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        (None, Some((_, place))) => place.to_owned(),
        (_, None) => plain.to_owned(),
    }
}

/// Why a URL cannot be the address of a bus.
pub(super) enum BadUrl {
    NotAUrl(axum::http::uri::InvalidUri),
    NotABus,
    HasUser,
    NoHost,
}

impl BadUrl {
    /// The error for the key that the URL is given under.
    pub(super) fn at(self, key: &str, url: &str) -> ConfigError {
        let url = shown(url);
        let write = "write ws://host:port or wss://host:port";
        match self {
            BadUrl::NotAUrl(why) => ConfigError::key(key, format!("{url:?} is not a URL ({why})"), write),
            BadUrl::NotABus => ConfigError::key(key, format!("{url:?} is not the address of a bus"), write),
            BadUrl::HasUser => {
                let fix = "remove the user and put the token into a file and name it with adapter.config.token_file";
                ConfigError::key(key, format!("{url:?} names a user"), fix)
            }
            BadUrl::NoHost => ConfigError::key(key, format!("{url:?} names no host"), write),
        }
    }
}

/// The host and the port of a bus URL.
pub(super) fn host_and_port(url: &str) -> Result<(String, u16), BadUrl> {
    let uri: Uri = url.parse().map_err(BadUrl::NotAUrl)?;
    let port = match (uri.scheme_str(), uri.port_u16()) {
        (Some("ws" | "wss"), Some(port)) => port,
        (Some("ws"), None) => 80,
        (Some("wss"), None) => 443,
        _ => return Err(BadUrl::NotABus),
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(BadUrl::HasUser);
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or(BadUrl::NoHost)?;
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}

/// Whether a URL leads to the address this node listens on. Port 0 is not known yet; in that case the bridge detects
/// itself when it asks its main for an id.
fn reaches(host: &str, port: u16, listen: SocketAddr) -> bool {
    let named: Option<IpAddr> = host.parse().ok();
    let same_host = host == "localhost" || named == Some(listen.ip());
    port != 0 && port == listen.port() && same_host
}
