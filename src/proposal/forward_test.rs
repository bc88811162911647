//! Tests of mutations that go through followers.

use std::sync::atomic::AtomicUsize;

use tokio::task::JoinSet;

use super::*;

const LARGE: usize = 12;
const LARGE_BYTES: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_acknowledged_every_other_reads_at_once() {
    let nodes = cluster(3, |settings| settings).await;
    nodes[1].propose(ensure("s")).await.unwrap();
    let mut said = Vec::new();
    for round in 0..10 {
        for writer in &nodes {
            let text = format!("{round} on {}", writer.id());
            writer.propose(say("s", &text)).await.unwrap();
            said.push(text);
            for reader in &nodes {
                assert_eq!(reader.texts("s").await, said, "read on node {}", reader.id());
            }
        }
    }
    agree(&nodes).await;
    let unknown = nodes[2].propose(say("nowhere", "x")).await;
    assert!(matches!(unknown, Err(AdapterError::Refused(_))), "a refusal travels back as one: {unknown:?}");
}

/// The leader takes one large mutation after the other, and a small one must not wait for those before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_mutation_through_a_follower_does_not_wait_for_large_ones() {
    let nodes = cluster(3, |settings| settings).await;
    let follower = &nodes[(leader_of(&nodes).await + 1) % 3];
    follower.propose(ensure("s")).await.unwrap();
    let (answered, within) = (Arc::new(AtomicUsize::new(0)), Instant::now() + Duration::from_secs(60));
    let mut large = JoinSet::new();
    for _ in 0..LARGE {
        let (adapter, answered) = (follower.adapter.clone(), answered.clone());
        let proposing = async move {
            let said = adapter.propose(Proposal::new(say("s", &"x".repeat(LARGE_BYTES)), within)).await;
            answered.fetch_add(1, Ordering::SeqCst);
            said
        };
        large.spawn_on(proposing, &follower.handle());
    }
    while answered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    follower.propose(say("s", "small")).await.unwrap();
    let before = answered.load(Ordering::SeqCst);
    assert!(before < LARGE / 2, "{before} of {LARGE} large mutations were answered before the small one");
    while let Some(said) = large.join_next().await {
        said.unwrap().unwrap();
    }
}
