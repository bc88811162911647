//! Laws of a network that drops all packets: connections neither end nor answer, and TCP sends everything again when
//! the network is back. The cluster and its clients run in a separate network namespace, each node on its own loopback
//! address; that needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::load::{LoadSettings, Nodes};

use crate::processes::{
    LoneNode, assert_lawful, cluster, equal_states, leader, one_cluster_at_a_time, progress, start_load,
};

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "CLUSTER_TEST_INSIDE";
const NAME: &str = "cut::a_cut_network_stops_only_the_nodes_it_cuts_off_and_loses_nothing";
/// Longer than any election, shorter than the patience of the clients.
const CUT_FOR: Duration = Duration::from_secs(4);

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().expect("ip runs");
    assert!(done.success(), "ip {words}");
}

fn address(node: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 10 + node as u8))
}

/// Whether this machine allows a separate network namespace. Prints why the test is skipped if not.
fn may_cut() -> bool {
    let probe = "ip link set lo up && ip rule add pref 10 lookup local && ip rule del pref 0";
    let tried = Command::new("unshare").args(["--net", "sh", "-c", probe]).stderr(Stdio::null()).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        println!("SKIPPED: the test needs `unshare --net` and `ip`, which this machine or user does not allow");
    }
    may
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_network_stops_only_the_nodes_it_cuts_off_and_loses_nothing() {
    if std::env::var_os(INSIDE).is_some() {
        return inside().await;
    }
    let _only = one_cluster_at_a_time().await;
    if !may_cut() {
        return;
    }
    let this = std::env::current_exe().expect("this program");
    let mut inner = Command::new("unshare");
    inner.arg("--net").arg(this).args(["--exact", NAME, "--nocapture"]).env(INSIDE, "1");
    let run = move || inner.status().expect("this program runs in the namespace");
    let ended = tokio::task::spawn_blocking(run).await.expect("it ran");
    assert!(ended.success(), "inside the namespace: {ended}");
}

async fn inside() {
    ip("link set lo up");
    // The rule for local addresses has priority 0. It must move back so that another rule can come before it.
    ip("rule add pref 10 lookup local");
    ip("rule del pref 0");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut nodes = vec![LoneNode::start_at(address(1), dir.path(), 1, "cut", &[])];
    for node in 2..=3 {
        nodes.push(LoneNode::start_at(address(node), dir.path(), node, "cut", &["--join"]));
    }
    let peer = nodes[0].peer.clone();
    for (node, joining) in (2..).zip(&nodes[1..]) {
        cluster(&peer, &["add", &node.to_string(), &joining.peer]).await;
        cluster(&peer, &["promote", &node.to_string()]).await;
    }
    let clients: Vec<_> = nodes.iter().map(|node| node.client).collect();
    let settings = LoadSettings { call_max: Duration::from_secs(1), ..LoadSettings::new("cut") };
    let load = start_load(settings, &Nodes::new(clients.clone())).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    // 1. One follower is cut off. The others continue, and it catches up afterwards.
    let leads = leader(&peer).await;
    let follower = (1..=3).find(|node| *node != leads).expect("a follower");
    ip(&format!("rule add pref 5 to {} blackhole", address(follower)));
    let cut_at = history.now();
    progress(&history, 100).await;
    tokio::time::sleep(CUT_FOR.saturating_sub(history.now() - cut_at)).await;
    ip("rule del pref 5");
    let silence = history.longest_silence(cut_at, history.now());
    progress(&history, 50).await;

    // 2. All nodes are cut off. Nothing is acknowledged until the network is back, and then the load continues.
    ip("link set lo down");
    // Answers that arrived before the cut may still be in the buffers of the clients.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = history.tally().writes;
    tokio::time::sleep(CUT_FOR).await;
    assert_eq!(history.tally().writes, before, "a write was acknowledged over a network that is down");
    ip("link set lo up");
    progress(&history, 100).await;

    let history = load.stop().await;
    equal_states(&peer, 3).await;
    assert_lawful(&history, &clients).await;
    println!("one follower cut off for {CUT_FOR:?}: longest time without a write {silence:.0?}");
}
