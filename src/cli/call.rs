//! Owns: `session-manager call`: one call of one function on a running node.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use clap::Args;
use iii_sdk::protocol::TriggerRequest;
use serde_json::{Value, json};

use super::connect::{NodeUrl, api_error, connect};
use super::error::CliError;
use super::{EXIT_REFUSED, client_runtime, log_to_stderr};
use crate::observe::{CLIENT_LEVEL, LogFormat};
use crate::surface::sidecar::NAME;

const ABOUT: &str = "\
Call a function of a running node and print its JSON response.

On an error, `code: message` is printed on stderr and the exit code is 1. If the node cannot be reached or the request \
is not JSON, the exit code is 2.";

const EXAMPLES: &str = "\
Examples:
  session-manager call session::create '{\"title\": \"Hello\"}'
  session-manager call session::list
  session-manager call session::append @append.json       the request is in a file
  generate | session-manager call session::append-many -  the request comes from standard input
  session-manager call session::list --consistency local  works without a leader, and may be stale
  session-manager call engine::functions::list            every function with its schemas";

/// Call a function of a running node
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct CallArgs {
    /// The id of the function, such as session::append
    function: String,

    /// The request: a JSON object, or @FILE to read it from a file, or - to read it from standard input
    #[arg(default_value = "{}")]
    json: String,

    #[command(flatten)]
    node: NodeUrl,

    /// Consistency of a read: `linearizable` sees every write acknowledged before it; `local` answers from this node's
    /// state, which may be stale, and needs no leader [default: the node's `consistency` setting]
    #[arg(long, value_name = "MODE", value_parser = ["linearizable", "local"])]
    consistency: Option<String>,

    /// How long to wait for the response, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    timeout_ms: u64,

    /// What to log on stderr: error, warn, info, debug or trace
    #[arg(long, env = "RUST_LOG", default_value = CLIENT_LEVEL)]
    log_level: String,
}

pub fn run(args: CallArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, &args.log_level)?;
    args.node.trust_ca();
    let request = read_request(&args.json)?;
    client_runtime()?.block_on(async {
        let client = connect(&args.node).await?;
        let call = TriggerRequest { timeout_ms: Some(args.timeout_ms), ..TriggerRequest::new(args.function, request) };
        let answered = match args.consistency {
            Some(mode) => client.trigger(call.metadata(json!({ NAME: { "consistency": mode } }))).await,
            None => client.trigger(call).await,
        };
        client.shutdown_async().await;
        Ok(match answered {
            Ok(response) => {
                print(&response);
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{}", api_error(&error));
                ExitCode::from(EXIT_REFUSED)
            }
        })
    })
}

fn read_request(given: &str) -> Result<Value, CliError> {
    let text = if given == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(CliError::Stdin)?;
        text
    } else if let Some(path) = given.strip_prefix('@') {
        std::fs::read_to_string(path).map_err(|why| CliError::RequestFile { path: path.to_owned(), why })?
    } else {
        given.to_owned()
    };
    serde_json::from_str(&text).map_err(CliError::RequestNotJson)
}

/// Indented on a terminal, one line elsewhere.
pub fn print(response: &Value) {
    if std::io::stdout().is_terminal() {
        println!("{response:#}");
    } else {
        println!("{response}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_text_or_a_file() {
        assert_eq!(read_request("{\"a\":1}").unwrap(), json!({"a": 1}));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("request.json");
        std::fs::write(&path, "[2]").expect("a written file");
        assert_eq!(read_request(&format!("@{}", path.display())).unwrap(), json!([2]));
        assert!(read_request("@/no/such/file").unwrap_err().to_string().contains("/no/such/file"));
        assert!(read_request("{").unwrap_err().to_string().contains("not JSON"));
    }
}
