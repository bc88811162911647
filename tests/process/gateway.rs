//! The gateway as front-ends use it: greeting, credentials, limits, sessions and tenants, over real sockets.

use std::path::Path;
use std::time::Duration;

use futures::SinkExt;
use serde_json::{Value, json};
use session_manager::access::Role;
use session_manager::access::token::TokenHash;
use session_manager::config::{AdapterConfig, DataDir};
use session_manager::node::{Node, NodeSettings};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::gateway_client::Client;
use crate::node::NodeProcess;

const SOON: Duration = Duration::from_secs(30);

async fn open_node(dir: &Path) -> Node {
    Node::start(NodeSettings::on_free_port(&dir.join("data"))).await.expect("the node starts")
}

/// A node with tokens. A token is its own name; its scope is its tenant.
pub async fn closed_node(dir: &Path, tokens: &[(&str, Role, &str)]) -> Node {
    let line = |(token, role, tenant): &(&str, Role, &str)| {
        let scope = if tenant.is_empty() { String::new() } else { format!(r#", "scope": {{"tenantId": "{tenant}"}}"#) };
        format!("{{\"name\": \"{token}\", \"role\": \"{role}\", \"hash\": \"{}\"{scope}}}\n", TokenHash::of(token))
    };
    let file = dir.join("tokens");
    std::fs::write(&file, tokens.iter().map(line).collect::<String>()).unwrap();
    let mut settings = NodeSettings::on_free_port(&dir.join("data"));
    settings.config.token_file = Some(file);
    Node::start(settings).await.expect("the node starts")
}

async fn call(node: &Node, function: &str, body: Value) -> Value {
    node_call(node, function, None, body).await
}

async fn node_call(node: &Node, function: &str, token: Option<&str>, body: Value) -> Value {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = TcpStream::connect(node.local_addr()).await.unwrap();
    let login = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let body = body.to_string();
    let head = format!(
        "POST /v1/call/{function} HTTP/1.1\r\nhost: localhost\r\n{login}content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn in_dev_mode_a_client_is_greeted_with_exactly_three_frames() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    for path in ["ws", "gateway"] {
        let mut client = Client::open(&format!("ws://{}/{path}", node.local_addr()), &[]).await.unwrap();
        assert_eq!(client.frame().await, json!({"type": "welcome", "protocolVersion": 1, "requiresAuth": false}));
        let connected = client.frame().await;
        assert_eq!((&connected["type"], &connected["heartbeatIntervalMs"]), (&json!("connected"), &json!(30000)));
        uuid::Uuid::parse_str(connected["clientId"].as_str().unwrap()).expect("a uuid");
        let identity = client.frame().await["identity"].clone();
        let wanted = json!({"userId": "dev-user-001", "email": "developer@example.com", "tenantId": "dev",
                            "role": "owner"});
        assert_eq!(identity, wanted);
        client.send(json!({"type": "ping", "ts": 1})).await;
        assert_eq!(client.frame().await["type"], "pong", "nothing else was sent unasked");
    }
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_nothing_is_done_and_wrong_ones_are_limited_by_address() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = [("good", Role::App, "acme"), ("lost", Role::App, ""), ("metrics", Role::Monitor, "acme")];
    let node = closed_node(dir.path(), &tokens).await;
    let mut client = Client::to(&node).await;
    assert_eq!(client.frame().await["requiresAuth"], true);
    client.send(json!({"type": "list_sessions"})).await;
    assert_eq!(client.error().await, "AUTH_REQUIRED");
    client.send(json!({"type": "nonsense"})).await;
    assert_eq!(client.error().await, "AUTH_REQUIRED");
    client.works().await;
    for token in ["bad", "lost", "metrics"] {
        client.send(json!({"type": "authenticate", "token": token})).await;
        assert_eq!(client.error().await, "AUTH_FAILED", "{token}");
    }
    client.send(json!({"type": "authenticate", "token": "good"})).await;
    let identity = client.expect("authenticated").await["identity"].clone();
    assert_eq!((&identity["userId"], &identity["tenantId"]), (&json!("good"), &json!("acme")));
    // Three failures so far. Four more on each of two connections make eleven.
    let mut codes = Vec::new();
    for _ in 0..2 {
        let mut client = Client::to(&node).await;
        for _ in 0..4 {
            client.send(json!({"type": "authenticate", "token": "bad"})).await;
            codes.push(client.error().await);
        }
    }
    assert!(codes[..7].iter().all(|code| code == "AUTH_FAILED"), "{codes:?}");
    assert_eq!(codes[7], "AUTH_RATE_LIMITED");
    // Who shares the address is let in.
    Client::ready(&node, Some("good")).await.works().await;
    let mut stubborn = Client::to(&node).await;
    for _ in 0..5 {
        stubborn.send(json!({"type": "authenticate", "token": "bad"})).await;
    }
    assert_eq!(stubborn.closed().await, 1008);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_may_come_with_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path(), &[("good", Role::Reader, "acme")]).await;
    let url = format!("ws://{}/ws", node.local_addr());
    let mut by_header = Client::open(&url, &[("authorization", "Bearer good")]).await.unwrap();
    by_header.expect("authenticated").await;
    let mut by_protocol = Client::open(&url, &[("sec-websocket-protocol", "bearer, good")]).await.unwrap();
    by_protocol.expect("authenticated").await;
    let mut wrong = Client::open(&url, &[("authorization", "Bearer bad")]).await.unwrap();
    assert_eq!(wrong.error().await, "AUTH_FAILED");
    wrong.send(json!({"type": "authenticate", "token": "good"})).await;
    wrong.expect("authenticated").await;
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_and_origins_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let url = format!("ws://{}/ws", node.local_addr());
    let mut second = Client::open(&format!("{url}?protocolVersion=2"), &[]).await.unwrap();
    assert_eq!(second.frame().await["protocolVersion"], 2);
    let mut ninth = Client::open(&format!("{url}?protocolVersion=9"), &[]).await.unwrap();
    ninth.frame().await;
    assert_eq!(ninth.error().await, "ProtocolVersionMismatch");
    assert_eq!(ninth.closed().await, 1002);
    match Client::open(&url, &[("origin", "http://evil.example")]).await {
        Err(WsError::Http(response)) => assert_eq!(response.status(), 403),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a page of another site was let in"),
    }
    Client::open(&url, &[("origin", "http://localhost:3000")]).await.unwrap().works().await;
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_get_their_errors_and_the_connection_lives() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let mut client = Client::ready(&node, None).await;
    let deep = format!("{{\"type\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    let large = "x".repeat(1 << 20);
    let frames = [
        (Message::text("{"), "INVALID_JSON"),
        (Message::text(deep), "INVALID_JSON"),
        (Message::binary(b"{}".to_vec()), "INVALID_JSON"),
        (Message::text("[1]"), "INVALID_MESSAGE"),
        (Message::text("{}"), "INVALID_MESSAGE"),
        (Message::text(r#"{"type":"session_list"}"#), "INVALID_MESSAGE"),
        (Message::text(r#"{"type":7}"#), "INVALID_MESSAGE"),
        (Message::text(r#"{"type":"join_session"}"#), "INVALID_MESSAGE"),
        (Message::text(r#"{"type":"create_session","agentType":["a"]}"#), "INVALID_MESSAGE"),
        (Message::text(r#"{"type":"run_turn","sessionId":5,"text":"x"}"#), "INVALID_MESSAGE"),
        (Message::text(large + "x"), "MESSAGE_TOO_LARGE"),
        (Message::text("y".repeat(2_000_000)), "MESSAGE_TOO_LARGE"),
        (Message::binary(vec![0; 2_000_000]), "MESSAGE_TOO_LARGE"),
    ];
    for (frame, code) in frames {
        client.0.send(frame).await.unwrap();
        assert_eq!(client.error().await, code);
        client.works().await;
    }
    // The node closes while the client still sends, so the client may find a reset instead of the close frame.
    let _ = client.0.send(Message::text("z".repeat(5 << 20))).await;
    assert!(matches!(client.closed().await, 1009 | 1006));
    let mut other = Client::ready(&node, None).await;
    other.send(json!({"type": "list_sessions", "includeArchived": true})).await;
    assert_eq!(other.expect("session_list").await["sessions"], json!([]), "nothing was changed");
    // Frames that are refused count like others.
    let mut hasty = Client::ready(&node, None).await;
    for _ in 0..61 {
        hasty.send_raw(Message::binary(b"{}".to_vec())).await;
    }
    for _ in 0..60 {
        assert_eq!(hasty.error().await, "INVALID_JSON");
    }
    assert_eq!(hasty.error().await, "RATE_LIMITED");
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sixty_first_message_is_dropped_and_the_client_may_go_on_later() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let mut client = Client::ready(&node, None).await;
    for n in 0..61 {
        client.send(json!({"type": "ping", "ts": n})).await;
    }
    for n in 0..60 {
        assert_eq!(client.expect("pong").await["clientTs"], n);
    }
    let limited = client.frame().await;
    assert_eq!(limited["code"], "RATE_LIMITED");
    let wait = limited["retryAfterMs"].as_u64().unwrap();
    assert!(wait <= 10_001, "{limited}");
    tokio::time::sleep(Duration::from_millis(wait)).await;
    client.works().await;
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_made_changed_and_listed_as_the_functions_see_them() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let (mut client, mut other) = (Client::ready(&node, None).await, Client::ready(&node, None).await);
    client.send(json!({"type": "create_session", "agentType": "coder"})).await;
    let session = client.expect("session_created").await["session"].clone();
    let id = session["id"].as_str().unwrap().to_owned();
    uuid::Uuid::parse_str(&id).expect("a bare uuid");
    let shown = json!({"tenantId": "dev", "name": null, "agentType": "coder", "status": "inactive", "archived": false});
    for (field, value) in shown.as_object().unwrap() {
        assert_eq!(&session[field], value, "{field}");
    }
    assert_eq!(other.expect("session_updated").await["session"]["id"], id);

    client.send(json!({"type": "rename_session", "sessionId": id, "name": "Ada"})).await;
    for each in [&mut client, &mut other] {
        assert_eq!(each.expect("session_updated").await["session"]["name"], "Ada");
    }
    let meta = call(&node, "session::get", json!({"session_id": id})).await["meta"].clone();
    assert_eq!((&meta["title"], &meta["metadata"]["tenantId"]), (&json!("Ada"), &json!("dev")));

    client.send(json!({"type": "archive_session", "sessionId": id})).await;
    assert_eq!(client.expect("session_archived").await["session"]["archived"], true);
    client.send(json!({"type": "list_sessions"})).await;
    assert_eq!(client.expect("session_list").await["sessions"], json!([]));
    client.send(json!({"type": "list_sessions", "includeArchived": true})).await;
    assert_eq!(client.expect("session_list").await["sessions"][0]["id"], id);
    client.send(json!({"type": "unarchive_session", "sessionId": id})).await;
    assert_eq!(client.expect("session_unarchived").await["session"]["archived"], false);

    client.send(json!({"type": "delete_session", "sessionId": id})).await;
    for each in [&mut client, &mut other] {
        assert_eq!(each.expect("session_deleted").await["sessionId"], id);
    }
    assert_eq!(call(&node, "session::get", json!({"session_id": id})).await, Value::Null);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_session_is_as_unknown_as_one_that_never_was() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = [("a", Role::App, "acme"), ("b", Role::Admin, "bravo"), ("reader", Role::Reader, "acme")];
    let node = closed_node(dir.path(), &tokens).await;
    let mut ours = Client::ready(&node, Some("a")).await;
    ours.send(json!({"type": "create_session", "agentType": "coder", "name": "secret"})).await;
    let id = ours.expect("session_created").await["session"]["id"].clone();
    let mut theirs = Client::ready(&node, Some("b")).await;
    for target in [id.clone(), json!("00000000-0000-4000-8000-000000000000"), json!("../../x\u{0}y")] {
        for message in [
            json!({"type": "rename_session", "name": "mine"}),
            json!({"type": "archive_session"}),
            json!({"type": "delete_session"}),
            json!({"type": "join_session", "afterSeq": 0}),
            json!({"type": "run_turn", "text": "x"}),
            json!({"type": "stop_turn"}),
            json!({"type": "get_history"}),
            json!({"type": "get_events"}),
        ] {
            let mut message = message;
            message["sessionId"] = target.clone();
            theirs.send(message.clone()).await;
            assert_eq!(theirs.error().await, "SessionNotFound", "{message}");
        }
    }
    theirs.send(json!({"type": "list_sessions", "includeArchived": true})).await;
    assert_eq!(theirs.expect("session_list").await["sessions"], json!([]));
    // A viewer reads and changes nothing.
    let mut viewer = Client::ready(&node, Some("reader")).await;
    viewer.send(json!({"type": "run_turn", "sessionId": id, "text": "x"})).await;
    assert_eq!(viewer.error().await, "Forbidden");
    viewer.send(json!({"type": "rename_session", "sessionId": id, "name": "x"})).await;
    assert_eq!(viewer.error().await, "Forbidden");
    viewer.send(json!({"type": "list_sessions"})).await;
    let seen = viewer.expect("session_list").await["sessions"].clone();
    assert_eq!((&seen[0]["name"], &seen[0]["status"]), (&json!("secret"), &json!("inactive")));
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_told_before_the_connection_closes() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let mut client = Client::ready(&node, None).await;
    let stopping = tokio::spawn(async move { node.shutdown().await });
    assert!(client.expect("server_shutdown").await["reason"].is_string());
    assert_eq!(client.closed().await, 1001);
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_without_turns_has_no_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = NodeSettings::on_free_port(&dir.path().join("data"));
    settings.config.adapter = AdapterConfig::Fs(DataDir { data_dir: dir.path().join("files") });
    let node = Node::start(settings).await.expect("the node starts");
    match Client::open(&format!("ws://{}/ws", node.local_addr()), &[]).await {
        Err(WsError::Http(response)) => assert_eq!(response.status(), 501),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the gateway is open"),
    }
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_have_roles_and_a_tenant_keeps_an_owner() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = [
        ("ann", Role::App, "acme"),
        ("ben", Role::App, "acme"),
        ("eve", Role::Admin, "acme"),
        ("zoe", Role::Reader, "acme"),
        ("other", Role::Admin, "bravo"),
    ];
    let node = closed_node(dir.path(), &tokens).await;
    // A token that only reads comes first and owns nothing.
    let mut zoe = Client::to(&node).await;
    zoe.send(json!({"type": "authenticate", "token": "zoe"})).await;
    assert_eq!(zoe.expect("authenticated").await["identity"]["role"], "viewer");
    let mut ann = Client::to(&node).await;
    ann.send(json!({"type": "authenticate", "token": "ann"})).await;
    assert_eq!(ann.expect("authenticated").await["identity"]["role"], "owner");
    let (mut ben, mut eve) = (Client::ready(&node, Some("ben")).await, Client::ready(&node, Some("eve")).await);

    ann.send(json!({"type": "manage_members", "action": "list"})).await;
    let members = ann.expect("member_list").await["members"].clone();
    assert_eq!((&members[0]["userId"], &members[0]["role"]), (&json!("ann"), &json!("owner")));
    assert!(members[0]["addedAt"].is_i64() && members.as_array().unwrap().len() == 1);

    let set =
        |user: &str, role: &str| json!({"type": "manage_members", "action": "set_role", "userId": user, "role": role});
    ben.send(set("ben", "admin")).await;
    assert_eq!(ben.error().await, "Forbidden");
    ann.send(set("ann", "viewer")).await;
    assert_eq!(ann.error().await, "LastOwner");
    ann.send(json!({"type": "manage_members", "action": "remove", "userId": "ann"})).await;
    assert_eq!(ann.error().await, "LastOwner");
    // An admin makes no owner and demotes none.
    eve.send(set("eve", "owner")).await;
    assert_eq!(eve.error().await, "Forbidden");
    eve.send(set("ann", "viewer")).await;
    assert_eq!(eve.error().await, "Forbidden");
    eve.send(json!({"type": "manage_members", "action": "remove", "userId": "nobody"})).await;
    assert_eq!(eve.error().await, "MemberNotFound");

    // What a role allows changes at once, on connections that are open.
    ann.send(set("ben", "viewer")).await;
    assert_eq!(
        ann.expect("member_updated").await,
        json!({"type": "member_updated", "userId": "ben", "role": "viewer"})
    );
    ben.send(json!({"type": "create_session", "agentType": "coder"})).await;
    assert_eq!(ben.error().await, "Forbidden");
    ann.send(set("ben", "owner")).await;
    ann.expect("member_updated").await;
    ann.send(set("ann", "guest")).await;
    ann.expect("member_updated").await;
    ben.send(json!({"type": "create_session", "agentType": "coder", "name": "n"})).await;
    let id = ben.expect("session_created").await["session"]["id"].clone();
    // A guest sees what names him.
    ann.send(json!({"type": "list_sessions"})).await;
    assert_eq!(ann.expect("session_list").await["sessions"], json!([]));
    let metadata = json!({"tenantId": "acme", "agentType": "coder", "guests": ["ann"]});
    node_call(&node, "session::set-meta", Some("ben"), json!({"session_id": id, "metadata": metadata})).await;
    ann.send(json!({"type": "list_sessions"})).await;
    assert_eq!(ann.expect("session_list").await["sessions"][0]["id"], id);

    // A member's role never exceeds what the token allows.
    ben.send(set("zoe", "developer")).await;
    ben.expect("member_updated").await;
    zoe.send(json!({"type": "create_session", "agentType": "coder"})).await;
    assert_eq!(zoe.error().await, "Forbidden");
    // Tenants do not see each other's members.
    let mut other = Client::ready(&node, Some("other")).await;
    other.send(json!({"type": "manage_members", "action": "list"})).await;
    let members = other.expect("member_list").await["members"].clone();
    assert_eq!(members.as_array().unwrap().iter().map(|member| &member["userId"]).collect::<Vec<_>>(), ["other"]);
    node.shutdown().await;
}

/// A driver of the agent `coder` and the id of a turn that it has taken in a session.
async fn running_turn(url: &str, asker: &mut Client) -> (Client, String, String) {
    let mut driver = Client::ready_at(url).await;
    driver.send(json!({"type": "attach_driver", "driver_id": "d", "agent_types": ["coder"]})).await;
    driver.expect("driver_attached").await;
    asker.send(json!({"type": "create_session", "agentType": "coder"})).await;
    let session = asker.expect("session_created").await["session"]["id"].as_str().unwrap().to_owned();
    asker.send(json!({"type": "run_turn", "sessionId": session, "text": "go"})).await;
    let command = driver.expect("driver_command").await;
    driver.send(json!({"type": "command_result", "command_id": command["command_id"], "accepted": true})).await;
    asker.expect("turn_started").await;
    (driver, session, command["turn_id"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_delays_nobody_and_gets_everything_that_is_kept() {
    const BATCHES: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let mut asker = Client::ready(&node, None).await;
    let (mut driver, session, turn_id) = running_turn(&format!("ws://{}/ws", node.local_addr()), &mut asker).await;
    let (mut quick, mut stuck) = (Client::ready(&node, None).await, Client::ready(&node, None).await);
    for client in [&mut quick, &mut stuck] {
        client.send(json!({"type": "join_session", "sessionId": session})).await;
        client.expect("stream_snapshot").await;
    }
    let following = tokio::spawn(async move { quick.follow_turn().await });
    // Far more than the buffers of a socket and of the node.
    for n in 1..=BATCHES {
        let mut events: Vec<Value> =
            (0..8).map(|_| json!({"type": "terminal_stream", "data": "x".repeat(32 << 10)})).collect();
        events.push(json!({"type": "tool_call", "toolCallId": format!("c{n}"), "toolName": "ls", "args": {}}));
        driver.send(json!({"type": "emit", "turn_id": turn_id, "n": n, "events": events})).await;
        driver.expect("emitted").await;
    }
    let end = json!([{"type": "turn_complete", "finalText": "done"}]);
    driver.send(json!({"type": "emit", "turn_id": turn_id, "n": BATCHES + 1, "events": end})).await;
    driver.expect("emitted").await;
    let all: Vec<String> = (1..=BATCHES).map(|n| format!("c{n}")).collect();
    // The one that reads has everything while the other has read nothing yet.
    let (kept, _) = tokio::time::timeout(SOON, following).await.expect("it is not delayed").unwrap();
    assert_eq!(kept, all);
    let (kept, missed) = stuck.follow_turn().await;
    assert_eq!(kept, all);
    assert!(missed > 0, "what was not kept was told as gaps");
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_lost_its_driver_with_the_node_ends_after_the_restart() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let node = NodeProcess::start(&data, &[]);
    let url = format!("{}/ws", node.url());
    let mut asker = Client::ready_at(&url).await;
    let (mut driver, session, turn_id) = running_turn(&url, &mut asker).await;
    let events = json!([{"type": "text_delta", "text": "half a"}]);
    driver.send(json!({"type": "emit", "turn_id": turn_id, "n": 1, "events": events})).await;
    driver.expect("emitted").await;
    node.kill();
    drop(driver);
    let node = NodeProcess::start(&data, &[]);
    let mut client = Client::ready_at(&format!("{}/ws", node.url())).await;
    client.send(json!({"type": "join_session", "sessionId": session, "afterSeq": 0})).await;
    let started = client.expect("turn_started").await;
    assert_eq!((&started["turnId"], &started["seq"]), (&json!(turn_id), &json!(4)));
    let error = client.expect("turn_error").await;
    assert_eq!(error["code"], "AGENT_DISCONNECTED", "{error}");
    assert_eq!(client.expect("session_state").await["state"], "error");
    let recovered = client.expect("session_state").await;
    assert_eq!((&recovered["state"], &recovered["reason"]), (&json!("inactive"), &json!("recovered")));
    client.send(json!({"type": "get_history", "sessionId": session})).await;
    let items = client.expect("history").await["items"].clone();
    assert_eq!((&items[0]["content"], &items[1]["content"]), (&json!("go"), &json!("half a")));
}
