//! Tests of reads that followers answer.

use super::*;
use crate::replication::peer_messages::read_index_response::Outcome;

/// It asks with the term that it has voted in, and makes a quorum of three together with the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_of_a_follower_is_its_confirmation() {
    let mut nodes = cluster(3, |settings| settings).await;
    let leader = leader_of(&nodes).await;
    let leader = nodes.swap_remove(leader);
    let mut client = PeerClient::connect(format!("http://{}", leader.address())).await.unwrap();
    let follower = nodes[0].adapter.replica();
    let term = follower.log().vote().unwrap().term;
    let hop = follower.membership().peers.local.hop_to(leader.id(), &Default::default());
    for node in nodes {
        node.kill().await;
    }
    let mut ask = async |term| {
        let answer = client.read_index(ReadIndexRequest { hop: Some(hop.clone()), term }).await.unwrap();
        answer.into_inner().outcome.unwrap()
    };
    let confirmed = ask(term).await;
    assert!(matches!(confirmed, Outcome::Index(_)), "{confirmed:?}");
    // A follower that confirms nothing, or another leader, waits for a quorum, and there is none.
    for other in [0, term + 1] {
        let refused = ask(other).await;
        assert!(matches!(refused, Outcome::Unavailable(_)), "{refused:?}");
    }
}

/// More than one confirmation is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_of_five_one_follower_is_no_quorum() {
    let mut nodes = cluster(5, |settings| settings).await;
    let leader = leader_of(&nodes).await;
    let leader = nodes.swap_remove(leader);
    let mut client = PeerClient::connect(format!("http://{}", leader.address())).await.unwrap();
    let follower = nodes[0].adapter.replica();
    let term = follower.log().vote().unwrap().term;
    let hop = follower.membership().peers.local.hop_to(leader.id(), &Default::default());
    for node in nodes {
        node.kill().await;
    }
    let answer = client.read_index(ReadIndexRequest { hop: Some(hop), term }).await.unwrap();
    let refused = answer.into_inner().outcome.unwrap();
    assert!(matches!(refused, Outcome::Unavailable(_)), "{refused:?}");
}
