//! The smallest whole driver: it repeats what it is told, word by word. cargo run --example echo-driver
//!
//! A driver binds `session::turn::requested`, claims the turn, emits batches of events and ends the turn. It also binds
//! `session::turn::command`, to stop when it is asked to. With `--ask "some words"` it asks for a turn itself, prints the
//! answer and ends. With `AGENT_ID=main` it serves the sessions of that agent, as CLIs and chats open them at
//! `/api/agents/main`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iii_sdk::protocol::{RegisterTriggerInput, TriggerRequest};
use iii_sdk::{Error, IIIClient, InitOptions, RegisterFunction, register_worker_from_env};
use serde_json::{Value, json};

/// Deltas of this long are one batch: a batch costs one entry of the log.
const COALESCE: Duration = Duration::from_millis(50);

#[derive(Clone)]
struct Driver {
    worker: IIIClient,
    driver_id: String,
    stopped: Arc<Mutex<HashSet<String>>>,
}

impl Driver {
    async fn call(&self, function: &str, payload: Value) -> Result<Value, Error> {
        self.worker.trigger(TriggerRequest::new(function, payload)).await
    }

    /// Runs one turn, if this driver is the one that gets it.
    async fn run(&self, turn: Value) -> Result<(), Error> {
        let turn_id = turn["turn_id"].clone();
        let claim = json!({"turn_id": turn_id, "driver_id": self.driver_id});
        if self.call("session::turn::claim", claim).await?["claimed"] != true {
            return Ok(());
        }
        let mut said = String::new();
        let mut n = 1;
        for word in turn["text"].as_str().unwrap_or_default().split_inclusive(' ') {
            if self.stopped.lock().unwrap().contains(turn_id.as_str().unwrap_or_default()) {
                return Ok(());
            }
            said.push_str(word);
            self.emit(&turn_id, n, json!([{"type": "text_delta", "text": word}])).await?;
            n += 1;
            tokio::time::sleep(COALESCE).await;
        }
        self.emit(&turn_id, n, json!([{"type": "turn_complete", "finalText": said}])).await
    }

    async fn emit(&self, turn_id: &Value, n: u64, events: Value) -> Result<(), Error> {
        let batch = json!({"turn_id": turn_id, "driver_id": self.driver_id, "n": n, "events": events});
        // The same batch again is a no-op, so a lost answer is no reason to lose the turn.
        for _ in 0..3 {
            if self.call("session::turn::emit", batch.clone()).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(COALESCE).await;
        }
        self.call("session::turn::emit", batch).await.map(drop)
    }
}

#[tokio::main]
#[allow(deprecated)] // register_trigger: `observe`, its successor, is not on every bus yet
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let worker = register_worker_from_env(InitOptions::default()); // III_URL, else ws://127.0.0.1:49134
    let driver_id = format!("echo-{}", std::process::id());
    let (name, whose) = match std::env::var("AGENT_ID") {
        Ok(agent_id) => ("agent_id", agent_id),
        Err(_) => ("agent_type", "echo".to_owned()),
    };
    let driver = Driver { worker: worker.clone(), driver_id: driver_id.clone(), stopped: Arc::default() };

    let runs = driver.clone();
    worker.register_function(
        format!("{driver_id}::turn"),
        RegisterFunction::new_async(move |turn: Value| {
            let driver = runs.clone();
            async move {
                // The event is taken at once; the turn runs beside it.
                tokio::spawn(async move {
                    if let Err(error) = driver.run(turn).await {
                        eprintln!("the turn ended early: {error}");
                    }
                });
                Ok::<Value, Error>(Value::Null)
            }
        }),
    );
    let commands = driver.clone();
    worker.register_function(
        format!("{driver_id}::command"),
        RegisterFunction::new_async(move |command: Value| {
            let driver = commands.clone();
            async move {
                if command["driver_id"] != driver.driver_id.as_str() {
                    return Ok::<Value, Error>(Value::Null);
                }
                if command["command"] == "stop" {
                    let turn_id = command["turn_id"].as_str().unwrap_or_default().to_owned();
                    driver.stopped.lock().unwrap().insert(turn_id);
                }
                let ack = json!({"command_id": command["command_id"], "driver_id": driver.driver_id});
                driver.call("session::turn::ack", ack).await.map(|_| Value::Null)
            }
        }),
    );
    for (kind, function) in [("session::turn::requested", "turn"), ("session::turn::command", "command")] {
        // With its name the driver counts as attached while it is connected.
        let config = json!({format!("{name}s"): [whose], "driver_id": driver_id});
        worker.register_trigger(RegisterTriggerInput::new(kind, format!("{driver_id}::{function}"), config))?;
    }
    // Turns that were asked for before this driver was there.
    let waiting = driver.call("session::turn::pending", json!({name: whose})).await?;
    for turn in waiting["turns"].as_array().into_iter().flatten() {
        tokio::spawn({
            let (driver, turn) = (driver.clone(), turn.clone());
            async move { drop(driver.run(turn).await) }
        });
    }
    println!("{driver_id} serves turns of {name} {whose:?}");

    let words = std::env::args().skip_while(|argument| argument != "--ask").nth(1);
    let Some(words) = words else {
        std::future::pending::<()>().await;
        return Ok(());
    };
    let created = driver.call("session::create", json!({"title": "Echo"})).await?;
    let session_id = created["session_id"].clone();
    let ask = json!({"session_id": session_id, "text": words, name: whose});
    driver.call("session::turn::ask", ask).await?;
    loop {
        let state = driver.call("session::turn::state", json!({"session_id": session_id})).await?;
        if let Some(text) = state["current_turn"]["text_so_far"].as_str() {
            println!("{} so far: {text}", state["head_seq"]);
        }
        if state["state"] == "ready" || state["state"] == "error" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let page = driver.call("session::messages", json!({"session_id": session_id})).await?;
    for item in page["messages"].as_array().into_iter().flatten() {
        println!("{} {}", item["message"]["role"], item["message"]["content"]);
    }
    worker.shutdown_async().await;
    Ok(())
}
