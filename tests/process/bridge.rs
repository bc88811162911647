//! Laws of edge instances: two bridges and their main, over real sockets; and bad addresses, as the program sees them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use session_manager::config::{AdapterConfig, BridgeConfig, DataDir};
use session_manager::events::current::CurrentFeed;
use session_manager::events::deliver::{Feed, FeedSettings};
use session_manager::node::{Node, NodeSettings};
use session_manager::surface::bus::{Bus, BusSettings};
use session_manager::surface::endpoint::{self, EndpointSettings};
use session_manager::surface::{CallError, DescribedFunction, Service};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, user_message};
use crate::node::NodeProcess;

/// A node in this process with a client of its own.
struct Seat {
    node: Node,
    client: Client,
}

impl Seat {
    async fn at(settings: NodeSettings) -> Seat {
        let node = Node::start(settings).await.unwrap_or_else(|error| panic!("{error}"));
        let client = Client::connect(&format!("ws://{}", node.local_addr())).await;
        Seat { node, client }
    }

    async fn main(dir: &Path, adapter: fn(DataDir) -> AdapterConfig) -> Seat {
        let mut settings = NodeSettings::on_free_port(dir);
        settings.config.adapter = adapter(DataDir { data_dir: dir.join("data") });
        Seat::at(settings).await
    }

    async fn bridge(&self) -> Seat {
        let mut settings = NodeSettings::on_free_port(Path::new("unused"));
        settings.config.adapter =
            AdapterConfig::Bridge(BridgeConfig { url: Some(self.url()), ..BridgeConfig::default() });
        Seat::at(settings).await
    }

    fn url(&self) -> String {
        format!("ws://{}", self.node.local_addr())
    }

    async fn leave(self) {
        self.client.close().await;
        self.node.shutdown().await;
    }
}

/// A main with two bridges: the whole cast of most scenes.
async fn three(dir: &Path, adapter: fn(DataDir) -> AdapterConfig) -> [Seat; 3] {
    let main = Seat::main(dir, adapter).await;
    let (one, two) = (main.bridge().await, main.bridge().await);
    [main, one, two]
}

async fn leave(seats: [Seat; 3]) {
    for seat in seats.into_iter().rev() {
        seat.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutation_made_anywhere_is_heard_everywhere_once_by_each_ones_own_filters() {
    for adapter in [AdapterConfig::Raft, AdapterConfig::Fs] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let seats = three(dir.path(), adapter).await;
        let mut everything = Vec::new();
        for seat in &seats {
            everything.push(seat.client.listen("session::message-added", json!({})).await);
        }
        let mut tenants = Vec::new();
        for (seat, tenant) in [(&seats[1], "a"), (&seats[2], "b")] {
            let config = json!({ "metadata": { "tenant": tenant }, "roles": ["user"] });
            tenants.push(seat.client.listen("session::message-added", config).await);
        }
        for (session, tenant) in [("of-a", "a"), ("of-b", "b")] {
            let ensure = json!({ "session_id": session, "metadata": { "tenant": tenant } });
            seats[1].client.call("session::ensure", ensure).await;
        }
        let mut said = Vec::new();
        for round in 0..4 {
            for (at, seat) in seats.iter().enumerate() {
                let entry_id = format!("{at}-{round}");
                for session in ["of-a", "of-b"] {
                    let body =
                        json!({ "session_id": session, "entry_id": entry_id, "message": user_message(&entry_id) });
                    seat.client.call("session::append", body).await;
                    said.push((session.to_owned(), entry_id.clone()));
                }
            }
        }
        let last = json!({ "session_id": "of-a", "entry_id": "last", "message": user_message("last") });
        seats[0].client.call("session::append", last).await;
        let last = json!({ "session_id": "of-b", "entry_id": "last", "message": user_message("last") });
        seats[0].client.call("session::append", last).await;
        said.extend(["of-a", "of-b"].map(|session| (session.to_owned(), "last".to_owned())));
        let heard = |event: &Value| {
            (event["session_id"].as_str().unwrap().to_owned(), event["entry_id"].as_str().unwrap().to_owned())
        };
        for events in &mut everything {
            let events = events.until(|event| event["entry_id"] == "last" && event["session_id"] == "of-b").await;
            let places: Vec<u64> =
                events.iter().filter(|event| event.payload["session_id"] == "of-a").map(|event| event.seq).collect();
            assert!(places.windows(2).all(|pair| pair[0] + 1 == pair[1]), "the sequence is the main's: {places:?}");
            assert_eq!(events.iter().map(|event| heard(&event.payload)).collect::<Vec<_>>(), said);
        }
        for (events, session) in tenants.iter_mut().zip(["of-a", "of-b"]) {
            let events = events.until(|event| event["entry_id"] == "last").await;
            let mine: Vec<_> = said.iter().filter(|(of, _)| of == session).cloned().collect();
            assert_eq!(events.iter().map(|event| heard(&event.payload)).collect::<Vec<_>>(), mine);
        }
        leave(seats).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_bridges_with_expected_revision_lose_no_update() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let seats = three(dir.path(), AdapterConfig::Raft).await;
    seats[1].client.call("session::ensure", json!({ "session_id": "s" })).await;
    let counter = json!({ "session_id": "s", "entry_id": "counter", "message": user_message("0") });
    seats[2].client.call("session::append", counter).await;
    join_all(seats[1..].iter().map(|seat| count_up(&seat.client, 100))).await;
    let entry = seats[0].client.call("session::get-message", json!({ "session_id": "s", "entry_id": "counter" })).await;
    assert_eq!(entry["entry"]["revision"], 200);
    assert_eq!(entry["entry"]["message"]["content"][0]["text"], "200");
    leave(seats).await;
}

/// Raises the number in a message, each time by one over what was read.
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
    let main = Seat::main(dir.path(), AdapterConfig::Raft).await;
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
        let said = |answer: Result<Value, String>, session: &str| {
            let text = answer.map_or_else(|error| error, |answer| answer.to_string()).replace(session, "S");
            // Times differ from call to call.
            let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
            text.chars().map(digits).collect::<String>()
        };
        let here = said(main.client.try_call(function, of("here")).await, "here");
        let there = said(edge.client.try_call(function, of("there")).await, "there");
        assert_eq!(here, there, "{function} {body}");
    }
    let refused = edge.client.try_call("session::store::get-meta", json!({ "session_id": "here" })).await.unwrap_err();
    assert!(refused.contains("session/invalid_request") && refused.contains("where the data lives"), "{refused}");
    let page = edge.client.call("session::list", json!({ "limit": 1 })).await;
    assert_eq!(page["sessions"].as_array().unwrap().len(), 1);
    edge.leave().await;
    main.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_without_its_main_says_so_in_time_and_goes_on_when_it_is_back() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let main = NodeProcess::start(&dir.path().join("data"), &[]);
    let address = main.address.to_string();
    let mut settings = NodeSettings::on_free_port(Path::new("unused"));
    let config = BridgeConfig { url: Some(main.url()), timeout_ms: 500, ..BridgeConfig::default() };
    settings.config.adapter = AdapterConfig::Bridge(config);
    let edge = Seat::at(settings).await;
    let mut added = edge.client.listen("session::message-added", json!({})).await;
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
    back.await.expect("the bridge goes on");
    let heard = added.until(|event| event["entry_id"] == "after").await;
    let entries: Vec<&Value> = heard.iter().map(|event| &event.payload["entry_id"]).collect();
    assert_eq!(entries, ["before", "after"]);
    edge.leave().await;
}

/// An iii bus without any function.
async fn empty_bus() -> (SocketAddr, CancellationToken) {
    struct Nothing;

    impl Service for Nothing {
        fn call<'a>(
            &'a self,
            _function_id: &'a str,
            _body: &'a str,
            _sidecar: Option<&'a str>,
            _deadline: Instant,
        ) -> Option<BoxFuture<'a, Result<String, CallError>>> {
            None
        }

        fn functions(&self) -> Vec<DescribedFunction> {
            Vec::new()
        }
    }

    let feed = CurrentFeed::new(Feed::new(FeedSettings::default()));
    let bus = Bus::new(BusSettings::default(), Arc::new(Nothing), feed);
    let stop = CancellationToken::new();
    let opened = endpoint::serve(EndpointSettings::new("127.0.0.1:0"), bus, stop.clone()).await;
    (opened.expect("the bus listens").0, stop)
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
async fn a_main_that_is_none_is_refused_by_its_key() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let main = Seat::main(dir.path(), AdapterConfig::Fs).await;
    let edge = main.bridge().await;
    let one = |url: String| BridgeConfig { url: Some(url), timeout_ms: 1000, ..BridgeConfig::default() };

    // A dead port.
    let vacant = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let why = refused(one(format!("ws://{vacant}"))).await;
    assert!(why.starts_with("adapter.config.url: ") && why.contains("cannot be reached"), "{why}");
    // A port where somebody listens and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let why = refused(one(format!("ws://{}", silent.local_addr().unwrap()))).await;
    assert!(why.starts_with("adapter.config.url: ") && why.contains("does not answer as an iii bus"), "{why}");
    // A bus on which nobody serves sessions.
    let (bus, stop) = empty_bus().await;
    let why = refused(one(format!("ws://{bus}"))).await;
    assert!(why.starts_with("adapter.config.url: ") && why.contains("no session-manager serves"), "{why}");
    stop.cancel();
    // Another bridge: the data does not live there.
    let why = refused(one(edge.url())).await;
    assert!(why.contains("a bridge answers there: name the main"), "{why}");
    // Several, none of which will do: each is named.
    let urls = vec![edge.url(), format!("ws://{vacant}")];
    let why = refused(BridgeConfig { urls, timeout_ms: 1000, ..BridgeConfig::default() }).await;
    assert!(why.contains("adapter.config.urls[0]: ") && why.contains("adapter.config.urls[1]: "), "{why}");
    // One of several will do.
    let urls = vec![format!("ws://{vacant}"), main.url()];
    let mut settings = NodeSettings::on_free_port(Path::new("unused"));
    settings.config.adapter = AdapterConfig::Bridge(BridgeConfig { urls, ..BridgeConfig::default() });
    Seat::at(settings).await.leave().await;
    edge.leave().await;
    main.leave().await;
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
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{config}: {said}");
        assert!(said.contains(words) && !said.contains("panicked"), "{config}: {said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is created");
    }
}
