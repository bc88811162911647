//! Laws of a network that is cut in earnest: packets vanish, connections neither end nor answer, and TCP sends everything
//! again when the network is back. The cluster and its clients live in a network namespace of their own, each node on a
//! loopback address of its own; that takes root.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::Duration;

use session_manager::cli::trial::{LoadSettings, Nodes};

use crate::machinery::{LoneNode, assert_lawful, cluster, equal_states, leader, progress, start_load, turn};

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "CLUSTER_TEST_INSIDE";
const NAME: &str = "cut::a_cut_network_stops_only_whom_it_cuts_off_and_loses_nothing";
/// Longer than any election, shorter than what clients wait for.
const CUT_FOR: Duration = Duration::from_secs(4);

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().expect("ip runs");
    assert!(done.success(), "ip {words}");
}

fn address(node: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 10 + node as u8))
}

/// Whether this machine gives a test a network of its own; says so where it does not.
fn may_cut() -> bool {
    let probe = "ip link set lo up && ip rule add pref 10 lookup local && ip rule del pref 0";
    let tried = Command::new("unshare").args(["--net", "sh", "-c", probe]).stderr(Stdio::null()).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        println!("SKIPPED: a cut network needs `unshare --net` and `ip`, which this machine or user does not allow");
    }
    may
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_network_stops_only_whom_it_cuts_off_and_loses_nothing() {
    if std::env::var_os(INSIDE).is_some() {
        return inside().await;
    }
    let _turn = turn().await;
    if !may_cut() {
        return;
    }
    let this = std::env::current_exe().expect("this program");
    let mut again = Command::new("unshare");
    again.arg("--net").arg(this).args(["--exact", NAME, "--nocapture"]).env(INSIDE, "1");
    let run = move || again.status().expect("this program runs in a network of its own");
    let ended = tokio::task::spawn_blocking(run).await.expect("it ran");
    assert!(ended.success(), "inside the namespace: {ended}");
}

async fn inside() {
    ip("link set lo up");
    // A rule of ours can only come before the one for local addresses when that one moves back.
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

    // 1. Nobody reaches one of the followers any more: the others go on, and it catches up.
    let leads = leader(&peer).await;
    let follower = (1..=3).find(|node| *node != leads).expect("a follower");
    ip(&format!("rule add pref 5 to {} blackhole", address(follower)));
    let cut_at = history.now();
    progress(&history, 100).await;
    tokio::time::sleep(CUT_FOR.saturating_sub(history.now() - cut_at)).await;
    ip("rule del pref 5");
    let silence = history.longest_silence(cut_at, history.now());
    progress(&history, 50).await;

    // 2. Nobody reaches anybody: nothing is acknowledged until the network is back, and then everything goes on.
    ip("link set lo down");
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
