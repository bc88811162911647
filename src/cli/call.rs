//! Owns: `session-manager call`. One call of one function on a running node.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use clap::Args;
use iii_sdk::protocol::TriggerRequest;
use serde_json::{Value, json};

use super::connect::{NodeUrl, connect, words};
use super::{EXIT_REFUSED, EXIT_UNUSABLE, client_runtime, fail};
use crate::observe::{CLIENT_LEVEL, LogFormat, start_logging};
use crate::surface::sidecar::NAME;

const EXAMPLES: &str = "\
Examples:
  session-manager call session::create '{\"title\": \"Hello\"}'
  session-manager call session::list
  session-manager call session::append @append.json
  generate | session-manager call session::append-many -
  session-manager call engine::functions::list

Prints the JSON response. On an error it prints `code: message` on stderr and exits 1.";

/// Call a function of a running node
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CallArgs {
    /// The function, as in session::append
    function: String,

    /// The request: JSON, or `-` for stdin, or `@FILE`
    #[arg(default_value = "{}")]
    json: String,

    #[command(flatten)]
    node: NodeUrl,

    /// How new the answer of a read must be: linearizable, or local (what the node has now, also without a leader);
    /// without it, as the node is configured
    #[arg(long, value_name = "MODE", value_parser = ["linearizable", "local"])]
    consistency: Option<String>,

    /// How long to wait for the response
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    timeout_ms: u64,

    /// What to log on stderr, as in `debug`
    #[arg(long, env = "RUST_LOG", default_value = CLIENT_LEVEL)]
    log_level: String,
}

pub fn run(args: CallArgs) -> ExitCode {
    if let Err(error) = start_logging(LogFormat::Text, &args.log_level) {
        return fail(EXIT_UNUSABLE, error);
    }
    let request = match read_request(&args.json) {
        Ok(request) => request,
        Err(why) => return fail(EXIT_UNUSABLE, why),
    };
    let runtime = match client_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    runtime.block_on(async {
        let client = match connect(&args.node.url).await {
            Ok(client) => client,
            Err(why) => return fail(EXIT_UNUSABLE, why),
        };
        let call = TriggerRequest { timeout_ms: Some(args.timeout_ms), ..TriggerRequest::new(args.function, request) };
        let answered = match args.consistency {
            Some(mode) => client.trigger(call.metadata(json!({ NAME: { "consistency": mode } }))).await,
            None => client.trigger(call).await,
        };
        client.shutdown_async().await;
        match answered {
            Ok(response) => print(&response),
            Err(error) => {
                eprintln!("{}", words(&error));
                ExitCode::from(EXIT_REFUSED)
            }
        }
    })
}

fn read_request(given: &str) -> Result<Value, String> {
    let text = if given == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| format!("reading stdin: {error}"))?;
        text
    } else if let Some(path) = given.strip_prefix('@') {
        std::fs::read_to_string(path).map_err(|error| format!("reading {path}: {error}"))?
    } else {
        given.to_owned()
    };
    serde_json::from_str(&text).map_err(|error| format!("the request is not JSON: {error}"))
}

/// Indented for a person, on one line for a program.
fn print(response: &Value) -> ExitCode {
    if std::io::stdout().is_terminal() {
        println!("{response:#}");
    } else {
        println!("{response}");
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_text_or_a_file() {
        assert_eq!(read_request("{\"a\":1}"), Ok(json!({"a": 1})));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("request.json");
        std::fs::write(&path, "[2]").expect("a written file");
        assert_eq!(read_request(&format!("@{}", path.display())), Ok(json!([2])));
        assert!(read_request("@/no/such/file").unwrap_err().contains("/no/such/file"));
        assert!(read_request("{").unwrap_err().contains("not JSON"));
    }
}
