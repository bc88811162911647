//! Owns: the steps of scenarios tagged @gateway.

use cucumber::gherkin::Step;
use cucumber::{given, then, when};
use serde_json::{Value, json};
use session_manager::access::Role;
use tokio_tungstenite::tungstenite::Message;

use crate::gateway::{GatewayWorld, Heard, PATIENCE};

#[given("a node")]
async fn a_node(world: &mut GatewayWorld) {
    world.start_node(&[]).await;
}

#[given("a node with the tokens:")]
async fn a_node_with_tokens(world: &mut GatewayWorld, step: &Step) {
    let rows = &step.table.as_ref().expect("a table").rows;
    let token = |row: &Vec<String>| (row[0].clone(), Role::named(&row[1]).expect("a role"), row[2].clone());
    let tokens: Vec<_> = rows.iter().map(token).collect();
    world.start_node(&tokens).await;
}

#[given(regex = r#"^(\w+) connects$"#)]
#[when(regex = r#"^(\w+) connects$"#)]
async fn connects(world: &mut GatewayWorld, name: String) {
    world.connect(&name, "/ws", &[]).await;
}

#[when(regex = r#"^(\w+) connects to "(.*?)"$"#)]
async fn connects_to(world: &mut GatewayWorld, name: String, path: String) {
    world.connect(&name, &path, &[]).await;
}

#[when(regex = r#"^(\w+) connects from the page "(.*?)"$"#)]
async fn connects_from(world: &mut GatewayWorld, name: String, origin: String) {
    world.connect(&name, "/ws", &[("origin", &origin)]).await;
}

/// A connection that is ready to work.
#[given(regex = r#"^(\w+) is there$"#)]
#[when(regex = r#"^(\w+) is there$"#)]
async fn is_there(world: &mut GatewayWorld, name: String) {
    world.connect(&name, "/ws", &[]).await;
    world.client(&name).expect("authenticated").await;
}

#[given(regex = r#"^(\w+) is there with the token "(.*?)"$"#)]
async fn is_there_with(world: &mut GatewayWorld, name: String, token: String) {
    world.connect(&name, "/ws", &[]).await;
    let client = world.client(&name);
    client.send(Message::text(json!({"type": "authenticate", "token": token}).to_string())).await;
    client.expect("authenticated").await;
}

#[given(regex = r#"^(\w+) sends (\{.*\})$"#)]
#[when(regex = r#"^(\w+) sends (\{.*\})$"#)]
async fn sends(world: &mut GatewayWorld, name: String, message: String) {
    let message = world.json(&message);
    world.client(&name).send(Message::text(message.to_string())).await;
}

#[when(regex = r#"^(\w+) sends the text "(.*)"$"#)]
async fn sends_text(world: &mut GatewayWorld, name: String, text: String) {
    world.client(&name).send(Message::text(text)).await;
}

#[when(regex = r#"^(\w+) sends (\d+) bytes of text$"#)]
async fn sends_long_text(world: &mut GatewayWorld, name: String, bytes: usize) {
    world.client(&name).send(Message::text("x".repeat(bytes))).await;
}

#[when(regex = r#"^(\w+) sends a binary frame$"#)]
async fn sends_binary(world: &mut GatewayWorld, name: String) {
    world.client(&name).send(Message::binary(b"{}".to_vec())).await;
}

#[when(regex = r#"^(\w+) sends (\d+) times (\{.*\})$"#)]
async fn sends_often(world: &mut GatewayWorld, name: String, times: usize, message: String) {
    let message = world.json(&message).to_string();
    for _ in 0..times {
        world.client(&name).send(Message::text(message.clone())).await;
    }
}

/// Skips frames of other types.
#[then(regex = r#"^(\w+) gets (\{.*\})$"#)]
#[given(regex = r#"^(\w+) gets (\{.*\})$"#)]
#[when(regex = r#"^(\w+) gets (\{.*\})$"#)]
async fn gets(world: &mut GatewayWorld, name: String, expected: String) {
    let kind = world.json(&expected)["type"].as_str().expect("a type").to_owned();
    let frame = world.client(&name).expect(&kind).await;
    world.compare(&expected, &frame);
}

#[then(regex = r#"^(\w+) gets (\d+) times (\{.*\})$"#)]
async fn gets_often(world: &mut GatewayWorld, name: String, times: usize, expected: String) {
    for _ in 0..times {
        gets(world, name.clone(), expected.clone()).await;
    }
}

/// These frames and no others in between. News about the tenant's sessions do not count.
#[then(regex = r#"^(\w+) gets exactly:$"#)]
async fn gets_exactly(world: &mut GatewayWorld, step: &Step, name: String) {
    for row in &step.table.as_ref().expect("a table").rows {
        let frame = loop {
            let frame = world.client(&name).frame().await;
            if frame["type"] != "session_updated" {
                break frame;
            }
        };
        world.compare(&row[0], &frame);
    }
}

/// A ping is answered, and nothing else came before.
#[then(regex = r#"^(\w+) gets nothing more$"#)]
async fn gets_nothing(world: &mut GatewayWorld, name: String) {
    let client = world.client(&name);
    client.send(Message::text(json!({"type": "ping", "ts": 4711}).to_string())).await;
    loop {
        let frame = client.frame().await;
        if frame["type"] == "pong" && frame["clientTs"] == 4711 {
            return;
        }
        assert_eq!(frame["type"], "session_updated", "nothing was expected: {frame}");
    }
}

#[then(regex = r#"^(\w+) gets the error "(\w+)"$"#)]
async fn gets_error(world: &mut GatewayWorld, name: String, code: String) {
    loop {
        let frame = world.client(&name).frame().await;
        if frame["type"] == "error" {
            assert_eq!(frame["code"], code, "{frame}");
            return;
        }
    }
}

#[then(regex = r#"^(\w+) is disconnected with (\d+)$"#)]
async fn is_disconnected(world: &mut GatewayWorld, name: String, code: u16) {
    loop {
        if let Heard::Closed(found) = world.client(&name).next().await {
            assert_eq!(found, code);
            return;
        }
    }
}

#[then(regex = r#"^the connection is refused with (\d+)$"#)]
async fn is_refused(world: &mut GatewayWorld, status: u16) {
    assert_eq!(world.refused.take(), Some(status));
}

#[when("the node is stopped")]
async fn is_stopped(world: &mut GatewayWorld) {
    world.stop();
}

#[when(regex = r#"^(\w+) disconnects$"#)]
async fn disconnects(world: &mut GatewayWorld, name: String) {
    world.clients.remove(&name);
}

/// A driver for agents of the type `coder`.
#[given(regex = r#"^the driver (\w+)$"#)]
#[when(regex = r#"^the driver (\w+) is back$"#)]
async fn a_driver(world: &mut GatewayWorld, name: String) {
    is_there(world, name.clone()).await;
    let attach = json!({"type": "attach_driver", "driver_id": name, "agent_types": ["coder"], "families": ["files"]});
    world.client(&name).send(Message::text(attach.to_string())).await;
    world.client(&name).expect("driver_attached").await;
}

#[given(regex = r#"^(\w+) has a session "(\w+)"$"#)]
async fn has_a_session(world: &mut GatewayWorld, name: String, variable: String) {
    let create = json!({"type": "create_session", "agentType": "coder", "name": variable});
    world.client(&name).send(Message::text(create.to_string())).await;
    let created = world.client(&name).expect("session_created").await;
    world.variables.insert(variable, created["session"]["id"].clone());
}

/// The driver takes the turn that a client asks for. Binds its id.
#[given(regex = r#"^(\w+) runs the turn "(\w+)" of "(\w+)" with (\w+)$"#)]
#[when(regex = r#"^(\w+) runs the turn "(\w+)" of "(\w+)" with (\w+)$"#)]
async fn runs_a_turn(world: &mut GatewayWorld, name: String, turn: String, session: String, driver: String) {
    let id = world.variables[&session].clone();
    let run = json!({"type": "run_turn", "sessionId": id, "text": format!("please {turn}"), "clientTurnId": turn});
    world.client(&name).send(Message::text(run.to_string())).await;
    let command = world.client(&driver).expect("driver_command").await;
    assert_eq!(command["command"], "run_turn", "{command}");
    let accepted = json!({"type": "command_result", "command_id": command["command_id"], "accepted": true});
    world.client(&driver).send(Message::text(accepted.to_string())).await;
    world.batches.insert(driver, 1);
    world.variables.insert(turn, command["turn_id"].clone());
}

#[given(regex = r#"^(\w+) emits in "(\w+)":$"#)]
#[when(regex = r#"^(\w+) emits in "(\w+)":$"#)]
async fn emits(world: &mut GatewayWorld, step: &Step, name: String, turn: String) {
    let rows = &step.table.as_ref().expect("a table").rows;
    let events: Vec<Value> = rows.iter().map(|row| world.json(&row[0])).collect();
    emit(world, &name, &turn, events).await;
}

#[when(regex = r#"^(\w+) emits (\d+) deltas in "(\w+)"$"#)]
#[given(regex = r#"^(\w+) emits (\d+) deltas in "(\w+)"$"#)]
async fn emits_deltas(world: &mut GatewayWorld, name: String, count: usize, turn: String) {
    let events = (0..count).map(|n| json!({"type": "text_delta", "text": format!("w{n} ")})).collect();
    emit(world, &name, &turn, events).await;
}

async fn emit(world: &mut GatewayWorld, name: &str, turn: &str, events: Vec<Value>) {
    let (turn_id, n) = (world.variables[turn].clone(), world.batches[name]);
    let client = world.client(name);
    let batch = json!({"type": "emit", "turn_id": turn_id, "n": n, "events": events});
    client.send(Message::text(batch.to_string())).await;
    let emitted = client.expect("emitted").await;
    assert_eq!(emitted["next_n"], n + 1, "{emitted}");
    world.batches.insert(name.to_owned(), n + 1);
}

#[then(regex = r#"^"(\S+)" with (\{.*\}) answers (\{.*\})$"#)]
async fn answers(world: &mut GatewayWorld, function: String, body: String, expected: String) {
    let begun = std::time::Instant::now();
    let body = world.json(&body);
    loop {
        // What a driver did may be told before the call sees it at another door, never later than soon.
        let answer = world.call(&function, &body, None).await;
        let wanted = world.json(&expected);
        let mut variables = world.variables.clone();
        match crate::json_shorthand::compare(&wanted, &answer, false, &mut variables) {
            Ok(()) => {
                world.variables = variables;
                return;
            }
            Err(difference) => assert!(begun.elapsed() < PATIENCE, "{difference}\nin {answer}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
