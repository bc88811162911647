//! Laws of a paused leader: when it resumes, it must neither answer with stale state nor accept writes.

use std::time::Duration;

use crate::load::LoadSettings;

use crate::processes::{DevCluster, assert_lawful, equal_states, leader, one_cluster_at_a_time, progress, start_load};

const PAUSED_FOR: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_paused_for_10_s_neither_reads_stale_state_nor_splits_the_cluster() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = DevCluster::start(dir.path(), 3, &[]);
    // With a short deadline the clients soon call the other nodes, and the paused one again when it resumes.
    let settings = LoadSettings { call_max: Duration::from_secs(1), ..LoadSettings::new("pause") };
    let load = start_load(settings, &cluster.nodes()).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    let paused = leader(&cluster.peer_besides(0)).await;
    cluster.signal_node(paused, "STOP");
    let stopped_at = history.now();
    // The others continue without it, while some clients still wait for its answer.
    progress(&history, 100).await;
    let silence = history.longest_silence(stopped_at, history.now());
    tokio::time::sleep(PAUSED_FOR.saturating_sub(history.now() - stopped_at)).await;
    cluster.signal_node(paused, "CONT");
    // It answers again, and believes at first that it still leads.
    progress(&history, 200).await;

    let history = load.stop().await;
    equal_states(&cluster.peer_besides(paused), 3).await;
    assert_lawful(&history, &cluster.clients()).await;
    println!("the leader was paused for {PAUSED_FOR:?}: longest time without a write {silence:.0?}");
}
