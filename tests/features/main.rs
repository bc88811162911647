//! The features: scenarios of what each function promises, run once per kind of store.
//!
//! Every scenario states what it prevents. Those tagged @engine, @gateway and @door talk to real nodes. Any other must
//! assert the answer, the events (or that none fired) and the state that is read back; it fails if it leaves one of them
//! out. `cargo test --test features -- list` runs the scenarios whose name or file contains "list".

mod cluster;
mod concurrency_steps;
mod configuration_worker;
mod delayed_proxy;
mod door;
mod door_client;
mod door_nodes;
mod door_steps;
mod door_stream_steps;
mod edge;
#[path = "../process/empty_bus.rs"]
mod empty_bus;
mod engine;
mod engine_steps;
mod event_recorder;
mod gateway;
#[allow(dead_code, reason = "the process tests use the rest")]
#[path = "../process/gateway_client.rs"]
mod gateway_client;
mod gateway_cluster;
mod gateway_steps;
mod json_shorthand;
mod model_steps;
mod node;
mod process;
mod report;
mod steps;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use cucumber::World as _;
use cucumber::codegen::WorldInventory;
use cucumber::gherkin::{Feature, Scenario, Step};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use session_manager::events::filter::STORE_EVENTS;

use crate::door::{DOOR, DoorWorld};
use crate::door_nodes::DoorStore;
use crate::engine::{ENGINE, EngineKind, EngineWorld};
use crate::gateway::GatewayWorld;
use crate::node::Kind;
use crate::report::Report;
use crate::world::{ROUND, World};

/// The URL of a real engine. If set, the scenarios tagged @engine run on it too.
const ENGINE_URL: &str = "III_ENGINE_WS_URL";

/// Each of them runs several processes.
const ENGINE_SCENARIOS_AT_ONCE: usize = 2;

/// Each of them has three members, with threads, files and elections.
const CLUSTERS_AT_ONCE: usize = 3;

/// Each of them has threads and files.
const SCENARIOS_AT_ONCE: usize = 8;

#[tokio::main]
async fn main() -> ExitCode {
    // Tools call every test target with flags of the standard harness, which this one does not have.
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut counts = Vec::new();
    let mut failures = 0;
    for kind in Kind::ALL {
        *ROUND.lock().unwrap() = kind;
        let began = Instant::now();
        let report = round(kind, asked.clone()).await;
        let seconds = began.elapsed().as_secs_f32();
        counts.push(format!("{} on {} in {seconds:.1} s", report.scenarios, report.store));
        failures += report.failures;
    }
    for kind in [Some(EngineKind::Embedded), real_engine()] {
        let Some(kind) = kind else {
            counts.push(format!("those on a real engine skipped, because {ENGINE_URL} is not set"));
            continue;
        };
        *ENGINE.lock().unwrap() = kind.clone();
        let began = Instant::now();
        let report = engine_round(kind, asked.clone()).await;
        let seconds = began.elapsed().as_secs_f32();
        counts.push(format!("{} on {} in {seconds:.1} s", report.scenarios, report.store));
        failures += report.failures;
    }
    let began = Instant::now();
    let report = gateway_round(asked.clone()).await;
    counts.push(format!("{} on {} in {:.1} s", report.scenarios, report.store, began.elapsed().as_secs_f32()));
    failures += report.failures;
    for store in DoorStore::ALL {
        *DOOR.lock().unwrap() = store;
        let began = Instant::now();
        let report = door_round(store, asked.clone()).await;
        counts.push(format!("{} on {} in {:.1} s", report.scenarios, report.store, began.elapsed().as_secs_f32()));
        failures += report.failures;
    }
    println!("\nscenarios: {}; failures: {failures}", counts.join(", "));
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether a scenario's name or file contains one of the words, if there are any.
fn is_asked(feature: &Feature, scenario: &Scenario, asked: &[String]) -> bool {
    let file = feature.path.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let named = |word: &String| scenario.name.contains(word.as_str()) || file.contains(word.as_str());
    asked.is_empty() || asked.iter().any(named)
}

async fn round(kind: Kind, asked: Vec<String>) -> Report {
    let features = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/features");
    let wanted = move |feature: &Feature, scenario: &Scenario| {
        // Only a node that holds data serves the raw store protocol; an edge does not.
        let raw = |step: &Step| step.value.contains("session::store::") && !step.value.contains(STORE_EVENTS);
        let background = feature.background.iter().flat_map(|background| &background.steps);
        if kind.is_edge() && background.chain(&scenario.steps).any(raw) {
            return false;
        }
        kind.is_for(&scenario.tags)
            && kind.runs(&feature.tags)
            && kind.runs(&scenario.tags)
            && is_asked(feature, scenario, &asked)
    };
    World::cucumber()
        .max_concurrent_scenarios(if kind == Kind::Cluster { CLUSTERS_AT_ONCE } else { SCENARIOS_AT_ONCE })
        .with_writer(Report { store: kind.name(), ..Report::default() })
        .after(|_, _, _, finished, world| {
            Box::pin(async move {
                if let (cucumber::event::ScenarioFinished::StepPassed, Some(world)) = (finished, world) {
                    world.finish().await;
                }
            })
        })
        // Last, because a new writer resets the options.
        .with_default_cli()
        .filter_run(features, move |feature, _, scenario| wanted(feature, scenario))
        .await
}

fn real_engine() -> Option<EngineKind> {
    std::env::var(ENGINE_URL).ok().filter(|url| !url.is_empty()).map(EngineKind::Real)
}

/// A world that stops what its scenario started.
trait Finish {
    fn finish(&mut self) -> LocalBoxFuture<'_, ()>;
}

impl Finish for EngineWorld {
    fn finish(&mut self) -> LocalBoxFuture<'_, ()> {
        EngineWorld::finish(self).boxed_local()
    }
}

impl Finish for GatewayWorld {
    fn finish(&mut self) -> LocalBoxFuture<'_, ()> {
        GatewayWorld::finish(self).boxed_local()
    }
}

impl Finish for DoorWorld {
    fn finish(&mut self) -> LocalBoxFuture<'_, ()> {
        DoorWorld::finish(self).boxed_local()
    }
}

/// Runs the wanted scenarios of the features with this tag.
async fn tagged_round<W>(
    tag: &'static str,
    store: &'static str,
    at_once: usize,
    wanted: impl Fn(&Feature, &Scenario) -> bool + 'static,
) -> Report
where
    W: cucumber::World + WorldInventory + Finish + std::fmt::Debug,
{
    let features = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/features");
    W::cucumber()
        .max_concurrent_scenarios(at_once)
        .with_writer(Report { store, ..Report::default() })
        .after(|_, _, _, _, world| {
            async move {
                if let Some(world) = world {
                    Finish::finish(world).await;
                }
            }
            .boxed_local()
        })
        // Last, because a new writer resets the options.
        .with_default_cli()
        .filter_run(features, move |feature, _, scenario| {
            feature.tags.iter().any(|found| found == tag) && wanted(feature, scenario)
        })
        .await
}

/// On a real engine the scenarios run one at a time, because they share its configuration.
async fn engine_round(kind: EngineKind, asked: Vec<String>) -> Report {
    let (store, at_once) = (kind.name(), if kind == EngineKind::Embedded { ENGINE_SCENARIOS_AT_ONCE } else { 1 });
    let wanted =
        move |feature: &Feature, scenario: &Scenario| kind.runs(&scenario.tags) && is_asked(feature, scenario, &asked);
    tagged_round::<EngineWorld>("engine", store, at_once, wanted).await
}

async fn gateway_round(asked: Vec<String>) -> Report {
    let wanted = move |feature: &Feature, scenario: &Scenario| is_asked(feature, scenario, &asked);
    tagged_round::<GatewayWorld>("gateway", "the gateway", SCENARIOS_AT_ONCE, wanted).await
}

async fn door_round(store: DoorStore, asked: Vec<String>) -> Report {
    let at_once = if store == DoorStore::ThreeNodes { CLUSTERS_AT_ONCE } else { SCENARIOS_AT_ONCE };
    let wanted =
        move |feature: &Feature, scenario: &Scenario| store.runs(&scenario.tags) && is_asked(feature, scenario, &asked);
    tagged_round::<DoorWorld>("door", store.name(), at_once, wanted).await
}
