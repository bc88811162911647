//! Owns: one seed in this process: runs it and prints the result, for people or as one line of JSON for the runner.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use session_manager::planted::Bug;
use xxhash_rust::xxh3::xxh3_128;

use crate::determinism;
use crate::scenario::Scenario;
use crate::world::{self, Report};

/// How much of the timeline a failure prints.
const LAST_EVENTS: usize = 60;
/// A line of the timeline that contains a body can be long.
const LINE_CHARS: usize = 220;
/// A seed takes one or two seconds, or twenty without optimisation.
const CPU_SECONDS_MAX: libc::rlim_t = 150;
/// One bug often causes hundreds of violations. The output must fit into the buffer of a pipe, because the runner reads
/// it only after the process has ended.
const VIOLATIONS_MAX: usize = 8;
const VIOLATION_CHARS: usize = 1_200;

/// The result of a seed, as one line for the runner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    pub seed: u64,
    pub scenario: String,
    pub violations: Vec<String>,
    pub nodes: u64,
    pub simulated_ms: u64,
    /// What this run took of a processor: all of it, and the oracles alone.
    pub cpu_ms: u64,
    pub oracles_cpu_ms: u64,
    pub operations: usize,
    pub acknowledged: usize,
    pub elections: usize,
    pub events: usize,
    pub faults: BTreeMap<String, u64>,
    /// The hash of the timeline: equal for equal runs.
    pub digest: String,
}

impl Verdict {
    fn new(seed: u64, scenario: &Scenario, report: &Report) -> Verdict {
        let mut faults = BTreeMap::new();
        for fault in &report.history.faults {
            *faults.entry(fault.kind.to_owned()).or_default() += 1;
        }
        Verdict {
            seed,
            scenario: scenario.name.to_owned(),
            violations: report.violations.iter().take(VIOLATIONS_MAX).map(|words| shortened(words)).collect(),
            nodes: report.nodes,
            simulated_ms: report.simulated.as_millis() as u64,
            cpu_ms: cpu().as_millis() as u64,
            oracles_cpu_ms: report.oracles_cpu.as_millis() as u64,
            operations: report.history.operations.len(),
            acknowledged: report.history.acknowledged(),
            elections: report.history.elections(),
            events: report.history.deliveries.len(),
            faults,
            digest: format!("{:032x}", xxh3_128(text(report).as_bytes())),
        }
    }
}

fn shortened(words: &str) -> String {
    words.chars().take(VIOLATION_CHARS).collect()
}

fn text(report: &Report) -> String {
    report.timeline.iter().map(|line| line.text.clone() + "\n").collect()
}

pub fn replay(seed: u64, scenario: &str, bug: Option<Bug>) -> String {
    let bug = bug.map(|bug| format!(" --bug {}", bug.name())).unwrap_or_default();
    format!("cargo sim -- --seed {seed} --scenario {scenario}{bug} --trace trace.txt")
}

/// Runs one seed. `quiet`: print one line of JSON for the runner.
pub fn run(seed: u64, scenario: &'static Scenario, bug: Option<Bug>, trace: Option<&Path>, quiet: bool) -> ExitCode {
    determinism::arm(seed);
    if let Ok(filter) = std::env::var("RUST_LOG") {
        let format = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false);
        format.with_writer(std::io::stderr).init();
    }
    limit_cpu();
    let report = world::run(seed, scenario);
    if let Some(path) = trace
        && let Err(error) = fs::write(path, text(&report))
    {
        eprintln!("{}: {error}", path.display());
    }
    let verdict = Verdict::new(seed, scenario, &report);
    if quiet {
        println!("{}", serde_json::to_string(&verdict).unwrap_or_default());
    } else {
        println!("{verdict:#?}");
    }
    if report.violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    explain(&verdict, &report, bug);
    ExitCode::FAILURE
}

/// Code that spins within one step stops the simulated clock, so the operating system must end the process.
#[cfg(unix)]
fn limit_cpu() {
    let limit = libc::rlimit { rlim_cur: CPU_SECONDS_MAX, rlim_max: CPU_SECONDS_MAX + 1 };
    // SAFETY: the structure outlives the call. If the call fails, the runner still detects a seed that hangs.
    unsafe { libc::setrlimit(libc::RLIMIT_CPU, &limit) };
}

#[cfg(not(unix))]
fn limit_cpu() {}

/// The processor time of this process so far. The clock itself is simulated.
#[cfg(unix)]
pub fn cpu() -> Duration {
    // SAFETY: the structure is plain data, for which zeros are valid, and it outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let spelled = |time: libc::timeval| Duration::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64);
    spelled(usage.ru_utime) + spelled(usage.ru_stime)
}

#[cfg(not(unix))]
pub fn cpu() -> Duration {
    Duration::ZERO
}

fn explain(verdict: &Verdict, report: &Report, bug: Option<Bug>) {
    eprintln!("\nseed {} of {} broke a law. The last events before it:", verdict.seed, verdict.scenario);
    let end =
        report.shows.map_or(report.timeline.len(), |at| report.timeline.partition_point(|line| line.order <= at.order));
    for line in &report.timeline[end.saturating_sub(LAST_EVENTS)..end] {
        eprintln!("  {}", line.text.chars().take(LINE_CHARS).collect::<String>());
    }
    for violation in &verdict.violations {
        eprintln!("VIOLATION  {violation}");
    }
    eprintln!("replay     {}\n", replay(verdict.seed, &verdict.scenario, bug));
}
