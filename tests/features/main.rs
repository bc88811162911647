//! The features: what each function promises, told as scenarios and run once per store.
//!
//! Every scenario states what it prevents, and must assert the answer, the events (or that none fired) and the state
//! read back; one that leaves a duty out, or an event unasserted, fails. `cargo test --test features -- words` runs the
//! scenarios whose name or file contains the words.

mod edge;
mod engine;
mod engine_steps;
mod hearing;
mod node;
mod process;
mod races;
mod report;
mod slow_line;
mod steps;
mod stored;
mod words;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use cucumber::World as _;
use cucumber::gherkin::{Feature, Scenario, Step};
use session_manager::events::filter::STORE_EVENTS;

use crate::engine::{ENGINE, EngineKind, EngineWorld};
use crate::node::Kind;
use crate::report::Report;
use crate::world::{ROUND, World};

/// Where a real engine listens, for the scenarios tagged @engine to run on it as well.
const ENGINE_URL: &str = "III_ENGINE_WS_URL";

/// Several processes each.
const ENGINE_SCENARIOS_AT_ONCE: usize = 2;

/// Each node has threads and files of its own.
const SCENARIOS_AT_ONCE: usize = 8;

#[tokio::main]
async fn main() -> ExitCode {
    // Flags are meant for the standard harness, which the other test targets have; tools ask it what it would run.
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
            counts.push(format!("those on an engine skipped, since {ENGINE_URL} is not set"));
            continue;
        };
        *ENGINE.lock().unwrap() = kind.clone();
        let began = Instant::now();
        let report = engine_round(kind, asked.clone()).await;
        let seconds = began.elapsed().as_secs_f32();
        counts.push(format!("{} on {} in {seconds:.1} s", report.scenarios, report.store));
        failures += report.failures;
    }
    println!("\nscenarios: {}; failures: {failures}", counts.join(", "));
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn round(kind: Kind, asked: Vec<String>) -> Report {
    let features = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/features");
    let wanted = move |feature: &Feature, scenario: &Scenario| {
        let file = feature.path.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let named = |word: &String| scenario.name.contains(word.as_str()) || file.contains(word.as_str());
        // The raw store is served where the data lives, and an edge has none.
        let raw = |step: &Step| step.value.contains("session::store::") && !step.value.contains(STORE_EVENTS);
        let background = feature.background.iter().flat_map(|background| &background.steps);
        if kind.is_edge() && background.chain(&scenario.steps).any(raw) {
            return false;
        }
        kind.runs(&feature.tags) && kind.runs(&scenario.tags) && (asked.is_empty() || asked.iter().any(named))
    };
    World::cucumber()
        .max_concurrent_scenarios(SCENARIOS_AT_ONCE)
        .with_writer(Report { store: kind.name(), ..Report::default() })
        .after(|_, _, _, finished, world| {
            Box::pin(async move {
                if let (cucumber::event::ScenarioFinished::StepPassed, Some(world)) = (finished, world) {
                    world.leave().await;
                }
            })
        })
        // Last, since a new writer brings its own options back.
        .with_default_cli()
        .filter_run(features, move |feature, _, scenario| wanted(feature, scenario))
        .await
}

fn real_engine() -> Option<EngineKind> {
    std::env::var(ENGINE_URL).ok().filter(|url| !url.is_empty()).map(EngineKind::Real)
}

/// The scenarios tagged @engine. On a real engine one at a time: its configuration is one for all.
async fn engine_round(kind: EngineKind, asked: Vec<String>) -> Report {
    let features = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/features");
    let (store, at_once) = (kind.name(), if kind == EngineKind::Embedded { ENGINE_SCENARIOS_AT_ONCE } else { 1 });
    let wanted = move |feature: &Feature, scenario: &Scenario| {
        let file = feature.path.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let named = |word: &String| scenario.name.contains(word.as_str()) || file.contains(word.as_str());
        let tagged = feature.tags.iter().any(|tag| tag == "engine");
        tagged && kind.runs(&scenario.tags) && (asked.is_empty() || asked.iter().any(named))
    };
    EngineWorld::cucumber()
        .max_concurrent_scenarios(at_once)
        .with_writer(Report { store, ..Report::default() })
        .after(|_, _, _, _, world| {
            Box::pin(async move {
                if let Some(world) = world {
                    world.leave().await;
                }
            })
        })
        // Last, since a new writer brings its own options back.
        .with_default_cli()
        .filter_run(features, move |feature, _, scenario| wanted(feature, scenario))
        .await
}
