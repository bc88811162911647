//! The console of real processes: its files and headers, the login, the cluster over HTTP, the figures of the last hour,
//! and the description of the API.

use serde_json::{Value, json};
use session_manager::access::token::TokenHash;

use crate::node::NodeProcess;
use crate::plain_http::{Answer, call, get, request, until};
use crate::three_nodes::ThreeNodes;

fn value(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}

#[tokio::test]
async fn a_browser_gets_the_page_and_nothing_foreign_can_run_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let front = request(node.address, "GET", "/", &["accept: text/html,*/*"], "").await;
    assert_eq!(front.status, 303);
    assert!(front.head.contains("location: /console"), "{}", front.head);
    assert!(get(node.address, "/").await.1.starts_with("session-manager\n"), "programs get a hint");
    let page = request(node.address, "GET", "/console", &[], "").await;
    assert!(
        page.status == 200 && page.body.contains("<script type=\"module\" src=\"console/app.js\">"),
        "{}",
        page.body
    );
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for"] {
        assert!(page.head.contains(part), "{part}: {}", page.head);
    }
    assert!(page.head.contains(&format!("connect-src 'self' http://{}", node.address)), "{}", page.head);
    let etag = page.head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("an etag");
    let again = request(node.address, "GET", "/console/app.js", &[&format!("if-none-match: {etag}")], "").await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let slash = request(node.address, "GET", "/console/", &[], "").await;
    assert!(slash.status == 308 && slash.head.contains("location: /console\r\n"), "{}", slash.head);
    assert_eq!(get(node.address, "/console/nothing.js").await.0, 404);
    assert_eq!(get(node.address, "/console/../http.rs").await.0, 404);
}

fn token_line(name: &str, role: &str, more: &str) -> String {
    format!("{{\"name\": \"{name}\", \"role\": \"{role}\", \"hash\": \"{}\"{more}}}\n", TokenHash::of(name))
}

#[tokio::test]
async fn a_login_puts_the_token_into_a_cookie_that_only_pages_of_this_node_can_use() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let lines = token_line("ops", "admin", "") + &token_line("web", "app", ", \"scope\": {\"owner\": \"u\"}");
    std::fs::write(&tokens, lines).unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &["--token-file", tokens.to_str().unwrap()]);
    let own = format!("origin: http://{}", node.address);
    let login = |token: &'static str, origin: String| async move {
        request(node.address, "POST", "/v1/login", &[&origin], &json!({ "token": token }).to_string()).await
    };
    assert_eq!(get(node.address, "/console").await.0, 200, "the page itself holds no data");
    assert_eq!(get(node.address, "/v1/me").await.0, 401);
    assert_eq!(login("wrong", own.clone()).await.status, 401);
    let elsewhere = login("ops", "origin: http://127.0.0.1:1".to_owned()).await;
    assert!(elsewhere.status == 403 && !elsewhere.head.contains("set-cookie"), "{}", elsewhere.head);
    let let_in = login("web", own.clone()).await;
    assert_eq!(let_in.status, 200);
    assert!(let_in.head.contains("set-cookie: session_manager_token=web; path=/; httponly; samesite=strict"));
    let me = value(&let_in);
    assert_eq!(
        (&me["role"], &me["scope"], &me["may"]["metrics"]),
        (&json!("app"), &json!({"owner": "u"}), &json!(false))
    );
    let cookie = "cookie: session_manager_token=ops";
    let asks = |headers: Vec<String>, path: &'static str| async move {
        let headers: Vec<&str> = headers.iter().map(String::as_str).chain([cookie]).collect();
        request(node.address, "GET", path, &headers, "").await.status
    };
    assert_eq!(asks(vec!["sec-fetch-site: same-origin".to_owned()], "/v1/cluster").await, 200);
    assert_eq!(asks(vec!["sec-fetch-site: same-site".to_owned()], "/v1/cluster").await, 401);
    let act = |origin: String| async move {
        request(node.address, "POST", "/v1/cluster/snapshot", &[cookie, &origin], "{}").await.status
    };
    assert_eq!(act("origin: http://127.0.0.1:1".to_owned()).await, 401, "a page of another port");
    assert_eq!(act(own).await, 200);
    let web = request(node.address, "POST", "/v1/cluster/snapshot", &["authorization: Bearer web"], "{}").await;
    assert_eq!(web.status, 403, "{}", web.body);
}

#[tokio::test]
async fn the_cluster_is_seen_and_changed_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = ThreeNodes::start(dir.path()).await;
    let asked = cluster.addresses()[2];
    let survey: Value = serde_json::from_str(&get(asked, "/v1/cluster").await.1).unwrap();
    assert_eq!((&survey["healthy"], survey["nodes"].as_array().map(Vec::len)), (&json!(true), Some(3)), "{survey}");
    assert!(survey["nodes"].as_array().unwrap().iter().all(|node| node["memory_bytes"].as_u64() > Some(0)), "{survey}");
    let next = if survey["leader"] == 2 { 1 } else { 2 };
    let body = json!({ "to": next }).to_string();
    let moved = request(asked, "POST", "/v1/cluster/transfer-leader", &[], &body).await;
    assert_eq!(moved.status, 200, "{}", moved.body);
    until(asked, "/v1/cluster", |_, body| body.contains(&format!("\"leader\":{next},\"nodes\""))).await;
    for (path, body, status, words) in [
        ("/v1/cluster/explode", "{}", 404, "transfer-leader"),
        ("/v1/cluster/promote", "{}", 400, "node"),
        ("/v1/cluster/promote", "{\"node\": 9}", 409, "9"),
    ] {
        let refused = request(asked, "POST", path, &[], body).await;
        assert!(
            refused.status == status && refused.body.contains(words),
            "{path}: {} {}",
            refused.status,
            refused.body
        );
    }
}

#[tokio::test]
async fn the_last_hour_the_feed_and_the_api_are_described() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    until(node.address, "/v1/history", |status, _| status == 200).await;
    let session = call(node.address, "session::create", &json!({})).await["session_id"].clone();
    let message = json!({"role": "user", "timestamp": 1, "content": [{"type": "text", "text": "hi"}]});
    call(node.address, "session::append", &json!({"session_id": session, "message": message})).await;
    let history = until(node.address, "/v1/history", |_, body| body.contains("\"writes\":2")).await;
    let history: Value = serde_json::from_str(&history).unwrap();
    let sample = history["samples"].as_array().unwrap().iter().find(|sample| sample["writes"] == 2).unwrap();
    assert_eq!(sample["events"], 2, "{sample}");
    assert!(sample["write_p99_ms"].as_f64() > Some(0.0) && sample["memory_bytes"].as_u64() > Some(0), "{sample}");
    let feed: Value = serde_json::from_str(&get(node.address, "/v1/feed").await.1).unwrap();
    assert!(feed["oldest"].is_string() && feed["newest"].is_string() && feed["subscribers"] == json!([]), "{feed}");
    let document: Value = serde_json::from_str(&get(node.address, "/v1/openapi.json").await.1).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/v1/call/session::append"]["post"]["requestBody"].is_object());
}

#[tokio::test]
async fn a_list_reads_the_beginning_of_long_messages_and_a_tree_reads_usage() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let session = call(node.address, "session::create", &json!({})).await["session_id"].clone();
    let message = json!({
        "role": "assistant", "timestamp": 1, "content": [{"type": "text", "text": "long ".repeat(100_000)}],
        "stop_reason": "end", "model": "m", "provider": "p", "usage": {"input": 7, "output": 5, "cost_usd": 0.25},
    });
    call(node.address, "session::append", &json!({"session_id": session, "message": message})).await;
    let window = call(node.address, "session::path", &json!({"session_id": session, "strings_max": 64})).await;
    let text = window["entries"][0]["message"]["content"][0]["text"].as_str().unwrap();
    assert_eq!((text.chars().count(), text.ends_with('…')), (65, true), "{text}");
    assert_eq!(window["entries"][0]["message"]["usage"]["cost_usd"], 0.25);
    let tree = call(node.address, "session::tree", &json!({"session_id": session})).await;
    assert_eq!(tree["entries"][0]["usage"], json!({"input": 7, "output": 5, "cost_usd": 0.25}));
    let body = json!({"session_id": session, "strings_max": 63}).to_string();
    let refused = request(node.address, "POST", "/v1/call/session::path", &[], &body).await;
    assert!(refused.status == 400 && refused.body.contains("strings_max"), "{}", refused.body);
}
