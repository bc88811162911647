//! Laws of a cluster whose leader is killed repeatedly under a mixed load through every node.

use std::time::{Duration, Instant};

use crate::load::LoadSettings;

use crate::processes::{
    DevCluster, assert_lawful, equal_states, leader, load_time, one_cluster_at_a_time, progress, start_load,
};

/// Long enough for the killed node to restart and catch up, so that two nodes are never down at once.
const KILL_EVERY: Duration = Duration::from_secs(4);
/// Longer than an election. The test measures the longest time without a write in this window.
const GAP_WINDOW: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_leader_under_load_loses_and_duplicates_nothing() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = DevCluster::start(dir.path(), 3, &["--respawn"]);
    let load = start_load(LoadSettings::new("kills"), &cluster.nodes()).await;
    let history = load.history().clone();
    let (begun, mut gaps, mut killed) = (Instant::now(), Vec::new(), 0);
    while begun.elapsed() < load_time() {
        progress(&history, 50).await;
        // A restarting node may not know the leader yet, so another one is asked.
        killed = leader(&cluster.peer_besides(killed)).await;
        let killed_at = history.now();
        cluster.signal_node(killed, "KILL");
        tokio::time::sleep(GAP_WINDOW).await;
        gaps.push(history.longest_silence(killed_at, killed_at + GAP_WINDOW));
        tokio::time::sleep(KILL_EVERY - GAP_WINDOW).await;
    }
    progress(&history, 50).await;
    let history = load.stop().await;
    let hash = equal_states(&cluster.peer_besides(0), 3).await;
    assert_lawful(&history, &cluster.clients()).await;
    gaps.sort_unstable();
    let (p50, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!("{} kills of the leader: write gap p50 {p50:.0?}, worst {worst:.0?}; state {hash}", gaps.len());
}
