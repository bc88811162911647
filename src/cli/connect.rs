//! Owns: how a client command reaches a running node: over the bus, with the public SDK, like any other client.

use std::time::Duration;

use axum::http::Uri;
use iii_helpers::observability::OtelConfig;
use iii_sdk::{Error, IIIClient, InitOptions, WorkerIdentityMode, register_worker};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A node on the same network answers within milliseconds; this leaves room for a slow one.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Where the node is. The SDKs read the same variable.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeUrl {
    /// The node's bus
    #[arg(long, env = "III_URL", default_value = iii_sdk::DEFAULT_ENGINE_URL)]
    pub url: String,
}

/// Connects, or says in one line why not.
pub async fn connect(url: &str) -> Result<IIIClient, String> {
    reach(url).await.map_err(|why| format!("cannot reach {url}: {why}; is a node running there?"))?;
    // The answer on stdout is all the telemetry a command needs: no second socket, no flush at exit.
    let otel = OtelConfig { enabled: Some(false), ..OtelConfig::default() };
    let options = InitOptions { otel: Some(otel), identity: WorkerIdentityMode::Explicit, ..InitOptions::default() };
    let client = register_worker(url, options);
    match client.wait_until_registered(CONNECT_MAX).await {
        Ok(()) => Ok(client),
        Err(error) => Err(format!("{url} does not answer as an iii bus: {error}")),
    }
}

/// The SDK retries for ever without a word, so a node that is not there is found out first.
async fn reach(url: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|error| format!("not a URL: {error}"))?;
    let port = match (uri.scheme_str(), uri.port_u16()) {
        (Some("ws" | "wss"), Some(port)) => port,
        (Some("ws"), None) => 80,
        (Some("wss"), None) => 443,
        _ => return Err("the URL must begin with ws:// or wss://".to_owned()),
    };
    let host = uri.host().ok_or("the URL names no host")?.trim_matches(['[', ']']);
    match timeout(CONNECT_MAX, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", CONNECT_MAX.as_secs())),
    }
}

/// `code: message`, as the contract prints errors, whatever the bus wrapped around it.
pub fn words(error: &Error) -> String {
    match error {
        Error::Remote { code, message, .. } => {
            let message = message.strip_prefix("handler error: ").unwrap_or(message);
            if message.starts_with("session/") { message.to_owned() } else { format!("{code}: {message}") }
        }
        Error::Timeout => "session/storage: outcome unknown: no answer within the time limit".to_owned(),
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
    fn the_contracts_code_comes_first_whatever_the_bus_wraps_around_it() {
        let wrapped = remote("invocation_failed", "handler error: session/not_found: no session \"x\"");
        assert_eq!(words(&wrapped), "session/not_found: no session \"x\"");
        let foreign = remote("function_not_found", "no function nope");
        assert_eq!(words(&foreign), "function_not_found: no function nope");
    }

    #[tokio::test]
    async fn a_url_that_is_none_is_refused_in_words() {
        for url in ["", "127.0.0.1", "http://127.0.0.1:1", "ws://"] {
            let why = connect(url).await.err().expect("must be refused");
            assert!(why.starts_with("cannot reach"), "{why}");
        }
    }
}
