//! Tests of the peer port with malformed messages: every call is refused with a reason, and the node is unaffected.

use bytes::{Buf, BufMut, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::*;
use crate::events::{Committed, EventSink};
use crate::machine::Command;
use crate::machine::apply::create::CreateSession;
use crate::machine::apply::ensure::EnsureSession;
use crate::mint::SystemMint;
use crate::storage::state::memory::MemoryStore;

/// Sends bytes as they are.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

struct NoSubscribers;

impl EventSink for NoSubscribers {
    fn publish(&self, _events: Vec<Arc<Committed>>) {}
}

async fn send(channel: &Channel, path: &str, body: &[u8]) -> Status {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path: PathAndQuery = path.parse().unwrap();
    let body = Request::new(Bytes::copy_from_slice(body));
    let answer = tokio::time::timeout(Duration::from_secs(20), client.unary(body, path, Raw)).await;
    answer.expect("an answer").expect_err("garbage is refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_are_refused_by_every_call_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let settings =
        RaftSettings { peer_listen: Some("127.0.0.1:0".parse().unwrap()), ..RaftSettings::new(dir.path(), 1) };
    let store = Arc::new(MemoryStore::new());
    let node =
        RaftAdapter::start(settings, Arc::new(SystemMint::default()), store, Arc::new(NoSubscribers)).await.unwrap();
    let soon = || Instant::now() + Duration::from_secs(20);
    let session = CreateSession { title: String::new(), description: String::new(), metadata: None };
    let ensure = Command::Ensure(EnsureSession { session_id: "s".into(), session });
    node.propose(Proposal::new(ensure, soon())).await.unwrap();
    let before = node.replica().store().checkpoint().unwrap();

    let address = format!("http://{}", node.peer_address().unwrap());
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let calls = [
        (
            "peer.v1.Peer",
            &["Invite", "Vote", "PreVote", "Append", "AppendStream", "InstallSnapshot", "TransferLeader"][..],
        ),
        ("peer.v1.Peer", &["ReadIndex", "Forward"]),
        ("admin.v1.Admin", &["Init", "AddLearner", "Promote", "Remove", "TransferLeader", "Snapshot"]),
    ];
    // No field tag, a length beyond the message, a group that never ends, an empty message, text.
    let bodies: [&[u8]; 5] = [&[0xff; 16], &[0x0a, 0xff, 0xff, 0xff, 0x0f, 1], &[0x0b; 40], &[], b"GET / HTTP/1.1"];
    for (service, names) in calls {
        for name in names {
            for body in bodies {
                // An empty administration call is a valid one that names nothing.
                if body.is_empty() && service.starts_with("admin") {
                    continue;
                }
                let status = send(&channel, &format!("/session_manager.{service}/{name}"), body).await;
                assert!(status.code() != Code::Ok && !status.message().is_empty(), "{name} {body:?}: {status:?}");
            }
        }
    }
    assert_eq!(node.replica().store().checkpoint().unwrap(), before);
    node.ask(Query::Meta("s".into()), Freshness::Linearizable, soon()).await.unwrap();
    node.shutdown().await;
}
