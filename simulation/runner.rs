//! Owns: running many seeds, one process each, with a progress line and a final table; and the short set of CI, which
//! also checks that equal seeds give equal runs.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use session_manager::planted::Bug;

use crate::arguments::{Campaign, processors};
use crate::caught;
use crate::scenario;
use crate::seed_process::{Failure, Running, start};
use crate::single_run::{Verdict, replay};

/// Seeds of the short set, per scenario.
const SHORT_PER_SCENARIO: u64 = 1;
/// Seeds that run twice, to check determinism.
const TWICE: [(u64, &str); 1] = [(7, "everything")];
const SAY_EVERY: Duration = Duration::from_secs(2);
const SAY_EVERY_TO_A_FILE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Tally {
    /// By scenario: the sums over its seeds.
    rows: BTreeMap<&'static str, Row>,
    failed: Vec<(u64, &'static str, String)>,
}

#[derive(Default)]
struct Row {
    seeds: u64,
    operations: usize,
    acknowledged: usize,
    elections: usize,
    events: usize,
    faults: BTreeMap<String, u64>,
    simulated: Duration,
    cpu: Duration,
}

impl Row {
    fn faults(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// Runs a campaign and prints its table.
pub fn run(campaign: &Campaign) -> ExitCode {
    let begun = Instant::now();
    let tally = seeds(campaign, begun);
    print_table(&tally, begun.elapsed());
    if tally.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seeds(campaign: &Campaign, begun: Instant) -> Tally {
    let mut tally = Tally::default();
    let mut running: Vec<Running> = Vec::new();
    let mut next = campaign.first;
    let mut said = Instant::now();
    loop {
        let over = campaign.end.is_some_and(|end| next >= end)
            || campaign.within.is_some_and(|within| begun.elapsed() >= within);
        if !over && running.len() < campaign.jobs {
            match start(next, campaign.scenario_of(next), None, None) {
                Ok(started) => running.push(started),
                Err(error) => tally.failed.push((next, campaign.scenario_of(next).name, error.to_string())),
            }
            next += 1;
            continue;
        }
        if over && running.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        running.retain_mut(|one| match one.ended() {
            None => true,
            Some(result) => {
                tally.count(one, result);
                false
            }
        });
        let every = if std::io::stdout().is_terminal() { SAY_EVERY } else { SAY_EVERY_TO_A_FILE };
        if said.elapsed() >= every {
            said = Instant::now();
            tally.say(begun.elapsed(), false);
        }
    }
    tally.say(begun.elapsed(), true);
    tally
}

impl Tally {
    fn count(&mut self, one: &Running, result: Result<Verdict, Failure>) {
        let name = one.scenario.name;
        let row = self.rows.entry(name).or_default();
        row.seeds += 1;
        match result {
            Ok(verdict) => {
                row.operations += verdict.operations;
                row.acknowledged += verdict.acknowledged;
                row.elections += verdict.elections;
                row.events += verdict.events;
                row.simulated += Duration::from_millis(verdict.simulated_ms);
                row.cpu += Duration::from_millis(verdict.cpu_ms);
                for (kind, count) in verdict.faults {
                    *row.faults.entry(kind).or_default() += count;
                }
            }
            Err(Failure { words, .. }) => {
                eprintln!("\nseed {} of {name} FAILED\n{words}replay     {}", one.seed, replay(one.seed, name, None));
                self.failed.push((one.seed, name, words));
            }
        }
    }

    fn say(&self, elapsed: Duration, last: bool) {
        let sum = |of: fn(&Row) -> u64| self.rows.values().map(of).sum::<u64>();
        let seeds = sum(|row| row.seeds);
        let rate = seeds as f64 / elapsed.as_secs_f64().max(0.001);
        let line = format!(
            "{seeds} seeds, {rate:.2}/s, {} faults, {} acknowledged writes, {} elections, {} failed",
            sum(Row::faults),
            sum(|row| row.acknowledged as u64),
            sum(|row| row.elections as u64),
            self.failed.len()
        );
        if std::io::stdout().is_terminal() {
            print!("\r{line}{}", if last { "\n" } else { "" });
            let _ = std::io::stdout().flush();
        } else {
            println!("{:>5.0} s  {line}", elapsed.as_secs_f64());
        }
    }
}

fn print_table(tally: &Tally, elapsed: Duration) {
    println!(
        "\n{:<12} {:>6} {:>8} {:>10} {:>12} {:>9} {:>8} {:>11} {:>8}",
        "scenario", "seeds", "faults", "calls", "acknowledged", "elections", "events", "simulated s", "cpu s"
    );
    for (name, row) in &tally.rows {
        println!(
            "{name:<12} {:>6} {:>8} {:>10} {:>12} {:>9} {:>8} {:>11.0} {:>8.0}",
            row.seeds,
            row.faults(),
            row.operations,
            row.acknowledged,
            row.elections,
            row.events,
            row.simulated.as_secs_f64(),
            row.cpu.as_secs_f64()
        );
    }
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in tally.rows.values().flat_map(|row| &row.faults) {
        *kinds.entry(kind).or_default() += count;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    println!("\nfaults: {}", kinds.join(", "));
    println!("in {:.0} s of real time", elapsed.as_secs_f64());
    for (seed, scenario, _) in &tally.failed {
        println!("FAILED  {}", replay(*seed, scenario, None));
    }
}

/// What CI runs.
pub fn short_set() -> ExitCode {
    let begun = Instant::now();
    println!("simulation: seeds of each scenario: {SHORT_PER_SCENARIO}");
    let end = 1 + SHORT_PER_SCENARIO * scenario::ALL.len() as u64;
    let campaign = Campaign { first: 1, end: Some(end), scenario: None, within: None, jobs: processors() };
    let tally = seeds(&campaign, begun);
    print_table(&tally, begun.elapsed());
    let repeated = match same_seed_same_run() {
        Ok(()) => true,
        Err(why) => {
            eprintln!("the simulation is not deterministic: {why}");
            false
        }
    };
    if !tally.failed.is_empty() || !repeated {
        return ExitCode::FAILURE;
    }
    // A passing run means something only if the oracles find planted bugs.
    println!();
    caught::run(&Bug::ALL, caught::where_it_shows, processors())
}

/// Runs seeds twice, in new processes, and compares their timelines byte by byte.
fn same_seed_same_run() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    for (seed, name) in TWICE {
        let scenario = scenario::named(name).ok_or("an unknown scenario")?;
        let paths = [dir.path().join("first"), dir.path().join("second")];
        let mut both = Vec::new();
        for path in &paths {
            both.push(start(seed, scenario, None, Some(path)).map_err(|error| error.to_string())?);
        }
        for one in &mut both {
            let result = loop {
                if let Some(result) = one.ended() {
                    break result;
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            result.map_err(|failure| format!("seed {seed} of {name}: {}", failure.words))?;
        }
        let [first, second] = paths.map(|path| std::fs::read_to_string(path).unwrap_or_default());
        if first != second || first.is_empty() {
            let differs = first.lines().zip(second.lines()).position(|(one, other)| one != other);
            let at = differs.unwrap_or_else(|| first.lines().count().min(second.lines().count()));
            return Err(format!(
                "seed {seed} of {name} differs at line {at}:\n  {}\n  {}",
                first.lines().nth(at).unwrap_or("(nothing)"),
                second.lines().nth(at).unwrap_or("(nothing)")
            ));
        }
        println!("seed {seed} of {name} twice: {} equal lines", first.lines().count());
    }
    Ok(())
}
