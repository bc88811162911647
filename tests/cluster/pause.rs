//! Laws of a leader that sleeps and wakes: it may not answer from the past, nor accept what another leader decides.

use std::time::Duration;

use session_manager::cli::trial::LoadSettings;

use crate::machinery::{DevCluster, assert_lawful, equal_states, leader, progress, start_load, turn};

const ASLEEP: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_slept_10_s_neither_reads_stale_nor_splits_the_cluster() {
    let _turn = turn().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let cluster = DevCluster::start(dir.path(), 3, &[]);
    // Clients give up on the sleeper soon, so that they keep asking the others, and it when it wakes.
    let settings = LoadSettings { call_max: Duration::from_secs(1), ..LoadSettings::new("pause") };
    let load = start_load(settings, &cluster.nodes()).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    let sleeper = leader(&cluster.peer_besides(0)).await;
    cluster.signal_node(sleeper, "STOP");
    let stopped_at = history.now();
    // The others go on without it, while clients still wait for it.
    progress(&history, 100).await;
    let silence = history.longest_silence(stopped_at, history.now());
    tokio::time::sleep(ASLEEP.saturating_sub(history.now() - stopped_at)).await;
    cluster.signal_node(sleeper, "CONT");
    // Now it answers again, as whoever it believes to be.
    progress(&history, 200).await;

    let history = load.stop().await;
    equal_states(&cluster.peer_besides(sleeper), 3).await;
    assert_lawful(&history, &cluster.clients()).await;
    println!("the leader slept {ASLEEP:?}: longest time without a write {silence:.0?}");
}
