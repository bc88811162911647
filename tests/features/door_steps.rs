//! Owns: the steps of scenarios tagged @door, but for streams and sockets.

use cucumber::gherkin::Step;
use cucumber::{given, then, when};
use serde_json::{Value, json};
use session_manager::access::token::TokenHash;

use crate::door::{AGENT, DoorWorld, PATIENCE, jwt};
use crate::door_client::{Client, Turn};
use crate::door_nodes::Place;
use crate::json_shorthand;

/// The rows of a step's table, without its head.
pub fn rows(step: &Step) -> &[Vec<String>] {
    &step.table.as_ref().expect("the step has a table").rows[1..]
}

/// An id as a part of a path.
pub fn encoded(id: &str) -> String {
    id.replace('%', "%25").replace(':', "%3A").replace('/', "%2F")
}

// What a scenario starts from.

#[given("an agent")]
async fn an_agent(world: &mut DoorWorld) {
    world.start_nodes("{}").await;
}

#[given(regex = r"^an agent with the settings (\{.*\})$")]
async fn an_agent_with(world: &mut DoorWorld, settings: String) {
    world.start_nodes(&settings).await;
}

#[given("an agent among people")]
async fn an_agent_among_people(world: &mut DoorWorld) {
    world.start_nodes_with_people().await;
}

#[given(regex = r#"^(\w+) has the session "(.*?)"$"#)]
#[when(regex = r#"^(\w+) opens the session "(.*?)"$"#)]
async fn has_the_session(world: &mut DoorWorld, name: String, session: String) {
    let source = json!({ "kind": "cli", "interactive": true });
    open(world, &name, &session, source).await;
}

#[given(regex = r#"^(\w+) has the group "(.*?)"$"#)]
async fn has_the_group(world: &mut DoorWorld, name: String, session: String) {
    let source = json!({ "kind": "channel", "interactive": true, "platform": "telegram", "type": "group" });
    open(world, &name, &session, source).await;
}

async fn open(world: &mut DoorWorld, name: &str, session: &str, source: Value) {
    let opened = world.client(name).post("/sessions", &json!({ "sessionId": session, "source": source })).await;
    assert_eq!(opened, json!({ "sessionId": session }));
}

#[given(regex = r#"^(\w+) appended (\d+) messages? to "(.*?)"$"#)]
async fn appended(world: &mut DoorWorld, name: String, count: usize, session: String) {
    let (client, path) = (world.client(&name), format!("/sessions/{}/messages?append=true", encoded(&session)));
    for n in 1..=count {
        let answer = client.post(&path, &json!({ "text": format!("note {n}") })).await;
        assert_eq!(answer, json!({ "sessionId": session, "appended": true }));
    }
}

#[given(regex = r#"^(\w+) posted (\d+) messages to "(.*?)" that mention nobody$"#)]
async fn posted(world: &mut DoorWorld, name: String, count: usize, session: String) {
    let (client, path) = (world.client(&name), format!("/sessions/{}/messages", encoded(&session)));
    for n in 1..=count {
        let answer = client.post(&path, &json!({ "text": format!("aside {n}"), "mentioned": false })).await;
        assert_eq!(answer["triggered"], false, "{answer}");
    }
}

/// Its token is its name, as that of every client here.
#[given(regex = r#"^the adapter (\w+) of "(.*?)"$"#)]
async fn the_adapter(world: &mut DoorWorld, name: String, namespace: String) {
    let digest = TokenHash::of(&name).to_string();
    let set = json!({ "agent_id": AGENT, "namespace": namespace, "digest": digest });
    assert_eq!(world.program().call("session::identity::set-channel-token", &set).await["set"], true);
}

#[given(regex = r"^(\w+) is at the (leader|follower)$")]
async fn is_at(world: &mut DoorWorld, name: String, place: String) {
    world.places.insert(name, if place == "leader" { Place::Leader } else { Place::Clients });
}

// Functions of the node, in the words of the other features.

#[given(regex = r#"^I called "(.*?)" with (\{.*\})$"#)]
async fn i_called(world: &mut DoorWorld, function: String, body: String) {
    let body = world.json(&body);
    world.program().call(&function, &body).await;
}

#[given(regex = r#"^calling "(.*?)" with (\{.*\}) answered (\{.*\})$"#)]
#[then(regex = r#"^reading "(.*?)" with (\{.*\}) answers (\{.*\})$"#)]
async fn reading_answers(world: &mut DoorWorld, function: String, body: String, expected: String) {
    let body = world.json(&body);
    let answer = world.program().call(&function, &body).await;
    world.compare(&expected, &answer, false);
}

// Requests and answers.

#[given(regex = r#"^(\w+) sends ([A-Z]+) "(.*?)"(?: with (.*))?$"#)]
#[when(regex = r#"^(\w+) sends ([A-Z]+) "(.*?)"(?: with (.*))?$"#)]
async fn sends(world: &mut DoorWorld, name: String, method: String, path: String, body: String) {
    let body = json_shorthand::expand(&body, &world.variables);
    let answer = world.client(&name).send(&method, &path, &body).await;
    world.answered(&name, std::future::ready(answer));
}

/// Its answer may need what other steps do.
#[when(regex = r#"^(\w+) begins to send ([A-Z]+) "(.*?)"(?: with (.*))?$"#)]
async fn begins_to_send(world: &mut DoorWorld, name: String, method: String, path: String, body: String) {
    let (client, body) = (world.client(&name), json_shorthand::expand(&body, &world.variables));
    let sent = tokio::spawn(async move { client.send(&method, &path, &body).await });
    world.answered(&name, async move { sent.await.expect("an answer") });
}

#[then(regex = r#"^(\w+) gets (\d+) (\{.*\}|\[.*\]|".*")$"#)]
async fn gets(world: &mut DoorWorld, name: String, status: u16, expected: String) {
    let (found, answer) = world.answer(&name).await;
    assert_eq!(found, status, "{answer}");
    world.compare(&expected, &answer, false);
}

#[then(regex = r"^(\w+) gets exactly (\d+) (\{.*\}|\[.*\])$")]
async fn gets_exactly(world: &mut DoorWorld, name: String, status: u16, expected: String) {
    let (found, answer) = world.answer(&name).await;
    assert_eq!(found, status, "{answer}");
    world.compare(&expected, &answer, true);
}

#[then(regex = r"^one of (\w+) and (\w+) gets (\d+) (\{.*\}), and the other (\{.*\})$")]
async fn one_gets(world: &mut DoorWorld, one: String, two: String, status: u16, this: String, that: String) {
    let (one, two) = (world.answer(&one).await, world.answer(&two).await);
    assert_eq!((one.0, two.0), (status, status), "{} {}", one.1, two.1);
    let (this, that) = (world.json(&this), world.json(&that));
    let straight = world.is_as(&this, &one.1).and(world.is_as(&that, &two.1));
    let crossed = world.is_as(&this, &two.1).and(world.is_as(&that, &one.1));
    assert!(straight.is_ok() || crossed.is_ok(), "{} and {}", one.1, two.1);
}

/// Asks until it is so: what one node did, another one shows soon.
#[given(regex = r#"^the summary of "(.*?)" is (\{.*\})$"#)]
#[then(regex = r#"^the summary of "(.*?)" is (\{.*\})$"#)]
async fn the_summary_is(world: &mut DoorWorld, session: String, expected: String) {
    let (expected, begun) = (world.json(&expected), tokio::time::Instant::now());
    loop {
        let summary = summary(&world.client("Ops"), &session).await;
        match world.is_as(&expected, &summary) {
            Ok(()) => return,
            Err(difference) => assert!(begun.elapsed() < PATIENCE, "{difference}\nin {summary}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn summary(client: &Client, session: &str) -> Value {
    let list = client.get("/sessions?includeInactive=true").await;
    let rows = list.as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["sessionId"] == session).unwrap_or_default()
}

/// Each row is a request, its status and the code of its error.
#[then("each of these requests is refused, and nothing changes:")]
async fn are_refused(world: &mut DoorWorld, step: &Step) {
    let client = world.client("Ops");
    let before = client.get("/sessions?includeInactive=true").await;
    for row in rows(step) {
        let [method, path, body, status] = &row[..] else { panic!("four cells: {row:?}") };
        let body = json_shorthand::expand(body, &world.variables);
        let (found, answer) = client.send(method, path, &body).await;
        let code = if status == "404" { "not_found" } else { "validation_error" };
        assert_eq!((found.to_string().as_str(), &answer["error"]["code"]), (status.as_str(), &json!(code)), "{row:?}");
        assert!(answer["error"]["message"].as_str().is_some_and(|words| !words.is_empty()), "{row:?}: {answer}");
    }
    assert_eq!(client.get("/sessions?includeInactive=true").await, before);
}

#[then(regex = r#"^with the header "(.*)" ([A-Z]+) "(.*?)" gets (\d+) "(\w+)"$"#)]
async fn with_the_header(
    world: &mut DoorWorld,
    header: String,
    method: String,
    path: String,
    status: u16,
    code: String,
) {
    let is_login = header.is_empty() || header.starts_with("authorization");
    let token = (!is_login).then(|| "Ops".to_owned());
    let client = Client { token, ..world.client("Ops") };
    let headers: Vec<&str> = [header.as_str()].into_iter().filter(|header| !header.is_empty()).collect();
    let (found, answer) = client.send_with(&method, &path, &headers, "").await;
    let told = answer["error"]["code"].as_str().or(answer["status"].as_str());
    assert_eq!((found, told), (status, Some(code.as_str())), "{answer}");
}

// People.

/// Each row is a request of somebody about two sessions: one of others, and one that is not there.
#[then(regex = r#"^(\w+) gets the same answer about "(.*?)" as about "(.*?)", which is not there:$"#)]
async fn the_same_answer(world: &mut DoorWorld, name: String, there: String, nowhere: String, step: &Step) {
    let client = world.client(&name);
    for row in rows(step) {
        let [method, path, body] = &row[..] else { panic!("three cells: {row:?}") };
        let ask = async |session: &str| {
            client.send(method, &path.replace("SESSION", &encoded(session)), &body.replace("SESSION", session)).await
        };
        let (found, missing) = (ask(&there).await, ask(&nowhere).await);
        let renamed = missing.1.to_string().replace(&nowhere, &there);
        assert_eq!((found.0, found.1.to_string()), (404, renamed), "{row:?}");
        assert_eq!(found.1["error"]["code"], "not_found", "{row:?}");
    }
}

/// A person's token opens nothing at the doors that know no participants.
#[then(regex = r"^these functions show (\w+) nothing:$")]
async fn functions_show_nothing(world: &mut DoorWorld, name: String, step: &Step) {
    let client = world.client(&name);
    for row in rows(step) {
        let (status, answer) = client.try_call(&row[0], &world.json(&row[1])).await;
        let is_nothing = status == 200 && (answer.is_null() || answer["sessions"] == json!([]));
        assert!(is_nothing || [403, 404].contains(&status), "{row:?}: {status} {answer}");
    }
}

#[then("nobody gets in with a token that is wrong, or signed with another key")]
async fn nobody_gets_in(world: &mut DoorWorld) {
    for wrong in ["nobody".to_owned(), jwt("ann", "another secret of thirty-two byte")] {
        let client = Client { token: Some(wrong), ..world.client("Ops") };
        assert_eq!(client.send("GET", "/sessions", "").await.0, 401);
        assert_eq!(client.connect(AGENT).await.err(), Some(401));
    }
}

#[then(regex = r#"^at the agent "(.*?)" (\w+) gets (\d+), and (\d+) at its socket$"#)]
async fn at_the_agent(world: &mut DoorWorld, agent: String, name: String, status: u16, at_socket: u16) {
    let client = Client { agent: agent.clone(), ..world.client(&name) };
    assert_eq!(client.send("GET", "/sessions", "").await.0, status);
    assert_eq!(client.connect(&agent).await.err(), Some(at_socket));
}

/// Each row is a message in a group: the role of its sender, whether it is directed at the agent, and what the agent reads.
#[then(regex = r#"^messages of Ann in "(.*?)" reach the driver (\w+) so:$"#)]
async fn messages_reach(world: &mut DoorWorld, session: String, driver: String, step: &Step) {
    let (client, program) = (world.client("Ann"), world.program());
    let path = format!("/sessions/{}/messages", encoded(&session));
    for (n, row) in rows(step).iter().enumerate() {
        let [role, mentioned, prompt] = &row[..] else { panic!("three cells: {row:?}") };
        let id = format!("{role}-{n}");
        if role != "unknown" {
            let identity = json!({ "channel": "telegram", "channel_user_id": id });
            let linked = program.call("session::identity::link", &identity).await;
            let set = json!({ "agent_id": AGENT, "user_id": linked["user_id"], "role": role });
            program.call("session::identity::set-role", &set).await;
        }
        let sender = json!({ "channel": "telegram", "channelUserId": id, "displayName": "Ann" });
        let mut message = json!({ "text": format!("text {n}"), "sender": sender });
        if mentioned != "absent" {
            message["mentioned"] = json!(mentioned == "true");
        }
        let posted = client.post(&path, &message).await;
        assert_eq!(posted["triggered"], !prompt.is_empty(), "{row:?}: {posted}");
        if !prompt.is_empty() {
            let mut turn = Turn::take(&program, &driver).await;
            assert_eq!(turn.requested["prompt_text"], prompt.replace("TEXT", &format!("text {n}")), "{row:?}");
            assert_eq!(turn.requested["text"], format!("text {n}"), "{row:?}");
            turn.emit(json!([{ "type": "agent_end" }])).await;
        }
    }
    let history = client.get(&path).await;
    let stored = history.as_array().expect("rows").iter().filter(|row| row["role"] == "user");
    let texts: Vec<String> = stored.map(|row| row["content"].as_str().expect("a text").to_owned()).collect();
    assert_eq!(texts, (0..rows(step).len()).map(|n| format!("text {n}")).collect::<Vec<String>>());
}

// Drivers and workers.

#[when(regex = r"^the driver (\w+) echoes$")]
async fn echoes(world: &mut DoorWorld, driver: String) {
    Turn::take(&world.program(), &driver).await.echo().await;
}

#[given(regex = r#"^the driver (\w+) echoed (\d+) messages? in "(.*?)"$"#)]
async fn echoed(world: &mut DoorWorld, driver: String, count: usize, session: String) {
    let (client, program) = (world.client("Ann"), world.program());
    for n in 1..=count {
        let path = format!("/sessions/{}/messages", encoded(&session));
        let posted = client.post(&path, &json!({ "text": format!("question {n}") })).await;
        assert_eq!(posted["triggered"], true, "{posted}");
        Turn::take(&program, &driver).await.echo().await;
    }
}

#[when(regex = r#"^the driver (\w+) takes the turn of "(.*?)"$"#)]
async fn takes_the_turn(world: &mut DoorWorld, driver: String, text: String) {
    let turn = Turn::take(&world.program(), &driver).await;
    assert_eq!(turn.requested["text"], text, "{}", turn.requested);
    world.turns.insert(driver, turn);
}

#[when(regex = r"^(\w+) emits (\{.*\})$")]
async fn emits(world: &mut DoorWorld, driver: String, event: String) {
    let event = world.json(&event);
    world.turn(&driver).emit(json!([event])).await;
}

/// One batch each.
#[when(regex = r"^(\w+) emits (\d+) deltas$")]
async fn emits_deltas(world: &mut DoorWorld, driver: String, count: usize) {
    let turn = world.turn(&driver);
    for n in 0..count {
        turn.emit(json!([{ "type": "text_delta", "text": format!("{n} ") }])).await;
    }
}

#[when(regex = r"^(\w+) completes the turn$")]
async fn completes(world: &mut DoorWorld, driver: String) {
    world.turn(&driver).complete().await;
}

/// Two drivers ask for each turn at the same time.
#[then(regex = r#"^(\w+) and (\w+) run (\d+) turns of "(.*?)", each one of them, in the order of the history$"#)]
async fn two_drivers(world: &mut DoorWorld, one: String, two: String, count: usize, session: String) {
    let (client, program) = (world.client("Ann"), world.program());
    let history = client.get(&format!("/sessions/{}/messages", encoded(&session))).await;
    for n in 0..count {
        let asked = Turn::wait(&program).await;
        let claims = tokio::join!(Turn::claim(&program, &one, &asked), Turn::claim(&program, &two, &asked));
        let mut turn = match claims {
            (Some(turn), None) | (None, Some(turn)) => turn,
            (Some(_), Some(_)) => panic!("both drivers have the turn"),
            (None, None) => panic!("no driver has the turn"),
        };
        assert_eq!(turn.requested["text"], history[n]["content"], "{history}");
        // Nobody gets the next turn before this one ends.
        let pending = program.call("session::turn::pending", &json!({ "agent_id": AGENT })).await;
        for next in pending["turns"].as_array().expect("a list") {
            assert!(Turn::claim(&program, &two, next).await.is_none(), "two turns of a session at once: {next}");
        }
        turn.emit(json!([{ "type": "text_delta", "text": format!("reply {n}") }])).await;
        turn.complete().await;
    }
}

#[given(regex = r"^the worker (\w+)$")]
async fn the_worker(world: &mut DoorWorld, worker: String) {
    let requests = world.program().feed("session::checkpoint::requested").await;
    world.requests.insert(worker, requests);
}

/// The next request, and no other before it. Binds nothing but what the step names.
#[then(regex = r"^(\w+) is asked for the checkpoint (\{.*\})$")]
#[when(regex = r"^(\w+) is asked for the checkpoint (\{.*\})$")]
async fn is_asked(world: &mut DoorWorld, worker: String, expected: String) {
    let frame = world.requests.get_mut(&worker).expect("a worker").next().await.expect("a request");
    world.compare(&expected, &frame.data, false);
    world.variables.insert(worker, frame.data["checkpoint_id"].clone());
}

#[when(regex = r"^(\w+) takes it, and ends it with (\{.*\})$")]
async fn ends_it(world: &mut DoorWorld, worker: String, result: String) {
    let (program, checkpoint_id) = (world.program(), world.variables[&worker].clone());
    let claim = json!({ "checkpoint_id": checkpoint_id, "driver_id": worker });
    assert_eq!(program.call("session::checkpoint::claim", &claim).await["claimed"], true);
    let mut result = world.json(&result);
    result["checkpoint_id"] = checkpoint_id;
    let ended = program.call("session::checkpoint::result", &result).await;
    assert_eq!(ended, json!({ "accepted": true, "checkpointed": result["success"] }));
}

// The nodes.

#[when("the leader is killed")]
async fn the_leader_is_killed(world: &mut DoorWorld) {
    world.nodes().kill(Place::Leader).await;
}

#[when(regex = r"^the node of (\w+) is killed$")]
async fn the_node_is_killed(world: &mut DoorWorld, name: String) {
    let place = world.places[&name];
    world.nodes().kill(place).await;
    let elsewhere = [Place::Leader, Place::Clients].into_iter().find(|place| world.nodes().is_up(*place));
    world.places.insert(name, elsewhere.expect("a node without drivers"));
}

#[when("the nodes restart")]
async fn the_nodes_restart(world: &mut DoorWorld) {
    world.streams.clear();
    world.nodes().restart().await;
}
