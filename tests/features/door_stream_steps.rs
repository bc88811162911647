//! Owns: the steps of scenarios tagged @door about streams of events and about the WebSocket.

use std::collections::{BTreeMap, BTreeSet};

use cucumber::gherkin::Step;
use cucumber::{given, then, when};
use serde_json::{Value, json};

use crate::door::{AGENT, DoorWorld};
use crate::door_client::Frame;
use crate::door_steps::{encoded, rows};

// Server-sent events.

#[given(regex = r#"^(\w+) follows "(.*?)"$"#)]
#[when(regex = r#"^(\w+) follows "(.*?)"$"#)]
async fn follows(world: &mut DoorWorld, name: String, session: String) {
    world.seen.remove(&name);
    follow(world, &name, &session, &[]).await;
}

#[when(regex = r#"^(\w+) follows "(.*?)" after (\d+)$"#)]
async fn follows_after(world: &mut DoorWorld, name: String, session: String, seen: u64) {
    world.seen.remove(&name);
    follow(world, &name, &session, &[&format!("last-event-id: {seen}")]).await;
}

/// At the node where the client is now. Its next number is the one after the last that it has seen.
#[when(regex = r#"^(\w+) follows "(.*?)" there, after what \w+ has seen$"#)]
async fn follows_on(world: &mut DoorWorld, name: String, session: String) {
    let seen = world.seen(&name).last().and_then(|frame| frame.id.clone()).expect("a number");
    follow(world, &name, &session, &[&format!("last-event-id: {seen}")]).await;
}

/// Binds `next`, the number of the next event.
async fn follow(world: &mut DoorWorld, name: &str, session: &str, headers: &[&str]) {
    let path = format!("/sessions/{}/events", encoded(session));
    let mut stream = world.client(name).stream("GET", &path, headers, "").await;
    let ready = stream.next().await.expect("a frame");
    assert_eq!((ready.event.as_str(), &ready.id, &ready.data["sessionId"]), ("ready", &None, &json!(session)));
    world.variables.insert("next".to_owned(), ready.data["nextEventId"].clone());
    world.streams.insert(name.to_owned(), stream);
}

#[then(regex = r"^\w+ is told that the next number is (\d+)$")]
async fn the_next_number(world: &mut DoorWorld, next: u64) {
    assert_eq!(world.variables["next"], next);
}

#[when(regex = r#"^(\w+) streams "(.*?)" as "(.*?)" in "(.*?)"$"#)]
async fn streams(world: &mut DoorWorld, name: String, text: String, message_id: String, session: String) {
    world.seen.remove(&name);
    let path = format!("/sessions/{}/messages?stream=true", encoded(&session));
    let body = json!({ "text": text, "messageId": message_id }).to_string();
    let stream = world.client(&name).stream("POST", &path, &[], &body).await;
    world.streams.insert(name, stream);
}

/// These frames and no others in between: number, type, and what the data has.
#[then(regex = r"^(\w+)'s stream shows exactly:$")]
async fn shows_exactly(world: &mut DoorWorld, name: String, step: &Step) {
    for row in rows(step) {
        let [id, event, data] = &row[..] else { panic!("three cells: {row:?}") };
        let frame = world.frame(&name).await.expect("a frame");
        let number = frame.id.clone().unwrap_or_default();
        assert_eq!((number.as_str(), &frame.event), (id.as_str(), event), "{frame:?}");
        world.compare(data, &frame.data, false);
        if frame.id.is_some() {
            assert_eq!((&frame.data["eventId"], &frame.data["type"]), (&json!(number), &json!(event)), "{frame:?}");
        }
    }
}

#[then(regex = r#"^(\w+)'s stream goes on until "(.*?)"$"#)]
#[when(regex = r#"^(\w+)'s stream goes on until "(.*?)"$"#)]
async fn goes_on_until(world: &mut DoorWorld, name: String, event: String) {
    while world.frame(&name).await.expect("more of the stream").event != event {}
}

#[then(regex = r"^(\w+)'s stream shows the numbers from (\d+) to (\d+)$")]
async fn shows_numbers(world: &mut DoorWorld, name: String, first: u64, last: u64) {
    for id in first..=last {
        let frame = world.frame(&name).await.expect("a frame");
        assert_eq!(frame.id, Some(id.to_string()), "{frame:?}");
    }
}

#[then(regex = r"^(\w+)'s stream ends$")]
async fn ends(world: &mut DoorWorld, name: String) {
    assert_eq!(world.frame(&name).await, None);
}

/// `DoorWorld::frame` has compared each number with the one before.
#[then(regex = r#"^(\w+) has seen every number from 1 to that of "(.*?)"$"#)]
async fn has_seen_all(world: &mut DoorWorld, name: String, event: String) {
    let seen = world.seen(&name);
    assert_eq!(seen.first().and_then(|frame| frame.id.as_deref()), Some("1"));
    let last = seen.last().expect("frames");
    assert_eq!((&last.event, &last.id), (&event, &Some(seen.len().to_string())));
}

#[then(regex = r"^the deltas that (\w+) has seen are (\d+), and the final text$")]
async fn deltas_are_the_text(world: &mut DoorWorld, name: String, count: usize) {
    let of = |kind: &str| -> Vec<&str> {
        let frames = world.seen(&name).iter().filter(|frame| frame.event == kind);
        frames.map(|frame: &Frame| frame.data["text"].as_str().expect("a text")).collect()
    };
    let deltas = of("text_delta");
    assert_eq!((deltas.len(), of("text_final")), (count, vec![deltas.concat().as_str()]));
}

#[then(regex = r#"^(\w+) has seen each of these once: (".*")$"#)]
async fn has_seen_once(world: &mut DoorWorld, name: String, kinds: String) {
    let kinds: Vec<String> = serde_json::from_str(&format!("[{kinds}]")).expect("names");
    for kind in kinds {
        assert_eq!(world.seen(&name).iter().filter(|frame| frame.event == kind).count(), 1, "{kind}");
    }
}

#[then(regex = r#"^what (\w+) has seen belongs to "(.*?)"$"#)]
async fn belongs_to(world: &mut DoorWorld, name: String, message_id: String) {
    let seen = world.seen(&name);
    assert!(!seen.is_empty() && seen.iter().all(|frame| frame.data["correlationId"] == message_id), "{seen:?}");
}

// The WebSocket.

#[given(regex = r"^(\w+) has a socket$")]
#[when(regex = r"^(\w+) opens a socket$")]
async fn opens_a_socket(world: &mut DoorWorld, name: String) {
    let socket = world.client(&name).connect(AGENT).await.expect("the upgrade");
    world.sockets.insert(name, socket);
}

#[when(regex = r#"^(\w+) asks "(.*?)" with (\{.*\})$"#)]
async fn asks(world: &mut DoorWorld, name: String, method: String, params: String) {
    let params = world.json(&params);
    let response = world.socket(&name).ask(&method, &params).await;
    world.responses.insert(name, response);
}

#[then(regex = r#"^(\w+) hears (\{.*\}|\[.*\]|".*")$"#)]
async fn hears(world: &mut DoorWorld, name: String, expected: String) {
    let response = world.responses.remove(&name).expect("a response");
    assert_eq!(response.get("error"), None, "{response}");
    world.compare(&expected, &response["result"], true);
}

/// The events that came before the last response.
#[then(regex = r"^before that came the events (\d+) to (\d+) to (\w+)$")]
async fn before_that(world: &mut DoorWorld, first: u64, last: u64, name: String) {
    let pushed: Vec<Value> = world.socket(&name).pushed.drain(..).collect();
    let ids: Vec<u64> = pushed.iter().filter_map(|event| event["eventId"].as_u64()).collect();
    assert_eq!(ids, (first..=last).collect::<Vec<u64>>(), "{pushed:?}");
}

#[then(regex = r"^(\w+)'s socket shows (\{.*\})$")]
async fn socket_shows(world: &mut DoorWorld, name: String, expected: String) {
    let event = world.socket(&name).event().await;
    world.compare(&expected, &event, false);
}

/// Each row is a request, its parameters and the code of its error.
#[then(regex = r"^these requests on (\w+)'s socket are refused:$")]
async fn are_refused(world: &mut DoorWorld, name: String, step: &Step) {
    for row in rows(step) {
        let [method, params, code] = &row[..] else { panic!("three cells: {row:?}") };
        let params = world.json(params);
        let response = world.socket(&name).ask(method, &params).await;
        assert_eq!(response["error"]["code"], *code, "{row:?}: {response}");
        assert!(response["error"]["message"].as_str().is_some_and(|words| !words.is_empty()), "{response}");
    }
}

#[then(regex = r#"^the text "(.*)" on (\w+)'s socket is refused as "(\w+)" with the id "(.*)"$"#)]
async fn text_is_refused(world: &mut DoorWorld, text: String, name: String, code: String, id: String) {
    let socket = world.socket(&name);
    socket.say(text).await;
    let refused = socket.hear().await;
    assert_eq!((&refused["kind"], &refused["id"]), (&json!("response"), &json!(id)), "{refused}");
    assert_eq!(refused["error"]["code"], code, "{refused}");
}

#[when(regex = r#"^(\w+) asks (\d+) times at once to subscribe to "(.*?)"$"#)]
async fn asks_at_once(world: &mut DoorWorld, name: String, times: usize, session: String) {
    for id in 1..=times {
        let params = json!({ "sessionId": session });
        let asked = json!({ "kind": "request", "id": id.to_string(), "method": "session.subscribe", "params": params });
        world.socket(&name).say(asked.to_string()).await;
    }
}

#[then(regex = r"^each of the (\d+) requests of (\w+) is answered, and the last one with (\{.*\})$")]
async fn each_is_answered(world: &mut DoorWorld, times: usize, name: String, expected: String) {
    let mut answered = BTreeMap::new();
    while answered.len() < times {
        let message = world.socket(&name).hear().await;
        if message["kind"] == "event" {
            world.socket(&name).pushed.push_back(message);
            continue;
        }
        let id = message["id"].as_str().expect("an id").to_owned();
        assert_eq!(answered.insert(id, message), None, "an answer came twice");
    }
    world.compare(&expected, &answered[&times.to_string()]["result"], true);
}

#[then(regex = r"^(\w+)'s socket has shown the events (\d+) to (\d+) at least once$")]
async fn has_shown(world: &mut DoorWorld, name: String, first: u64, last: u64) {
    let pushed = world.socket(&name).pushed.drain(..);
    let ids: BTreeSet<u64> = pushed.filter_map(|event| event["eventId"].as_u64()).collect();
    assert_eq!(ids, (first..=last).collect());
}
