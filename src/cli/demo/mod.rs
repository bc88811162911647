//! Owns: `session-manager demo`: fills a running node with conversations to look at, over the bus, like any client.
//! Every id is fixed, so running it again changes nothing.

mod story;
mod team;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use iii_sdk::IIIClient;
use iii_sdk::protocol::TriggerRequest;
use serde_json::{Value, json};

use self::story::Story;
use super::connect::{NodeUrl, api_error, connect};
use super::error::CliError;
use super::{EXIT_REFUSED, client_runtime, log_to_stderr};
use crate::access::credentials::now_ms;
use crate::observe::{CLIENT_LEVEL, LogFormat};

const ABOUT: &str = "\
Fill a running node with conversations: branches, forks, tool calls, errors, a turn with an approval.

The sessions have the metadata {\"demo\": true} and ids that begin with `demo-`. Running the command again changes \
nothing. With --live one more conversation goes on until the command is stopped. Look at them at /console of the node.";

const EXAMPLES: &str = "\
Examples:
  session-manager demo                      some conversations
  session-manager demo --live               and one that never ends
  session-manager demo --sessions 500       and many small ones";

/// Turns after which the endless conversation starts a new session.
const TURNS_PER_SESSION: usize = 40;

/// Fill a running node with conversations to look at
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct DemoArgs {
    #[command(flatten)]
    node: NodeUrl,

    /// How many small sessions to create besides the long ones
    #[arg(long, value_name = "N", default_value_t = 12)]
    sessions: usize,

    /// Let one conversation stream until this command is stopped
    #[arg(long)]
    live: bool,

    /// Milliseconds between two words of a streamed answer
    #[arg(long, value_name = "MS", default_value_t = 60)]
    word_ms: u64,

    /// What to log on stderr: error, warn, info, debug or trace
    #[arg(long, env = "RUST_LOG", default_value = CLIENT_LEVEL)]
    log_level: String,
}

pub fn run(args: DemoArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, &args.log_level)?;
    args.node.trust_ca();
    client_runtime()?.block_on(async {
        let client = connect(&args.node).await?;
        let teller = Teller { client: &client, word: Duration::from_millis(args.word_ms) };
        let told = teller.tell(&args).await;
        client.shutdown_async().await;
        Ok(match told {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}", api_error(&error));
                ExitCode::from(EXIT_REFUSED)
            }
        })
    })
}

/// Writes conversations to a node.
struct Teller<'a> {
    client: &'a IIIClient,
    word: Duration,
}

impl Teller<'_> {
    async fn tell(&self, args: &DemoArgs) -> Result<(), iii_sdk::Error> {
        let now = now_ms();
        for (at, story) in story::all().into_iter().enumerate() {
            self.write(&story, now - (at as i64 + 1) * 1_700_000).await?;
        }
        for number in 0..args.sessions {
            self.write(&story::small(number), now - (number as i64 + 2) * 600_000).await?;
        }
        let turns = usize::from(team::tell(self.client).await?);
        let web = args.node.url.replacen("ws", "http", 1);
        println!("{} conversations are stored; look at {web}/console", story::all().len() + args.sessions + turns);
        if args.live {
            println!("one more goes on until you stop this command");
            for number in 0.. {
                self.live(number).await?;
            }
        }
        Ok(())
    }

    async fn call(&self, function: &str, request: Value) -> Result<Value, iii_sdk::Error> {
        self.client.trigger(TriggerRequest::new(function, request)).await
    }

    async fn write(&self, story: &Story, begun_ms: i64) -> Result<(), iii_sdk::Error> {
        let session_id = &story.session_id;
        let ensured = self.call("session::ensure", story.ensure()).await?;
        // An append with an id that exists changes nothing, so a run that was interrupted is completed.
        for (at, entry) in story.entries.iter().enumerate() {
            let mut request = entry.append(session_id, begun_ms + at as i64 * 9_000);
            request["entry_id"] = json!(format!("{session_id}-{}", entry.id));
            if let Some(parent) = &entry.parent {
                request["parent_id"] = json!(format!("{session_id}-{parent}"));
            }
            self.call("session::append", request).await?;
        }
        if ensured["created"] == false {
            return Ok(());
        }
        if let Some(active) = &story.active {
            let entry_id = format!("{session_id}-{active}");
            self.call("session::set-active-leaf", json!({ "session_id": session_id, "entry_id": entry_id })).await?;
        }
        if let Some(fork) = &story.fork {
            let entry_id = format!("{session_id}-{}", fork.at);
            let fork = json!({ "session_id": session_id, "entry_id": entry_id, "title": fork.title });
            self.call("session::fork", fork).await?;
        }
        let mut status = json!({ "session_id": session_id, "status": story.status });
        if let Some(reason) = &story.status_reason {
            status["reason"] = json!(reason);
        }
        self.call("session::set-status", status).await?;
        Ok(())
    }

    /// One session of the endless conversation.
    async fn live(&self, number: usize) -> Result<(), iii_sdk::Error> {
        let metadata = json!({ "demo": true, "kind": "live" });
        let title = "A conversation that goes on";
        let created = self.call("session::create", json!({ "title": title, "metadata": metadata })).await?;
        let session_id = &created["session_id"];
        for turn in 0..TURNS_PER_SESSION {
            let (question, answer) = story::exchange(number * TURNS_PER_SESSION + turn);
            let status = |status: &str| json!({ "session_id": session_id, "status": status });
            self.call("session::set-status", status("working")).await?;
            self.call("session::append", json!({ "session_id": session_id, "message": user(question) })).await?;
            tokio::time::sleep(self.word * 10).await;
            let empty = json!({ "session_id": session_id, "message": assistant() });
            let entry_id = self.call("session::append", empty).await?["entry_id"].take();
            self.stream(session_id, &entry_id, answer).await?;
            self.call("session::set-status", status("done")).await?;
            tokio::time::sleep(self.word * 30).await;
        }
        Ok(())
    }

    /// Lets an answer grow word by word.
    async fn stream(&self, session_id: &Value, entry_id: &Value, answer: &str) -> Result<(), iii_sdk::Error> {
        let mut text = String::new();
        for word in answer.split_inclusive(' ') {
            text.push_str(word);
            let content = json!([{ "type": "text", "text": text }]);
            let update = json!({ "session_id": session_id, "entry_id": entry_id, "content": content });
            self.call("session::update-message", update).await?;
            tokio::time::sleep(self.word).await;
        }
        Ok(())
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "timestamp": now_ms(), "content": [{ "type": "text", "text": text }] })
}

fn assistant() -> Value {
    json!({
        "role": "assistant", "timestamp": now_ms(), "content": [], "stop_reason": "end",
        "model": "demo-large", "provider": "demo", "usage": { "input": 240, "output": 90, "cost_usd": 0.0021 },
    })
}
