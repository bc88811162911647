//! Clients that are broken, slow, greedy or hostile. Each gets a clear error or a close frame, and the others are
//! served.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::surface::fair_share::CallerKey;
use crate::surface::socket::SocketLimits;
use crate::surface::socket::outbox::OutboxLimits;

/// The headers of a WebSocket upgrade.
const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==\r\n";

async fn still_serves(node: &Node) {
    let mut client = node.connect().await;
    assert_eq!(client.call("session::echo", json!("alive")).await["result"], "alive");
}

#[tokio::test]
async fn a_payload_nested_very_deep_is_answered() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client.register_function("f").await;
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    for function_id in ["session::echo", "f", "engine::functions::info", "nothing"] {
        let text = r#"{"type":"invokefunction","invocation_id":"d","function_id":"#;
        client.send_text(format!("{text}\"{function_id}\",\"data\":{deep}}}")).await;
        let Some(Ok(Message::Text(answer))) = client.socket.next().await else { panic!("no answer") };
        assert!(answer.starts_with(r#"{"type":"invocationresult","invocation_id":"d""#));
        assert_eq!(answer.contains("\"error\""), function_id != "session::echo");
    }
}

#[tokio::test]
async fn frames_that_are_no_json_text_close_the_connection_with_a_reason() {
    let node = Node::start().await;
    for (message, code) in [
        (Message::Text("{\"type\":".into()), 1007),
        (Message::Text("[]".into()), 1007),
        (Message::Binary(vec![1, 2, 3].into()), 1003),
    ] {
        let mut client = node.connect().await;
        client.socket.send(message).await.unwrap();
        let close = client.closed().await;
        assert_eq!(u16::from(close.code), code);
        assert!(!close.reason.is_empty());
    }
    still_serves(&node).await;
}

#[tokio::test]
async fn unknown_and_unusable_frames_do_no_harm() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    client.send(json!({"type": "observe", "id": 5})).await;
    client.send(json!({"type": "registerfunction"})).await;
    client.send(json!({"type": "invocationresult", "invocation_id": "nobody-asked"})).await;
    client.send(json!({"type": "invokefunction", "invocation_id": "x"})).await;
    assert!(client.expect("invocationresult").await["error"]["message"].as_str().unwrap().contains("`function_id`"));
    client.send(json!({"type": "ping"})).await;
    client.expect("pong").await;
}

#[tokio::test]
async fn half_a_frame_and_half_a_request_are_harmless() {
    let node = Node::start_with(BusSettings::default(), |settings| {
        settings.head_read_max = Duration::from_millis(100);
    })
    .await;
    let mut client = node.connect().await;
    let MaybeTlsStream::Plain(raw) = client.socket.get_mut() else { panic!("no plain socket") };
    raw.write_all(&[0x81, 0xFE, 0x10]).await.unwrap();
    drop(client);
    let mut stalled = TcpStream::connect(&node.address).await.unwrap();
    stalled.write_all(b"GET / HTTP/1.1\r\nhos").await.unwrap();
    use tokio::io::AsyncReadExt;
    let mut rest = Vec::new();
    tokio::time::timeout(SOON, stalled.read_to_end(&mut rest)).await.expect("the stalled request is given up").unwrap();
    still_serves(&node).await;
    until("the half frame is given up", || node.bus.clients() == 0).await;
}

#[tokio::test]
async fn messages_of_many_mebibytes_pass_fragmented_too_and_larger_ones_are_refused() {
    let settings = BusSettings {
        socket: SocketLimits { message_bytes_max: 8 << 20, ..SocketLimits::default() },
        ..BusSettings::default()
    };
    let node = Node::start_with(settings, |settings| settings.body_bytes_max = 1000).await;
    let mut client = node.connect().await;
    let large = "x".repeat(6 << 20);
    assert_eq!(client.call("session::echo", json!(large)).await["result"].as_str().unwrap().len(), large.len());

    let text = json!({"type": "invokefunction", "invocation_id": "i", "function_id": "session::echo", "data": large});
    send_fragmented(&mut client, text.to_string().as_bytes()).await;
    assert_eq!(client.expect("invocationresult").await["result"].as_str().unwrap().len(), large.len());

    let too_large = json!({"type": "invokefunction", "data": "x".repeat(9 << 20)}).to_string();
    client.socket.send(Message::Text(too_large.into())).await.ok();
    let close = client.closed().await;
    assert_eq!(u16::from(close.code), 1009);
    assert!(close.reason.contains("limit"), "{}", close.reason);

    let (status, body) = node.http("POST /v1/call/session::echo HTTP/1.1", &"x".repeat(2000)).await;
    assert!(status == 413 && body.contains("1000 bytes"), "{status} {body}");
    still_serves(&node).await;
}

#[tokio::test]
async fn large_messages_wait_for_their_turn_and_small_ones_pass_them() {
    let node = Node::start().await;
    let held = node.bus.intake().turnstile().hold().await;
    let text = "x".repeat(1 << 20);
    let (mut client, large) = (node.connect().await, json!(text));
    let asking = tokio::spawn(async move { client.call("session::echo", large).await });
    let (address, body) = (node.address.clone(), format!("\"{text}\""));
    let head =
        format!("POST /v1/call/session::echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    let posting = tokio::spawn(async move { exchange(&address, &head, body.as_bytes()).await });
    for _ in 0..50 {
        still_serves(&node).await;
        assert_eq!(node.http("POST /v1/call/session::echo HTTP/1.1", "1").await, (200, "1".to_owned()));
    }
    assert!(!posting.is_finished() && !asking.is_finished());
    drop(held);
    assert_eq!(posting.await.unwrap().0, 200);
    assert_eq!(asking.await.unwrap()["result"].as_str().unwrap().len(), text.len());
}

#[tokio::test]
async fn one_that_registers_very_much_waits_for_its_turn_and_others_are_served() {
    let node = Node::start().await;
    let functions = || node.bus.read_registry("", |registry| registry.functions().count());
    let held = node.bus.intake().turnstile().hold().await;
    let mut client = node.connect().await;
    for nth in 0..200 {
        client.register_function(&format!("f{nth}")).await;
    }
    client.send(json!({"type": "ping"})).await;
    until("the first ones are registered at once", || functions() == 128).await;
    for _ in 0..20 {
        still_serves(&node).await;
    }
    assert_eq!(functions(), 128);
    drop(held);
    client.expect("pong").await;
    assert_eq!(functions(), 200);
}

/// Sends one text message in frames of a mebibyte.
async fn send_fragmented(client: &mut RawClient, text: &[u8]) {
    use tokio_tungstenite::tungstenite::protocol::frame::Frame;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
    let pieces: Vec<&[u8]> = text.chunks(1 << 20).collect();
    for (rank, piece) in pieces.iter().enumerate() {
        let opcode = if rank == 0 { Data::Text } else { Data::Continue };
        let frame = Frame::message(piece.to_vec(), OpCode::Data(opcode), rank + 1 == pieces.len());
        client.socket.send(Message::Frame(frame)).await.unwrap();
    }
}

#[tokio::test]
async fn a_stuck_reader_is_left_behind_while_others_go_on() {
    let outbox = OutboxLimits { bytes_max: 1 << 20, ..OutboxLimits::default() };
    let node = Node::start_with(BusSettings { outbox, ..BusSettings::default() }, |_| {}).await;
    let mut slow = node.connect().await;
    slow.register_function("slow").await;
    slow.send(json!({"type": "registertrigger", "id": "s", "trigger_type": "session::deleted",
        "function_id": "slow", "config": null}))
        .await;
    slow.expect("triggerregistrationresult").await;
    let mut quick = node.connect().await;
    quick.register_function("on-event").await;
    quick.bind("q", "session::deleted", json!(null), json!(null)).await;

    let padding = "x".repeat(64 << 10);
    // Sixteen times what may wait for it.
    for index in 1..=256 {
        node.publish_event(index, "s", EventKind::Deleted, json!({"n": index, "padding": padding}).to_string());
        assert_eq!(quick.expect("invokefunction").await["data"]["n"], index);
    }
    assert_eq!(node.bus.clients(), 2, "it stays connected");
    // What it gets when it reads again is in order.
    let mut last = 0;
    for _ in 0..8 {
        let n = slow.expect("invokefunction").await["data"]["n"].as_u64().unwrap();
        assert!(n > last, "{n} after {last}");
        last = n;
    }
    assert_eq!(node.feed.bindings(), 2);
    assert_eq!(quick.call("session::echo", json!(1)).await["result"], 1);
}

#[tokio::test]
async fn a_client_that_asks_for_more_than_it_reads_is_not_read_either() {
    let outbox = OutboxLimits { bytes_max: 1 << 20, ..OutboxLimits::default() };
    let node = Node::start_with(BusSettings { outbox, ..BusSettings::default() }, |_| {}).await;
    let mut client = node.connect().await;
    for rank in 0..300 {
        client.invoke(&rank.to_string(), "session::large", json!(256 << 10)).await;
    }
    for rank in 0..300 {
        let answer = client.expect("invocationresult").await;
        assert_eq!(answer["invocation_id"], rank.to_string());
    }
}

#[tokio::test]
async fn connections_past_the_limit_are_told_so_and_closed() {
    let node = Node::start_with(BusSettings::default(), |settings| settings.connections_max = 3).await;
    let kept = [node.connect().await, node.connect().await, node.connect().await];
    for _ in 0..5 {
        let (status, body) = exchange(&node.address, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", b"").await;
        assert_eq!(status, 503);
        assert!(body.contains("too_many_connections"), "{body}");
    }
    drop(kept);
    until("places are free again", || node.bus.clients() == 0).await;
    // A place is given back when the last of a connection is gone, a moment after the worker.
    let mut status = 503;
    while status == 503 {
        status = exchange(&node.address, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", b"").await.0;
    }
    assert_eq!(status, 200);
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let node = Node::start().await;
    for (head, status) in [
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n{UPGRADE}\r\n"), 403),
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\norigin: null\r\n{UPGRADE}\r\n"), 403),
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:5173\r\n{UPGRADE}\r\n"), 101),
        (
            "POST /v1/call/session::echo HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n\r\n".to_owned(),
            403,
        ),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n".to_owned(), 400),
    ] {
        assert_eq!(exchange(&node.address, &head, b"").await.0, status, "{head}");
    }
}

#[tokio::test]
async fn an_upgrade_on_an_unknown_path_is_refused_with_the_right_one() {
    let node = Node::start().await;
    for path in ["/any/path", "/v1/events", "/health", "/any/otel"] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{UPGRADE}\r\n");
        let (status, body) = exchange(&node.address, &head, b"").await;
        let error: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &error["error"]["code"]), (404, &json!("not_found")), "{path}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(path) && message.contains("the iii bus is at /"), "{message}");
    }
}

#[tokio::test]
async fn a_client_that_sends_nothing_or_half_a_preface_is_closed() {
    let node = Node::start_with(BusSettings::default(), |settings| {
        settings.head_read_max = Duration::from_millis(100);
    })
    .await;
    for sent in ["", "PR", "GE"] {
        let mut silent = TcpStream::connect(&node.address).await.unwrap();
        silent.write_all(sent.as_bytes()).await.unwrap();
        use tokio::io::AsyncReadExt;
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(SOON, silent.read_to_end(&mut rest)).await;
        closed.expect("the silent connection is closed").unwrap();
    }
    still_serves(&node).await;
}

#[tokio::test]
async fn a_port_that_closes_leaves_the_other_ports_of_the_bus_open() {
    let node = Node::start().await;
    let (settings, closing) = (EndpointSettings::new("127.0.0.1:0"), CancellationToken::new());
    let (_, ended) = endpoint::serve(settings, node.bus.clone(), closing.clone()).await.unwrap();
    closing.cancel();
    ended.await.unwrap();
    still_serves(&node).await;
    assert_eq!(node.http("POST /v1/call/session::echo HTTP/1.1", "1").await, (200, "1".to_owned()));
}

#[tokio::test]
async fn telemetry_is_taken_and_dropped() {
    let node = Node::start().await;
    let url = format!("ws://{}/otel", node.address);
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    socket.send(Message::Binary(vec![7; 1000].into())).await.unwrap();
    socket.send(Message::Ping(vec![1].into())).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(Message::Pong(_)))));
    assert_eq!(node.bus.clients(), 0);
}

#[tokio::test]
async fn a_silent_client_is_pinged_and_one_that_does_not_answer_is_dropped() {
    let settings = BusSettings {
        socket: SocketLimits { ping_after: Duration::from_millis(400), ..SocketLimits::default() },
        ..BusSettings::default()
    };
    let node = Node::start_with(settings, |_| {}).await;
    let mut alive = node.connect().await;
    let dead = node.connect().await;
    tokio::select! {
        closed = alive.next() => panic!("a client that answers pings was dropped: {closed:?}"),
        () = until("the dead one is dropped", || node.bus.clients() == 1) => {}
    }
    assert_eq!(alive.call("session::echo", json!(1)).await["result"], 1);
    drop(dead);
}

#[tokio::test]
async fn a_caller_with_too_many_calls_that_wait_is_refused_before_its_body_arrives() {
    let node = Node::start().await;
    let mut stream = TcpStream::connect(&node.address).await.unwrap();
    let (key, gate) = (CallerKey::Connection(stream.local_addr().unwrap()), node.bus.gate());
    let (mut running, mut waiting) = (Vec::new(), Vec::new());
    loop {
        let mut call = Box::pin(gate.admit_begun(key.clone(), "session::echo", 0, gate.deadline()));
        match call.as_mut().now_or_never() {
            Some(Ok(admitted)) => running.push(admitted),
            Some(Err(_)) => break,
            None => waiting.push(call),
        }
    }
    // Nothing of the body is sent.
    let head = "POST /v1/call/session::echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let answered = async {
        while !answer.contains("\r\n\r\n") {
            answer.push(char::from(stream.read_u8().await.unwrap()));
        }
    };
    tokio::time::timeout(Duration::from_secs(5), answered).await.expect("it is refused at once");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    drop((running, waiting));
    still_serves(&node).await;
}
