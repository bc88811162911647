//! Laws of a cluster that forms itself: the same command on every node, in any order, with kills in between, makes one
//! cluster and never two. `FORMING_ROUNDS` is the number of clusters (default 2).

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::LoadSettings;
use crate::processes::{
    Nodes, ServerProcess, assert_lawful, call, cluster, equal_states, eventually, free_port, leader,
    one_cluster_at_a_time, progress, start_load, try_cluster,
};

/// Kills while a cluster forms.
const KILLS: u64 = 4;

/// A node with a name. Its process may be stopped.
struct Named {
    name: String,
    client: SocketAddr,
    peer: SocketAddr,
    dir: PathBuf,
    process: Option<ServerProcess>,
    starts: usize,
}

impl Named {
    fn new(dir: &Path, name: &str) -> Named {
        let (client, peer) = (free_port([127, 0, 0, 1].into()), free_port([127, 0, 0, 1].into()));
        Named { name: name.to_owned(), client, peer, dir: dir.to_owned(), process: None, starts: 0 }
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn start(&mut self, arguments: &[&str]) {
        self.start_with(arguments, &[]);
    }

    /// With these variables in its environment.
    fn start_with(&mut self, arguments: &[&str], variables: &[(&str, &str)]) {
        self.starts += 1;
        let (client, peer, data) = (self.client.to_string(), self.peer.to_string(), self.data_dir());
        let discover = format!("file:{}", self.dir.join("nodes").display());
        let set = |command: &mut std::process::Command| {
            command.args(["--listen", &client, "--peer-listen", &peer, "--name", &self.name, "--discover", &discover]);
            command.arg("--data-dir").arg(&data).args(arguments).envs(variables.iter().copied());
        };
        let log = self.dir.join(format!("{}-{}.log", self.name, self.starts));
        self.process = Some(ServerProcess::start(set, &log));
    }

    fn kill(&mut self) {
        drop(self.process.take());
    }

    fn lose_disk(&mut self) {
        self.kill();
        fs::remove_dir_all(self.data_dir()).expect("its disk");
    }

    /// What all its processes logged.
    fn logs(&self) -> String {
        let log = |start| fs::read_to_string(self.dir.join(format!("{}-{start}.log", self.name))).unwrap_or_default();
        (1..=self.starts).map(log).collect()
    }
}

fn write_nodes<'a>(dir: &Path, nodes: impl IntoIterator<Item = &'a Named>) {
    let lines: String = nodes.into_iter().map(|node| format!("{}\n", node.peer)).collect();
    let draft = dir.join("nodes.new");
    fs::write(&draft, lines).expect("the list of nodes");
    fs::rename(draft, dir.join("nodes")).expect("the list of nodes");
}

/// A small generator, so that a failed round can be repeated with its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Waits until these nodes are the members of one cluster, and this many of them vote. Returns its id.
async fn formed(nodes: &[Named], voters: usize) -> String {
    eventually(async || {
        let mut clusters = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for node in nodes {
            let peer = node.peer.to_string();
            let asked = tokio::task::spawn_blocking(move || try_cluster(&peer, &["status", "--timeout-ms", "1000"]));
            let status = asked.await.expect("the command ran")?;
            let members = status["nodes"].as_array().cloned().unwrap_or_default();
            let voting = members.iter().filter(|member| member["voter"] == true).count();
            let own = members.iter().find(|member| member["name"] == node.name.as_str());
            if status["healthy"] != true || members.len() != nodes.len() || voting != voters || own.is_none() {
                return Err(format!("{} sees {status:#}", node.name));
            }
            ids.insert(own.and_then(|own| own["node"].as_u64()));
            clusters.insert(status["cluster_id"].as_str().unwrap_or_default().to_owned());
        }
        assert_eq!(clusters.len(), 1, "two clusters were founded");
        assert_eq!(ids.len(), nodes.len(), "two nodes have one id");
        Ok(clusters.pop_first().unwrap_or_default())
    })
    .await
}

const THREE: [&str; 2] = ["--bootstrap-expect", "3"];

/// Starts nodes in a random order and kills some of them while they form their cluster.
async fn start_shuffled(nodes: &mut [Named], dice: &mut Dice, arguments: &[&str]) {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, dice.below(at as u64 + 1) as usize);
    }
    for at in order {
        nodes[at].start(arguments);
        tokio::time::sleep(Duration::from_millis(dice.below(400))).await;
    }
    for _ in 0..dice.below(KILLS + 1) {
        tokio::time::sleep(Duration::from_millis(dice.below(900))).await;
        let at = dice.below(nodes.len() as u64) as usize;
        nodes[at].kill();
        nodes[at].start(arguments);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_then_five_nodes_with_the_same_command_are_one_cluster() {
    let _only = one_cluster_at_a_time().await;
    let rounds = std::env::var("FORMING_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_u64);
    let seed = std::env::var("FORMING_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u128() as u64);
    for round in seed..seed.saturating_add(rounds) {
        let mut dice = Dice(round);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut nodes: Vec<Named> = ["a", "b", "c"].map(|name| Named::new(dir.path(), name)).into();
        write_nodes(dir.path(), &nodes);
        start_shuffled(&mut nodes, &mut dice, &THREE).await;
        let id = formed(&nodes, 3).await;
        let created = call(nodes[0].client, "session::create", json!({ "title": "before" })).await;
        let mut more: Vec<Named> = ["d", "e"].map(|name| Named::new(dir.path(), name)).into();
        write_nodes(dir.path(), nodes.iter().chain(&more));
        start_shuffled(&mut more, &mut dice, &THREE).await;
        nodes.extend(more);
        assert_eq!(formed(&nodes, 5).await, id, "seed {round}: the cluster is another one");
        let got = call(nodes[4].client, "session::get", json!({ "session_id": created["session_id"] })).await;
        assert_eq!(got["meta"]["title"], "before", "seed {round}");
        println!("seed {round}: one cluster of three, then of five");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_disk_replaces_itself_and_a_removed_one_rejoins_when_told() {
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut nodes: Vec<Named> = ["a", "b", "c"].map(|name| Named::new(dir.path(), name)).into();
    write_nodes(dir.path(), &nodes);
    nodes.iter_mut().for_each(|node| node.start(&THREE));
    let id = formed(&nodes, 3).await;
    let clients = Nodes::new(nodes.iter().map(|node| node.client).collect());
    let load = start_load(LoadSettings::new("healing"), &clients).await;
    let history = load.history().clone();
    progress(&history, 50).await;

    // 1. The leader loses its disk and comes back empty, under its old name.
    let members = |status: &Value| status["nodes"].as_array().cloned().unwrap_or_default();
    let status = cluster(&nodes[1].peer.to_string(), &["status"]).await;
    let lead = leader(&nodes[1].peer.to_string()).await;
    let lost = members(&status).iter().find(|member| member["node"] == lead).expect("the leader")["name"].clone();
    let at = nodes.iter().position(|node| lost == node.name.as_str()).expect("a node");
    clients.set(nodes.iter().filter(|node| lost != node.name.as_str()).map(|node| node.client).collect());
    nodes[at].lose_disk();
    nodes[at].start(&THREE);
    assert_eq!(formed(&nodes, 3).await, id, "it joined its cluster");
    clients.set(nodes.iter().map(|node| node.client).collect());
    let other = nodes[(at + 1) % 3].peer.to_string();
    let status = cluster(&other, &["status"]).await;
    assert!(!members(&status).iter().any(|member| member["node"] == lead), "its predecessor is gone: {status:#}");
    progress(&history, 50).await;

    // 2. A node is removed while it is down. It says so, and joins as a new one only when told.
    let gone = (at + 1) % 3;
    clients.set(nodes.iter().enumerate().filter(|(nth, _)| *nth != gone).map(|(_, node)| node.client).collect());
    nodes[gone].kill();
    let peer = nodes[at].peer.to_string();
    let status = cluster(&peer, &["status"]).await;
    let named = members(&status).into_iter().find(|member| member["name"] == nodes[gone].name.as_str());
    let node = named.expect("a member")["node"].as_u64().expect("an id");
    cluster(&peer, &["remove", &node.to_string()]).await;
    nodes[gone].start(&THREE);
    let says_so = || nodes[gone].logs().contains("was removed from cluster");
    eventually(async || if says_so() { Ok(()) } else { Err(format!("no word: {}", nodes[gone].logs())) }).await;
    nodes[gone].kill();
    nodes[gone].start(&[&THREE[..], &["--rejoin"]].concat());
    assert_eq!(formed(&nodes, 3).await, id);
    progress(&history, 50).await;

    let history = load.stop().await;
    equal_states(&nodes[0].peer.to_string(), 3).await;
    assert_lawful(&history, &nodes.iter().map(|node| node.client).collect::<Vec<_>>()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_is_one_clear_line_and_joins_nothing() {
    let _only = one_cluster_at_a_time().await;
    let dirs = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let mut clusters: Vec<Named> = dirs.iter().map(|dir| Named::new(dir.path(), "a")).collect();
    for (node, dir) in clusters.iter_mut().zip(&dirs) {
        write_nodes(dir.path(), [&*node]);
        node.start(&["--bootstrap-expect", "1"]);
    }
    for node in &clusters {
        formed(std::slice::from_ref(node), 1).await;
    }
    let says = async |node: &Named, line: &str| {
        let said = || node.logs().contains(line);
        eventually(async || if said() { Ok(()) } else { Err(format!("{line:?} is not in: {}", node.logs())) }).await;
    };
    // Two clusters behind one name, for a new node and for a member.
    let mut stray = Named::new(dirs[0].path(), "stray");
    write_nodes(dirs[0].path(), clusters.iter().chain([&stray]));
    stray.start(&THREE);
    says(&stray, "members of 2 clusters answer").await;
    assert!(!stray.data_dir().join("identity").exists(), "it joined nothing");
    says(&clusters[0], "but this node belongs to cluster").await;
    stray.kill();
    // A node with the name of a member that answers.
    write_nodes(dirs[0].path(), [&clusters[0]]);
    let mut twin = Named { name: "a".to_owned(), dir: dirs[1].path().to_owned(), ..Named::new(dirs[0].path(), "twin") };
    fs::rename(dirs[0].path().join("nodes"), dirs[1].path().join("nodes")).expect("the list");
    twin.dir = dirs[1].path().join("twin");
    fs::create_dir_all(&twin.dir).expect("a directory");
    write_nodes(&twin.dir, [&clusters[0]]);
    twin.start(&THREE);
    says(&twin, "is the name of node 1, which answers").await;
    twin.kill();
    // A member of another cluster that has the name of a member here, and is told to look here. With `--rejoin` too it
    // stays what it is.
    clusters[1].kill();
    write_nodes(dirs[1].path(), [&clusters[0]]);
    let before = fs::read(clusters[1].data_dir().join("identity")).expect("its identity");
    clusters[1].start(&[&THREE[..], &["--rejoin"]].concat());
    says(&clusters[1], "but this node belongs to cluster").await;
    assert_eq!(fs::read(clusters[1].data_dir().join("identity")).expect("its identity"), before);
    formed(std::slice::from_ref(&clusters[1]), 1).await;
    // A place that does not exist.
    let mut lost = Named::new(dirs[0].path(), "lost");
    fs::remove_file(dirs[0].path().join("nodes")).ok();
    lost.start(&THREE);
    says(&lost, "discover: ").await;
    let answers = try_cluster(&clusters[0].peer.to_string(), &["status"]).expect("a status");
    assert_eq!(answers["nodes"].as_array().map(Vec::len), Some(1), "nobody joined: {answers:#}");
}

/// The library that lets the clock of one process be wrong, if it is installed.
fn wrong_clocks() -> Option<PathBuf> {
    let places = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let named = std::env::var_os("FAKETIME_LIBRARY").map(PathBuf::from);
    named.into_iter().chain(places.map(|place| place.join("faketime/libfaketimeMT.so.1"))).find(|file| file.exists())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_an_hour_off_are_named_and_nothing_is_lost() {
    let Some(library) = wrong_clocks() else {
        println!("SKIPPED: libfaketime is not installed");
        return;
    };
    let _only = one_cluster_at_a_time().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut nodes: Vec<Named> = ["a", "b", "c"].map(|name| Named::new(dir.path(), name)).into();
    write_nodes(dir.path(), &nodes);
    let library = library.display().to_string();
    let start = |node: &mut Named, offset: &str| match offset {
        "" => node.start(&THREE),
        // Only the time of day is wrong: a clock that measures how long something takes is not.
        offset => {
            let set = [("LD_PRELOAD", library.as_str()), ("FAKETIME", offset), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
            node.start_with(&THREE, &set);
        }
    };
    for (node, offset) in nodes.iter_mut().zip(["", "-1h", "+1h"]) {
        start(node, offset);
    }
    let id = formed(&nodes, 3).await;
    let says = async |node: &Named, line: &str| {
        let said = || node.logs().contains(line);
        eventually(async || if said() { Ok(()) } else { Err(format!("{line:?} is not in: {}", node.logs())) }).await;
    };
    says(&nodes[0], "the clock of another node is ahead by this much").await;
    says(&nodes[0], "the clock of another node is behind by this much").await;
    let clients = Nodes::new(nodes.iter().map(|node| node.client).collect());
    let load = start_load(LoadSettings::new("clocks"), &clients).await;
    let history = load.history().clone();
    progress(&history, 50).await;
    // Every node leads once, so that the time of the log is taken from every clock. Then the clocks are set.
    for node in &nodes {
        let peer = node.peer.to_string();
        let status = cluster(&peer, &["status"]).await;
        let members = status["nodes"].as_array().cloned().unwrap_or_default();
        let own = members.iter().find(|member| member["name"] == node.name.as_str()).expect("a member");
        cluster(&peer, &["transfer-leader", &own["node"].to_string()]).await;
        progress(&history, 50).await;
    }
    for at in 1..nodes.len() {
        nodes[at].kill();
        start(&mut nodes[at], "");
        assert_eq!(formed(&nodes, 3).await, id);
        progress(&history, 50).await;
    }
    let history = load.stop().await;
    equal_states(&nodes[0].peer.to_string(), 3).await;
    assert_lawful(&history, &nodes.iter().map(|node| node.client).collect::<Vec<_>>()).await;
}
