//! TLS at both ports: a cluster with certificates, who is refused, and certificates that change while nodes run.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use session_manager::access::authority::{self, Made};
use session_manager::access::certificate::{Subject, Who};
use session_manager::access::tls::{CertificateFiles, ClientTls, OperatorTls};
use session_manager::access::token::TokenHash;
use session_manager::access::{Action, Role};
use session_manager::admin::{Admin, AdminError};
use session_manager::node::{Node, NodeSettings};
use session_manager::proto::admin::{ChangeResponse, Health};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_secs(30);
const TOKEN: &str = "the-token-of-a-test";

/// The certificates of one cluster, in a directory.
pub struct Certs {
    dir: PathBuf,
    cluster: &'static str,
    authority: Made,
}

impl Certs {
    pub fn new(dir: &Path, cluster: &'static str) -> Certs {
        std::fs::create_dir_all(dir).unwrap();
        let authority = authority::authority(cluster).unwrap();
        std::fs::write(dir.join("ca.pem"), &authority.certificate).unwrap();
        Certs { dir: dir.to_owned(), cluster, authority }
    }

    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    pub fn issue(&self, name: &str, who: Who) -> CertificateFiles {
        let subject = Subject { cluster: self.cluster.to_owned(), who };
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = authority::certificate(&self.authority, &subject, &hosts, 30).unwrap();
        let files = CertificateFiles {
            certificate: self.dir.join(format!("{name}.pem")),
            key: self.dir.join(format!("{name}.key")),
        };
        std::fs::write(&files.key, made.key).unwrap();
        std::fs::write(&files.certificate, made.certificate).unwrap();
        files
    }

    fn operator(&self, name: &str, role: Role) -> OperatorTls {
        let files = self.issue(name, Who::Client { name: name.to_owned(), role });
        OperatorTls::load(&files, &self.ca()).unwrap()
    }

    /// Nodes let in these tokens. The file is replaced in one step: a node never reads half of it.
    fn accept(&self, tokens: &[&str]) {
        let line = |token: &&str| json!({ "name": "test", "role": "app", "hash": TokenHash::of(token).to_string() });
        let lines: Vec<String> = tokens.iter().map(|token| line(token).to_string()).collect();
        std::fs::write(self.dir.join("tokens.new"), lines.join("\n")).unwrap();
        std::fs::rename(self.dir.join("tokens.new"), self.dir.join("tokens")).unwrap();
    }

    async fn node(&self, id: u64) -> Node {
        let files = self.issue(&format!("node-{id}"), Who::Node(id));
        let tokens = self.dir.join("tokens");
        self.accept(&[TOKEN]);
        let mut settings = NodeSettings::on_free_port(&self.dir.join(format!("data-{id}")));
        let config = &mut settings.config;
        config.node_id = id;
        config.join = id > 1;
        config.peer_listen = Some("127.0.0.1:0".parse().unwrap());
        config.token_file = Some(tokens);
        config.tls_cert = Some(files.certificate);
        config.tls_key = Some(files.key);
        config.peer_ca = Some(self.ca());
        Node::start(settings).await.expect("the node starts")
    }
}

fn peer(node: &Node) -> String {
    node.peer_addr().expect("a peer address").to_string()
}

async fn admin(tls: &OperatorTls, node: &Node) -> Result<Admin, AdminError> {
    Admin::connect_over(Some(tls), &peer(node), "", SOON).await
}

/// One call over HTTPS with the token of the test.
async fn call(tls: &ClientTls, node: &Node, function: &str, body: Value) -> (u16, Value) {
    call_as(TOKEN, tls, node, function, body).await
}

async fn call_as(token: &str, tls: &ClientTls, node: &Node, function: &str, body: Value) -> (u16, Value) {
    let stream = TcpStream::connect(node.local_addr()).await.unwrap();
    let mut stream = tls.connect("localhost", stream).await.expect("the certificate is right");
    let body = body.to_string();
    let request = format!(
        "POST /v1/call/{function} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server may end without TLS's own good-bye.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

async fn get(tls: &ClientTls, node: &Node, path: &str) -> Value {
    let stream = TcpStream::connect(node.local_addr()).await.unwrap();
    let mut stream = tls.connect("localhost", stream).await.expect("the certificate is right");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n");
    stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_with_certificates_are_one_cluster_and_serve_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new(&dir.path().join("prod"), "prod");
    let nodes = cluster(&certs).await;
    let mut leader = admin(&certs.operator("ops", Role::Admin), &nodes[0]).await.unwrap();
    let status = leader.status().await.unwrap();
    assert_eq!((status.members.len(), status.health()), (3, Health::Ok));
    let tls = ClientTls::load(Some(&certs.ca())).unwrap();
    let (code, created) = call(&tls, &nodes[1], "session::create", json!({ "title": "over TLS" })).await;
    assert_eq!(code, 200, "{created}");
    let (code, got) = call(&tls, &nodes[2], "session::get", json!({ "session_id": created["session_id"] })).await;
    assert_eq!((code, &got["meta"]["title"]), (200, &json!("over TLS")));

    // Who has no right to it is refused by name.
    let error = admin(&certs.operator("web", Role::App), &nodes[0]).await.unwrap().status().await.unwrap_err();
    assert!(error.to_string().contains("\"web\" with the role app"), "{error}");
    let foreign = Certs::new(&dir.path().join("test"), "test");
    let refused = match admin(&foreign.operator("ops", Role::Admin), &nodes[0]).await {
        Ok(mut admin) => admin.status().await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert!(refused.is_err(), "a certificate of another authority");
    let refused = match Admin::connect(&peer(&nodes[0]), "", SOON).await {
        Ok(mut admin) => admin.status().await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert!(refused.is_err(), "no certificate at all");
    let other = ClientTls::load(Some(&foreign.ca())).unwrap();
    let stream = TcpStream::connect(nodes[0].local_addr()).await.unwrap();
    assert!(other.connect("localhost", stream).await.is_err(), "a client that trusts another authority");

    // Plain text and garbage at the TLS ports end, and nothing else does.
    for address in [nodes[0].local_addr(), nodes[0].peer_addr().unwrap()] {
        for text in
            ["GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), "\u{16}\u{3}\u{1}garbage".repeat(100)]
        {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(text.as_bytes()).await;
            let mut answer = Vec::new();
            let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.expect("the node hangs up");
            assert!(read.is_err() || !String::from_utf8_lossy(&answer).contains("200 OK"));
        }
    }
    assert_eq!(call(&tls, &nodes[0], "session::list", json!({})).await.0, 200);
    for node in nodes {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_used_without_a_restart_and_no_call_fails() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new(dir.path(), "prod");
    let node = certs.node(1).await;
    let tls = ClientTls::load(Some(&certs.ca())).unwrap();
    let served = || async {
        let stream = TcpStream::connect(node.local_addr()).await.unwrap();
        let stream = tls.connect("localhost", stream).await.expect("a right certificate at all times");
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let before = served().await;
    certs.issue("node-1", Who::Node(1));
    let begun = std::time::Instant::now();
    while served().await == before {
        assert_eq!(call(&tls, &node, "session::list", json!({})).await.0, 200);
        assert!(begun.elapsed() < SOON, "the new certificate is not used");
    }
    assert_eq!(call(&tls, &node, "session::list", json!({})).await.0, 200);
    node.shutdown().await;
}

/// Three nodes as one cluster.
async fn cluster(certs: &Certs) -> Vec<Node> {
    let nodes = vec![certs.node(1).await, certs.node(2).await, certs.node(3).await];
    let mut leader = admin(&certs.operator("ops", Role::Admin), &nodes[0]).await.unwrap();
    // On a busy machine a step may fail without an effect, and is repeated as an operator would.
    let done = |answer: Result<ChangeResponse, AdminError>| match answer {
        Ok(_) => true,
        Err(error) if error.is_retryable() => false,
        Err(error) => panic!("{error}"),
    };
    for (id, node) in [(2, &nodes[1]), (3, &nodes[2])] {
        until("a node is not added", async || done(leader.add_learner(id, &peer(node)).await)).await;
        until("a node is not promoted", async || done(leader.promote(id).await)).await;
    }
    nodes
}

/// Repeats a check until it holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < SOON, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_tokens_are_rotated_under_load_and_no_call_fails() {
    const NEXT: &str = "the-next-token";
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new(dir.path(), "prod");
    let nodes = Arc::new(cluster(&certs).await);
    let tls = ClientTls::load(Some(&certs.ca())).unwrap();
    let (token, stop) = (Arc::new(Mutex::new(TOKEN)), Arc::new(AtomicBool::new(false)));
    let (calls, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let clients: Vec<_> = (0..6)
        .map(|client| {
            let (nodes, tls, token, stop) = (nodes.clone(), tls.clone(), token.clone(), stop.clone());
            let (calls, failed) = (calls.clone(), failed.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let (node, token) = (&nodes[client % 3], *token.lock().unwrap());
                    let (status, answer) = call_as(token, &tls, node, "session::create", json!({})).await;
                    if status != 200 {
                        failed.lock().unwrap().push(format!("{status} {answer}"));
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let more_calls = async || {
        let goal = calls.load(Ordering::Relaxed) + 30;
        until("the load makes no progress", async || calls.load(Ordering::Relaxed) >= goal).await;
    };
    let served = async |node: &Node| {
        let stream = TcpStream::connect(node.local_addr()).await.unwrap();
        let stream = tls.connect("localhost", stream).await.expect("a right certificate at all times");
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    more_calls().await;
    for (id, node) in (1..).zip(nodes.iter()) {
        let before = served(node).await;
        certs.issue(&format!("node-{id}"), Who::Node(id));
        until("the new certificate is not used", async || served(node).await != before).await;
    }
    more_calls().await;
    // Peers that connect anew use the new certificates.
    let mut ops = admin(&certs.operator("ops", Role::Admin), &nodes[1]).await.unwrap();
    ops.transfer_leader(2).await.unwrap();
    more_calls().await;
    let answers = async |token: &str, statuses: &[u16]| {
        for node in nodes.iter() {
            let asked = async || statuses.contains(&call_as(token, &tls, node, "session::list", json!({})).await.0);
            until("the tokens were not read again", asked).await;
        }
    };
    certs.accept(&[TOKEN, NEXT]);
    answers(NEXT, &[200]).await;
    *token.lock().unwrap() = NEXT;
    // Every call with the old token has ended when each client has made another one.
    more_calls().await;
    certs.accept(&[NEXT]);
    // 429: the questions before the next token was known were wrong too, and so many are told to slow down.
    answers(TOKEN, &[401, 429]).await;
    more_calls().await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(*failed.lock().unwrap(), Vec::<String>::new());
    println!("{} calls while certificates and tokens were rotated", calls.load(Ordering::Relaxed));
    for node in Arc::into_inner(nodes).expect("no client is left") {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_the_admin_protocol_follows_the_role_matrix() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new(dir.path(), "prod");
    let node = certs.node(1).await;
    let ops = certs.operator("ops", Role::Admin);
    let members = async || admin(&ops, &node).await.unwrap().status().await.unwrap().members;
    let before = members().await;
    for role in Role::ALL {
        let mut client = admin(&certs.operator(role.name(), role), &node).await.unwrap();
        let answers = [
            ("status", client.status().await.map(drop)),
            ("init", client.init().await.map(drop)),
            ("add-learner", client.add_learner(9, "127.0.0.1:1").await.map(drop)),
            ("update-member", client.update_member(9, "127.0.0.1:1").await.map(drop)),
            ("promote", client.promote(9).await.map(drop)),
            ("remove", client.remove(9, false).await.map(drop)),
            ("transfer-leader", client.transfer_leader(9).await.map(drop)),
            ("snapshot", client.snapshot().await.map(drop)),
        ];
        for (what, answer) in answers {
            let forbidden = answer.as_ref().is_err_and(|error| error.to_string().contains("may not use"));
            assert_eq!(!forbidden, role.may(Action::Administer), "{role} {what}: {answer:?}");
        }
        assert_eq!(members().await.len(), before.len(), "{role} changed the members");
    }
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_certificates_are_the_only_credentials_nobody_is_let_in_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new(dir.path(), "prod");
    let files = certs.issue("node-1", Who::Node(1));
    let mut settings = NodeSettings::on_free_port(&dir.path().join("data"));
    settings.config.tls_cert = Some(files.certificate);
    settings.config.tls_key = Some(files.key);
    settings.config.peer_ca = Some(certs.ca());
    let node = Node::start(settings).await.unwrap();
    let tls = ClientTls::load(Some(&certs.ca())).unwrap();
    assert_eq!(call(&tls, &node, "session::list", json!({})).await.0, 401);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_tell_clients_where_the_other_nodes_are() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new(dir.path(), "prod");
    let nodes = cluster(&certs).await;
    let tls = ClientTls::load(Some(&certs.ca())).unwrap();
    let mut all: Vec<String> = nodes.iter().map(|node| format!("wss://{}", node.local_addr())).collect();
    all.sort();
    for node in &nodes {
        let mut told = Vec::new();
        until("a node does not know all the others", async || {
            let listed = get(&tls, node, "/v1/nodes").await;
            let listed = listed["nodes"].as_array().expect("a list of nodes");
            told = listed.iter().map(|one| one["url"].as_str().unwrap().to_owned()).collect();
            told.sort();
            told.len() == 3
        })
        .await;
        assert_eq!(told, all);
    }
    for node in nodes {
        node.shutdown().await;
    }
}
