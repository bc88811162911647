//! Owns: the steps of scenarios tagged @engine.

use std::time::Instant;

use cucumber::gherkin::Step;
use cucumber::{given, then, when};
use serde_json::{Value, json};

use crate::configuration_worker::ConfigurationWorker;
use crate::delayed_proxy::DelayedProxy;
use crate::empty_bus::EmptyBus;
use crate::engine::{EngineWorld, PATIENCE, PAUSE, connect};
use crate::json_shorthand;

const ID: &str = "session-manager";

/// The delay of a slow connection, one way. An engine confirms an event after two round trips, which take more than a
/// second, and answers a call after one, which takes less.
const SLOW: std::time::Duration = std::time::Duration::from_millis(400);

/// How long calls may fail after a crash.
const OUTAGE_MAX: std::time::Duration = std::time::Duration::from_secs(3);

fn json_of(text: &str) -> Value {
    serde_json::from_str(&json_shorthand::expand(text, &json_shorthand::Variables::new()))
        .unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// Polls until a condition holds.
async fn until(world: &EngineWorld, what: &str, holds: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "timed out: {what}\n{}", world.logs());
        tokio::time::sleep(PAUSE).await;
    }
}

// The state that a scenario starts from.

#[given(regex = r#"^a node "(\w+)" on the engine$"#)]
async fn a_node(world: &mut EngineWorld, name: String) {
    world.start_node(&name, &world.url.clone(), &[]);
    assert_eq!(world.serving().await, name);
}

#[given(regex = r#"^a node "(\w+)" on the engine, started with "(.*)"$"#)]
async fn a_node_with(world: &mut EngineWorld, name: String, words: String) {
    world.start_node(&name, &world.url.clone(), &words.split(' ').collect::<Vec<_>>());
    assert_eq!(world.serving().await, name);
}

/// The data directory comes from the settings, so no argument overrides it.
#[given(regex = r#"^a node "(\w+)" on the engine, with its settings stored$"#)]
async fn a_node_with_stored_settings(world: &mut EngineWorld, name: String) {
    world.start_stored_node(&name);
    assert_eq!(world.serving().await, name);
}

#[given("calls are made continuously")]
async fn continuous_calls(world: &mut EngineWorld) {
    let client = world.client.clone();
    world.continuous_calls = Some(tokio::spawn(async move {
        loop {
            // The adapter is swapped meanwhile, so answers differ. No call may fail.
            crate::engine::call(&client, "session::list", json!({})).await?;
            tokio::time::sleep(PAUSE).await;
        }
    }));
}

#[then("no call failed")]
async fn no_call_failed(world: &mut EngineWorld) {
    let calls = world.continuous_calls.take().expect("calls were made");
    assert!(!calls.is_finished(), "{:?}", calls.await);
    calls.abort();
}

#[given("three replicas on the engine")]
async fn three_replicas(world: &mut EngineWorld) {
    replicas(world, [(); 3].map(|()| world.url.clone()).into(), "shared").await;
    world.serving().await;
}

/// Only the connections to the engine are slow, not those between the replicas.
#[given("three replicas on the engine, over slow connections")]
async fn three_distant_replicas(world: &mut EngineWorld) {
    let proxy = DelayedProxy::start(&world.url, SLOW).await;
    replicas(world, [(); 3].map(|()| proxy.url()).into(), "shared").await;
    world.proxies.push(proxy);
    world.serving().await;
}

#[given(regex = "^(two|three) replicas, each on an engine of its own$")]
async fn engines_of_their_own(world: &mut EngineWorld, how_many: String) {
    let mut urls = vec![world.url.clone()];
    for name in if how_many == "two" { &["second"][..] } else { &["second", "third"] } {
        let engine = EmptyBus::start("127.0.0.1:0").await;
        urls.push(engine.url());
        world.embedded.insert((*name).to_owned(), engine);
    }
    replicas(world, urls, "own").await;
    world.serving().await;
}

/// Nodes n1, n2, … of one cluster, each attached to its engine.
async fn replicas(world: &mut EngineWorld, urls: Vec<String>, sharing: &str) {
    let mut peers = Vec::new();
    for (nth, url) in urls.iter().enumerate() {
        let id = (nth + 1).to_string();
        let peer = crate::process::free_port().to_string();
        let mut words = vec!["--node-id", &id, "--peer-listen", &peer, "--engine", sharing];
        if nth > 0 {
            words.push("--join");
        }
        world.start_node(&format!("n{id}"), url, &words);
        peers.push(peer);
    }
    for (nth, peer) in peers.iter().enumerate().skip(1) {
        let id = (nth + 1).to_string();
        for words in [&["add", &id, peer][..], &["promote", &id]] {
            let begun = Instant::now();
            loop {
                let done = crate::process::run(&[&["cluster", "--peer", &peers[0]], words].concat()).await;
                if done.status.success() {
                    break;
                }
                assert!(begun.elapsed() < PATIENCE, "{done:?}\n{}", world.logs());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    world.peers = peers;
}

/// An edge looks for its main in the default namespace of the bus.
#[given("everything is in the default namespace")]
async fn in_the_default_namespace(world: &mut EngineWorld) {
    world.client.shutdown_async().await;
    world.namespace = "default".to_owned();
    world.client = connect(&world.url, "default").await;
}

#[given("two edges whose main is on the engine")]
async fn two_edges(world: &mut EngineWorld) {
    for name in ["edge1", "edge2"] {
        let config = world.dir.path().join(format!("{name}.yaml"));
        let bridge = json!({ "adapter": { "name": "bridge", "config": { "url": world.url, "timeout_ms": 20_000 } } });
        std::fs::write(&config, bridge.to_string()).expect("a written file");
        let words = ["--config", &config.to_string_lossy()];
        let edge = crate::process::NodeProcess::start_by_settings(&world.dir.path().join(name), &words);
        let client = connect(&edge.url(), "default").await;
        world.edges.push((edge, client));
    }
}

#[given(regex = r#"^"(\w+)" subscribes at edge (\d) to "(.*?)" with (\{.*\})$"#)]
async fn subscribes_at_an_edge(
    world: &mut EngineWorld,
    name: String,
    edge: usize,
    trigger_type: String,
    config: String,
) {
    world.subscribe(&world.edges[edge - 1].1, &name, &trigger_type, json_of(&config)).await;
}

#[given(regex = r"^(\d+) sessions were created at each edge$")]
#[when(regex = r"^(\d+) sessions are created at each edge$")]
async fn created_at_each_edge(world: &mut EngineWorld, count: usize) {
    for _ in 0..count {
        for (_, client) in &world.edges {
            let body = json!({ "session_id": format!("s-{}", uuid::Uuid::new_v4().simple()) });
            let ensured = crate::engine::call(client, "session::ensure", body).await.expect("an edge answers");
            world.created.push(ensured["session_id"].as_str().expect("an id").to_owned());
        }
    }
}

#[given("a configuration worker")]
async fn a_configuration_worker(world: &mut EngineWorld) {
    if world.is_embedded() {
        world.stored = Some(ConfigurationWorker::start(&world.url).await);
    }
}

#[given(regex = r#"^the stored configuration is (\{.*\})$"#)]
#[when(regex = r#"^the stored configuration becomes (\{.*\})$"#)]
async fn the_stored_configuration(world: &mut EngineWorld, value: String) {
    let value = with_directories(world, &value);
    world.called("configuration::set", json!({ "id": ID, "value": value })).await;
}

#[when(regex = r#"^the stored configuration becomes (\{.*\}) without a notification$"#)]
async fn the_stored_configuration_unheard(world: &mut EngineWorld, value: String) {
    world.stored.as_ref().expect("a configuration worker").set_without_notification(ID, json_of(&value));
}

#[given(regex = r#"^a file says:$"#)]
async fn a_file(world: &mut EngineWorld, step: &Step) {
    let path = world.dir.path().join("config.yaml");
    std::fs::write(&path, step.docstring.as_deref().expect("a docstring")).expect("a written file");
    world.config_file = Some(path);
}

#[given(regex = r#"^a node "(\w+)" on the engine, seeded from that file$"#)]
#[when(regex = r#"^a node "(\w+)" is started, seeded from that file$"#)]
async fn a_seeded_node(world: &mut EngineWorld, name: String) {
    let file = world.config_file.clone().expect("a file").to_string_lossy().into_owned();
    world.start_node(&name, &world.url.clone(), &["--config", &file]);
    assert_eq!(world.serving().await, name);
}

#[given(regex = r#"^"(\w+)" subscribes to "(.*?)" with (\{.*\})$"#)]
async fn subscribes(world: &mut EngineWorld, name: String, trigger_type: String, config: String) {
    world.subscribe(&world.client, &name, &trigger_type, json_of(&config)).await;
}

#[given(regex = r#"^"(\w+)" subscribes on the second engine to "(.*?)" with (\{.*\})$"#)]
async fn subscribes_on_the_second(world: &mut EngineWorld, name: String, trigger_type: String, config: String) {
    let url = world.embedded["second"].url();
    let client = connect(&url, &world.namespace).await;
    let begun = Instant::now();
    while crate::engine::call(&client, "session::get", json!({ "session_id": "x" })).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "no node serves on the second engine:\n{}", world.logs());
        tokio::time::sleep(PAUSE).await;
    }
    world.subscribe(&client, &name, &trigger_type, json_of(&config)).await;
}

// Actions.

#[given(regex = r#"^I called "(.*?)" with (\{.*\})$"#)]
async fn i_called(world: &mut EngineWorld, function: String, body: String) {
    world.called(&function, json_of(&body)).await;
}

#[when(regex = r#"^I call "(.*?)" with (\{.*\})$"#)]
async fn i_call(world: &mut EngineWorld, function: String, body: String) {
    world.answer = Some(world.call(&function, json_of(&body)).await);
}

#[given(regex = r#"^(\d+) sessions were created$"#)]
#[when(regex = r#"^(\d+) sessions are created(?:, without the second replica)?$"#)]
async fn sessions_are_created(world: &mut EngineWorld, count: usize) {
    for _ in 0..count {
        world.create().await;
    }
}

#[given("sessions are created continuously on every replica's own port")]
async fn a_load(world: &mut EngineWorld) {
    world.begin_load(None).await;
}

#[given("sessions are created continuously on the own ports of the replicas that do not serve")]
async fn a_load_elsewhere(world: &mut EngineWorld) {
    let serving = world.serving().await;
    world.begin_load(Some(&serving)).await;
}

#[when("no more sessions are created")]
async fn no_more_load(world: &mut EngineWorld) {
    world.end_load().await;
}

#[when(regex = r"^(\d+) sessions are created on another replica's own port$")]
async fn created_elsewhere(world: &mut EngineWorld, count: usize) {
    let paused = world.absent.clone().expect("a paused replica");
    let (_, node) = world.nodes.iter().find(|(name, _)| **name != paused).expect("another node");
    let client = connect(&node.url(), "default").await;
    for _ in 0..count {
        let session_id = format!("s-{}", uuid::Uuid::new_v4().simple());
        let begun = Instant::now();
        let body = json!({ "session_id": session_id });
        while crate::engine::call_within(&client, "session::ensure", body.clone(), 2000).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "a session cannot be created:\n{}", world.logs());
            tokio::time::sleep(PAUSE).await;
        }
        world.created.push(session_id);
    }
    client.shutdown_async().await;
}

#[when("the replica that serves is paused")]
async fn is_paused(world: &mut EngineWorld) {
    let serving = world.serving().await;
    world.nodes[&serving].signal("STOP");
    world.absent = Some(serving);
}

#[when("the paused replica resumes")]
async fn resumes(world: &mut EngineWorld) {
    let paused = world.absent.take().expect("a paused replica");
    world.nodes[&paused].signal("CONT");
}

#[when("the killed replica restarts")]
#[when("the second replica restarts")]
async fn restarts(world: &mut EngineWorld) {
    let absent = world.absent.take().expect("an absent replica");
    world.restart_node(&absent);
}

#[when("the second replica shuts down")]
async fn the_second_shuts_down(world: &mut EngineWorld) {
    let node = world.nodes.remove("n2").expect("a second replica");
    node.signal("TERM");
    assert!(tokio::task::spawn_blocking(move || node.wait()).await.expect("waited").success());
    world.absent = Some("n2".to_owned());
}

#[when("the leadership is handed to another replica")]
async fn handed_over(world: &mut EngineWorld) {
    let serving = world.serving().await;
    let other = world.nodes.keys().find(|name| **name != serving).expect("another node").clone();
    let to = other.trim_start_matches('n').to_owned();
    let begun = Instant::now();
    while world.serving().await != other {
        assert!(begun.elapsed() < PATIENCE, "{other} does not serve\n{}", world.logs());
        // A busy machine may elect another leader before this one serves. A leader must serve without a second request.
        if leader(world).await.as_ref() != Some(&to) {
            crate::process::run(&["cluster", "--peer", &world.peers[0], "transfer-leader", &to]).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The leader, according to `cluster status`; `None` while there is none.
async fn leader(world: &EngineWorld) -> Option<String> {
    let output = crate::process::run(&["cluster", "--peer", &world.peers[0], "status", "--json"]).await;
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(status["leader"].as_u64()?.to_string())
}

#[when("the replica that serves is killed")]
async fn killed(world: &mut EngineWorld) {
    let serving = world.serving().await;
    world.nodes.remove(&serving).expect("a node of ours").kill();
    world.absent = Some(serving);
    let took = world.until_served().await;
    println!("  [{}] calls succeeded again {took:?} after kill -9", crate::engine::ENGINE.lock().unwrap().name());
    // It takes half a second on an idle machine. The limit allows for a machine that is busy with other tests.
    assert!(took < OUTAGE_MAX, "calls succeeded again only {took:?} after kill -9:\n{}", world.logs());
}

#[when("the replica that serves shuts down")]
async fn shuts_down_and_is_replaced(world: &mut EngineWorld) {
    shuts_down(world).await;
    world.until_served().await;
}

#[when("the last replica shuts down")]
#[when("the replica that serves shuts down over its slow connection")]
async fn shuts_down(world: &mut EngineWorld) {
    let serving = world.serving().await;
    let node = world.nodes.remove(&serving).expect("a node of ours");
    node.signal("TERM");
    assert!(tokio::task::spawn_blocking(move || node.wait()).await.expect("waited").success());
}

#[when("the engine restarts")]
async fn the_engine_restarts(world: &mut EngineWorld) {
    let before = world.embedded.remove("").expect("an embedded engine");
    let address = before.address.to_string();
    drop(before);
    let begun = Instant::now();
    while std::net::TcpListener::bind(&address).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the engine does not release its port");
        tokio::time::sleep(PAUSE).await;
    }
    world.embedded.insert(String::new(), EmptyBus::start(&address).await);
    world.until_served().await;
}

#[when(regex = r#"^the file is changed to:$"#)]
async fn the_file_changes(world: &mut EngineWorld, step: &Step) {
    let path = world.config_file.clone().expect("a file");
    std::fs::write(&path, step.docstring.as_deref().expect("a docstring")).expect("a written file");
}

/// A node that is not attached to the engine.
#[given("a main outside the engine")]
async fn a_main(world: &mut EngineWorld) {
    let main = crate::process::NodeProcess::start(&world.dir.path().join("main"), &[]);
    world.main = Some(main);
}

#[when(regex = r#"^"(.*?)" is ensured at the main$"#)]
async fn ensured_at_the_main(world: &mut EngineWorld, session_id: String) {
    let client = connect(&world.main.as_ref().expect("a main").url(), "default").await;
    let ensured = crate::engine::call(&client, "session::ensure", json!({ "session_id": session_id })).await;
    ensured.expect("the main answers");
    client.shutdown_async().await;
}

/// Replaces `DIR` by the scenario's directory, `MAIN` by the URL of its main, and `ENGINE` by that of its engine.
fn with_directories(world: &EngineWorld, text: &str) -> Value {
    let dir = serde_json::to_string(&world.dir.path().to_string_lossy()).expect("a path");
    let main = world.main.as_ref().map(|main| main.url()).unwrap_or_default();
    json_of(&text.replace("DIR", dir.trim_matches('"')).replace("MAIN", &main).replace("ENGINE", &world.url))
}

// Results.

#[then(regex = r#"^it answers (\{.*\}|null)$"#)]
async fn it_answers(world: &mut EngineWorld, expected: String) {
    let answer = world.answer.clone().expect("an answer").unwrap_or_else(|error| panic!("it failed: {error}"));
    let mut variables = json_shorthand::Variables::new();
    if let Err(why) = json_shorthand::compare(&json_of(&expected), &answer, false, &mut variables) {
        panic!("{why}\nin {answer:#}");
    }
}

#[then(regex = r#"^it fails with "(.*?)"$"#)]
async fn it_fails(world: &mut EngineWorld, words: String) {
    let error = world.answer.clone().expect("an answer").expect_err("it must fail");
    assert!(error.contains(&words), "{error}");
    assert!(!error.contains("backtrace"), "{error}");
}

#[then(regex = r#"^"(\w+)" receives (\{.*\})( twice)?$"#)]
async fn receives(world: &mut EngineWorld, name: String, expected: String, twice: String) {
    let (expected, times) = (json_of(&expected), if twice.is_empty() { 1 } else { 2 });
    let matches = |payload: &Value| {
        json_shorthand::compare(&expected, payload, false, &mut json_shorthand::Variables::new()).is_ok()
    };
    let received = || world.received_by(&name).iter().filter(|event| matches(&event.payload)).count();
    until(world, &format!("{name} receives {expected}; it received {:?}", world.received_by(&name)), async || {
        received() >= times
    })
    .await;
}

#[then(regex = r#"^"(\w+)" receives an event of every session, (once each|at least once)$"#)]
async fn receives_of_every_session(world: &mut EngineWorld, name: String, how_often: String) {
    let missing = || {
        let received = world.received_by(&name);
        let known = |id: &&String| received.iter().any(|event| event.payload["session_id"] == ***id);
        world.created.iter().filter(|id| !known(id)).count()
    };
    let begun = Instant::now();
    while missing() > 0 {
        let (of, received) = (world.created.len(), world.received_by(&name).len());
        let late = || {
            format!("{name} received {received} events; of {of} sessions {} are missing:\n{}", missing(), world.logs())
        };
        assert!(begun.elapsed() < PATIENCE, "{}", late());
        tokio::time::sleep(PAUSE).await;
    }
    // A duplicate has the position of the original, so a consumer can recognise it.
    let received = world.received_by(&name);
    for id in &world.created {
        let mut positions: Vec<&str> = received
            .iter()
            .filter(|event| event.payload["session_id"] == **id)
            .map(|event| event.position.as_str())
            .collect();
        if how_often == "once each" {
            assert_eq!(positions.len(), 1, "{name} received {id} at {positions:?}\n{}", world.logs());
        }
        positions.dedup();
        assert_eq!(positions.len(), 1, "{id} has several positions: {positions:?}\n{}", world.logs());
    }
}

#[then(regex = r#"^"(\w+)" receives events of the last (\d+) sessions and of none before$"#)]
async fn receives_of_the_last(world: &mut EngineWorld, name: String, last: usize) {
    let (before, after) = world.created.split_at(world.created.len() - last);
    let knows = |id: &String| world.received_by(&name).iter().any(|event| event.payload["session_id"] == **id);
    until(world, &format!("{name} receives events of the last {last} sessions"), async || after.iter().all(&knows))
        .await;
    let older: Vec<&String> = before.iter().filter(|id| knows(id)).collect();
    assert!(older.is_empty(), "{name} received events from before it subscribed: {older:?}");
}

#[then(regex = r#"^"(\w+)" receives no event of it$"#)]
async fn receives_nothing(world: &mut EngineWorld, name: String) {
    // The steps before waited for a later event, which comes after everything this subscriber could have received.
    assert!(world.received_by(&name).is_empty(), "{:?}", world.received_by(&name));
}

#[then("exactly one replica serves on the engine")]
async fn one_serves(world: &mut EngineWorld) {
    let serving = world.serving().await;
    let workers = world.called("engine::workers::list", json!({})).await;
    let of_ours: Vec<String> = workers["workers"]
        .as_array()
        .expect("workers")
        .iter()
        .filter_map(|worker| worker["name"].as_str())
        .filter(|name| name.starts_with(&world.namespace) && !name.ends_with("-control"))
        .map(|name| world.node_of(name))
        .collect();
    assert_eq!(of_ours, [serving], "only the replica that serves has a worker with functions");
}

#[then(regex = r#"^on the engine "(.*?)" is described with its schemas(, as internal)?$"#)]
async fn described(world: &mut EngineWorld, function: String, internal: String) {
    let question = json!({ "function_id": function, "namespace": world.namespace });
    // A node registers its functions one by one.
    let known = async || world.call("engine::functions::info", question.clone()).await.is_ok();
    until(world, &format!("{function} on the engine"), known).await;
    let info = world.called("engine::functions::info", question.clone()).await;
    let request = info.get("request_schema").or_else(|| info.get("request_format")).cloned().unwrap_or_default();
    assert_eq!(request["type"], "object", "{info:#}");
    assert!(info["description"].as_str().is_some_and(|words| !words.is_empty()), "{info:#}");
    assert_eq!(info["metadata"]["internal"] == true, !internal.is_empty(), "{info:#}");
}

#[then(regex = r#"^"session::config-status" eventually answers (\{.*\})$"#)]
async fn status_comes_to(world: &mut EngineWorld, expected: String) {
    let expected = json_of(&expected);
    let holds = async || {
        let status = world.called("session::config-status", json!({})).await;
        json_shorthand::compare(&expected, &status, false, &mut json_shorthand::Variables::new()).is_ok()
    };
    until(world, &format!("the status {expected}"), holds).await;
}

#[then(regex = r#"^the last error names "(.*?)"$"#)]
async fn the_last_error_names(world: &mut EngineWorld, words: String) {
    let status = world.called("session::config-status", json!({})).await;
    assert!(status["last_error"].as_str().is_some_and(|error| error.contains(&words)), "{status}");
}

#[then(regex = r#"^the last error eventually names "(.*?)"$"#)]
async fn the_last_error_comes_to_name(world: &mut EngineWorld, words: String) {
    let holds = async || {
        let status = world.called("session::config-status", json!({})).await;
        status["last_error"].as_str().is_some_and(|error| error.contains(&words))
    };
    until(world, &format!("the error names {words}"), holds).await;
}

#[then(regex = r#"^a page of "session::list" eventually holds (\d+) sessions$"#)]
async fn a_page_comes_to(world: &mut EngineWorld, size: usize) {
    let holds = async || {
        let page = world.called("session::list", json!({})).await;
        page["sessions"].as_array().map(Vec::len) == Some(size)
    };
    until(world, &format!("a page of {size}"), holds).await;
}

#[then(regex = r#"^the stored configuration says (\{.*\})$"#)]
async fn stored_says(world: &mut EngineWorld, expected: String) {
    let stored = world.called("configuration::get", json!({ "id": ID })).await;
    let compared =
        json_shorthand::compare(&json_of(&expected), &stored["value"], false, &mut json_shorthand::Variables::new());
    assert!(compared.is_ok(), "{compared:?} in {stored:#}");
}

#[then(regex = r#"^the configuration worker knows the schema of "(.*?)"$"#)]
async fn knows_the_schema(world: &mut EngineWorld, setting: String) {
    let schema = world.stored.as_ref().expect("a configuration worker").schema(ID).expect("a schema");
    assert!(schema["properties"][&setting].is_object(), "{schema:#}");
}

#[then(regex = r#"^a node "(\w+)" does not start, and says "(.*?)"$"#)]
async fn does_not_start(world: &mut EngineWorld, name: String, words: String) {
    let file = world.config_file.clone().map(|path| path.to_string_lossy().into_owned());
    let arguments: Vec<&str> = file.iter().flat_map(|file| ["--config", file.as_str()]).collect();
    let message = world.refused_start(&name, &arguments);
    assert!(message.contains(&words), "{message}");
}
