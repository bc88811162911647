//! `GET /livez` and `GET /readyz` of real processes: alone, in a cluster that loses its quorum, and for each adapter.

use std::path::Path;

use session_manager::access::token::TokenHash;

use crate::node::NodeProcess;
use crate::plain_http::{get, request, until};
use crate::three_nodes::ThreeNodes;

const ALL_OF_A_MEMBER: &str = "store: ok\nleader: ok\napplied: ok\ndisk: ok\ncalls: ok\nrunning: ok\nok\n";

#[tokio::test]
async fn a_single_node_is_alive_and_ready() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    assert_eq!(get(node.address, "/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(get(node.address, "/livez?verbose").await, (200, "ok\n".to_owned()));
    assert_eq!(get(node.address, "/readyz").await, (200, "ok\n".to_owned()));
    assert_eq!(get(node.address, "/readyz?verbose").await, (200, ALL_OF_A_MEMBER.to_owned()));
    for path in ["/readyz?exclude=leader", "/livez?exclude=leader"] {
        let (status, body) = get(node.address, path).await;
        assert!(status == 400 && body.contains("exclude"), "{status} {body}");
    }
    // A page of another site must not learn whether there is a node here. A probe names the address of its pod.
    for (host, status) in [("10.1.2.3:49134", 200), ("localhost", 200), ("evil.example", 421)] {
        let host = format!("host: {host}");
        assert_eq!(request(node.address, "GET", "/readyz", &[&host], "").await.status, status, "{host}");
    }
    // Some load balancers ask with HEAD.
    assert_eq!(request(node.address, "HEAD", "/readyz", &[], "").await.status, 200);
    assert_eq!(request(node.address, "POST", "/livez", &[], "").await.status, 405);
}

#[tokio::test]
async fn probes_need_no_credentials_where_calls_do() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let line = format!("{{\"name\": \"web\", \"role\": \"app\", \"hash\": \"{}\"}}\n", TokenHash::of("web"));
    std::fs::write(&tokens, line).unwrap();
    let node = NodeProcess::start(&dir.path().join("data"), &["--token-file", tokens.to_str().unwrap()]);
    assert_eq!(get(node.address, "/v1/nodes").await.0, 401);
    for path in ["/livez", "/readyz", "/readyz?verbose", "/readyz?token=wrong"] {
        assert_eq!(get(node.address, path).await.0, 200, "{path}");
    }
}

#[tokio::test]
async fn files_and_bridges_have_checks_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let main = NodeProcess::start(&dir.path().join("files"), &["--adapter", "fs"]);
    let verbose = get(main.address, "/readyz?verbose").await;
    assert_eq!(verbose, (200, "store: ok\ncalls: ok\nrunning: ok\nok\n".to_owned()));
    let config = dir.path().join("bridge.yaml");
    let text = format!("adapter: {{name: bridge, config: {{url: '{}', timeout_ms: 1000}}}}\n", main.url());
    std::fs::write(&config, text).unwrap();
    let beside = dir.path().join("bridge");
    let bridge = NodeProcess::start_by_settings(Path::new(&beside), &["--config", config.to_str().unwrap()]);
    let verbose = get(bridge.address, "/readyz?verbose").await;
    assert_eq!(verbose, (200, "main: ok\ncalls: ok\nrunning: ok\nok\n".to_owned()));
    main.kill();
    let failing = until(bridge.address, "/readyz", |status, _| status == 503).await;
    assert_eq!(failing, "main: no main that can be used is connected\n");
    assert_eq!(get(bridge.address, "/livez").await.0, 200);
}

#[tokio::test]
async fn readiness_is_lost_with_the_quorum_and_comes_back_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = ThreeNodes::start(dir.path()).await;
    for address in cluster.addresses() {
        until(address, "/readyz?verbose", |status, body| status == 200 && body == ALL_OF_A_MEMBER).await;
    }
    // Whichever leads: the last one is alone then, as a leader or as a follower.
    let [stopped_one, stopped_two, alone] = &cluster.0[..] else { panic!("three nodes") };
    stopped_one.signal("STOP");
    stopped_two.signal("STOP");
    let failing = until(alone.address, "/readyz", |status, _| status == 503).await;
    assert!(failing.starts_with("leader: no leader with a quorum answers\napplied: "), "{failing}");
    let verbose = get(alone.address, "/readyz?verbose").await;
    assert!(verbose.1.starts_with("store: ok\nleader: no leader"), "{verbose:?}");
    for digit_of in cluster.addresses() {
        assert!(!verbose.1.contains(&digit_of.port().to_string()), "an address is told: {verbose:?}");
    }
    assert_eq!(get(alone.address, "/livez").await, (200, "ok\n".to_owned()));
    stopped_one.signal("CONT");
    stopped_two.signal("CONT");
    for address in cluster.addresses() {
        until(address, "/readyz", |status, _| status == 200).await;
    }
}
