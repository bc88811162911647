//! Owns: `session-manager tail`. Binds to every event type of a running node and prints what arrives.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use iii_sdk::protocol::RegisterTriggerInput;
use iii_sdk::{Error, IIIClient, RegisterFunction};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::connect::{NodeUrl, connect};
use super::{EXIT_UNUSABLE, client_runtime, fail};
use crate::machine::event::EventKind;
use crate::observe::{LogFormat, start_logging};

const EXAMPLES: &str = "\
Examples:
  session-manager tail
  session-manager tail --session s_0199...
  session-manager tail | jq -r 'select(.type == \"session::message-added\") | .payload.message.content[].text'

Prints one JSON line per event: type, position, seq, payload. When the connection breaks it reconnects and goes on
with the events from then on. Ctrl-C ends it.";

/// Lines that may wait for a slow terminal before further ones are dropped with a word on stderr.
const LINES_MAX: usize = 65_536;

/// Print the events of a running node as they happen
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TailArgs {
    /// Only the events of this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    #[command(flatten)]
    node: NodeUrl,

    /// What to log on stderr, as in `debug`
    #[arg(long, env = "RUST_LOG", default_value = "error")]
    log_level: String,
}

pub fn run(args: TailArgs) -> ExitCode {
    if let Err(error) = start_logging(LogFormat::Text, &args.log_level) {
        return fail(EXIT_UNUSABLE, error);
    }
    let runtime = match client_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    runtime.block_on(async {
        let client = match connect(&args.node.url).await {
            Ok(client) => client,
            Err(why) => return fail(EXIT_UNUSABLE, why),
        };
        let (lines, arrived) = mpsc::channel(LINES_MAX);
        for kind in EventKind::ALL {
            if let Err(error) = bind(&client, kind, args.session.as_deref(), lines.clone()) {
                return fail(EXIT_UNUSABLE, format!("binding to {}: {error}", kind.trigger_type()));
            }
        }
        tokio::select! {
            () = print_lines(arrived) => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        client.shutdown_async().await;
        ExitCode::SUCCESS
    })
}

/// One function per type, since a payload does not name its own type.
fn bind(client: &IIIClient, kind: EventKind, session: Option<&str>, lines: mpsc::Sender<String>) -> Result<(), Error> {
    let function_id = format!("tail::{}::{}", Uuid::new_v4().simple(), kind.trigger_type());
    let wanted = session.map(str::to_owned);
    let show = move |payload: Value, sidecar: Option<Value>| {
        // A session cannot be named before it exists, so `created` has no such filter on the bus.
        if wanted.as_deref().is_none_or(|wanted| payload["session_id"] == wanted)
            && lines.try_send(line(kind, payload, sidecar)).is_err()
        {
            eprintln!("session-manager: the output is too slow, an event was not printed");
        }
        async { Ok::<Value, Error>(Value::Null) }
    };
    client.register_function(&function_id, RegisterFunction::new_async(show));
    let mut config = serde_json::Map::new();
    if let (Some(session), true) = (session, kind != EventKind::Created) {
        config.insert("session_id".to_owned(), json!(session));
    }
    register(client, RegisterTriggerInput::new(kind.trigger_type(), function_id, Value::Object(config)))
}

/// The SDK prefers `observe` since 0.25, which a bus without `observe.v1` does not offer.
#[allow(deprecated)]
fn register(client: &IIIClient, binding: RegisterTriggerInput) -> Result<(), Error> {
    client.register_trigger(binding).map(|_| ())
}

fn line(kind: EventKind, payload: Value, sidecar: Option<Value>) -> String {
    let place = sidecar.as_ref().and_then(|sidecar| sidecar.get("session-manager"));
    json!({
        "type": kind.trigger_type(),
        "position": place.and_then(|place| place.get("position")),
        "seq": place.and_then(|place| place.get("seq")),
        "payload": payload,
    })
    .to_string()
}

/// Ends when nobody reads any more, as `tail | head` does.
async fn print_lines(mut arrived: mpsc::Receiver<String>) {
    while let Some(line) = arrived.recv().await {
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_the_place_of_its_event() {
        let sidecar = json!({"session-manager": {"position": "0-7-0", "seq": 3}});
        let line: Value =
            serde_json::from_str(&line(EventKind::Created, json!({"a": 1}), Some(sidecar))).expect("JSON");
        assert_eq!(line, json!({"type": "session::created", "position": "0-7-0", "seq": 3, "payload": {"a": 1}}));
    }
}
