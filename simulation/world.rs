//! Owns: one run from its seed to its verdict: hosts, clients, the phases (come up, be tormented, be mended, come to rest), and
//! what must hold whatever the oracles say: no panic, and everybody answers again once everything is mended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use turmoil::Sim;

use crate::bridge;
use crate::determinism::{self, Chance, EPOCH};
use crate::disk::Faults;
use crate::door::Door;
use crate::history::{History, Moment};
use crate::host::{self, Sizes, Station};
use crate::listener::Listener;
use crate::nemesis::Nemesis;
use crate::operator::{Desk, Errand, Operator};
use crate::oracle;
use crate::recorder::{Line, Recorder};
use crate::scenario::{Breakage, Scenario};
use crate::workload::{Client, Common};

const CLIENTS: usize = 5;
const LISTENERS: usize = 2;
const TICK: Duration = Duration::from_millis(1);
/// Members at the start, where others join later.
const FOUNDERS: u64 = 3;
/// How long things are broken.
const TORMENT_MS: (u64, u64) = (4_000, 9_000);
/// How long clients go on after everything was mended.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// Mended, a cluster answers within a second or two; this is past all doubt.
const PATIENCE: Duration = Duration::from_secs(40);
/// Events still on their way arrive within this.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// What came of a run.
pub struct Report {
    pub violations: Vec<String>,
    /// The moment the first violation shows, if that is known.
    pub shows: Option<Moment>,
    pub history: History,
    pub timeline: Vec<Line>,
    pub nodes: u64,
    pub simulated: Duration,
}

pub fn run(seed: u64, scenario: &'static Scenario) -> Report {
    determinism::reseed(seed);
    let recorder = Recorder::default();
    let noted = recorder.clone();
    std::panic::set_hook(Box::new(move |panic| {
        // A panic while another one unwinds ends the process: what is on standard error by then is all there is.
        eprintln!("PANIC {panic}");
        noted.say("PANIC", &panic.to_string().replace('\n', " "));
    }));
    let nodes = Chance::new(seed, 1).between(scenario.nodes.0, scenario.nodes.1);
    let told = catch_unwind(AssertUnwindSafe(|| World::new(seed, scenario, nodes, recorder.clone()).run()));
    let (timeline, history) = (recorder.timeline(), recorder.history());
    let mut violations = told.unwrap_or_else(|_| {
        let panic = timeline.iter().find(|line| line.text.contains("PANIC"));
        vec![format!("panic: {}", panic.map_or("of unknown cause", |line| line.text.as_str()))]
    });
    let mut shows = None;
    if violations.is_empty() {
        let broken = oracle::judge(&history);
        shows = broken.iter().find_map(|broken| broken.at);
        violations = broken.iter().map(|broken| format!("{}: {}", broken.oracle, broken.words)).collect();
    }
    Report { violations, shows, history, timeline, nodes, simulated: determinism::now() }
}

struct World<'a> {
    sim: Sim<'a>,
    scenario: &'static Scenario,
    nemesis: Nemesis,
    stations: Vec<Station>,
    desk: Arc<Desk>,
    common: Arc<Common>,
    ending: Arc<Ending>,
    recorder: Recorder,
    torment: Duration,
}

/// The last reading of the state.
#[derive(Default)]
struct Ending {
    begin: AtomicBool,
    done: AtomicBool,
    silent: std::sync::Mutex<Vec<u64>>,
}

impl World<'_> {
    fn new<'a>(seed: u64, scenario: &'static Scenario, nodes: u64, recorder: Recorder) -> World<'a> {
        let mut chance = Chance::new(seed, 2);
        let mut builder = turmoil::Builder::new();
        builder
            .rng_seed(seed)
            .epoch(UNIX_EPOCH + EPOCH)
            .simulation_duration(Duration::from_secs(3600))
            .tick_duration(TICK)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(8))
            .tcp_capacity(1 << 16);
        // A write that a crash tears is torn between blocks; now and then the system writes back by itself.
        builder.fs().block_size(*chance.pick(&[16, 64, 512]).unwrap_or(&512));
        builder.fs().sync_probability(*chance.pick(&[0.0, 0.0, 0.1]).unwrap_or(&0.0));
        let mut sim = builder.build();
        let sizes = Sizes {
            segment_bytes: chance.between(4, 64) << 10,
            cache_bytes: (chance.between(1, 64) << 10) as usize,
            snapshot_every: chance.between(20, if scenario.one_away { 40 } else { 150 }),
            keep_entries: chance.between(5, if scenario.one_away { 10 } else { 40 }),
        };
        let mut stations = Vec::new();
        for node in 1..=nodes {
            let address = sim.lookup(host::name(node));
            let faults = Faults::new(Chance::new(seed, 1_000 + node));
            let station = Station::new(node, address, sizes, faults, recorder.clone());
            stations.push(station.clone());
            sim.host(station.name(), move || station.clone().run());
        }
        let (desk, common, ending) = (Arc::<Desk>::default(), Arc::<Common>::default(), Arc::<Ending>::default());
        let nemesis = Nemesis::new(scenario, stations.clone(), desk.clone(), recorder.clone(), Chance::new(seed, 3));
        let turns = if scenario.one_away { 2 } else { 1 };
        let torment = turns * chance.millis(TORMENT_MS.0, TORMENT_MS.1);
        let mut world = World { sim, scenario, nemesis, stations, desk, common, ending, recorder, torment };
        world.populate(seed);
        world
    }

    /// Clients, subscribers and the operator, on hosts of their own.
    fn populate(&mut self, seed: u64) {
        let hosts: Vec<_> = self.stations.iter().map(|station| station.address).collect();
        // A bridge knows the members of the start, and clients know it as one more node.
        let (at, mains) = (self.sim.lookup(bridge::NAME), hosts[..FOUNDERS as usize].to_vec());
        let recorder = self.recorder.clone();
        self.sim.host(bridge::NAME, move || bridge::run(at, mains.clone(), recorder.clone()));
        let doors: Vec<_> = hosts.iter().copied().chain([at]).collect();
        let client = |id: usize| {
            let chance = Chance::new(seed, 100 + id as u64);
            Client::new(id, Door::new(doors.clone()), self.recorder.clone(), self.common.clone(), chance)
        };
        let clients: Vec<Client> = (0..CLIENTS).map(&client).collect();
        let (reader, ending, desk) = (client(CLIENTS), self.ending.clone(), self.desk.clone());
        self.sim.client("clients", async move {
            for client in clients {
                tokio::spawn(client.run());
            }
            while !ending.begin.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let voters: Vec<u64> = desk.voters().into_iter().collect();
            let silent = reader.read_out(&voters, PATIENCE).await;
            *ending.silent.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = silent;
            ending.done.store(true, Ordering::SeqCst);
            std::future::pending().await
        });
        let nodes: Vec<_> = (1..).zip(hosts.clone()).collect();
        let edge = vec![(nodes.len() as u64 + 1, at)];
        let listeners: Vec<Listener> = (0..=LISTENERS)
            .map(|id| Listener {
                id,
                // The last one listens at the bridge.
                hosts: if id == LISTENERS { edge.clone() } else { nodes.clone() },
                recorder: self.recorder.clone(),
                common: self.common.clone(),
                chance: Chance::new(seed, 200 + id as u64),
                after: None,
            })
            .collect();
        self.sim.client("listeners", async move {
            for listener in listeners {
                tokio::spawn(listener.run());
            }
            std::future::pending().await
        });
        let here = self.sim.lookup("operator");
        let operator = Operator::new(here, hosts, self.desk.clone(), self.recorder.clone(), Chance::new(seed, 300));
        self.sim.client("operator", async move {
            operator.run().await;
            Ok(())
        });
    }

    /// One step of the simulated clock.
    fn step(&mut self) -> Result<(), String> {
        let stepped = self.sim.step().map_err(|error| format!("the simulation broke off: {error}"));
        determinism::advance_to(self.sim.elapsed());
        stepped.map(|_| ())
    }

    /// Steps until something holds, at most so long. `torments`: things are broken meanwhile.
    fn until(
        &mut self,
        within: Duration,
        torments: bool,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> Result<bool, String> {
        let end = self.sim.elapsed() + within;
        while self.sim.elapsed() < end {
            if holds(self) {
                return Ok(true);
            }
            self.step()?;
            if torments {
                self.nemesis.torment(&mut self.sim);
            } else {
                self.nemesis.tend(&mut self.sim);
            }
        }
        Ok(holds(self))
    }

    fn run(mut self) -> Vec<String> {
        let told = self.live();
        // Hosts are dropped in a world that still knows them.
        drop(self);
        told.err().into_iter().collect()
    }

    fn live(&mut self) -> Result<(), String> {
        // 1. Come up.
        let joins_later = self.scenario.breaks(Breakage::Join);
        let founders = if joins_later { FOUNDERS } else { self.stations.len() as u64 };
        let members = founders as usize;
        for node in 2..=founders {
            self.desk.ask(Errand::Join(node));
        }
        let up = |world: &Self| world.desk.is_done() && world.desk.voters().len() == members;
        if !self.until(PATIENCE, false, up)? {
            return Err(format!("liveness: the cluster of {members} did not come up within {PATIENCE:?}"));
        }
        self.recorder.say("run", &format!("a cluster of {members} is up; {}", self.scenario.about));
        // 2. Be tormented.
        self.until(self.torment, true, |_| false)?;
        // 3. Be mended, and go on for a while.
        self.nemesis.mend_all(&mut self.sim);
        self.until(AFTERWARDS, false, |_| false)?;
        self.common.stop.store(true, Ordering::SeqCst);
        let stopped =
            |world: &Self| world.common.clients_done.load(Ordering::SeqCst) == CLIENTS && world.desk.is_done();
        if !self.until(PATIENCE, false, stopped)? {
            return Err(format!("liveness: clients or operator still wait {PATIENCE:?} after everything was mended"));
        }
        // 4. Come to rest: every member answers, and tells the same.
        self.desk.ask(Errand::Transfer(0));
        self.until(PATIENCE, false, |world| world.desk.is_done())?;
        self.recorder.rested(self.desk.voters(), self.stations.len() as u64 + 1);
        self.ending.begin.store(true, Ordering::SeqCst);
        let read = |world: &Self| world.ending.done.load(Ordering::SeqCst);
        let all_read = self.until(PATIENCE * 6, false, read)?;
        let silent = self.ending.silent.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if !all_read || !silent.is_empty() {
            return Err(format!(
                "liveness: nodes {silent:?} did not answer within {PATIENCE:?} after everything was mended"
            ));
        }
        let level = |world: &Self| world.is_level();
        if !self.until(PATIENCE, false, level)? {
            let far: Vec<_> = self.stations.iter().map(|station| (station.node, station.status().applied)).collect();
            return Err(format!("liveness: members did not apply the same entries in the end: {far:?}"));
        }
        self.until(LAST_EVENTS, false, |_| false)?;
        Ok(())
    }

    /// True when all members have applied equally far.
    fn is_level(&self) -> bool {
        let voters = self.desk.voters();
        let mut applied = self
            .stations
            .iter()
            .filter(|station| voters.contains(&station.node))
            .map(|station| station.status().applied);
        let first = applied.next().flatten();
        first.is_some() && applied.all(|other| other == first)
    }
}
