//! Laws of edge instances: two bridges and their main over real sockets, and how the program refuses a bad address.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use session_manager::access::token::TokenHash;
use session_manager::config::{AdapterConfig, BridgeConfig, DataDir};
use session_manager::node::{Node, NodeSettings};

use crate::client::{Client, user_message};
use crate::empty_bus::EmptyBus;
use crate::node::NodeProcess;

/// A node in this process and a client of it.
struct NodeWithClient {
    node: Node,
    client: Client,
}

impl NodeWithClient {
    async fn at(settings: NodeSettings) -> NodeWithClient {
        let node = Node::start(settings).await.unwrap_or_else(|error| panic!("{error}"));
        let client = Client::connect(&format!("ws://{}", node.local_addr())).await;
        NodeWithClient { node, client }
    }

    async fn main(dir: &Path, adapter: fn(DataDir) -> AdapterConfig) -> NodeWithClient {
        let mut settings = NodeSettings::on_free_port(dir);
        settings.config.adapter = adapter(DataDir { data_dir: dir.join("data") });
        NodeWithClient::at(settings).await
    }

    async fn bridge(&self) -> NodeWithClient {
        let mut settings = NodeSettings::on_free_port(Path::new("unused"));
        settings.config.adapter =
            AdapterConfig::Bridge(BridgeConfig { url: Some(self.url()), ..BridgeConfig::default() });
        NodeWithClient::at(settings).await
    }

    fn url(&self) -> String {
        format!("ws://{}", self.node.local_addr())
    }

    async fn shut_down(self) {
        self.client.close().await;
        self.node.shutdown().await;
    }
}

/// A main with two bridges.
async fn main_and_two_bridges(dir: &Path, adapter: fn(DataDir) -> AdapterConfig) -> [NodeWithClient; 3] {
    let main = NodeWithClient::main(dir, adapter).await;
    let (one, two) = (main.bridge().await, main.bridge().await);
    [main, one, two]
}

async fn shut_down(nodes: [NodeWithClient; 3]) {
    for node in nodes.into_iter().rev() {
        node.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_delivers_each_mutation_once_and_by_the_filters_of_its_subscribers() {
    for adapter in [AdapterConfig::Raft, AdapterConfig::Fs] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let nodes = main_and_two_bridges(dir.path(), adapter).await;
        let mut everything = Vec::new();
        for node in &nodes {
            everything.push(node.client.subscribe("session::message-added", json!({})).await);
        }
        let mut tenants = Vec::new();
        for (node, tenant) in [(&nodes[1], "a"), (&nodes[2], "b")] {
            let config = json!({ "metadata": { "tenant": tenant }, "roles": ["user"] });
            tenants.push(node.client.subscribe("session::message-added", config).await);
        }
        for (session, tenant) in [("of-a", "a"), ("of-b", "b")] {
            let ensure = json!({ "session_id": session, "metadata": { "tenant": tenant } });
            nodes[1].client.call("session::ensure", ensure).await;
        }
        let mut appended = Vec::new();
        for round in 0..4 {
            for (at, node) in nodes.iter().enumerate() {
                let entry_id = format!("{at}-{round}");
                for session in ["of-a", "of-b"] {
                    let body =
                        json!({ "session_id": session, "entry_id": entry_id, "message": user_message(&entry_id) });
                    node.client.call("session::append", body).await;
                    appended.push((session.to_owned(), entry_id.clone()));
                }
            }
        }
        let last = json!({ "session_id": "of-a", "entry_id": "last", "message": user_message("last") });
        nodes[0].client.call("session::append", last).await;
        let last = json!({ "session_id": "of-b", "entry_id": "last", "message": user_message("last") });
        nodes[0].client.call("session::append", last).await;
        appended.extend(["of-a", "of-b"].map(|session| (session.to_owned(), "last".to_owned())));
        let ids = |event: &Value| {
            (event["session_id"].as_str().unwrap().to_owned(), event["entry_id"].as_str().unwrap().to_owned())
        };
        for events in &mut everything {
            let events = events.until(|event| event["entry_id"] == "last" && event["session_id"] == "of-b").await;
            let seqs: Vec<u64> =
                events.iter().filter(|event| event.payload["session_id"] == "of-a").map(|event| event.seq).collect();
            assert!(
                seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]),
                "the sequence numbers come from the main: {seqs:?}"
            );
            assert_eq!(events.iter().map(|event| ids(&event.payload)).collect::<Vec<_>>(), appended);
        }
        for (events, session) in tenants.iter_mut().zip(["of-a", "of-b"]) {
            let events = events.until(|event| event["entry_id"] == "last").await;
            let expected: Vec<_> = appended.iter().filter(|(of, _)| of == session).cloned().collect();
            assert_eq!(events.iter().map(|event| ids(&event.payload)).collect::<Vec<_>>(), expected);
        }
        shut_down(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_bridges_with_expected_revision_lose_no_update() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let nodes = main_and_two_bridges(dir.path(), AdapterConfig::Raft).await;
    nodes[1].client.call("session::ensure", json!({ "session_id": "s" })).await;
    let counter = json!({ "session_id": "s", "entry_id": "counter", "message": user_message("0") });
    nodes[2].client.call("session::append", counter).await;
    join_all(nodes[1..].iter().map(|node| count_up(&node.client, 100))).await;
    let entry = nodes[0].client.call("session::get-message", json!({ "session_id": "s", "entry_id": "counter" })).await;
    assert_eq!(entry["entry"]["revision"], 200);
    assert_eq!(entry["entry"]["message"]["content"][0]["text"], "200");
    shut_down(nodes).await;
}

/// Increments the number in a message by compare-and-set.
async fn count_up(client: &Client, times: usize) {
    for _ in 0..times {
        loop {
            let read = client.call("session::get-message", json!({ "session_id": "s", "entry_id": "counter" })).await;
            let number: u64 = read["entry"]["message"]["content"][0]["text"].as_str().unwrap().parse().unwrap();
            let update = json!({
                "session_id": "s", "entry_id": "counter", "expected_revision": read["entry"]["revision"],
                "content": [{ "type": "text", "text": (number + 1).to_string() }],
            });
            if client.call("session::update-message", update).await["updated"] == true {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_and_errors_are_the_same_through_a_bridge() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let main = NodeWithClient::main(dir.path(), AdapterConfig::Raft).await;
    let edge = main.bridge().await;
    for (session, client) in [("here", &main.client), ("there", &edge.client)] {
        client.call("session::ensure", json!({ "session_id": session, "title": "t" })).await;
        let first = json!({ "session_id": session, "entry_id": "e", "message": user_message("first") });
        let again = json!({ "session_id": session, "entry_id": "e", "message": user_message("again") });
        assert_eq!(client.call("session::append", first).await, client.call("session::append", again).await);
        let custom = json!({ "session_id": session, "entry_id": "c", "custom": { "custom_type": "x", "data": 1 } });
        client.call("session::append", custom).await;
    }
    let calls = [
        ("session::get", json!({ "session_id": "S" })),
        ("session::messages", json!({ "session_id": "S", "include_custom": true })),
        ("session::messages", json!({ "session_id": "S", "cursor": "nonsense" })),
        ("session::messages", json!({ "session_id": "S", "from_entry_id": "nobody" })),
        ("session::messages", json!({ "session_id": "nobody" })),
        ("session::get-message", json!({ "session_id": "S", "entry_id": "nobody" })),
        ("session::append", json!({ "session_id": "S" })),
        ("session::append", json!({ "session_id": "S", "message": user_message("x"), "parent_id": "nobody" })),
        ("session::append-many", json!({ "session_id": "S", "messages": [] })),
        ("session::update-message", json!({ "session_id": "S", "entry_id": "c", "content": [] })),
        ("session::update-message", json!({ "session_id": "S", "entry_id": "e", "content": [], "details": {} })),
        (
            "session::update-message",
            json!({ "session_id": "S", "entry_id": "e", "content": [], "expected_revision": 9 }),
        ),
        ("session::set-status", json!({ "session_id": "S", "status": "idle" })),
        ("session::set-meta", json!({ "session_id": "nobody", "title": "x" })),
        ("session::fork", json!({ "session_id": "S", "entry_id": "nobody" })),
        ("session::delete", json!({ "session_id": "nobody" })),
        ("session::list", json!({ "cursor": "nonsense" })),
        ("session::ensure", json!({ "session_id": "" })),
        ("session::append_many", json!({ "session_id": "S", "messages": "none" })),
    ];
    for (function, body) in calls {
        let of =
            |session: &str| serde_json::from_str(&body.to_string().replace("\"S\"", &format!("{session:?}"))).unwrap();
        let normalized = |answer: Result<Value, String>, session: &str| {
            let text = answer.map_or_else(|error| error, |answer| answer.to_string()).replace(session, "S");
            // Times differ from call to call.
            let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
            text.chars().map(digits).collect::<String>()
        };
        let here = normalized(main.client.try_call(function, of("here")).await, "here");
        let there = normalized(edge.client.try_call(function, of("there")).await, "there");
        assert_eq!(here, there, "{function} {body}");
    }
    let refused = edge.client.try_call("session::store::get-meta", json!({ "session_id": "here" })).await.unwrap_err();
    assert!(refused.contains("session/invalid_request") && refused.contains("where the data lives"), "{refused}");
    let page = edge.client.call("session::list", json!({ "limit": 1 })).await;
    assert_eq!(page["sessions"].as_array().unwrap().len(), 1);
    edge.shut_down().await;
    main.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_without_its_main_answers_with_an_error_in_time_and_continues_when_it_is_back() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let main = NodeProcess::start(&dir.path().join("data"), &[]);
    let address = main.address.to_string();
    let mut settings = NodeSettings::on_free_port(Path::new("unused"));
    let config = BridgeConfig { url: Some(main.url()), timeout_ms: 500, ..BridgeConfig::default() };
    settings.config.adapter = AdapterConfig::Bridge(config);
    let edge = NodeWithClient::at(settings).await;
    let mut added = edge.client.subscribe("session::message-added", json!({})).await;
    edge.client.call("session::ensure", json!({ "session_id": "s" })).await;
    let append = |entry_id: &str| json!({ "session_id": "s", "entry_id": entry_id, "message": user_message(entry_id) });
    edge.client.call("session::append", append("before")).await;
    main.kill();

    for (function, body) in [("session::get", json!({ "session_id": "s" })), ("session::append", append("lost"))] {
        let error = edge.client.try_call(function, body).await.unwrap_err();
        assert!(error.contains("session/storage: ") && error.contains("the main"), "{error}");
    }
    let _main = NodeProcess::start(&dir.path().join("data"), &["--listen", &address]);
    let back = tokio::time::timeout(Duration::from_secs(20), async {
        while edge.client.try_call("session::append", append("after")).await.is_err() {}
    });
    back.await.expect("the bridge continues");
    let received = added.until(|event| event["entry_id"] == "after").await;
    let entries: Vec<&Value> = received.iter().map(|event| &event.payload["entry_id"]).collect();
    assert_eq!(entries, ["before", "after"]);
    edge.shut_down().await;
}

async fn refused(config: BridgeConfig) -> String {
    let mut settings = NodeSettings::on_free_port(Path::new("unused"));
    settings.config.adapter = AdapterConfig::Bridge(config);
    match Node::start(settings).await {
        Ok(_) => panic!("the bridge started"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_without_a_main_is_refused_by_its_key() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let main = NodeWithClient::main(dir.path(), AdapterConfig::Fs).await;
    let edge = main.bridge().await;
    let one = |url: String| BridgeConfig { url: Some(url), timeout_ms: 1000, ..BridgeConfig::default() };

    // A dead port.
    let vacant = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let why = refused(one(format!("ws://{vacant}"))).await;
    assert!(why.starts_with("adapter.config.url: ") && why.contains("cannot be reached"), "{why}");
    // A port that accepts connections and sends nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let why = refused(one(format!("ws://{}", silent.local_addr().unwrap()))).await;
    assert!(why.starts_with("adapter.config.url: ") && why.contains("does not answer as an iii bus"), "{why}");
    // A bus without session functions.
    let bus = EmptyBus::start("127.0.0.1:0").await;
    let why = refused(one(bus.url())).await;
    assert!(why.starts_with("adapter.config.url: ") && why.contains("no session-manager serves"), "{why}");
    // Another bridge, which does not hold the data.
    let why = refused(one(edge.url())).await;
    assert!(why.contains("a bridge answers there: name the main"), "{why}");
    // Several addresses, none of them a main: each is named.
    let urls = vec![edge.url(), format!("ws://{vacant}")];
    let why = refused(BridgeConfig { urls, timeout_ms: 1000, ..BridgeConfig::default() }).await;
    assert!(why.contains("adapter.config.urls[0]: ") && why.contains("adapter.config.urls[1]: "), "{why}");
    // Several addresses, one of them a main.
    let urls = vec![format!("ws://{vacant}"), main.url()];
    let mut settings = NodeSettings::on_free_port(Path::new("unused"));
    settings.config.adapter = AdapterConfig::Bridge(BridgeConfig { urls, ..BridgeConfig::default() });
    NodeWithClient::at(settings).await.shut_down().await;
    edge.shut_down().await;
    main.shut_down().await;
}

#[test]
fn the_program_does_not_start_without_its_main_and_names_the_key() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let vacant = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cases = [
        (format!("{{url: 'ws://{vacant}'}}"), "adapter.config.url: ws://127.0.0.1:"),
        ("{url: 'ws://127.0.0.1:5999'}".to_owned(), "adapter.config.url: ws://127.0.0.1:5999 is this node's own"),
        ("{uri: 'ws://127.0.0.1:1'}".to_owned(), "adapter.config.uri: unknown field"),
        ("{url: [1]}".to_owned(), "adapter.config.url: invalid type"),
    ];
    for (config, words) in cases {
        let file = dir.path().join("session-manager.yaml");
        std::fs::write(&file, format!("adapter: {{name: bridge, config: {config}}}")).expect("a written file");
        let mut program = Command::new(env!("CARGO_BIN_EXE_session-manager"));
        program.args(["serve", "--listen", "127.0.0.1:5999", "--config"]).arg(&file).env_remove("RUST_LOG");
        let output = program.stdin(Stdio::null()).output().expect("the binary runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{config}: {message}");
        assert!(message.contains(words) && !message.contains("panicked"), "{config}: {message}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is created");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_presents_the_token_of_its_file_and_needs_the_role_of_a_bridge() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let line = |token: &str, role: &str| {
        json!({ "name": token, "role": role, "hash": TokenHash::of(token).to_string() }).to_string() + "\n"
    };
    let mut settings = NodeSettings::on_free_port(&dir.path().join("data"));
    settings.config.token_file = Some(dir.path().join("tokens"));
    std::fs::write(dir.path().join("tokens"), line("edge", "bridge") + &line("web", "app")).expect("a token file");
    let main = Node::start(settings).await.expect("the main starts");
    let bridge = |token: Option<&str>| {
        let token_file = dir.path().join("token");
        if let Some(token) = token {
            std::fs::write(&token_file, token).expect("a token");
        }
        let config = BridgeConfig {
            url: Some(format!("ws://{}", main.local_addr())),
            timeout_ms: 3_000,
            token_file: token.map(|_| token_file),
            ..BridgeConfig::default()
        };
        let mut settings = NodeSettings::on_free_port(Path::new("unused"));
        settings.config.adapter = AdapterConfig::Bridge(config);
        Node::start(settings)
    };
    for wrong in [None, Some("wrong"), Some("web"), Some("two words")] {
        let refused = bridge(wrong).await.err().map(|error| error.to_string());
        let refused = refused.unwrap_or_else(|| panic!("a bridge with the token {wrong:?} starts"));
        assert!(!refused.contains("two words"), "an error quotes a token: {refused}");
    }
    // An edge serves its own clients under its own credentials, here none.
    let edge = bridge(Some("edge")).await.expect("the bridge starts");
    let client = Client::connect(&format!("ws://{}", edge.local_addr())).await;
    let created = client.call("session::create", json!({ "title": "at the edge" })).await;
    let got = client.call("session::get", json!({ "session_id": created["session_id"] })).await;
    assert_eq!(got["meta"]["title"], "at the edge");
    client.close().await;
    edge.shutdown().await;
    main.shutdown().await;
}
