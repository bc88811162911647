//! Owns: breaking and mending: carries out what a scenario calls for on the simulated network, hosts, disks and clocks, and
//! undoes all of it in the end. Never: decide what is right or wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use turmoil::Sim;

use crate::bridge;
use crate::determinism::{self, Chance};
use crate::disk::Trouble;
use crate::history::LifeEvent;
use crate::host::{self, Station};
use crate::operator::{Desk, Errand};
use crate::recorder::Recorder;
use crate::scenario::{Breakage, Scenario};

/// Every host that speaks to nodes without being one.
pub const OUTSIDE: [&str; 4] = ["clients", "listeners", "operator", bridge::NAME];

const LATENCY_MAX: Duration = Duration::from_millis(8);
/// A node that ended by itself is started again after this long, as a supervisor would.
const RESTART_AFTER: Duration = Duration::from_millis(300);

pub struct Nemesis {
    pub scenario: &'static Scenario,
    pub stations: Vec<Station>,
    pub desk: Arc<Desk>,
    pub recorder: Recorder,
    pub chance: Chance,
    /// When the next thing is broken.
    next_at: Duration,
    /// What is to be mended when.
    mends: Vec<(Duration, Mend)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mend {
    Link(String, String),
    Start(u64),
    Bridge,
    Disk(u64),
    Clock(u64),
}

impl Nemesis {
    pub fn new(
        scenario: &'static Scenario,
        stations: Vec<Station>,
        desk: Arc<Desk>,
        recorder: Recorder,
        chance: Chance,
    ) -> Nemesis {
        Nemesis { scenario, stations, desk, recorder, chance, next_at: Duration::ZERO, mends: Vec::new() }
    }

    /// Called once per step while things may break.
    pub fn torment(&mut self, sim: &mut Sim<'_>) {
        self.tend(sim);
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

    /// Mends what is due and starts nodes that ended by themselves. Called once per step, to the end of the run.
    pub fn tend(&mut self, sim: &mut Sim<'_>) {
        let now = determinism::now();
        for station in self.stations.clone() {
            if station.status().over {
                // Whatever its process still does in this step is gone with it.
                self.crash(sim, &station, RESTART_AFTER);
            }
        }
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.mends).into_iter().partition(|(at, _)| *at <= now);
        self.mends = later;
        for (_, mend) in due {
            self.mend(sim, mend);
        }
    }

    /// Mends everything, once and for all.
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
            station.faults.set(None);
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
            Mend::Disk(node) => self.station(node).faults.set(None),
            Mend::Clock(node) => self.station(node).skew_ms.store(0, Ordering::SeqCst),
        }
    }

    fn station(&self, node: u64) -> &Station {
        &self.stations[node as usize - 1]
    }

    fn mend_later(&mut self, mend: Mend) {
        let at = determinism::now() + self.outage();
        self.mends.push((at, mend));
    }

    /// How long something stays broken. Some things stay so long that the log has gone on without them, and only a snapshot
    /// brings a node back.
    fn outage(&mut self) -> Duration {
        let (least, most) = self.scenario.lasts_ms;
        let usual = self.chance.millis(least, most);
        // Where one is away at a time, another's turn comes only when it is back.
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

    /// A node that runs; a leader half of the time.
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
                // A snapshot on its way is read in a few pieces, of which one should fail.
                let (snapshots, most) = (self.scenario.one_away, if self.scenario.one_away { 12 } else { 60 });
                let one_in = self.chance.between(2, most);
                self.break_disk(breakage, Trouble::FailingReads { one_in, snapshots });
            }
            Breakage::Join | Breakage::Remove | Breakage::Transfer | Breakage::Snapshot => self.send_operator(breakage),
            Breakage::Skew | Breakage::Jump => self.break_clock(breakage),
        }
    }

    /// A set of nodes from all others.
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
        station.is_down();
        self.mends.push((determinism::now() + down_for, Mend::Start(station.node)));
    }

    fn crash_bridge(&mut self, sim: &mut Sim<'_>) {
        if !self.mends.iter().any(|(_, mend)| *mend == Mend::Bridge) {
            self.recorder.fault(Breakage::CrashBridge.word(), "its process is gone".to_owned());
            sim.crash(bridge::NAME);
            self.mend_later(Mend::Bridge);
        }
    }

    fn break_disk(&mut self, breakage: Breakage, trouble: Trouble) {
        // Snapshots are sent by leaders.
        let leader = self.leader().filter(|_| breakage == Breakage::DiskEio && !self.chance.one_in(4));
        let node = leader.unwrap_or_else(|| self.some_node());
        self.recorder.fault(breakage.word(), format!("node {node}: {trouble:?}"));
        self.station(node).faults.set(Some(trouble));
        self.mend_later(Mend::Disk(node));
    }

    fn send_operator(&mut self, breakage: Breakage) {
        // One at a time, as a person would.
        if !self.desk.is_done() {
            return;
        }
        let voters = self.desk.voters();
        let all = 1..=self.stations.len() as u64;
        let (members, others): (Vec<u64>, Vec<u64>) = all.partition(|node| voters.contains(node));
        let errand = match breakage {
            Breakage::Join => self.chance.pick(&others).copied().map(Errand::Join),
            // Three are kept, so that the loss of one is survived.
            Breakage::Remove if members.len() > 3 => self.chance.pick(&members).copied().map(Errand::Remove),
            Breakage::Transfer if self.chance.one_in(2) => self.chance.pick(&members).copied().map(Errand::Transfer),
            Breakage::Transfer => Some(Errand::Transfer(0)),
            // The leader's log is the one that others need.
            Breakage::Snapshot => {
                let leader = self.leader().filter(|_| self.chance.one_in(2));
                leader.or_else(|| self.chance.pick(&members).copied()).map(Errand::Snapshot)
            }
            _nothing => None,
        };
        if let Some(errand) = errand {
            self.recorder.fault(breakage.word(), format!("{errand:?}"));
            self.desk.ask(errand);
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
