//! Owns: the steps of the feature files about calls, answers, events, files and state.

use std::sync::Arc;

use cucumber::gherkin::Step;
use cucumber::{given, then, when};
use futures::FutureExt;
use serde_json::{Value, json};
use session_manager::events::position::ClusterTag;
use session_manager::machine::Command;
use session_manager::machine::apply::feed_order::FeedOrder;

use crate::event_recorder::RecordedEvent;
use crate::json_shorthand;
use crate::world::World;

fn docstring(step: &Step) -> &str {
    step.docstring.as_deref().expect("the step has a docstring")
}

fn rows(step: &Step) -> &[Vec<String>] {
    &step.table.as_ref().expect("the step has a table").rows
}

/// The JSON that a step ends with. After a colon it is the docstring.
fn json_of<'a>(inline: &'a str, step: &'a Step) -> &'a str {
    if inline.is_empty() { docstring(step) } else { inline }
}

/// `"a", "b"`.
fn names(text: &str) -> Vec<String> {
    serde_json::from_str(&format!("[{text}]")).unwrap_or_else(|error| panic!("{text}: {error}"))
}

// The state that a scenario starts from.

#[given(regex = r#"^a session "(.*?)"$"#)]
async fn a_session(world: &mut World, session_id: String) {
    world.prepare("session::ensure", &json!({ "session_id": session_id }).to_string()).await;
}

#[given(regex = r#"^a session "(.*?)" with (\{.*\})$"#)]
async fn a_session_with(world: &mut World, session_id: String, fields: String) {
    let mut request = world.expected(&fields);
    request["session_id"] = json!(session_id);
    world.prepare("session::ensure", &request.to_string()).await;
}

#[given(regex = r#"^"(.*?)" holds the messages (".*")$"#)]
async fn holds_the_messages(world: &mut World, session_id: String, ids: String) {
    for id in names(&ids) {
        let request =
            json!({ "session_id": session_id, "entry_id": id, "message": json_shorthand::message("user", &id) });
        world.prepare("session::append", &request.to_string()).await;
    }
}

#[given(regex = r#"^I called "(.*?)" with(?: (\{.*\})|:)$"#)]
async fn i_called(world: &mut World, function: String, body: String, step: &Step) {
    world.prepare(&function, json_of(&body, step)).await;
}

#[given(regex = r#"^calling "(.*?)" with (\{.*\}) answered (\{.*\})$"#)]
async fn calling_answered(world: &mut World, function: String, body: String, expected: String) {
    let answer = world.prepare(&function, &body).await;
    world.compare(&expected, &answer, false);
}

#[given("the clock is set back by an hour")]
async fn the_clock_is_set_back(world: &mut World) {
    world.node.mint.shift(-3_600_000);
}

#[given(regex = r"^pages of (\d+), at most (\d+)$")]
async fn pages_of(world: &mut World, default: usize, max: usize) {
    world.node.configure(|settings| {
        settings.limits.default_list_limit = default;
        settings.limits.max_list_limit = max;
    });
}

#[given("legacy names are switched off")]
async fn no_legacy_names(world: &mut World) {
    world.node.configure(|settings| settings.legacy_names = false);
}

#[given("the node does not hold the data")]
async fn the_node_does_not_hold_the_data(world: &mut World) {
    world.node.configure(|settings| settings.authoritative = false);
}

#[given(regex = r#"^the configuration is invalid: "(.*)"$"#)]
async fn the_configuration_is_invalid(world: &mut World, why: String) {
    world.node.calls().on_reload(Arc::new(move || {
        let why = why.clone();
        async move { Err(why.into()) }.boxed()
    }));
}

#[given("the configuration is valid")]
async fn the_configuration_is_valid(world: &mut World) {
    world.node.calls().on_reload(Arc::new(|| async { Ok(()) }.boxed()));
}

// Actions.

#[when(regex = r#"^I call "(.*?)" with(?: (\{.*\})|:)$"#)]
async fn i_call(world: &mut World, function: String, body: String, step: &Step) {
    world.call(&function, json_of(&body, step)).await;
}

#[when(regex = r#"^I send "(.*?)" the text (.*)$"#)]
async fn i_send(world: &mut World, function: String, body: String) {
    world.call(&function, &body).await;
}

#[given("the node has restarted")]
#[when("the node restarts")]
async fn the_node_restarts(world: &mut World) {
    world.node.wait_for_events().await;
    world.before = world.node.everything().await;
    world.node.restart().await;
}

// The files of the fs adapter.

#[given(regex = r#"^the node is stopped$"#)]
async fn the_node_is_stopped(world: &mut World) {
    world.node.wait_for_events().await;
    world.before = world.node.everything().await;
    world.node.stop().await;
}

#[given("the node has started again")]
#[when("the node starts again")]
async fn the_node_starts(world: &mut World) {
    world.node.restart().await;
}

#[given(regex = r#"^the file "(.*?)" says:$"#)]
async fn the_file_says(world: &mut World, name: String, step: &Step) {
    let text = world.expand(docstring(step).trim_start_matches('\n'));
    std::fs::write(world.node.data().join(name), text).expect("the file can be written");
}

/// Appends the bytes that a crash in the middle of a write, or a bad disk, leaves behind.
#[given(regex = r#"^the end of the file "(.*?)" is (.*)$"#)]
async fn the_end_of_the_file_is(world: &mut World, name: String, text: String) {
    let path = world.node.data().join(name);
    let mut content = std::fs::read_to_string(&path).expect("the file can be read");
    content.push_str(&world.expand(&text));
    std::fs::write(path, content).expect("the file can be written");
}

#[given(regex = r#"^in the file "(.*?)" the line with (.*) is damaged$"#)]
async fn a_line_is_damaged(world: &mut World, name: String, word: String) {
    let path = world.node.data().join(name);
    let content = std::fs::read_to_string(&path).expect("the file can be read");
    assert!(content.contains(&word), "{word} is not in {content}");
    let damaged = content.lines().map(|line| if line.contains(&word) { "{\"type\": \u{fffd}" } else { line });
    std::fs::write(path, damaged.map(|line| format!("{line}\n")).collect::<String>()).expect("the file can be written");
}

#[then(regex = r#"^the data directory holds exactly the files (".*")$"#)]
async fn the_files_are(world: &mut World, expected: String) {
    let entries = std::fs::read_dir(world.node.data()).expect("the directory can be read");
    let mut found: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    found.retain(|name| name.ends_with(".jsonl"));
    found.sort();
    assert_eq!(found, names(&expected));
    world.asserted.state = true;
}

/// Each line is one record. Only the last record of each kind, and of each entry, counts.
#[then(regex = r#"^the last records of the file "(.*?)" are:$"#)]
async fn the_last_records_are(world: &mut World, name: String, step: &Step) {
    let content = std::fs::read_to_string(world.node.data().join(name)).expect("the file can be read");
    assert!(content.ends_with('\n'), "a record ends with its line");
    let mut last: Vec<(String, Value)> = Vec::new();
    for line in content.lines() {
        let record: Value = serde_json::from_str(line).expect("a line is JSON");
        let key = format!("{} {}", record["type"], record.pointer("/entry/id").unwrap_or(&Value::Null));
        last.retain(|(old, _)| *old != key);
        last.push((key, record));
    }
    last.sort_by(|a, b| a.0.cmp(&b.0));
    let records: Vec<Value> = last.into_iter().map(|(_, record)| record).collect();
    world.compare(docstring(step), &Value::Array(records), true);
    world.asserted.state = true;
}

// The answer.

#[then(regex = r"^it answers(?: (\{.*\}|null)|:)$")]
async fn it_answers(world: &mut World, expected: String, step: &Step) {
    let answer = world.answered();
    world.compare(json_of(&expected, step), &answer, false);
}

#[then(regex = r"^it answers exactly(?: (\{.*\})|:)$")]
async fn it_answers_exactly(world: &mut World, expected: String, step: &Step) {
    let answer = world.answered();
    world.compare(json_of(&expected, step), &answer, true);
}

#[then(regex = r#"^it fails with "(session/[a-z_]+)"$"#)]
async fn it_fails(world: &mut World, code: String) {
    let error = world.failed();
    let (actual, message) = error.split_once(": ").expect("an error is `code: message`");
    assert_eq!(actual, code, "{error}");
    assert!(!message.trim().is_empty(), "an error has a message: {error}");
}

#[then(regex = r#"^it fails with "(session/[a-z_]+)", saying "(.*)"$"#)]
async fn it_fails_saying(world: &mut World, code: String, words: String) {
    let error = world.failed();
    assert!(error.starts_with(&format!("{code}: ")), "{error}");
    assert!(error.contains(&words), "{words:?} is not in: {error}");
}

#[then(regex = r#"^it fails with "(session/[a-z_]+)", in fewer than (\d+) characters$"#)]
async fn it_fails_briefly(world: &mut World, code: String, length: usize) {
    let error = world.failed();
    assert!(error.starts_with(&format!("{code}: ")), "{error}");
    assert!(error.chars().count() < length, "{} characters", error.chars().count());
}

#[then("there is no such function")]
async fn there_is_no_such_function(world: &mut World) {
    let error = world.failed();
    assert!(error.starts_with("there is no function"), "{error}");
}

#[then(regex = r#"^"<(\w+)>" and "<(\w+)>" are different$"#)]
async fn are_different(world: &mut World, one: String, other: String) {
    assert_ne!(world.variables[&one], world.variables[&other]);
}

#[then(regex = r#"^"<(\w+)>" is a minted (session|entry) id$"#)]
async fn is_minted(world: &mut World, name: String, what: String) {
    let id = world.variables[&name].as_str().expect("an id is text");
    let uuid = id.strip_prefix(if what == "session" { "s_" } else { "e_" }).expect("a minted id has its prefix");
    let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
    assert!(uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit()), "{id}");
}

// The events.

/// All events since the last call of this function.
async fn fired_events(world: &mut World) -> Vec<RecordedEvent> {
    world.node.wait_for_events().await;
    world.asserted.events = true;
    world.node.recorder.take()
}

/// The rows hold trigger type and payload, in the order of the events. No other event may have fired.
#[then("these events fired:")]
async fn these_events_fired(world: &mut World, step: &Step) {
    let fired = fired_events(world).await;
    let kinds: Vec<&str> = fired.iter().map(|event| event.kind.as_str()).collect();
    let expected: Vec<&str> = rows(step).iter().map(|row| row[0].as_str()).collect();
    assert_eq!(kinds, expected, "{fired:?}");
    for (row, event) in rows(step).iter().zip(&fired) {
        world.compare(&row[1], &event.payload, false);
    }
}

#[then(regex = r"^exactly this event fired: (\S+) (\{.*\})$")]
async fn exactly_this_event_fired(world: &mut World, kind: String, payload: String) {
    let fired = fired_events(world).await;
    assert_eq!(fired.len(), 1, "{fired:?}");
    assert_eq!(fired[0].kind, kind);
    world.compare(&payload, &fired[0].payload, true);
}

#[then("no event fired")]
async fn no_event_fired(world: &mut World) {
    let fired = fired_events(world).await;
    assert!(fired.is_empty(), "{fired:?}");
}

#[then(regex = r#"^(\d+) "(.*?)" events? fired and no other$"#)]
async fn so_many_events_fired(world: &mut World, count: usize, kind: String) {
    let fired = fired_events(world).await;
    assert!(fired.iter().all(|event| event.kind == kind), "{fired:?}");
    assert_eq!(fired.len(), count);
}

// The state, read back.

#[then(regex = r#"^reading "(.*?)" with (\{.*\}) answers(?: (\{.*\}|null)|:)$"#)]
async fn reading_answers(world: &mut World, function: String, body: String, expected: String, step: &Step) {
    let answer = world.read(&function, &body).await.unwrap_or_else(|error| panic!("{error}"));
    world.compare(json_of(&expected, step), &answer, false);
    world.asserted.state = true;
}

#[then(regex = r#"^reading "(.*?)" with (\{.*\}) fails with "(.*)"$"#)]
async fn reading_fails(world: &mut World, function: String, body: String, code: String) {
    let error = world.read(&function, &body).await.expect_err("the read fails");
    assert!(error.starts_with(&format!("{code}: ")), "{error}");
    world.asserted.state = true;
}

/// The ids on the active path, custom entries included, oldest first.
async fn transcript(world: &World, session_id: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut request = json!({ "session_id": session_id, "include_custom": true });
    loop {
        let page =
            world.read("session::messages", &request.to_string()).await.unwrap_or_else(|error| panic!("{error}"));
        let items = page["messages"].as_array().expect("messages is an array");
        ids.extend(items.iter().map(|item| item["entry_id"].as_str().expect("an id").to_owned()));
        match page.get("next_cursor") {
            Some(cursor) => request["cursor"] = cursor.clone(),
            None => return ids,
        }
    }
}

#[then(regex = r#"^the transcript of "(.*?)" is (".*")$"#)]
async fn the_transcript_is(world: &mut World, session_id: String, ids: String) {
    let expected = world.expand(&ids);
    assert_eq!(transcript(world, &session_id).await, names(&expected));
    world.asserted.state = true;
}

#[then(regex = r#"^the transcript of "(.*?)" is empty$"#)]
async fn the_transcript_is_empty(world: &mut World, session_id: String) {
    assert_eq!(transcript(world, &session_id).await, Vec::<String>::new());
    world.asserted.state = true;
}

/// Sessions, entries, leaves and times are the same as before the restart.
#[then("the restart changed nothing")]
async fn the_restart_changed_nothing(world: &mut World) {
    nothing_changed(world).await;
    world.asserted.answer = true;
}

#[then("nothing changed")]
async fn nothing_changed(world: &mut World) {
    let now = world.node.everything().await;
    assert_eq!(now, world.before, "the call changed the state");
    world.asserted.state = true;
}

/// Sessions in the order of the list.
#[then(regex = r#"^it lists (".*")$"#)]
async fn it_lists(world: &mut World, ids: String) {
    let expected = names(&world.expand(&ids));
    assert_eq!(listed(&world.answered()), expected);
}

#[then("it lists nothing")]
async fn it_lists_nothing(world: &mut World) {
    assert_eq!(listed(&world.answered()), Vec::<String>::new());
}

fn listed(page: &Value) -> Vec<String> {
    let name = |item: &Value| item["session_id"].as_str().or(item["entry_id"].as_str()).expect("an id").to_owned();
    let items = page.get("sessions").or_else(|| page.get("messages")).and_then(Value::as_array);
    items.expect("a page").iter().map(name).collect()
}

// Subscribers.

#[given(regex = r#"^(\w+) subscribes to "(.*?)" with (\{.*\}|null)$"#)]
async fn subscribes(world: &mut World, name: String, trigger_type: String, config: String) {
    let config = world.expected(&config);
    world.node.recorder.subscribe(&name, &trigger_type, &config, None).unwrap_or_else(|error| panic!("{error}"));
}

#[when(regex = r#"^(\w+) tries to subscribe to "(.*?)" with (.*)$"#)]
async fn tries_to_subscribe(world: &mut World, name: String, trigger_type: String, config: String) {
    world.before = world.node.everything().await;
    let config = world.expected(&config);
    world.refused_subscription = world.node.recorder.subscribe(&name, &trigger_type, &config, None).err();
}

#[then(regex = r#"^the subscription is refused, naming "(.*)"$"#)]
async fn the_subscription_is_refused(world: &mut World, word: String) {
    let error = world.refused_subscription.take().expect("the subscription is refused");
    let word = world.named(&word);
    assert!(error.contains(&word), "{word:?} is not in: {error}");
    world.asserted.answer = true;
}

#[then("the subscription is accepted")]
async fn the_subscription_is_accepted(world: &mut World) {
    assert_eq!(world.refused_subscription, None);
    world.asserted.answer = true;
}

/// How a row is compared with a delivery.
enum Rows {
    /// The first cell with the fields of the payload that it names.
    Payloads,
    /// The same, and the second cell with the whole sidecar.
    WithSidecar,
    /// Both cells exactly.
    Exact,
}

fn compare_deliveries(world: &mut World, expected: &[Vec<String>], deliveries: &[Value], how: Rows) {
    assert_eq!(deliveries.len(), expected.len(), "{deliveries:?}");
    for (row, delivery) in expected.iter().zip(deliveries) {
        world.compare(&row[0], &delivery["data"], matches!(how, Rows::Exact));
        if !matches!(how, Rows::Payloads) {
            world.compare(&row[1], &delivery["sidecar"], true);
        }
    }
}

/// What a subscriber received since the last call of this function.
async fn deliveries(world: &World, name: &str) -> Vec<Value> {
    world.node.wait_for_events().await;
    world.node.recorder.take_deliveries(name)
}

#[then(regex = r"^(\w+) receives:$")]
async fn receives(world: &mut World, name: String, step: &Step) {
    let deliveries = deliveries(world, &name).await;
    compare_deliveries(world, rows(step), &deliveries, Rows::Payloads);
}

#[then(regex = r"^(\w+) receives nothing$")]
async fn receives_nothing(world: &mut World, name: String) {
    let deliveries = deliveries(world, &name).await;
    assert!(deliveries.is_empty(), "{deliveries:?}");
}

/// As a given, it binds the positions of what was received so far to variables.
#[given(regex = r#"^(\w+) received up to "<\w+>":$"#)]
#[then(regex = r"^(\w+) receives, with the sidecar:$")]
async fn receives_with_sidecar(world: &mut World, name: String, step: &Step) {
    let deliveries = deliveries(world, &name).await;
    compare_deliveries(world, rows(step), &deliveries, Rows::WithSidecar);
}

#[then(regex = r"^(\w+) receives exactly:$")]
async fn receives_exactly(world: &mut World, name: String, step: &Step) {
    let deliveries = deliveries(world, &name).await;
    compare_deliveries(world, rows(step), &deliveries, Rows::Exact);
}

/// Each binding receives events in commit order. There is no order between bindings.
#[then(regex = r"^(\w+) receives, in any order:$")]
async fn receives_in_any_order(world: &mut World, name: String, step: &Step) {
    let mut deliveries = deliveries(world, &name).await;
    deliveries.sort_by_key(|delivery| {
        (delivery["sidecar"]["session-manager"]["seq"].as_u64(), delivery["sidecar"]["which"].as_u64())
    });
    compare_deliveries(world, rows(step), &deliveries, Rows::WithSidecar);
}

// The feed.

#[when(regex = r#"^(\w+) binds "(.*?)" with (\{.*\}), metadata (\{.*\})$"#)]
async fn binds(world: &mut World, name: String, trigger_type: String, config: String, metadata: String) {
    world.before = world.node.everything().await;
    let (config, metadata) = (world.expected(&config), world.expected(&metadata));
    world.refused_subscription = world.node.recorder.subscribe(&name, &trigger_type, &config, Some(metadata)).err();
}

#[given(regex = r#"^the feed is trimmed up to "(.*)"$"#)]
async fn the_feed_is_trimmed(world: &mut World, position: String) {
    let position = ClusterTag::new("node").parse(&world.named(&position)).expect("a position of this node");
    let trim = Command::Feed(FeedOrder::Trim { upto: position.place() });
    world.node.propose(trim).await.expect("the feed is trimmed");
}
