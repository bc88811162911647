//! Owns: how a client command reaches a running node: over the bus, with the public SDK, like any other client.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Uri;
use iii_helpers::observability::OtelConfig;
use iii_sdk::{Error, IIIClient, InitOptions, WorkerIdentityMode, register_worker};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error::CliError;
use crate::access::own_token;

/// A node on the same network answers within milliseconds; this leaves room for a slow one.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The address of the node. The SDKs read the same variable.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeUrl {
    /// The address of the node: ws://HOST:PORT
    #[arg(long, env = "III_URL", default_value = iii_sdk::DEFAULT_ENGINE_URL)]
    pub url: String,

    /// File that holds the token of this caller [default: the variable SESSION_MANAGER_TOKEN, or III_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Authority of the node's certificate, in PEM, for wss:// [default: the system's, or SSL_CERT_FILE]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl NodeUrl {
    pub fn token(&self) -> Result<Option<String>, CliError> {
        Ok(own_token::read(self.token_file.as_deref())?)
    }

    pub fn trust_ca(&self) {
        if let Some(ca) = &self.ca {
            trust(ca);
        }
    }
}

/// Lets the SDK trust an authority. It reads the variable when it connects, and has no option for it. Must be called
/// before the process starts its first thread.
pub fn trust(ca: &Path) {
    // SAFETY: no other thread exists yet that could read the environment.
    unsafe { std::env::set_var("SSL_CERT_FILE", ca) };
}

/// Connects to a node.
pub async fn connect(node: &NodeUrl) -> Result<IIIClient, CliError> {
    let url = &node.url;
    let bearer = |token: String| HashMap::from([("Authorization".to_owned(), format!("Bearer {token}"))]);
    let headers = node.token()?.map(bearer);
    // The SDK retries for ever without a message, so a node that does not listen is detected first.
    check_reachable(url).await?;
    // A command exports no telemetry: it needs no second connection and no flush at exit.
    let otel = OtelConfig { enabled: Some(false), ..OtelConfig::default() };
    let identity = WorkerIdentityMode::Explicit;
    let options = InitOptions { otel: Some(otel), identity, headers, ..InitOptions::default() };
    let client = register_worker(url, options);
    match client.wait_until_registered(CONNECT_MAX).await {
        Ok(()) => Ok(client),
        Err(error) => Err(CliError::NotABus { url: url.to_owned(), why: error.to_string() }),
    }
}

async fn check_reachable(url: &str) -> Result<(), CliError> {
    let malformed = |why: String| CliError::Url { url: url.to_owned(), why };
    let unreachable = |why: String| CliError::Unreachable { url: url.to_owned(), why };
    let uri: Uri = url.parse().map_err(|error| malformed(format!("not a URL ({error})")))?;
    let port = match (uri.scheme_str(), uri.port_u16()) {
        (Some("ws" | "wss"), Some(port)) => port,
        (Some("ws"), None) => 80,
        (Some("wss"), None) => 443,
        _ => return Err(malformed("the URL must begin with ws:// or wss://".to_owned())),
    };
    let host = uri.host().ok_or_else(|| malformed("the URL names no host".to_owned()))?.trim_matches(['[', ']']);
    match timeout(CONNECT_MAX, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable(format!("no connection within {} s", CONNECT_MAX.as_secs()))),
    }
}

/// `code: message`, as the API documents errors, without what the bus adds around it.
pub fn api_error(error: &Error) -> String {
    match error {
        Error::Remote { code, message, .. } => {
            let message = message.strip_prefix("handler error: ").unwrap_or(message);
            if message.starts_with("session/") { message.to_owned() } else { format!("{code}: {message}") }
        }
        Error::Timeout => "session/storage: outcome unknown: no answer within --timeout-ms".to_owned(),
        other => format!("session/storage: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(code: &str, message: &str) -> Error {
        Error::Remote { code: code.to_owned(), message: message.to_owned(), stacktrace: None }
    }

    #[test]
    fn the_code_of_the_api_comes_first_without_the_wrapping_of_the_bus() {
        let wrapped = remote("invocation_failed", "handler error: session/not_found: no session \"x\"");
        assert_eq!(api_error(&wrapped), "session/not_found: no session \"x\"");
        let foreign = remote("function_not_found", "no function nope");
        assert_eq!(api_error(&foreign), "function_not_found: no function nope");
    }

    #[tokio::test]
    async fn a_malformed_url_is_refused_with_the_name_of_the_flag() {
        for url in ["", "127.0.0.1", "http://127.0.0.1:1", "ws://"] {
            let node = NodeUrl { url: url.to_owned(), token_file: None, ca: None };
            let error = connect(&node).await.err().expect("must be refused").to_string();
            assert!(error.starts_with("--url") && error.contains("ws://HOST:PORT"), "{error}");
        }
    }
}
