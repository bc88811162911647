//! Owns: the faults of a run: injects what the scenario calls for into the simulated network, hosts, disks and clocks,
//! and mends all of it at the end. Never: checks; the oracles do that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use turmoil::Sim;

use crate::bridge;
use crate::determinism::{self, Chance};
use crate::disk::Trouble;
use crate::history::LifeEvent;
use crate::host::{self, Station};
use crate::operator::{Task, TaskQueue};
use crate::recorder::Recorder;
use crate::scenario::{Breakage, Scenario};

/// Every host that calls nodes and is not a node.
pub const OUTSIDE: [&str; 4] = ["clients", "listeners", "operator", bridge::NAME];

const LATENCY_MAX: Duration = Duration::from_millis(8);
/// Longer than a lost leader may be missing with disks of 250 ms.
const LONG_ENOUGH: Duration = Duration::from_secs(4);
/// A node that ended by itself is restarted after this long, as a supervisor would do.
const RESTART_AFTER: Duration = Duration::from_millis(300);

pub struct Nemesis {
    pub scenario: &'static Scenario,
    pub stations: Vec<Station>,
    pub tasks: Arc<TaskQueue>,
    pub recorder: Recorder,
    pub chance: Chance,
    /// When the next fault is injected.
    next_at: Duration,
    /// What to mend, and when.
    mends: Vec<(Duration, Mend)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mend {
    Link(String, String),
    Start(u64),
    Bridge,
    Disk(u64),
    Clock(u64),
    /// A paused process goes on; its clock jumps by this much.
    Wake(u64, Duration),
}

impl Nemesis {
    pub fn new(
        scenario: &'static Scenario,
        stations: Vec<Station>,
        tasks: Arc<TaskQueue>,
        recorder: Recorder,
        chance: Chance,
    ) -> Nemesis {
        Nemesis { scenario, stations, tasks, recorder, chance, next_at: Duration::ZERO, mends: Vec::new() }
    }

    /// Injects a fault when it is time. Called once per step while faults are allowed.
    pub fn inject(&mut self, sim: &mut Sim<'_>) {
        self.supervise(sim);
        let now = determinism::now();
        if now < self.next_at {
            return;
        }
        let (least, most) = self.scenario.pause_ms;
        let first = self.next_at.is_zero();
        self.next_at = now + self.chance.millis(least, most);
        if !first && let Some(breakage) = self.scenario.pick(&mut self.chance) {
            self.break_one(sim, breakage);
        }
    }

    /// Mends what is due and restarts nodes that ended by themselves. Called once per step, to the end of the run.
    pub fn supervise(&mut self, sim: &mut Sim<'_>) {
        let now = determinism::now();
        let over: Vec<Station> = self.stations.iter().filter(|station| station.status().over).cloned().collect();
        for station in over {
            // The crash also ends the tasks that its process left behind.
            self.crash(sim, &station, RESTART_AFTER);
        }
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.mends).into_iter().partition(|(at, _)| *at <= now);
        self.mends = later;
        for (_, mend) in due {
            self.mend(sim, mend);
        }
    }

    /// Mends everything at the end of the faults.
    pub fn mend_all(&mut self, sim: &mut Sim<'_>) {
        for (_, mend) in std::mem::take(&mut self.mends) {
            self.mend(sim, mend);
        }
        let names: Vec<String> = self.stations.iter().map(Station::name).collect();
        for (rank, one) in names.iter().enumerate() {
            for other in names.iter().skip(rank + 1).cloned().chain(OUTSIDE.map(str::to_owned)) {
                mend_link(sim, one, &other);
            }
        }
        for station in &self.stations {
            station.disk.faults.set(None);
            self.recorder.disk_speed(station.node, 0);
            station.skew_ms.store(0, Ordering::SeqCst);
        }
        self.recorder.healed();
    }

    fn mend(&mut self, sim: &mut Sim<'_>, mend: Mend) {
        self.recorder.say("nemesis", &format!("mends {mend:?}"));
        match mend {
            Mend::Link(one, other) => mend_link(sim, &one, &other),
            Mend::Start(node) => sim.bounce(host::name(node)),
            Mend::Bridge => sim.bounce(bridge::NAME),
            Mend::Disk(node) => self.set_disk(node, None),
            Mend::Wake(node, by) => self.station(node).jump(by),
            Mend::Clock(node) => self.station(node).skew_ms.store(0, Ordering::SeqCst),
        }
    }

    fn set_disk(&self, node: u64, trouble: Option<Trouble>) {
        self.station(node).disk.faults.set(trouble);
        let ms = match trouble {
            Some(Trouble::Slow { ms }) => ms,
            _quick => 0,
        };
        self.recorder.disk_speed(node, ms);
    }

    fn station(&self, node: u64) -> &Station {
        &self.stations[node as usize - 1]
    }

    fn mend_later(&mut self, mend: Mend) {
        let at = determinism::now() + self.outage();
        self.mends.push((at, mend));
    }

    /// How long a fault lasts. Some last so long that the log is purged meanwhile, and the node needs a snapshot to
    /// return.
    fn outage(&mut self) -> Duration {
        let (least, most) = self.scenario.lasts_ms;
        let usual = self.chance.millis(least, most);
        // Where only one node may be away, a long outage would block the others' turns.
        if !self.scenario.one_away && self.chance.one_in(3) { 4 * usual } else { usual }
    }

    fn is_down(&self, node: u64) -> bool {
        self.mends.iter().any(|(_, mend)| *mend == Mend::Start(node))
    }

    fn some_node(&mut self) -> u64 {
        self.chance.below(self.stations.len()) as u64 + 1
    }

    fn leader(&self) -> Option<u64> {
        let leading = self.stations.iter().filter_map(|station| Some((station.status().leads?, station.node)));
        leading.max().map(|(_, node)| node)
    }

    /// A running node; half of the time the leader.
    fn some_running(&mut self) -> Option<u64> {
        let leader = self.leader().filter(|leader| !self.is_down(*leader));
        if leader.is_some() && self.chance.one_in(2) {
            return leader;
        }
        let node = self.some_node();
        (!self.is_down(node)).then_some(node)
    }

    fn two_nodes(&mut self) -> (u64, u64) {
        let (one, step) = (self.some_node(), self.chance.below(self.stations.len() - 1) as u64 + 1);
        (one, (one - 1 + step) % self.stations.len() as u64 + 1)
    }

    /// True while a node is down or a link is cut.
    fn is_one_away(&self) -> bool {
        self.mends.iter().any(|(_, mend)| matches!(mend, Mend::Start(_) | Mend::Link(..)))
    }

    fn break_one(&mut self, sim: &mut Sim<'_>, breakage: Breakage) {
        let away = matches!(breakage, Breakage::Crash | Breakage::CrashLeader | Breakage::Isolate);
        if self.scenario.one_away && away && self.is_one_away() {
            return;
        }
        match breakage {
            Breakage::Isolate | Breakage::Split => self.cut_off(sim, breakage),
            Breakage::OneWay | Breakage::Hold | Breakage::Loss | Breakage::Latency | Breakage::ClientCut => {
                self.break_link(sim, breakage);
            }
            Breakage::Crash | Breakage::CrashLeader | Breakage::CrashAll | Breakage::Kill | Breakage::Stop => {
                self.break_host(sim, breakage);
            }
            Breakage::CrashBridge => self.crash_bridge(sim),
            Breakage::DiskFull => self.break_disk(breakage, Trouble::Full),
            Breakage::DiskWrites => self.break_disk(breakage, Trouble::FailingWrites),
            Breakage::DiskSyncs => self.break_disk(breakage, Trouble::FailingSyncs),
            Breakage::DiskReads => {
                let one_in = self.chance.between(2, 40);
                self.break_disk(breakage, Trouble::FlippedReads { one_in });
            }
            Breakage::DiskEio => {
                // A snapshot transfer reads few pieces, and one of them should fail.
                let (snapshots, most) = (self.scenario.one_away, if self.scenario.one_away { 12 } else { 60 });
                let one_in = self.chance.between(2, most);
                self.break_disk(breakage, Trouble::FailingReads { one_in, snapshots });
            }
            Breakage::DiskSlow => {
                let ms = self.chance.between(10, 2_000);
                self.break_disk(breakage, Trouble::Slow { ms });
            }
            Breakage::DiskSlowAll => self.slow_all_disks(sim),
            Breakage::Join | Breakage::Remove | Breakage::Transfer | Breakage::Snapshot => self.send_operator(breakage),
            Breakage::Skew | Breakage::Jump => self.break_clock(breakage),
            Breakage::Pause => self.pause(sim),
            Breakage::Nap => {
                let (node, by) = (self.some_node(), self.chance.millis(50, 3_000));
                self.recorder.fault(breakage.word(), format!("node {node} for {} ms", by.as_millis()));
                self.station(node).jump(by);
            }
            Breakage::LongCommand => {
                let (node, ms) = (self.some_node(), self.chance.between(100, 3_000));
                self.recorder.fault(breakage.word(), format!("node {node} for {ms} ms"));
                self.station(node).long_command_ms.store(ms, Ordering::SeqCst);
            }
        }
    }

    /// All disks are slow. Half of the time the leader is lost with it, where the scenario has that, and nothing else
    /// happens until another should lead: that is what slow disks make hard.
    fn slow_all_disks(&mut self, sim: &mut Sim<'_>) {
        let lose_leader = self.scenario.breaks(Breakage::CrashLeader) && self.chance.one_in(2);
        let ms = if lose_leader { self.chance.between(100, 250) } else { self.chance.between(10, 500) };
        let trouble = Trouble::Slow { ms };
        self.recorder.fault(Breakage::DiskSlowAll.word(), format!("all nodes: {trouble:?}"));
        let lasts = if lose_leader { LONG_ENOUGH } else { self.outage() };
        let now = determinism::now();
        for node in 1..=self.stations.len() as u64 {
            self.mends.retain(|(_, mend)| *mend != Mend::Disk(node));
            self.set_disk(node, Some(trouble));
            self.mends.push((now + lasts, Mend::Disk(node)));
        }
        if lose_leader {
            self.break_host(sim, Breakage::CrashLeader);
            self.next_at = now + LONG_ENOUGH;
        }
    }

    /// turmoil cannot stop the timers of a host. So all its messages are held, in both directions, and its clock jumps
    /// when they are released.
    fn pause(&mut self, sim: &mut Sim<'_>) {
        let Some(node) = self.some_running() else { return };
        let lasts = self.outage();
        self.recorder.fault(Breakage::Pause.word(), format!("node {node} for {} ms", lasts.as_millis()));
        let end = determinism::now() + lasts;
        let others = (1..=self.stations.len() as u64).filter(|other| *other != node).map(host::name);
        for other in others.chain(OUTSIDE.map(str::to_owned)) {
            sim.hold(host::name(node), other.clone());
            self.mends.push((end, Mend::Link(host::name(node), other)));
        }
        self.mends.push((end, Mend::Wake(node, lasts)));
    }

    /// Cuts one or two nodes off from all others.
    fn cut_off(&mut self, sim: &mut Sim<'_>, breakage: Breakage) {
        let first = self.leader().filter(|_| self.chance.one_in(2)).unwrap_or_else(|| self.some_node());
        let mut inside = vec![first];
        if breakage == Breakage::Split && self.stations.len() > 3 {
            inside.push(first % self.stations.len() as u64 + 1);
        }
        self.recorder.fault(breakage.word(), format!("nodes {inside:?}"));
        for one in inside.clone() {
            for other in (1..=self.stations.len() as u64).filter(|other| !inside.contains(other)) {
                sim.partition(host::name(one), host::name(other));
                self.mend_later(Mend::Link(host::name(one), host::name(other)));
            }
        }
    }

    fn break_link(&mut self, sim: &mut Sim<'_>, breakage: Breakage) {
        let (one, other) = self.two_nodes();
        let (from, mut to) = (host::name(one), host::name(other));
        if breakage == Breakage::ClientCut {
            to = OUTSIDE[self.chance.below(OUTSIDE.len())].to_owned();
        }
        self.recorder.fault(breakage.word(), format!("{from} and {to}"));
        match breakage {
            Breakage::OneWay => sim.partition_oneway(from.clone(), to.clone()),
            Breakage::Hold => sim.hold(from.clone(), to.clone()),
            Breakage::Loss => sim.set_link_fail_rate(from.clone(), to.clone(), 0.05),
            Breakage::Latency => {
                let most = self.chance.millis(20, 200);
                sim.set_link_max_message_latency(from.clone(), to.clone(), most);
            }
            _cut => sim.partition(from.clone(), to.clone()),
        }
        self.mend_later(Mend::Link(from, to));
    }

    fn break_host(&mut self, sim: &mut Sim<'_>, breakage: Breakage) {
        let node = match breakage {
            Breakage::CrashLeader => self.leader().filter(|leader| !self.is_down(*leader)),
            _any => self.some_running(),
        };
        let Some(node) = node else { return };
        let station = self.station(node).clone();
        let down_for = self.outage();
        self.recorder.fault(breakage.word(), format!("node {node} for {} ms", down_for.as_millis()));
        match breakage {
            Breakage::CrashAll => {
                for station in self
                    .stations
                    .clone()
                    .iter()
                    .filter(|station| !self.is_down(station.node))
                    .cloned()
                    .collect::<Vec<_>>()
                {
                    let down_for = self.outage();
                    self.crash(sim, &station, down_for);
                }
            }
            Breakage::Kill => {
                station.recorder.life(node, station.status().boot, LifeEvent::Crashed);
                station.is_down();
                sim.bounce(station.name());
            }
            Breakage::Stop => station.stop.notify_one(),
            _crash => self.crash(sim, &station, down_for),
        }
    }

    fn crash(&mut self, sim: &mut Sim<'_>, station: &Station, down_for: Duration) {
        if !station.status().over {
            station.recorder.life(station.node, station.status().boot, LifeEvent::Crashed);
        }
        sim.crash(station.name());
        station.disk.lose_power();
        station.is_down();
        self.mends.push((determinism::now() + down_for, Mend::Start(station.node)));
    }

    fn crash_bridge(&mut self, sim: &mut Sim<'_>) {
        if !self.mends.iter().any(|(_, mend)| *mend == Mend::Bridge) {
            self.recorder.fault(Breakage::CrashBridge.word(), "its process is killed".to_owned());
            sim.crash(bridge::NAME);
            self.mend_later(Mend::Bridge);
        }
    }

    fn break_disk(&mut self, breakage: Breakage, trouble: Trouble) {
        // Leaders send snapshots, so a failing read matters most there.
        let leader = self.leader().filter(|_| breakage == Breakage::DiskEio && !self.chance.one_in(4));
        let node = leader.unwrap_or_else(|| self.some_node());
        self.recorder.fault(breakage.word(), format!("node {node}: {trouble:?}"));
        self.set_disk(node, Some(trouble));
        self.mend_later(Mend::Disk(node));
    }

    fn send_operator(&mut self, breakage: Breakage) {
        // One task at a time, as a person would do.
        if !self.tasks.is_done() {
            return;
        }
        let voters = self.tasks.voters();
        let all = 1..=self.stations.len() as u64;
        let (members, others): (Vec<u64>, Vec<u64>) = all.partition(|node| voters.contains(node));
        let task = match breakage {
            Breakage::Join => self.chance.pick(&others).copied().map(Task::Join),
            // Three members remain, so that the cluster survives the loss of one.
            Breakage::Remove if members.len() > 3 => self.chance.pick(&members).copied().map(Task::Remove),
            Breakage::Transfer if self.chance.one_in(2) => self.chance.pick(&members).copied().map(Task::Transfer),
            Breakage::Transfer => Some(Task::Transfer(0)),
            // Other nodes need the log of the leader.
            Breakage::Snapshot => {
                let leader = self.leader().filter(|_| self.chance.one_in(2));
                leader.or_else(|| self.chance.pick(&members).copied()).map(Task::Snapshot)
            }
            _nothing => None,
        };
        if let Some(task) = task {
            self.recorder.fault(breakage.word(), format!("{task:?}"));
            self.tasks.ask(task);
        }
    }

    fn break_clock(&mut self, breakage: Breakage) {
        let node = self.some_node();
        let most = if breakage == Breakage::Jump { 600_000 } else { 5_000 };
        let skew_ms = self.chance.between(0, 2 * most) as i64 - most as i64;
        self.recorder.fault(breakage.word(), format!("node {node} by {skew_ms} ms"));
        self.station(node).skew_ms.store(skew_ms, Ordering::SeqCst);
        self.mend_later(Mend::Clock(node));
    }
}

fn mend_link(sim: &mut Sim<'_>, one: &str, other: &str) {
    sim.release(one, other);
    sim.repair(one, other);
    sim.set_link_fail_rate(one, other, 0.0);
    sim.set_link_max_message_latency(one, other, LATENCY_MAX);
}
