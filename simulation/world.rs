//! Owns: one run from its seed to its report: hosts, clients, the phases (start, faults, mend, rest), and two checks
//! that need no oracle: no panic, and every node answers again once all faults are mended.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use futures::future::join_all;
use turmoil::Sim;

use crate::bridge;
use crate::determinism::{self, Chance, EPOCH};
use crate::disk::{Faults, SimulatedDisk};
use crate::file_system::{FileSystem, Writing};
use crate::gateway_client;
use crate::history::{History, Moment};
use crate::host::{self, Sizes, Station};
use crate::listener::Listener;
use crate::nemesis::Nemesis;
use crate::operator::{Operator, Task, TaskQueue};
use crate::oracle;
use crate::recorder::{Line, Recorder};
use crate::scenario::{Breakage, Scenario};
use crate::single_run::cpu;
use crate::tenant::Tenant;
use crate::tenant_listener::TenantListener;
use crate::workload::{Client, Common};

/// Each client is a caller with or without a scope.
const CLIENTS: [Tenant; 6] =
    [Tenant::Everyone, Tenant::Everyone, Tenant::Everyone, Tenant::Everyone, Tenant::A, Tenant::B];
/// Clients of the session model.
const MODEL_CLIENTS: usize = 2;
/// The id of the client that reads the final state of node 0, if there were one.
const READERS: usize = 2_000;
const LISTENERS: usize = 2;
const TICK: Duration = Duration::from_millis(1);
/// Members at the start, in scenarios where other nodes join later.
const FOUNDERS: u64 = 3;
/// How long faults are injected.
const FAULTS_MS: (u64, u64) = (4_000, 9_000);
/// How long clients continue after all faults were mended.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// A mended cluster answers within one or two seconds. This limit leaves no doubt.
const PATIENCE: Duration = Duration::from_secs(40);
/// The last events arrive within this time.
const LAST_EVENTS: Duration = Duration::from_secs(5);
/// An event is delivered within this time in a cluster without faults.
const STILL: Duration = Duration::from_secs(1);

/// The result of a run.
pub struct Report {
    pub violations: Vec<String>,
    /// When the first violation shows, if known.
    pub shows: Option<Moment>,
    pub history: History,
    pub timeline: Vec<Line>,
    pub nodes: u64,
    pub simulated: Duration,
    pub oracles_cpu: Duration,
}

pub fn run(seed: u64, scenario: &'static Scenario) -> Report {
    determinism::reseed(seed);
    let recorder = Recorder::default();
    let noted = recorder.clone();
    std::panic::set_hook(Box::new(move |panic| {
        // A second panic during unwinding aborts the process, so the message must be on standard error by then.
        eprintln!("PANIC {panic}");
        noted.say("PANIC", &panic.to_string().replace('\n', " "));
    }));
    let nodes = Chance::new(seed, 1).between(scenario.nodes.0, scenario.nodes.1);
    let violations = catch_unwind(AssertUnwindSafe(|| World::new(seed, scenario, nodes, recorder.clone()).run()));
    let (timeline, history) = recorder.finish();
    let mut violations = violations.unwrap_or_else(|_| {
        let panic = timeline.iter().find(|line| line.text.contains("PANIC"));
        vec![format!("panic: {}", panic.map_or("of unknown cause", |line| line.text.as_str()))]
    });
    let (mut shows, before) = (None, cpu());
    if violations.is_empty() {
        let broken = oracle::check_all(&history);
        shows = broken.iter().find_map(|broken| broken.at);
        violations = broken.iter().map(|broken| format!("{}: {}", broken.oracle, broken.words)).collect();
    }
    let oracles_cpu = cpu().saturating_sub(before);
    Report { violations, shows, history, timeline, nodes, simulated: determinism::now(), oracles_cpu }
}

struct World<'a> {
    sim: Sim<'a>,
    scenario: &'static Scenario,
    nemesis: Nemesis,
    stations: Vec<Station>,
    tasks: Arc<TaskQueue>,
    common: Arc<Common>,
    ending: Arc<Ending>,
    recorder: Recorder,
    faults_for: Duration,
}

/// The final read of the state.
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
        let writing = Writing {
            block_bytes: *chance.pick(&[16, 64, 512]).unwrap_or(&512),
            back_one_in: *chance.pick(&[None, None, Some(10)]).unwrap_or(&None),
        };
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
            let files = FileSystem::new(writing, Chance::new(seed, 2_000 + node));
            let disk = SimulatedDisk::new(files, Faults::new(Chance::new(seed, 1_000 + node)));
            let station = Station::new(node, address, sizes, disk, recorder.clone());
            stations.push(station.clone());
            sim.host(station.name(), move || station.clone().run());
        }
        let (tasks, common, ending) = (Arc::<TaskQueue>::default(), Arc::<Common>::default(), Arc::<Ending>::default());
        let nemesis = Nemesis::new(scenario, stations.clone(), tasks.clone(), recorder.clone(), Chance::new(seed, 3));
        let turns = if scenario.one_away { 2 } else { 1 };
        let faults_for = turns * chance.millis(FAULTS_MS.0, FAULTS_MS.1);
        let mut world = World { sim, scenario, nemesis, stations, tasks, common, ending, recorder, faults_for };
        world.populate(seed);
        world
    }

    /// Clients, subscribers and the operator, on hosts of their own.
    fn populate(&mut self, seed: u64) {
        let hosts: Vec<_> = self.stations.iter().map(|station| station.address).collect();
        // The bridge knows the first members. Clients treat it as one more node.
        let (at, mains) = (self.sim.lookup(bridge::NAME), hosts[..FOUNDERS as usize].to_vec());
        let recorder = self.recorder.clone();
        self.sim.host(bridge::NAME, move || bridge::run(at, mains.clone(), recorder.clone()));
        let callable: Vec<_> = hosts.iter().copied().chain([at]).collect();
        let client = |(id, tenant): (usize, Tenant)| {
            let chance = Chance::new(seed, 100 + id as u64);
            Client::new(id, tenant, callable.clone(), self.recorder.clone(), self.common.clone(), chance)
        };
        let clients: Vec<Client> = CLIENTS.into_iter().enumerate().map(&client).collect();
        let writer = client((CLIENTS.len(), Tenant::Everyone));
        let mut readers: BTreeMap<u64, Client> = self
            .stations
            .iter()
            .map(|station| (station.node, client((READERS + station.node as usize, Tenant::Everyone))))
            .collect();
        let tenants: Vec<Client> = (CLIENTS.len() + 1..).zip(Tenant::SCOPED).map(&client).collect();
        let of_model: Vec<Client> = (1_000..1_000 + MODEL_CLIENTS).map(|id| client((id, Tenant::Everyone))).collect();
        let (ending, tasks) = (self.ending.clone(), self.tasks.clone());
        self.sim.client("clients", async move {
            for client in clients {
                tokio::spawn(client.run());
            }
            for client in of_model {
                tokio::spawn(client.run_model());
            }
            while !ending.begin.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let voters: Vec<u64> = tasks.voters().into_iter().collect();
            let silent = writer.write_through(&voters, PATIENCE).await;
            if silent.is_empty() {
                readers.retain(|node, _| voters.contains(node));
                join_all(readers.into_iter().map(|(node, reader)| reader.read_final_state(node))).await;
                join_all(tenants.into_iter().map(|tenant| tenant.read_final_state_of_tenant(&voters))).await;
            }
            *ending.silent.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = silent;
            ending.done.store(true, Ordering::SeqCst);
            std::future::pending().await
        });
        let nodes: Vec<_> = (1..).zip(hosts.clone()).collect();
        let edge = vec![(nodes.len() as u64 + 1, at)];
        let listeners: Vec<Listener> = (0..=LISTENERS)
            .map(|id| Listener {
                id,
                // The last one subscribes at the bridge.
                hosts: if id == LISTENERS { edge.clone() } else { nodes.clone() },
                recorder: self.recorder.clone(),
                common: self.common.clone(),
                chance: Chance::new(seed, 200 + id as u64),
                after: None,
            })
            .collect();
        let tenants: Vec<TenantListener> = (LISTENERS + 1..)
            .zip(Tenant::SCOPED)
            .map(|(id, tenant)| TenantListener {
                id,
                tenant,
                nodes: nodes.clone(),
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
            for tenant in tenants {
                tokio::spawn(tenant.run());
            }
            std::future::pending().await
        });
        let front_ends: Vec<_> = (1..).zip(hosts.clone()).collect();
        let (recorder, common) = (self.recorder.clone(), self.common.clone());
        self.sim.client("front-ends", async move {
            gateway_client::start(&front_ends, &recorder, &common, seed);
            std::future::pending().await
        });
        let here = self.sim.lookup("operator");
        let (tasks, recorder) = (self.tasks.clone(), self.recorder.clone());
        self.sim.client("operator", async move {
            Operator::new(here, hosts, tasks, recorder, Chance::new(seed, 300)).run().await;
            Ok(())
        });
    }

    /// One step of the simulated clock.
    fn step(&mut self) -> Result<(), String> {
        let stepped = self.sim.step().map_err(|error| format!("the simulation broke off: {error}"));
        determinism::advance_to(self.sim.elapsed());
        stepped.map(|_| ())
    }

    /// Steps until a condition holds, at most for `within`. Returns whether it holds.
    fn until(
        &mut self,
        within: Duration,
        inject_faults: bool,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> Result<bool, String> {
        let end = self.sim.elapsed() + within;
        while self.sim.elapsed() < end {
            if holds(self) {
                return Ok(true);
            }
            self.step()?;
            if inject_faults {
                self.nemesis.inject(&mut self.sim);
            } else {
                self.nemesis.supervise(&mut self.sim);
            }
        }
        Ok(holds(self))
    }

    fn run(mut self) -> Vec<String> {
        let result = self.live();
        // Hosts must be dropped while the simulation still exists.
        drop(self);
        result.err().into_iter().collect()
    }

    fn live(&mut self) -> Result<(), String> {
        // 1. Start the cluster.
        let joins_later = self.scenario.breaks(Breakage::Join);
        let founders = if joins_later { FOUNDERS } else { self.stations.len() as u64 };
        let members = founders as usize;
        for node in 2..=founders {
            self.tasks.ask(Task::Join(node));
        }
        let up = |world: &Self| world.tasks.is_done() && world.tasks.voters().len() == members;
        if !self.until(PATIENCE, false, up)? {
            return Err(format!("liveness: the cluster of {members} did not start within {PATIENCE:?}"));
        }
        self.recorder.say("run", &format!("a cluster of {members} is up; {}", self.scenario.about));
        self.recorder.up(self.scenario.keeps_leader);
        // 2. Inject faults.
        self.until(self.faults_for, true, |_| false)?;
        // 3. Mend all faults, and let the clients continue for a while.
        self.nemesis.mend_all(&mut self.sim);
        self.until(AFTERWARDS, false, |_| false)?;
        self.common.stop.store(true, Ordering::SeqCst);
        let clients = CLIENTS.len() + MODEL_CLIENTS;
        let stopped =
            |world: &Self| world.common.clients_done.load(Ordering::SeqCst) == clients && world.tasks.is_done();
        if !self.until(PATIENCE, false, stopped)? {
            return Err(format!("liveness: clients or operator still wait {PATIENCE:?} after all faults were mended"));
        }
        // A change of voters that lost its leader is completed without an operator.
        let settled = |world: &Self| {
            let leader = world.stations.iter().map(Station::status).max_by_key(|status| status.leads);
            leader.is_some_and(|leader| leader.leads.is_some() && !leader.changes_voters)
        };
        if !self.until(PATIENCE, false, settled)? {
            return Err(format!("liveness: a change of voters is still half done after {PATIENCE:?}"));
        }
        // 4. Rest: every member answers, and all have the same state.
        self.tasks.ask(Task::Transfer(0));
        self.until(PATIENCE, false, |world| world.tasks.is_done())?;
        self.recorder.rested(self.tasks.voters(), self.stations.len() as u64 + 1);
        self.ending.begin.store(true, Ordering::SeqCst);
        let read = |world: &Self| world.ending.done.load(Ordering::SeqCst);
        let all_read = self.until(PATIENCE * 6, false, read)?;
        let silent = self.ending.silent.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if !all_read || !silent.is_empty() {
            return Err(format!(
                "liveness: nodes {silent:?} did not answer within {PATIENCE:?} after all faults were mended"
            ));
        }
        let level = |world: &Self| world.is_level();
        if !self.until(PATIENCE, false, level)? {
            let far: Vec<_> = self.stations.iter().map(|station| (station.node, station.status().applied)).collect();
            return Err(format!("liveness: members did not apply the same entries in the end: {far:?}"));
        }
        self.until(LAST_EVENTS, false, |_| false)?;
        // What is due fires in this phase too. The run ends when subscribers had time to hear of the last of it.
        let mut last = (self.applied(), self.sim.elapsed());
        self.until(PATIENCE, false, |world| {
            let (applied, now) = (world.applied(), world.sim.elapsed());
            if applied != last.0 {
                last = (applied, now);
            }
            now >= last.1 + STILL
        })?;
        Ok(())
    }

    /// How many entries each member has applied.
    fn applied(&self) -> Vec<Option<u64>> {
        self.stations.iter().map(|station| station.status().applied).collect()
    }

    /// Whether all members have applied the same index.
    fn is_level(&self) -> bool {
        let voters = self.tasks.voters();
        let mut applied = self
            .stations
            .iter()
            .filter(|station| voters.contains(&station.node))
            .map(|station| station.status().applied);
        let first = applied.next().flatten();
        first.is_some() && applied.all(|other| other == first)
    }
}
