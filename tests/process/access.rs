//! Every role at every door: what the role matrix allows, and that a refused call changes nothing.

use std::path::Path;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use session_manager::access::token::TokenHash;
use session_manager::access::{Action, Role};
use session_manager::node::{Node, NodeSettings};
use session_manager::proto::watch::WatchRequest;
use session_manager::proto::watch::events_client::EventsClient;
use session_manager::requests;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

const SOON: Duration = Duration::from_secs(20);

/// A token is its own name here.
fn token_line(token: &str, role: Role, more: &str) -> String {
    format!("{{\"name\": \"{token}\", \"role\": \"{role}\", \"hash\": \"{}\"{more}}}\n", TokenHash::of(token))
}

async fn closed_node(dir: &Path, tokens: &str) -> Node {
    let file = dir.join("tokens");
    std::fs::write(&file, tokens).unwrap();
    let mut settings = NodeSettings::on_free_port(&dir.join("data"));
    settings.config.token_file = Some(file);
    Node::start(settings).await.expect("the node starts")
}

/// One HTTP request. Returns the status and the body.
async fn http(node: &Node, head: &str, token: Option<&str>, body: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(node.local_addr()).await.unwrap();
    let login = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let length = body.len();
    let request =
        format!("{head} HTTP/1.1\r\nhost: localhost\r\n{login}content-length: {length}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    // A stream of events does not end: its head is enough.
    loop {
        let read = tokio::time::timeout(SOON, socket.read(&mut part)).await.expect("an answer").unwrap();
        answer.extend_from_slice(&part[..read]);
        if read == 0 || String::from_utf8_lossy(&answer).contains("text/event-stream") {
            break;
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

async fn call(node: &Node, function: &str, token: &str, body: Value) -> (u16, Value) {
    let (status, text) = http(node, &format!("POST /v1/call/{function}"), Some(token), &body.to_string()).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

struct Bus(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Bus {
    async fn connect(node: &Node, token: Option<&str>) -> Bus {
        let mut request = format!("ws://{}/", node.local_addr()).into_client_request().unwrap();
        if let Some(token) = token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Bus(tokio_tungstenite::connect_async(request).await.expect("the upgrade succeeds").0)
    }

    async fn send(&mut self, frame: Value) {
        self.0.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// The next frame of a type.
    async fn expect(&mut self, kind: &str) -> Value {
        loop {
            let message = tokio::time::timeout(SOON, self.0.next()).await.expect("a frame in time");
            let text = match message {
                Some(Ok(Message::Text(text))) => text,
                // The node asks whether its client is there.
                Some(Ok(Message::Ping(_))) => continue,
                message => panic!("{kind} was expected: {message:?}"),
            };
            let frame: Value = serde_json::from_str(&text).unwrap();
            if frame["type"] == kind {
                return frame;
            }
        }
    }

    async fn call(&mut self, function: &str, data: Value) -> Value {
        let id = uuid::Uuid::new_v4().to_string();
        self.send(json!({"type": "invokefunction", "invocation_id": id, "function_id": function, "data": data})).await;
        let answer = self.expect("invocationresult").await;
        assert_eq!(answer["invocation_id"], id);
        answer
    }

    async fn bind(&mut self, trigger_type: &str) -> Value {
        let id = uuid::Uuid::new_v4().to_string();
        let function = format!("handler::{id}");
        self.send(json!({"type": "registerfunction", "id": function})).await;
        self.send(json!({
            "type": "registertrigger", "id": id, "trigger_type": trigger_type, "function_id": function, "config": {}
        }))
        .await;
        self.expect("triggerregistrationresult").await
    }
}

fn all_roles() -> String {
    Role::ALL.map(|role| token_line(role.name(), role, "")).concat()
}

fn action_of(function: &requests::Function) -> Action {
    match (function.id.starts_with("session::store::"), function.writes) {
        (true, _) => Action::RawStore,
        (false, true) => Action::Write,
        (false, false) => Action::Read,
    }
}

const SEED: &str = "seed";

/// A new session with one message, as every function needs it.
async fn seed(node: &Node) {
    let message = json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "seed"}]});
    let session = json!({"session_id": SEED});
    for (function, body) in [
        // The raw store leaves parts of a session behind.
        ("session::delete", session.clone()),
        ("session::store::delete-entries", session.clone()),
        ("session::store::delete-active-leaf", session.clone()),
        ("session::ensure", session.clone()),
        ("session::append", json!({"session_id": SEED, "entry_id": "e", "message": message})),
    ] {
        let (status, answer) = call(node, function, "admin", body).await;
        assert_eq!(status, 200, "{function}: {answer}");
    }
    seed_model(node).await;
}

/// A session of the model with a checkpoint under way, and two people.
async fn seed_model(node: &Node) {
    let source = json!({"kind": "cli", "interactive": true});
    let model = |more: Value| {
        let mut body = json!({"agent_id": "main", "session_id": SEED});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (function, body) in [
        ("session::open", model(json!({"source": source}))),
        ("session::post", model(json!({"message": {"text": "note"}, "mode": "append"}))),
        ("session::checkpoint", model(json!({}))),
        ("session::identity::link", json!({"channel": "web", "channel_user_id": "a"})),
        ("session::identity::link", json!({"channel": "web", "channel_user_id": "b"})),
    ] {
        let (status, answer) = call(node, function, "admin", body).await;
        assert_eq!(status, 200, "{function}: {answer}");
    }
}

/// The right request of a function of the session model. It changes nothing itself.
async fn model_request(node: &Node, function: &str, unique: &str) -> Value {
    let person = |id: &'static str| async move {
        let asked = json!({"channel": "web", "channel_user_id": id});
        call(node, "session::identity::resolve", "admin", asked).await.1["user_id"].take()
    };
    let session = json!({"agent_id": "main", "session_id": SEED});
    let checkpoint = || async {
        let profile =
            call(node, "session::profile::get", "admin", json!({"agent_id": "main", "session_id": SEED})).await;
        profile.1["checkpoint"]["underway"].clone()
    };
    let digest = TokenHash::of(unique).to_string();
    let mut request = match function {
        "session::open" => {
            json!({"agent_id": "main", "session_id": unique, "source": {"kind": "cli", "interactive": true}})
        }
        "session::checkpoint::claim" => return json!({"checkpoint_id": checkpoint().await, "driver_id": "d"}),
        "session::checkpoint::result" => return json!({"checkpoint_id": checkpoint().await, "success": true}),
        "session::profile::list" => return json!({"agent_id": "main"}),
        "session::identity::merge" => return json!({"user_id": person("a").await, "into": person("b").await}),
        "session::identity::set-role" => {
            return json!({"agent_id": "main", "user_id": person("a").await, "role": "owner"});
        }
        "session::identity::set-channel-token" => {
            return json!({"agent_id": "main", "namespace": unique, "digest": digest});
        }
        "session::identity::channel-of-token" => return json!({"digest": digest}),
        "session::identity::link" | "session::identity::unlink" | "session::identity::resolve" => {
            return json!({"channel": "web", "channel_user_id": unique});
        }
        _of_a_session => session,
    };
    let more = [
        ("message", json!({"text": unique})),
        ("tool_call_id", json!("c")),
        ("approved", json!(true)),
        ("description", json!(unique)),
        ("working_memory", json!(unique)),
    ];
    request.as_object_mut().unwrap().extend(more.map(|(name, value)| (name.to_owned(), value)));
    request
}

/// Everything that the node stores.
async fn stored(node: &Node) -> Vec<Value> {
    let mut all = vec![call(node, "session::store::list-metas", "admin", json!({})).await.1];
    for session in all[0]["metas"].as_array().expect("all sessions").clone() {
        let session_id = json!({"session_id": session["session_id"]});
        for function in ["session::store::list-entries", "session::store::get-active-leaf"] {
            all.push(call(node, function, "admin", session_id.clone()).await.1);
        }
    }
    all
}

/// A request that the function executes. It changes something, if the function can.
async fn right_request(node: &Node, function: &str) -> Value {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let message = json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": unique}]});
    let raw = |name: &'static str| async move {
        let body = json!({"session_id": SEED, "entry_id": "e"});
        call(node, &format!("session::store::{name}"), "admin", body).await.1
    };
    match function {
        "session::create" => json!({"title": unique}),
        "session::ensure" => json!({"session_id": unique}),
        "session::list" | "session::config-status" | "session::on-config-change" => json!({}),
        "session::store::list-metas" | "session::store::about" => json!({}),
        "session::append" => json!({"session_id": SEED, "message": message}),
        "session::append-many" => json!({"session_id": SEED, "messages": [message]}),
        "session::update-message" => json!({"session_id": SEED, "entry_id": "e", "content": message["content"]}),
        "session::set-meta" => json!({"session_id": SEED, "title": unique}),
        "session::set-status" => json!({"session_id": SEED, "status": "working", "reason": unique}),
        "session::import" => {
            let lines = call(node, "session::export", "admin", json!({"session_id": SEED})).await.1["lines"].take();
            json!({"lines": lines, "session_id": unique})
        }
        "session::store::put-meta" => {
            let mut meta = raw("get-meta").await;
            meta["title"] = json!(unique);
            json!({"meta": meta})
        }
        "session::store::put-entry" => {
            let mut entry = raw("get-entry").await;
            entry["id"] = json!(unique);
            json!({"session_id": SEED, "entry": entry})
        }
        "session::store::publish-events" => {
            json!({"events": [{"trigger_type": "session::created", "payload": {"session_id": SEED}}]})
        }
        "session::store::propose" => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
            let request_id = format!("{:012x}{}", now, &unique[12..]);
            json!({"request_id": request_id, "function": "session::create", "request": {"title": unique}})
        }
        "session::turn::ask" => json!({"session_id": SEED, "text": unique}),
        "session::turn::attach" | "session::turn::detach" => json!({"driver_id": unique}),
        "session::turn::send-command" => json!({"session_id": SEED, "command": "set_mode", "mode": unique}),
        "session::turn::claim" | "session::turn::emit" | "session::turn::ack" => turn_request(node, function).await,
        _of_the_model if is_of_model(function) => model_request(node, function, &unique).await,
        _of_a_session => json!({"session_id": SEED, "entry_id": "e"}),
    }
}

fn is_of_model(function: &str) -> bool {
    let families = ["session::profile::", "session::identity::", "session::checkpoint"];
    families.iter().any(|family| function.starts_with(family))
        || matches!(function, "session::open" | "session::post" | "session::approve" | "session::deactivate")
}

/// The right request of a driver, for a turn of its own.
async fn turn_request(node: &Node, function: &str) -> Value {
    let asked = call(node, "session::turn::ask", "admin", json!({"session_id": SEED, "text": "go"})).await.1;
    let claim = json!({"turn_id": asked["turn_id"], "driver_id": "driver"});
    if function == "session::turn::claim" {
        return claim;
    }
    call(node, "session::turn::claim", "admin", claim).await;
    if function == "session::turn::emit" {
        let events = json!([{"type": "text_delta", "text": "a"}]);
        return json!({"turn_id": asked["turn_id"], "driver_id": "driver", "n": 1, "events": events});
    }
    let set_mode = json!({"session_id": SEED, "command": "set_mode", "mode": "plan"});
    let sent = call(node, "session::turn::send-command", "admin", set_mode).await.1;
    json!({"command_id": sent["command_id"]})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_function_and_stream_follows_the_role_matrix_at_every_door() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path(), &all_roles()).await;
    for role in Role::ALL {
        let (status, _) = http(&node, "GET /metrics", Some(role.name()), "").await;
        assert_eq!((status == 200, status == 403), (role.may(Action::Metrics), !role.may(Action::Metrics)), "{role}");
        let (status, _) = http(&node, "GET /v1/nodes", Some(role.name()), "").await;
        assert_eq!((status == 200, status == 403), (role.may(Action::Read), !role.may(Action::Read)), "{role}");
        let mut bus = Bus::connect(&node, Some(role.name())).await;
        if !role.may(Action::Read) {
            only_metrics(&node, role, bus).await;
            continue;
        }
        for function in requests::served() {
            let allowed = role.may(action_of(function));
            seed(&node).await;
            let request = right_request(&node, function.id).await;
            let before = stored(&node).await;
            let (status, answer) = call(&node, function.id, role.name(), request.clone()).await;
            // This node has no file to read its settings from again.
            let executed = status == 200 || (status != 403 && function.id == "session::on-config-change");
            assert_eq!((executed, status == 403), (allowed, !allowed), "{role} {} over HTTP: {answer}", function.id);
            seed_if(allowed, &node).await;
            let answer = bus.call(function.id, request).await;
            assert_eq!(answer["error"]["code"] != "forbidden", allowed, "{role} {} on the bus: {answer}", function.id);
            if !allowed {
                assert_eq!(stored(&node).await, before, "{role} {}: a refused call changed something", function.id);
            }
        }
        let events = role.may(Action::Events);
        for kind in ["created", "deleted", "message-added", "message-updated", "meta-updated", "status-changed"] {
            let bound = bus.bind(&format!("session::{kind}")).await;
            assert_eq!(bound["error"].is_null(), events, "{role} {kind}: {bound}");
        }
        let bound = bus.bind("session::store::events").await;
        assert_eq!(bound["error"].is_null(), role.may(Action::RawStore), "{role}: {bound}");
        let (status, _) = http(&node, "GET /v1/events", Some(role.name()), "").await;
        assert_eq!(status == 200, events, "{role} over server-sent events");
        let channel = tonic::transport::Channel::from_shared(format!("http://{}", node.local_addr())).unwrap();
        let mut watch = EventsClient::new(channel.connect().await.unwrap());
        let mut request = tonic::Request::new(WatchRequest::default());
        request.metadata_mut().insert("authorization", format!("Bearer {role}").parse().unwrap());
        assert_eq!(watch.watch(request).await.is_ok(), events, "{role} over gRPC");
        let refused = watch.watch(WatchRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
        let listed = bus.call("engine::functions::list", json!({"include_internal": true})).await;
        for function in listed["result"]["functions"].as_array().unwrap() {
            let id = function["function_id"].as_str().unwrap();
            let found = requests::find(id, false);
            assert!(found.is_none_or(|function| role.may(action_of(function))), "{role} is shown {id}");
        }
    }
    node.shutdown().await;
}

/// A role that may not read is refused at every door for sessions.
async fn only_metrics(node: &Node, role: Role, mut bus: Bus) {
    seed(node).await;
    // Some of them need a turn, which is a change.
    let mut right = Vec::new();
    for function in requests::served() {
        right.push((function.id, right_request(node, function.id).await));
    }
    let before = stored(node).await;
    let refused = bus.expect("error").await;
    assert_eq!(refused["error"]["code"], "AUTH_ERROR", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("with the role monitor may not"), "{refused}");
    assert!(matches!(bus.0.next().await, Some(Ok(Message::Close(Some(_))))), "the close frame follows");
    for (function, request) in right {
        let (status, answer) = call(node, function, role.name(), request).await;
        assert_eq!(status, 403, "{role} {function} over HTTP: {answer}");
    }
    assert_eq!(http(node, "GET /v1/events", Some(role.name()), "").await.0, 403, "{role}");
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", node.local_addr())).unwrap();
    let mut watch = EventsClient::new(channel.connect().await.unwrap());
    let mut request = tonic::Request::new(WatchRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {role}").parse().unwrap());
    assert_eq!(watch.watch(request).await.unwrap_err().code(), tonic::Code::PermissionDenied, "{role}");
    assert_eq!(stored(node).await, before, "{role} changed something");
}

/// An allowed call may have deleted the session.
async fn seed_if(allowed: bool, node: &Node) {
    if allowed {
        seed(node).await;
    }
}

#[tokio::test]
async fn a_caller_without_credentials_is_refused_as_an_engine_does_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path(), &token_line("web", Role::App, "")).await;
    for token in [None, Some("wrong")] {
        let mut bus = Bus::connect(&node, token).await;
        let refused = bus.expect("error").await;
        assert_eq!(refused["error"]["code"], "AUTH_ERROR");
        assert!(matches!(bus.0.next().await, Some(Ok(Message::Close(Some(_))))), "the close frame follows");
        for path in ["POST /v1/call/session::create", "GET /v1/events", "GET /v1/nodes", "GET /nothing"] {
            assert_eq!(http(&node, path, token, "{}").await.0, 401, "{path}");
        }
    }
    // A load balancer asks without credentials, and Node's SDK opens its telemetry socket without any.
    assert_eq!(http(&node, "GET /health", None, "").await.0, 200);
    let otel = format!("ws://{}/otel", node.local_addr());
    tokio_tungstenite::connect_async(otel).await.expect("telemetry is accepted");
    // A browser cannot set headers.
    let url = format!("ws://{}/?token=web", node.local_addr());
    let mut bus = Bus(tokio_tungstenite::connect_async(url).await.unwrap().0);
    bus.expect("workerregistered").await;
    node.shutdown().await;
}

#[tokio::test]
async fn another_caller_takes_over_nothing_on_the_bus() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = token_line("one", Role::App, "") + &token_line("two", Role::App, "");
    let node = closed_node(dir.path(), &tokens).await;
    let mut one = Bus::connect(&node, Some("one")).await;
    let greeting = one.expect("workerregistered").await;
    one.send(json!({"type": "registerfunction", "id": "shop::buy"})).await;
    one.send(json!({"type": "registertriggertype", "id": "shop::sold", "description": ""})).await;
    one.send(json!({"type": "registertrigger", "id": "b", "trigger_type": "session::created",
                    "function_id": "shop::buy", "config": {}}))
        .await;
    one.expect("triggerregistrationresult").await;
    let mut two = Bus::connect(&node, Some("two")).await;
    let (worker, token) = (&greeting["worker_id"], &greeting["reattach_token"]);
    two.send(json!({"type": "reattach", "previous_worker_id": worker, "reattach_token": token})).await;
    two.send(json!({"type": "registerfunction", "id": "shop::buy"})).await;
    two.expect("registrationrejected").await;
    two.send(json!({"type": "registertriggertype", "id": "shop::sold", "description": ""})).await;
    two.send(json!({"type": "registertrigger", "id": "b", "trigger_type": "session::created",
                    "function_id": "shop::buy", "config": {}}))
        .await;
    // The ids of bindings belong to their client, so both have one of this name.
    let accepted = two.expect("triggerregistrationresult").await;
    assert!(accepted["error"].is_null(), "{accepted}");
    for (list, of) in
        [("engine::workers::list", "workers"), ("engine::registered-triggers::list", "registered_triggers")]
    {
        let shown = two.call(list, json!({})).await["result"][of].to_string();
        assert!(!shown.contains(worker.as_str().unwrap()), "{list} shows the worker of another caller: {shown}");
    }
    two.send(json!({"type": "unregistertrigger", "id": "b", "trigger_type": "session::created"})).await;
    two.call("session::create", json!({})).await;
    assert_eq!(one.expect("invokefunction").await["function_id"], "shop::buy", "its own binding is still there");
    // The function still belongs to the first caller, and the second may call it.
    two.send(json!({"type": "invokefunction", "invocation_id": "i", "function_id": "shop::buy", "data": {}})).await;
    let invoked = one.expect("invokefunction").await;
    // An answer of somebody else is nobody's.
    two.send(json!({"type": "invocationresult", "invocation_id": invoked["invocation_id"], "function_id": "shop::buy",
                    "result": "forged"}))
        .await;
    one.send(json!({"type": "invocationresult", "invocation_id": invoked["invocation_id"], "function_id": "shop::buy",
                    "result": "sold"}))
        .await;
    assert_eq!(two.expect("invocationresult").await["result"], "sold");
    node.shutdown().await;
}

#[tokio::test]
async fn a_removed_token_ends_its_connections_and_a_new_one_is_let_in() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path(), &token_line("old", Role::App, "")).await;
    let mut bus = Bus::connect(&node, Some("old")).await;
    bus.expect("workerregistered").await;
    std::fs::write(dir.path().join("tokens"), token_line("new-token", Role::App, "")).unwrap();
    let closed = async {
        loop {
            match bus.0.next().await {
                Some(Ok(Message::Close(Some(frame)))) => return frame.reason.to_string(),
                Some(Ok(_)) => {}
                ended => panic!("no close frame: {ended:?}"),
            }
        }
    };
    let reason = tokio::time::timeout(SOON, closed).await.expect("the connection ends");
    assert!(reason.contains("no longer hold"), "{reason}");
    assert_eq!(call(&node, "session::list", "new-token", json!({})).await.0, 200);
    assert_eq!(call(&node, "session::list", "old", json!({})).await.0, 401);
    node.shutdown().await;
}

/// Opens one stream of every kind. Returns what ends when the stream ends.
async fn open_streams(node: &Node, token: &str) -> Vec<tokio::task::JoinHandle<()>> {
    let mut bus = Bus::connect(node, Some(token)).await;
    let bound = bus.bind("session::created").await;
    assert!(bound["error"].is_null(), "{bound}");
    let of_the_bus = tokio::spawn(async move { while bus.0.next().await.is_some_and(|frame| frame.is_ok()) {} });
    let mut socket = TcpStream::connect(node.local_addr()).await.unwrap();
    let request = format!("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut part = vec![0; 4096];
    let read = socket.read(&mut part).await.unwrap();
    assert!(String::from_utf8_lossy(&part[..read]).starts_with("HTTP/1.1 200"));
    // The last chunk of a response is empty. The connection itself may be used again.
    let of_sse = tokio::spawn(async move {
        loop {
            match socket.read(&mut part).await {
                Ok(read) if read > 0 && !part[..read].ends_with(b"0\r\n\r\n") => {}
                _ended => return,
            }
        }
    });
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", node.local_addr())).unwrap();
    let mut watch = EventsClient::new(channel.connect().await.unwrap());
    let mut request = tonic::Request::new(WatchRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut responses = watch.watch(request).await.unwrap().into_inner();
    let of_grpc = tokio::spawn(async move { while let Ok(Some(_)) = responses.message().await {} });
    vec![of_the_bus, of_sse, of_grpc]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_ends_its_live_subscriptions_within_a_minute_and_no_others() {
    const MINUTE: Duration = Duration::from_secs(60);
    let dir = tempfile::tempdir().unwrap();
    // Long enough to open the streams on a busy machine.
    let ends_ms = session_manager::access::credentials::now_ms() + 8_000;
    let expires = format!(", \"expires\": \"{}\"", session_manager::machine::toolpath::time::print(ends_ms));
    let tokens = token_line("brief", Role::Reader, &expires) + &token_line("lasting", Role::Reader, "");
    let node = closed_node(dir.path(), &tokens).await;
    let (brief, lasting) = (open_streams(&node, "brief").await, open_streams(&node, "lasting").await);
    for stream in brief {
        tokio::time::timeout(MINUTE, stream).await.expect("the stream ends").unwrap();
    }
    assert!(session_manager::access::credentials::now_ms() >= ends_ms, "a stream ended before its token");
    assert!(lasting.iter().all(|stream| !stream.is_finished()), "a stream of another token ended");
    assert_eq!(call(&node, "session::list", "brief", json!({})).await.0, 401);
    lasting.into_iter().for_each(|stream| stream.abort());
    node.shutdown().await;
}

#[tokio::test]
async fn pages_of_allowed_origins_are_told_that_they_may_call() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = NodeSettings::on_free_port(&dir.path().join("data"));
    settings.config.allowed_origins = vec!["https://app.example".to_owned()];
    let node = Node::start(settings).await.unwrap();
    let send = |method: &'static str, path: &'static str, origin: &'static str, more: &'static str| {
        let address = node.local_addr();
        async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\n{more}content-length: 0\r\n\
                 connection: close\r\n\r\n"
            );
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.unwrap();
            answer.to_lowercase()
        }
    };
    let asks = "access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n";
    for origin in ["https://app.example", "http://localhost:3000"] {
        let reads = format!("access-control-allow-origin: {origin}\r\n");
        let answer = send("OPTIONS", "/v1/call/session::list", origin, asks).await;
        assert!(answer.starts_with("http/1.1 204") && answer.contains(&reads), "{answer}");
        assert!(answer.contains("access-control-allow-headers: authorization"), "{answer}");
        let answer = send("POST", "/v1/call/session::list", origin, "").await;
        assert!(answer.starts_with("http/1.1 200") && answer.contains(&reads), "{answer}");
        let answer = send("POST", "/v1/call/session::nothing", origin, "").await;
        assert!(answer.contains(&reads), "a page reads errors too: {answer}");
    }
    for (method, path, more) in
        [("OPTIONS", "/v1/call/session::list", asks), ("POST", "/v1/call/session::list", ""), ("GET", "/v1/events", "")]
    {
        let answer = send(method, path, "https://evil.example", more).await;
        assert!(answer.starts_with("http/1.1 403") && !answer.contains("access-control-allow"), "{answer}");
    }
    // What every program may read, a page may fetch, but its browser does not show it.
    let answer = send("GET", "/health", "https://evil.example", "").await;
    assert!(!answer.contains("access-control-allow"), "{answer}");
    node.shutdown().await;
}
