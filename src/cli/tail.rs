//! Owns: `session-manager tail`. Watches the events of a running node and prints what arrives; when the connection breaks
//! it goes on after the last one it printed.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::connect::NodeUrl;
use super::{EXIT_UNUSABLE, client_runtime, fail};
use crate::proto::watch::events_client::EventsClient;
use crate::proto::watch::watch_response::What;
use crate::proto::watch::{Event, WatchRequest};

const EXAMPLES: &str = "\
Examples:
  session-manager tail
  session-manager tail --session s_0199... --type message-added
  session-manager tail --from oldest                  what is kept, then what happens
  session-manager tail --from 3f0c….0.4711.0          what came after that event, then what happens
  session-manager tail | jq -r 'select(.type == \"session::message-added\") | .payload.message.content[].text'

Prints one JSON line per event: type, position, seq, payload. When the connection breaks it reconnects and goes on after
the last event it printed. Ctrl-C ends it.";

/// A node that restarts is back within seconds.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A node that is gone without a word is found out by this.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Print the events of a running node as they happen
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TailArgs {
    /// Only the events of this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Only events of this type, such as message-added; may be given several times
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,

    /// Begin after the event at this position, as `position` names it, or with `oldest`
    #[arg(long, value_name = "POSITION")]
    from: Option<String>,

    #[command(flatten)]
    node: NodeUrl,
}

pub fn run(args: TailArgs) -> ExitCode {
    let runtime = match client_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    runtime.block_on(async {
        tokio::select! {
            ended = follow(args) => ended.map_or_else(|why| fail(EXIT_UNUSABLE, why), |()| ExitCode::SUCCESS),
            _ = tokio::signal::ctrl_c() => ExitCode::SUCCESS,
        }
    })
}

/// Follows the feed until nobody reads the output any more. `Err`: it cannot, in words.
async fn follow(args: TailArgs) -> Result<(), String> {
    let url = &args.node.url;
    let mut client = EventsClient::new(channel(url)?).max_decoding_message_size(usize::MAX);
    let mut request = WatchRequest {
        session_id: args.session.unwrap_or_default(),
        types: args.types,
        after: args.from.unwrap_or_default(),
        ..WatchRequest::default()
    };
    let mut connected = false;
    loop {
        match watch(&mut client, &mut request, &mut connected).await {
            Ok(()) => return Ok(()),
            Err(status) if matches!(status.code(), Code::InvalidArgument | Code::OutOfRange) => {
                return Err(status.message().to_owned());
            }
            Err(status) if status.code() == Code::Unimplemented => {
                return Err(format!("{url} has no feed to watch: give the address of a session-manager node"));
            }
            Err(status) if !connected => {
                return Err(format!("cannot reach {url}: {}; is a node running there?", status.message()));
            }
            Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
        }
    }
}

/// One connection. `Ok`: nobody reads the output any more.
async fn watch(
    client: &mut EventsClient<Channel>,
    request: &mut WatchRequest,
    connected: &mut bool,
) -> Result<(), Status> {
    let mut responses = client.watch(request.clone()).await?.into_inner();
    *connected = true;
    while let Some(response) = responses.message().await? {
        match response.what {
            Some(What::Event(event)) => {
                request.after.clone_from(&event.position);
                if !print(&line(event)) {
                    return Ok(());
                }
            }
            Some(What::Begun(place) | What::Progress(place)) => request.after = place.position,
            Some(What::Lagged(_)) => {
                eprintln!("session-manager: the output is slow; updates that were replaced meanwhile are left out");
            }
            Some(What::Compacted(place)) => {
                eprintln!(
                    "session-manager: events were dropped before they could be printed; on after {}",
                    place.position
                );
            }
            None => {}
        }
    }
    Err(Status::unavailable("the node ended the stream"))
}

/// The node's port speaks gRPC beside the bus, so the bus's address will do.
fn channel(url: &str) -> Result<Channel, String> {
    let address = url.strip_prefix("ws://").or_else(|| url.strip_prefix("http://"));
    let address = address.ok_or_else(|| format!("{url}: the URL must begin with ws:// or http://"))?;
    let host = address.split('/').next().unwrap_or(address);
    let endpoint = Endpoint::from_shared(format!("http://{host}")).map_err(|error| format!("{url}: {error}"))?;
    let endpoint = endpoint.connect_timeout(CONNECT_MAX).http2_keep_alive_interval(KEEP_ALIVE);
    Ok(endpoint.keep_alive_while_idle(true).connect_lazy())
}

fn line(event: Event) -> String {
    let payload: Value = serde_json::from_str(&event.payload).unwrap_or(Value::Null);
    json!({ "type": event.r#type, "position": event.position, "seq": event.seq, "payload": payload }).to_string()
}

/// False when nobody reads any more, as with `tail | head`.
fn print(line: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_the_place_of_its_event() {
        let event = Event {
            position: "c.0.7.0".to_owned(),
            seq: 3,
            r#type: "session::created".to_owned(),
            payload: "{\"a\":1}".to_owned(),
        };
        let line: Value = serde_json::from_str(&line(event)).expect("JSON");
        assert_eq!(line, json!({"type": "session::created", "position": "c.0.7.0", "seq": 3, "payload": {"a": 1}}));
    }

    #[tokio::test]
    async fn the_address_of_the_bus_will_do_and_nonsense_will_not() {
        assert!(channel("ws://127.0.0.1:49134").is_ok() && channel("http://localhost:1/x").is_ok());
        for url in ["", "127.0.0.1:1", "wss://x"] {
            assert!(channel(url).is_err(), "{url}");
        }
    }
}
