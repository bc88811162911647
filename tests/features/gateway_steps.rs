//! Owns: the steps of scenarios tagged @gateway.

use std::collections::BTreeSet;

use cucumber::gherkin::Step;
use cucumber::{given, then, when};
use serde_json::{Value, json};
use session_manager::access::Role;
use session_manager::access::credentials::now_ms;
use session_manager::machine::turn::events::{Class, EVENTS, EventName, Kind, Origin};
use tokio_tungstenite::tungstenite::Message;

use crate::gateway::GatewayWorld;
use crate::gateway_client::{Heard, PATIENCE};

#[given("a node")]
async fn a_node(world: &mut GatewayWorld) {
    world.start_node(&[]).await;
}

#[given("a cluster of three nodes")]
async fn a_cluster(world: &mut GatewayWorld) {
    world.start_cluster().await;
}

#[given(regex = r#"^(\w+) is there at node (\d)$"#)]
#[when(regex = r#"^(\w+) is there at node (\d)$"#)]
async fn is_there_at(world: &mut GatewayWorld, name: String, node: u64) {
    world.connect_to_node(&name, node).await;
}

/// The leader is at one of the nodes that others name: the node after it, and the one after that, live.
#[when(regex = r#"^(\w+) loses the leader, which is killed$"#)]
async fn leader_is_killed(world: &mut GatewayWorld, name: String) {
    let driver_at = world.variables["follower"].as_u64().expect("a node");
    let leader = world.cluster().leader_other_than(driver_at);
    world.cluster().send(leader, "-KILL");
    world.variables.insert("killed".to_owned(), json!(leader));
    world.clients.remove(&name);
}

/// At the first node that lives.
#[when(regex = r#"^(\w+) is there at another node$"#)]
async fn is_there_elsewhere(world: &mut GatewayWorld, name: String) {
    let gone = world.variables["killed"].as_u64().expect("a node");
    world.connect_to_node(&name, gone % 3 + 1).await;
}

/// Where the leader is not, so that its loss does not disconnect it.
#[given(regex = r#"^the driver (\w+) at a follower$"#)]
async fn a_driver_at_a_follower(world: &mut GatewayWorld, name: String) {
    let leader = world.cluster().leader();
    let follower = (leader + 1) % 3 + 1;
    world.connect_to_node(&name, follower).await;
    world.variables.insert("follower".to_owned(), json!(follower));
    attach(world, &name).await;
}

#[given(regex = r#"^the driver (\w+) at the leader$"#)]
async fn a_driver_at_the_leader(world: &mut GatewayWorld, name: String) {
    is_there_at_the_leader(world, name.clone()).await;
    attach(world, &name).await;
}

#[when("the follower is killed")]
async fn the_follower_is_killed(world: &mut GatewayWorld) {
    let follower = world.variables["follower"].as_u64().expect("a node");
    world.cluster().send(follower, "-KILL");
}

#[given(regex = r#"^(\w+) is there at the leader$"#)]
async fn is_there_at_the_leader(world: &mut GatewayWorld, name: String) {
    let leader = world.cluster().leader();
    world.connect_to_node(&name, leader).await;
}

#[when("all nodes are killed")]
async fn all_are_killed(world: &mut GatewayWorld) {
    // First the nodes: none of them sees the driver leave.
    world.variables.insert("killed_at".to_owned(), json!(now_ms()));
    world.cluster().kill_all();
    world.clients.clear();
}

#[when(regex = r#"^node (\d) is stopped$"#)]
async fn node_is_stopped(world: &mut GatewayWorld, node: u64) {
    world.cluster().send(node, "-TERM");
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
    client.send(json!({"type": "authenticate", "token": token})).await;
    client.expect("authenticated").await;
}

#[given(regex = r#"^(\w+) sends (\{.*\})$"#)]
#[when(regex = r#"^(\w+) sends (\{.*\})$"#)]
async fn sends(world: &mut GatewayWorld, name: String, message: String) {
    let message = world.json(&message);
    world.client(&name).send(message).await;
}

#[when(regex = r#"^(\w+) sends the text "(.*)"$"#)]
async fn sends_text(world: &mut GatewayWorld, name: String, text: String) {
    world.client(&name).send_raw(Message::text(text)).await;
}

#[when(regex = r#"^(\w+) sends (\d+) bytes of text$"#)]
async fn sends_long_text(world: &mut GatewayWorld, name: String, bytes: usize) {
    world.client(&name).send_raw(Message::text("x".repeat(bytes))).await;
}

#[when(regex = r#"^(\w+) sends a binary frame$"#)]
async fn sends_binary(world: &mut GatewayWorld, name: String) {
    world.client(&name).send_raw(Message::binary(b"{}".to_vec())).await;
}

#[when(regex = r#"^(\w+) sends (\d+) times (\{.*\})$"#)]
async fn sends_often(world: &mut GatewayWorld, name: String, times: usize, message: String) {
    let message = world.json(&message).to_string();
    for _ in 0..times {
        world.client(&name).send_raw(Message::text(message.clone())).await;
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
#[given(regex = r#"^(\w+) gets nothing more$"#)]
async fn gets_nothing(world: &mut GatewayWorld, name: String) {
    let client = world.client(&name);
    client.send(json!({"type": "ping", "ts": 4711})).await;
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

#[then(regex = r#"^(\w+) gets the error "(\w+)" within (\d+) s$"#)]
async fn gets_error_within(world: &mut GatewayWorld, name: String, code: String, seconds: u64) {
    let begun = std::time::Instant::now();
    gets_error(world, name, code).await;
    assert!(begun.elapsed().as_secs() < seconds, "after {:?}", begun.elapsed());
}

#[when(regex = r#"^(\d+) s pass$"#)]
async fn time_passes(_world: &mut GatewayWorld, seconds: u64) {
    tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
}

/// By the time of the event, whenever the client comes to read it.
#[then(regex = r#"^(\w+) gets within (\d+) s of the kill (\{.*\})$"#)]
async fn gets_after_the_kill(world: &mut GatewayWorld, name: String, seconds: i64, expected: String) {
    let kind = world.json(&expected)["type"].as_str().expect("a type").to_owned();
    let frame = world.client(&name).expect(&kind).await;
    world.compare(&expected, &frame);
    let took = frame["ts"].as_i64().expect("a time") - world.variables["killed_at"].as_i64().expect("a time");
    assert!(took <= seconds * 1000, "after {took} ms");
}

#[then(regex = r#"^(\w+) gets (\d+) times the error "(\w+)"$"#)]
async fn gets_error_often(world: &mut GatewayWorld, name: String, times: usize, code: String) {
    for _ in 0..times {
        gets_error(world, name.clone(), code.clone()).await;
    }
}

#[then(regex = r#"^(\w+) gets the error "(\w+)" with "(\w+)"$"#)]
async fn gets_error_with(world: &mut GatewayWorld, name: String, code: String, field: String) {
    let frame = loop {
        let frame = world.client(&name).frame().await;
        if frame["type"] == "error" {
            break frame;
        }
    };
    assert_eq!(frame["code"], code, "{frame}");
    assert!(frame[&field].as_u64().is_some_and(|ms| ms > 0), "{frame}");
}

/// What one node knows another one learns soon.
#[then(regex = r#"^(\w+) joins "(\w+)" until the snapshot is (\{.*\})$"#)]
async fn joins_until(world: &mut GatewayWorld, name: String, session: String, expected: String) {
    let begun = std::time::Instant::now();
    let wanted = world.json(&expected);
    loop {
        let join = json!({"type": "join_session", "sessionId": world.variables[&session]});
        world.client(&name).send(join).await;
        let snapshot = world.client(&name).expect("state_snapshot").await;
        match crate::json_shorthand::compare(&wanted, &snapshot, false, &mut world.variables.clone()) {
            Ok(()) => return,
            Err(difference) => assert!(begun.elapsed() < PATIENCE, "{difference}\nin {snapshot}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
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
    attach(world, &name).await;
}

async fn attach(world: &mut GatewayWorld, name: &str) {
    let families = ["files", "memory"];
    let attach = json!({"type": "attach_driver", "driver_id": name, "agent_types": ["coder"], "families": families});
    world.client(name).send(attach).await;
    world.client(name).expect("driver_attached").await;
}

#[given(regex = r#"^the driver (\w+) at node (\d)$"#)]
#[when(regex = r#"^the driver (\w+) is back at node (\d)$"#)]
async fn a_driver_at(world: &mut GatewayWorld, name: String, node: u64) {
    world.connect_to_node(&name, node).await;
    attach(world, &name).await;
}

/// A driver on the bus: it ends each turn with a sentence, and answers requests for files with the path that they name.
#[given(regex = r#"^the driver (\w+) on the bus of node (\d), which has files$"#)]
async fn a_driver_on_the_bus(world: &mut GatewayWorld, name: String, node: u64) {
    let mut bus = world.open(node, "/").await;
    bus.expect("workerregistered").await;
    for function in ["turn", "files"] {
        bus.send(json!({"type": "registerfunction", "id": format!("{name}::{function}")})).await;
    }
    let terms = json!({"driver_id": name, "agent_types": ["coder"], "families": {"files": format!("{name}::files")}});
    let bind = json!({"type": "registertrigger", "id": name, "trigger_type": "session::turn::requested",
                      "function_id": format!("{name}::turn"), "config": terms});
    bus.send(bind).await;
    let bound = bus.expect("triggerregistrationresult").await;
    assert!(bound["error"].is_null(), "{bound}");
    let driver_id = name.clone();
    tokio::spawn(async move {
        while let Heard::Frame(frame) = bus.next().await {
            let turn = |turn_id: &Value| json!({"turn_id": turn_id, "driver_id": driver_id});
            let call = |function: &str, data: Value| {
                let id = format!("{function} {}", data["turn_id"].as_str().expect("a turn"));
                json!({"type": "invokefunction", "invocation_id": id, "data": data,
                       "function_id": format!("session::turn::{function}")})
            };
            if frame["type"] == "invokefunction" && frame["function_id"] == format!("{driver_id}::turn") {
                bus.send(call("claim", turn(&frame["data"]["turn_id"]))).await;
            } else if frame["type"] == "invocationresult" && frame["result"]["claimed"] == true {
                let (_, turn_id) = frame["invocation_id"].as_str().and_then(|id| id.split_once(' ')).expect("a turn");
                let mut batch = turn(&json!(turn_id));
                batch["n"] = json!(1);
                batch["events"] = json!([{"type": "turn_complete", "finalText": format!("{driver_id} did it")}]);
                bus.send(call("emit", batch)).await;
            } else if frame["type"] == "invokefunction" {
                let files = json!({"files": [{"path": frame["data"]["path"]}]});
                let result = json!({"type": "invocationresult", "invocation_id": frame["invocation_id"],
                                    "function_id": frame["function_id"], "result": files});
                bus.send(result).await;
            }
        }
    });
    // Its node tells the others that it is there.
    let begun = std::time::Instant::now();
    while world.call("session::turn::drivers", &json!({}), None).await.as_array().is_none_or(Vec::is_empty) {
        assert!(begun.elapsed() < PATIENCE, "{name} is not attached");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Counted from the event that its session gets with the request.
#[then(regex = r#"^(\w+) gets within (\d+) s of (\{.*\}) for (\w+): (\{.*\})$"#)]
async fn gets_within(
    world: &mut GatewayWorld,
    driver: String,
    seconds: i64,
    asked: String,
    listener: String,
    expected: String,
) {
    gets(world, driver.clone(), expected).await;
    let heard_at = now_ms();
    let kind = world.json(&asked)["type"].as_str().expect("a type").to_owned();
    let frame = world.client(&listener).expect(&kind).await;
    world.compare(&asked, &frame);
    let took = heard_at - frame["ts"].as_i64().expect("a time");
    assert!(took <= seconds * 1000, "{driver} was asked after {took} ms");
}

/// A value of every field that an event must have.
fn sample(event: &EventName, number: usize) -> Value {
    let mut sample = json!({ "type": event.name });
    for field in event.fields.iter().filter(|field| field.required) {
        sample[field.name] = match field.kind {
            Kind::Text | Kind::TextOrNull | Kind::Any => json!(format!("x{number}")),
            Kind::Int | Kind::IntOrNull => json!(1),
            Kind::Bool => json!(true),
            Kind::Object => json!({}),
            Kind::List => json!([]),
            Kind::State => json!("ready"),
            Kind::OneOf(words) => json!(words[0]),
        };
    }
    // Requests have an id, whatever else they have.
    if event.name.ends_with("_request") {
        sample["requestId"] = json!(format!("x{number}"));
    }
    sample
}

/// What ends a turn, or takes the session out of it. `error` is the session model's name of a failed turn.
const ENDS: [&str; 4] = ["turn_complete", "turn_error", "session_state", "error"];

/// In one turn each, because they end it; all others in one turn.
#[then(
    regex = r#"^every name that (\w+) emits in "(\w+)" is taken or refused as the table says, and (\w+) hears of it$"#
)]
async fn every_name(world: &mut GatewayWorld, driver: String, session: String, listener: String) {
    let (ending, others): (Vec<&EventName>, Vec<&EventName>) =
        EVENTS.iter().partition(|event| ENDS.contains(&event.name));
    let turns = std::iter::once(others).chain(ending.into_iter().map(|event| vec![event]));
    for (number, names) in turns.enumerate() {
        let turn = format!("turn{number}");
        runs_a_turn(world, listener.clone(), turn.clone(), session.clone(), driver.clone()).await;
        let mut n = 1;
        for (number, event) in names.iter().enumerate() {
            let events = [sample(event, number)];
            let batch = json!({"type": "emit", "turn_id": world.variables[&turn], "n": n, "events": events});
            world.client(&driver).send(batch).await;
            let answer = loop {
                let frame = world.client(&driver).frame().await;
                if frame["type"] == "error" || frame["type"] == "emitted" {
                    break frame;
                }
            };
            let is_taken = event.is_a_drivers() || event.name == "error";
            match is_taken {
                true => assert_eq!(answer["type"], "emitted", "{}: {answer}", event.name),
                false => assert_eq!(answer["code"], "INVALID_MESSAGE", "{}: {answer}", event.name),
            }
            if !is_taken {
                continue;
            }
            n += 1;
            let name = if event.name == "error" { "turn_error" } else { event.name };
            // The store says the same name of its own accord, too.
            let heard = loop {
                let heard = world.client(&listener).expect(name).await;
                if heard["seq"] == answer["seqs"][0] {
                    break heard;
                }
            };
            let is_numbered = event.is_numbered() || event.name == "error";
            assert_eq!(heard["seq"].is_u64(), is_numbered, "{heard}");
            assert!(
                !is_numbered || (heard["ts"].is_i64() && heard["sessionId"] == world.variables[&session]),
                "{heard}"
            );
        }
        if number == 0 {
            emit_as(world, &driver, &turn, n, vec![json!({"type": "turn_complete", "finalText": "all"})]).await;
        } else if names[0].name == "session_state" {
            emit_as(world, &driver, &turn, n, vec![json!({"type": "turn_complete", "finalText": "one"})]).await;
        }
    }
}

/// The journal has exactly the kept ones, each once.
#[then(regex = r#"^the journal of "(\w+)" has every kept name and no other for (\w+)$"#)]
async fn the_journal_has(world: &mut GatewayWorld, session: String, name: String) {
    let (mut found, mut after) = (BTreeSet::new(), 0);
    loop {
        let ask = json!({"type": "get_events", "sessionId": world.variables[&session], "afterSeq": after});
        world.client(&name).send(ask).await;
        let events = world.client(&name).expect("events").await["events"].as_array().expect("a list").clone();
        let Some(last) = events.last() else { break };
        after = last["seq"].as_u64().expect("a number");
        found.extend(events.iter().map(|event| event["type"].as_str().expect("a name").to_owned()));
    }
    // The store's own kept events come from people: nobody answered or set anything here.
    let kept = EVENTS.iter().filter(|event| event.class == Class::Kept && event.origin != Origin::Store);
    assert_eq!(found, kept.map(|event| event.name.to_owned()).collect());
}

/// How long a kept event may take to a client that reads. One that hangs would delay it for ever.
const DELAY_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// Far more than the buffers of a socket and of a node. Each batch has a kept event, which the reader hears at once.
#[when(regex = r#"^(\w+) emits (\d+) batches of 256 KiB in "(\w+)" while (\w+) reads$"#)]
async fn emits_much(world: &mut GatewayWorld, name: String, batches: usize, turn: String, reader: String) {
    for batch in 0..batches {
        let part = || json!({"type": "terminal_stream", "data": "x".repeat(32 << 10)});
        let mut events: Vec<Value> = (0..8).map(|_| part()).collect();
        events.push(json!({"type": "tool_call", "toolCallId": format!("c{batch}"), "toolName": "ls", "args": {}}));
        emit(world, &name, &turn, events).await;
        let emitted = std::time::Instant::now();
        let heard = world.client(&reader).expect("tool_call").await;
        assert_eq!(heard["toolCallId"], format!("c{batch}"));
        assert!(emitted.elapsed() < DELAY_MAX, "batch {batch} came after {:?}", emitted.elapsed());
    }
}

/// Every number once, as an event or in a gap, and all of the kept events.
#[then(regex = r#"^(\w+) gets (\d+) tool calls, and a gap for what (?:he|she) missed$"#)]
async fn gets_kept_and_gaps(world: &mut GatewayWorld, name: String, calls: usize) {
    let (kept, missed) = world.client(&name).follow_turn().await;
    assert_eq!(kept.len(), calls);
    assert!(missed > 0, "what was not kept was told as gaps");
}

#[given(regex = r#"^(\w+) has a session "(\w+)"$"#)]
async fn has_a_session(world: &mut GatewayWorld, name: String, variable: String) {
    let create = json!({"type": "create_session", "agentType": "coder", "name": variable});
    world.client(&name).send(create).await;
    let created = world.client(&name).expect("session_created").await;
    world.variables.insert(variable, created["session"]["id"].clone());
}

/// The driver takes the turn that a client asks for. Binds its id.
#[given(regex = r#"^(\w+) runs the turn "(\w+)" of "(\w+)" with (\w+)$"#)]
#[when(regex = r#"^(\w+) runs the turn "(\w+)" of "(\w+)" with (\w+)$"#)]
async fn runs_a_turn(world: &mut GatewayWorld, name: String, turn: String, session: String, driver: String) {
    let id = world.variables[&session].clone();
    let run = json!({"type": "run_turn", "sessionId": id, "text": format!("please {turn}"), "clientTurnId": turn});
    world.client(&name).send(run).await;
    let command = world.client(&driver).expect("driver_command").await;
    assert_eq!(command["command"], "run_turn", "{command}");
    let accepted = json!({"type": "command_result", "command_id": command["command_id"], "accepted": true});
    world.client(&driver).send(accepted).await;
    world.batches.insert(driver, 1);
    world.variables.insert(turn, command["turn_id"].clone());
}

#[then(regex = r#"^the numbers of (\w+) only grow in (\d+) sessions that are joined while (\w+) takes their turns$"#)]
async fn numbers_grow(world: &mut GatewayWorld, name: String, sessions: usize, driver: String) {
    for number in 0..sessions {
        let (session, turn) = (format!("s{number}"), format!("t{number}"));
        has_a_session(world, name.clone(), session.clone()).await;
        runs_a_turn(world, name.clone(), turn.clone(), session.clone(), driver.clone()).await;
        let join = json!({"type": "join_session", "sessionId": world.variables[&session]});
        world.client(&name).send(join).await;
        // The driver has the turn, and the client has joined.
        world.client(&driver).expect("turn_claimed").await;
        let mut frames = vec![];
        while !frames.iter().any(|frame: &Value| frame["type"] == "state_snapshot") {
            frames.push(world.client(&name).frame().await);
        }
        emit(world, &driver, &turn, vec![json!({"type": "turn_complete", "finalText": "done"})]).await;
        while frames.last().is_none_or(|frame| frame["type"] != "turn_complete") {
            frames.push(world.client(&name).frame().await);
        }
        let seqs: Vec<u64> = frames.iter().filter_map(|frame| frame["seq"].as_u64()).collect();
        assert!(seqs.is_sorted_by(|one, next| one < next), "{seqs:?} in {session}");
    }
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

/// The turn ends with all that its deltas said.
#[when(regex = r#"^(\w+) ends "(\w+)" with (\d+) deltas, and (\w+) joins "(\w+)" after (\d+)$"#)]
async fn emits_around_a_join(
    world: &mut GatewayWorld,
    driver: String,
    turn: String,
    count: usize,
    joiner: String,
    session: String,
    first: usize,
) {
    let texts: Vec<String> = (0..count).map(|n| format!("w{n} ")).collect();
    let join = json!({"type": "join_session", "sessionId": world.variables[&session]});
    for (n, text) in texts.iter().enumerate() {
        if n == first {
            // The rest is emitted while the client joins.
            world.client(&joiner).send(join.clone()).await;
        }
        emit(world, &driver, &turn, vec![json!({"type": "text_delta", "text": text})]).await;
    }
    emit(world, &driver, &turn, vec![json!({"type": "turn_complete", "finalText": texts.concat()})]).await;
}

#[then(regex = r#"^the text so far that (\w+) gets and the deltas after it are the final text$"#)]
async fn text_so_far_and_deltas(world: &mut GatewayWorld, name: String) {
    let client = world.client(&name);
    let turn = client.expect("state_snapshot").await["currentTurn"].take();
    let mut text = turn["textSoFar"].as_str().expect("a text").to_owned();
    let as_of = turn["asOfSeq"].as_u64().expect("a number");
    loop {
        let frame = client.frame().await;
        match frame["type"].as_str() {
            Some("text_delta") if frame["seq"].as_u64() > Some(as_of) => {
                text += frame["text"].as_str().expect("a text")
            }
            Some("turn_complete") => return assert_eq!(text, frame["finalText"].as_str().expect("a text")),
            _other => {}
        }
    }
}

async fn emit_as(world: &mut GatewayWorld, name: &str, turn: &str, n: u64, events: Vec<Value>) {
    world.batches.insert(name.to_owned(), n);
    emit(world, name, turn, events).await;
}

async fn emit(world: &mut GatewayWorld, name: &str, turn: &str, events: Vec<Value>) {
    let (turn_id, n) = (world.variables[turn].clone(), world.batches[name]);
    let client = world.client(name);
    let batch = json!({"type": "emit", "turn_id": turn_id, "n": n, "events": events});
    client.send(batch).await;
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
