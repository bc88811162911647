//! `GET /metrics`: a strict reader accepts it, its counters grow by what was done, the page in architecture/ lists it,
//! and who may read it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use session_manager::access::Role;
use session_manager::access::certificate::Who;
use session_manager::access::tls::ClientTls;
use session_manager::access::token::TokenHash;
use session_manager::node::{Node, NodeSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::user_message;
use crate::exposition::Exposition;
use crate::node::NodeProcess;
use crate::plain_http::{call, get, request};
use crate::three_nodes::ThreeNodes;
use crate::tls::Certs;

const SETTLE_MAX: Duration = Duration::from_secs(30);

async fn scrape(address: SocketAddr) -> Exposition {
    let (status, text) = get(address, "/metrics").await;
    assert_eq!(status, 200, "{text}");
    Exposition::read(&text)
}

/// Scrapes until a condition holds.
async fn scrape_until(address: SocketAddr, what: &str, holds: impl Fn(&Exposition) -> bool) -> Exposition {
    let begun = tokio::time::Instant::now();
    loop {
        let found = scrape(address).await;
        if holds(&found) {
            return found;
        }
        assert!(begun.elapsed() < SETTLE_MAX, "{what}: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn calls(found: &Exposition, function: &str, code: &str) -> f64 {
    found.sum("session_manager_calls_total", &[("function", function), ("door", "http"), ("code", code)])
}

#[tokio::test]
async fn counters_grow_by_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let answer = request(node.address, "GET", "/metrics", &[], "").await;
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", answer.head);
    let before = scrape(node.address).await;
    for (gauge, value) in [("has_leader", 1.0), ("is_leader", 1.0), ("proposals_pending", 0.0), ("connections", 1.0)] {
        assert_eq!(before.sum(&format!("session_manager_{gauge}"), &[]), value, "{gauge}");
    }
    let session = call(node.address, "session::create", &json!({})).await["session_id"].clone();
    for _ in 0..7 {
        let append = json!({ "session_id": session, "message": user_message("hello") });
        call(node.address, "session::append", &append).await;
    }
    for (function, body, status) in [
        ("session::get", json!({ "session_id": "nobody" }), 200),
        ("session::messages", json!({ "session_id": "nobody" }), 404),
        ("session::append", json!({}), 400),
        ("session::append_many", json!({ "session_id": session, "messages": [user_message("old name")] }), 200),
        ("made::up", json!({}), 404),
    ] {
        let answer = request(node.address, "POST", &format!("/v1/call/{function}"), &[], &body.to_string()).await;
        assert_eq!(answer.status, status, "{function}: {}", answer.body);
    }
    let after = scrape(node.address).await;
    for (function, code, count) in [
        ("session::create", "ok", 1.0),
        ("session::append", "ok", 7.0),
        ("session::append", "session/invalid_request", 1.0),
        ("session::messages", "session/not_found", 1.0),
        ("session::append-many", "ok", 1.0),
    ] {
        assert_eq!(calls(&after, function, code), count, "{function} {code}");
    }
    let appends = [("function", "session::append"), ("door", "http")];
    assert_eq!(after.sum("session_manager_call_duration_seconds_count", &appends), 8.0);
    assert!(after.sum("session_manager_call_duration_seconds_sum", &appends) > 0.0);
    let grown = |sample: &str| after.sum(sample, &[]) - before.sum(sample, &[]);
    // One create, seven appends, one batch. The node may have proposed something for itself meanwhile.
    for sample in [
        "session_manager_proposals_applied_total",
        "session_manager_proposals_committed_total",
        "session_manager_commit_duration_seconds_count",
        "session_manager_apply_duration_seconds_count",
    ] {
        assert!((9.0..20.0).contains(&grown(sample)), "{sample} grew by {}", grown(sample));
    }
    assert!((1.0..20.0).contains(&grown("session_manager_log_fsync_duration_seconds_count")));
    assert!(grown("session_manager_feed_kept_bytes") > 0.0);
    assert!(after.sum("session_manager_disk_bytes", &[("part", "log")]) > 0.0);
    assert!(after.sum("session_manager_process_resident_memory_bytes", &[]) > 1e6);
    for (name, family) in &after.0 {
        let text = format!("{family:?}");
        assert!(!text.contains("made::up") && !text.contains("nobody"), "{name} holds what a caller wrote: {text}");
    }
}

#[tokio::test]
async fn subscribers_and_connections_are_counted_while_they_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 256];
    assert!(stream.read(&mut first).await.unwrap() > 0);
    let found =
        scrape_until(node.address, "a subscriber", |found| found.sum("session_manager_subscribers", &[]) == 1.0);
    let found = found.await;
    assert_eq!(found.sum("session_manager_connections", &[]), 2.0);
    assert_eq!(found.sum("session_manager_bindings", &[]), 1.0);
    drop(stream);
    scrape_until(node.address, "no subscriber", |found| {
        found.sum("session_manager_subscribers", &[]) == 0.0 && found.sum("session_manager_connections", &[]) == 1.0
    })
    .await;
}

#[tokio::test]
async fn a_cluster_has_one_leader_and_its_loss_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = ThreeNodes::start(dir.path()).await;
    let is_leader = |found: &Exposition| found.sum("session_manager_is_leader", &[]) == 1.0;
    let mut leaders = Vec::new();
    for (rank, address) in cluster.addresses().into_iter().enumerate() {
        let found =
            scrape_until(address, "a leader", |found| found.sum("session_manager_has_leader", &[]) == 1.0).await;
        assert!(found.sum("session_manager_leader_changes_total", &[]) >= 1.0);
        leaders.extend(is_leader(&found).then_some(rank));
    }
    let [leader] = leaders[..] else { panic!("one leader: {leaders:?}") };
    let follower = (leader + 1) % 3;
    call(cluster.0[follower].address, "session::create", &json!({})).await;
    let found = scrape(cluster.0[follower].address).await;
    assert_eq!(calls(&found, "session::create", "ok"), 1.0, "the node that was called counts the call");
    assert_eq!(found.sum("session_manager_commit_duration_seconds_count", &[]), 0.0, "only a leader proposes");
    // The follower applies what its leader has committed.
    scrape_until(cluster.0[follower].address, "the lag", |found| {
        found.sum("session_manager_apply_lag_entries", &[]) == 0.0
    })
    .await;

    let lost = cluster.0.remove(leader);
    let left = cluster.addresses();
    let changes = |found: &Exposition| found.sum("session_manager_leader_changes_total", &[]);
    let before = [changes(&scrape(left[0]).await), changes(&scrape(left[1]).await)];
    lost.kill();
    let begun = tokio::time::Instant::now();
    loop {
        let found = [scrape(left[0]).await, scrape(left[1]).await];
        if found.iter().filter(|found| is_leader(found)).count() == 1 {
            break;
        }
        assert!(begun.elapsed() < SETTLE_MAX, "no new leader: {found:?}");
    }
    for (address, before) in left.iter().zip(before) {
        scrape_until(*address, "a change", |found| changes(found) > before).await;
    }
    cluster.0[0].signal("STOP");
    let alone = left[1];
    scrape_until(alone, "the loss", |found| found.sum("session_manager_has_leader", &[]) == 0.0).await;
    cluster.0[0].signal("CONT");
    scrape_until(alone, "the return", |found| found.sum("session_manager_has_leader", &[]) == 1.0).await;
}

fn token_line(role: Role) -> String {
    format!("{{\"name\": \"{role}\", \"role\": \"{role}\", \"hash\": \"{}\"}}\n", TokenHash::of(role.name()))
}

#[tokio::test]
async fn with_credentials_only_an_admin_and_a_monitor_may_read_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, Role::ALL.map(token_line).concat()).unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &["--token-file", tokens.to_str().unwrap()]);
    assert_eq!(get(node.address, "/metrics").await.0, 401);
    for role in Role::ALL {
        let token = format!("authorization: Bearer {role}");
        let answer = request(node.address, "GET", "/metrics", &[&token], "").await;
        let wanted = if [Role::Admin, Role::Monitor].contains(&role) { 200 } else { 403 };
        assert_eq!(answer.status, wanted, "{role}: {}", answer.body);
        if wanted == 403 {
            assert!(answer.body.contains("may not use `GET /metrics`"), "{}", answer.body);
        }
    }
    let monitor = "authorization: Bearer monitor";
    let call = request(node.address, "POST", "/v1/call/session::list", &[monitor], "{}").await;
    assert_eq!(call.status, 403, "{}", call.body);
    let answer = request(node.address, "GET", "/metrics", &[monitor], "").await;
    let found = Exposition::read(&answer.body);
    assert_eq!(calls(&found, "session::list", "forbidden"), 1.0);
    assert_eq!(found.sum("session_manager_logins_refused_total", &[("door", "http")]), 1.0);
}

/// The rows of the table in operations.md: kind, unit and meaning of each metric.
fn listed() -> BTreeMap<String, (String, String, String)> {
    let page = include_str!("../../architecture/operations.md");
    let rows = page.lines().filter(|line| line.starts_with("| session_manager_"));
    let row = |line: &str| {
        let cells: Vec<String> = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        let [name, kind, unit, meaning] = &cells[..] else { panic!("four cells: {line}") };
        (name.clone(), (kind.clone(), unit.clone(), meaning.clone()))
    };
    rows.map(row).collect()
}

/// A name ends with its unit. A number without one counts things.
fn unit(name: &str) -> &'static str {
    let name = name.trim_end_matches("_total");
    match name.rsplit('_').next() {
        Some("seconds") => "seconds",
        Some("bytes") => "bytes",
        Some("entries") => "entries",
        Some(_) | None => "",
    }
}

/// One GET over TLS with a token.
async fn get_over_tls(tls: &ClientTls, node: &Node, path: &str) -> (u16, String) {
    let stream = TcpStream::connect(node.local_addr()).await.unwrap();
    let mut stream = tls.connect("localhost", stream).await.expect("the certificate is right");
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: any.name\r\nauthorization: Bearer admin\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server may end without TLS's own good-bye.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_every_metric_of_a_node_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new(dir.path(), "prod");
    let files = certs.issue("node-1", Who::Node(1));
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, token_line(Role::Admin)).unwrap();
    let mut settings = NodeSettings::on_free_port(&dir.path().join("data"));
    settings.config.peer_listen = Some("127.0.0.1:0".parse().unwrap());
    settings.config.token_file = Some(tokens);
    settings.config.tls_cert = Some(files.certificate);
    settings.config.tls_key = Some(files.key);
    settings.config.peer_ca = Some(certs.ca());
    settings.config.otlp_endpoint = Some("http://127.0.0.1:9".to_owned());
    let node = Node::start(settings).await.expect("the node starts");
    let tls = ClientTls::load(Some(&certs.ca())).unwrap();
    for path in ["/livez", "/readyz?verbose"] {
        assert_eq!(get_over_tls(&tls, &node, path).await.0, 200, "{path}");
    }
    // A refused call is a call.
    let mut stream = tls.connect("localhost", TcpStream::connect(node.local_addr()).await.unwrap()).await.unwrap();
    let create = "POST /v1/call/session::create HTTP/1.1\r\nhost: a\r\nauthorization: Bearer admin\r\n\
                  content-length: 2\r\nconnection: close\r\n\r\n{}";
    stream.write_all(create.as_bytes()).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    let (status, text) = get_over_tls(&tls, &node, "/metrics").await;
    assert_eq!(status, 200, "{text}");
    let exposed = Exposition::read(&text);
    let row = |(name, family): (String, crate::exposition::Family)| {
        let of = unit(&name).to_owned();
        (name, (family.kind, of, family.help))
    };
    let exposed: BTreeMap<String, (String, String, String)> = exposed.0.into_iter().map(row).collect();
    let table: String =
        exposed.iter().map(|(name, (kind, unit, help))| format!("| {name} | {kind} | {unit} | {help} |\n")).collect();
    assert_eq!(listed(), exposed, "architecture/operations.md must list:\n{table}");
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let expires =
        Exposition::read(&text).sum("session_manager_certificate_expiry_timestamp_seconds", &[("port", "peers")]);
    assert!((soon..soon + 40.0 * 86_400.0).contains(&expires), "{expires}");
    node.shutdown().await;
}
