//! Owns: `session-manager tail`: prints the events of a running node. After a broken connection it resumes behind the
//! last event that it printed.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

use super::client_runtime;
use super::connect::NodeUrl;
use super::error::CliError;
use crate::access::tls::ClientTls;
use crate::proto::watch::events_client::EventsClient;
use crate::proto::watch::watch_response::What;
use crate::proto::watch::{Event, WatchRequest};

const ABOUT: &str = "\
Print the events of a running node as they happen, one JSON object per line: type, position, seq, payload.

After a broken connection it reconnects and resumes behind the last event that it printed. Ctrl-C stops it.";

const EXAMPLES: &str = "\
Examples:
  session-manager tail
  session-manager tail --session s_0199... --type message-added --type message-updated
  session-manager tail --from oldest            every event that is still kept, then new ones
  session-manager tail --from 3f0c….0.4711.0    every event after this position, then new ones
  session-manager tail | jq -r 'select(.type == \"session::message-added\") | .payload.message.content[].text'";

/// A node that restarts is back within seconds.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Detects a node that vanished without closing the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Print the events of a running node as they happen
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct TailArgs {
    /// Print only events of this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Print only events of this type, such as message-added; repeat the flag for several types
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,

    /// Start after this position (the `position` of an event), or with `oldest` [default: new events only]
    #[arg(long, value_name = "POSITION")]
    from: Option<String>,

    #[command(flatten)]
    node: NodeUrl,
}

pub fn run(args: TailArgs) -> Result<ExitCode, CliError> {
    args.node.trust_ca();
    client_runtime()?.block_on(async {
        tokio::select! {
            ended = follow(args) => ended.map(|()| ExitCode::SUCCESS),
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Follows the feed until the reader of the output closes it.
async fn follow(args: TailArgs) -> Result<(), CliError> {
    let token = args.node.token()?;
    let channel = channel(&args.node)?;
    let url = args.node.url;
    let mut client = EventsClient::with_interceptor(channel, Bearer::of(token)).max_decoding_message_size(usize::MAX);
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
            Err(status) if is_final(status.code()) => {
                return Err(CliError::WatchRefused(status.message().to_owned()));
            }
            Err(status) if status.code() == Code::Unimplemented => return Err(CliError::NoFeed { url }),
            Err(status) if !connected => {
                return Err(CliError::Unreachable { url, why: status.message().to_owned() });
            }
            Err(_) => tokio::time::sleep(RECONNECT_AFTER).await,
        }
    }
}

/// Prints the events of one connection. `Ok`: the reader of the output closed it.
async fn watch(
    client: &mut EventsClient<InterceptedService<Channel, Bearer>>,
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
                eprintln!("session-manager: the output is slow; catching up");
            }
            Some(What::Skipped(skipped)) => {
                eprintln!(
                    "session-manager: the output is slow: events {} to {} of session {} are skipped, newer ones replaced \
                     them",
                    skipped.first_seq, skipped.last_seq, skipped.session_id
                );
            }
            Some(What::Compacted(place)) => {
                eprintln!(
                    "session-manager: the output is too slow: events were discarded; continuing after {}",
                    place.position
                );
            }
            None => {}
        }
    }
    Err(Status::unavailable("the node ended the stream"))
}

/// Whether a retry would get the same answer.
fn is_final(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::Unauthenticated | Code::PermissionDenied)
}

/// Adds the token to every call.
#[derive(Clone)]
struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    fn of(token: Option<String>) -> Bearer {
        // A token has only characters that a header may have: `NodeUrl::token` checked it.
        Bearer(token.and_then(|token| format!("Bearer {token}").parse().ok()))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        if let Some(bearer) = &self.0 {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}

/// The node serves gRPC on the port of the bus, so the address of the bus is accepted.
fn channel(node: &NodeUrl) -> Result<Channel, CliError> {
    let url = node.url.as_str();
    let malformed = |why: String| CliError::Url { url: url.to_owned(), why };
    let plain = url.strip_prefix("ws://").or_else(|| url.strip_prefix("http://"));
    let secure = url.strip_prefix("wss://").or_else(|| url.strip_prefix("https://"));
    let address = plain.or(secure).ok_or_else(|| malformed("the URL must begin with ws:// or wss://".to_owned()))?;
    let host = address.split('/').next().unwrap_or(address);
    let endpoint = Endpoint::from_shared(format!("http://{host}")).map_err(|error| malformed(error.to_string()))?;
    let endpoint = endpoint.connect_timeout(CONNECT_MAX).http2_keep_alive_interval(KEEP_ALIVE);
    let endpoint = endpoint.keep_alive_while_idle(true);
    if secure.is_none() {
        return Ok(endpoint.connect_lazy());
    }
    let tls = ClientTls::load(node.ca.as_deref()).map_err(CliError::Tls)?;
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| {
        let tls = tls.clone();
        async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443))).await?;
            stream.set_nodelay(true)?;
            tls.connect(&host, stream).await.map(TokioIo::new)
        }
    })))
}

fn line(event: Event) -> String {
    let payload: Value = serde_json::from_str(&event.payload).unwrap_or(Value::Null);
    json!({ "type": event.r#type, "position": event.position, "seq": event.seq, "payload": payload }).to_string()
}

/// False when the reader closed the output, as in `tail | head`.
fn print(line: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_the_position_of_its_event() {
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
    async fn the_address_of_the_bus_is_accepted_and_other_text_is_not() {
        let open = |url: &str| channel(&NodeUrl { url: url.to_owned(), token_file: None, ca: None });
        assert!(open("ws://127.0.0.1:49134").is_ok() && open("http://localhost:1/x").is_ok());
        for url in ["", "127.0.0.1:1", "ftp://x"] {
            assert!(open(url).is_err(), "{url}");
        }
    }
}
