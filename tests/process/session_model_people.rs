//! People and channels at the door of the session model: each finds what is theirs, and nothing at the other doors.

use serde_json::json;
use session_manager::access::Role;
use session_manager::access::jwt::{JwtConfig, KeyAlgorithm};
use session_manager::access::token::TokenHash;
use session_manager::node::{Node, NodeSettings};

use crate::plain_http::request;
use crate::session_model::{Client, Driver, Sse, call, open_node};

/// A JWT of a person.
fn jwt(secret: &str, channel: &str, id: &str) -> String {
    let claims =
        json!({ "sub": format!("{channel}:{id}"), "channel": channel, "channelUserId": id, "exp": 4_102_444_800_u64 });
    let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a JWT")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_finds_only_what_the_person_takes_part_in() {
    let dir = tempfile::tempdir().unwrap();
    let secret = "0123456789abcdef0123456789abcdef";
    std::fs::write(dir.path().join("key"), secret).unwrap();
    let line =
        format!("{{\"name\": \"ops\", \"role\": \"{}\", \"hash\": \"{}\"}}\n", Role::Admin, TokenHash::of("ops"));
    std::fs::write(dir.path().join("tokens"), line).unwrap();
    let mut settings = NodeSettings::on_free_port(&dir.path().join("data"));
    settings.config.token_file = Some(dir.path().join("tokens"));
    settings.config.jwt = Some(JwtConfig {
        key_file: Some(dir.path().join("key")),
        algorithm: Some(KeyAlgorithm::HS256),
        // A person needs no role, and one for everybody must not let a person read the sessions of others.
        default_role: Some(Role::App),
        ..JwtConfig::default()
    });
    let node = Node::start(settings).await.expect("the node starts");
    let client = |token: &str| Client::new(node.local_addr(), token);
    let (ann, bob, ops) = (client(&jwt(secret, "web", "ann")), client(&jwt(secret, "web", "bob")), client("ops"));
    assert_eq!(ann.open("web:a").await.0, 200);
    assert_eq!(ann.say("web:a", "mine").await.0, 200);
    // Every route: Bob gets the words of an id that is not there.
    let message = json!({ "text": "x" }).to_string();
    for (method, path, body) in [
        ("GET", "messages", String::new()),
        ("POST", "messages", message.clone()),
        ("POST", "messages?append=true", message.clone()),
        ("POST", "messages?wait=true", message.clone()),
        ("POST", "messages?stream=true", message),
        ("POST", "approve", json!({ "toolCallId": "c", "approved": true }).to_string()),
        ("POST", "checkpoint", String::new()),
        ("GET", "events", String::new()),
    ] {
        let there = bob.send(method, &format!("/sessions/web%3Aa/{path}"), &body).await;
        let nowhere = bob.send(method, &format!("/sessions/web%3Ab/{path}"), &body).await;
        let renamed = nowhere.1.to_string().replace("web:b", "web:a");
        assert_eq!((there.0, there.1.to_string()), (404, renamed), "{method} {path}");
    }
    assert_eq!(bob.send("DELETE", "/sessions/web%3Aa", "").await.0, 404);
    // The other doors know no participants: there the token of a person opens nothing.
    let bearer = format!("authorization: Bearer {}", jwt(secret, "web", "bob"));
    for (function, body) in [
        ("session::get", json!({ "session_id": "main/web:a" })),
        ("session::messages", json!({ "session_id": "main/web:a" })),
        ("session::append", json!({ "session_id": "main/web:a", "message": { "role": "user" } })),
        ("session::profile::history", json!({ "agent_id": "main", "session_id": "web:a" })),
        ("session::identity::set-role", json!({ "agent_id": "main", "user_id": "u", "role": "owner" })),
    ] {
        let path = format!("/v1/call/{}", function.replace(':', "%3A"));
        let answer = request(node.local_addr(), "POST", &path, &[&bearer], &body.to_string()).await;
        let nothing = answer.status == 200 && answer.body == "null";
        assert!(nothing || [403, 404].contains(&answer.status), "{function}: {} {}", answer.status, answer.body);
    }
    let list = request(node.local_addr(), "POST", "/v1/call/session%3A%3Alist", &[&bearer], "{}").await;
    assert_eq!((list.status, list.body.contains("web:a")), (200, false), "{}", list.body);
    let spec = json!({ "sessionId": "web:a", "source": { "kind": "api", "interactive": true } });
    assert_eq!(bob.post("/sessions", spec).await.0, 404);
    assert_eq!(bob.get("/sessions").await, (200, json!([])));
    assert_eq!(ann.get("/sessions").await.1.as_array().unwrap().len(), 1);
    assert!(ann.summary("web:a").await.get("userIds").is_none(), "only admins see people");
    assert_eq!(ops.summary("web:a").await["userIds"].as_array().unwrap().len(), 1);
    for wrong in ["nobody", &jwt("another secret of thirty-two byte", "web", "ann")] {
        assert_eq!(client(wrong).get("/sessions").await.0, 401);
    }
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_token_stays_in_its_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let node = open_node(dir.path()).await;
    let address = node.local_addr();
    let digest = TokenHash::of("adapter").to_string();
    let set = json!({ "agent_id": "main", "namespace": "telegram", "digest": digest });
    assert_eq!(call(address, "session::identity::set-channel-token", set).await["set"], true);
    let (admin, adapter) = (Client::new(address, "any"), Client::new(address, "adapter"));
    admin.open("slack:1").await;
    let sender = |channel: &str| json!({ "channel": channel, "channelUserId": "7", "displayName": "Ann" });
    adapter.open_group("telegram:1").await;
    let source = json!({ "kind": "channel", "interactive": true });
    let (status, answer) = adapter.post("/sessions", json!({ "sessionId": "slack:2", "source": source })).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("validation_error")));
    assert_eq!(adapter.get("/sessions/slack%3A1/messages").await.0, 400);
    let path = "/sessions/telegram%3A1/messages";
    assert_eq!(adapter.post(path, json!({ "text": "a", "sender": sender("slack") })).await.0, 400);
    let (status, answer) = adapter.post(path, json!({ "text": "a", "sender": sender("telegram") })).await;
    assert_eq!((status, &answer["triggered"]), (200, &json!(true)));
    let (_, list) = adapter.get("/sessions").await;
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    let elsewhere = Client { root: "/api/agents/other".to_owned(), ..adapter.clone() };
    assert_eq!(elsewhere.get("/sessions").await.0, 401);
    let url = format!("ws://{address}/api/agents/other/ws?token=adapter");
    let refused = tokio_tungstenite::connect_async(url).await.expect_err("the upgrade is refused");
    assert!(refused.to_string().contains("403"), "{refused}");
    // An adapter that posts and then connects gets its own turn and none before it.
    let driver = Driver { address, id: "d" };
    driver.echo().await;
    adapter.post(path, json!({ "text": "b", "messageId": "m2", "sender": sender("telegram") })).await;
    let mut stream = Sse::open(&adapter, "GET", "/sessions/telegram%3A1/events", "", "").await;
    driver.echo().await;
    let frames = stream.until("agent_end").await;
    assert!(frames[1..].iter().all(|frame| frame.data["correlationId"] == "m2"), "{frames:?}");
    node.shutdown().await;
}
