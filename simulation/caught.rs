//! Owns: the bugs that are put in on purpose (`session_manager::planted`), and how many seeds it takes to notice each.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use session_manager::planted::Bug;

use crate::arguments::scenario_of;
use crate::one::replay;
use crate::process::{self, Running};

/// A bug that this many seeds do not show counts as missed.
const SEEDS_MAX: u64 = 50;

/// Enough of a violation to know it.
const LAW_CHARS: usize = 110;

/// How one bug was noticed.
struct Caught {
    seed: u64,
    scenario: &'static str,
    law: String,
}

/// Plants each bug in turn, with the seeds of a campaign from the first one on, until one of them breaks a law.
pub fn run(bugs: &[Bug], jobs: usize) -> ExitCode {
    println!("{:<27} {:>5}  {:<12} {:>7}  law", "planted", "seeds", "scenario", "real s");
    let mut missed = 0;
    for bug in bugs {
        let begun = Instant::now();
        let caught = hunt(*bug, jobs);
        let took = begun.elapsed().as_secs_f64();
        match caught {
            Some(Caught { seed, scenario, law }) => {
                println!("{:<27} {seed:>5}  {scenario:<12} {took:>7.1}  {law}", bug.name());
                println!("{:>33}  {}", "", replay(seed, scenario, Some(*bug)));
            }
            None => {
                missed += 1;
                println!("{:<27} MISSED by {SEEDS_MAX} seeds in {took:.1} s", bug.name());
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn hunt(bug: Bug, jobs: usize) -> Option<Caught> {
    let (mut running, mut next, mut caught): (Vec<Running>, u64, Option<Caught>) = (Vec::new(), 1, None);
    loop {
        // Seeds before the one that caught it may still run, and may catch it too.
        let wanted = caught.is_none() && next <= SEEDS_MAX;
        if wanted && running.len() < jobs {
            running.extend(process::start(next, scenario_of(next), Some(bug), None));
            next += 1;
            continue;
        }
        if running.is_empty() {
            return caught;
        }
        std::thread::sleep(Duration::from_millis(10));
        running.retain_mut(|one| {
            let Some(told) = one.ended() else { return true };
            if let Err(failure) = told {
                let panic = failure.words.lines().skip_while(|line| !line.starts_with("PANIC")).take(2);
                let panic = panic.chain(failure.words.lines().take(1)).collect::<Vec<_>>().join(" ");
                let law = failure.violation.unwrap_or(panic);
                let law = law.chars().take(LAW_CHARS).collect();
                let found = Caught { seed: one.seed, scenario: one.scenario.name, law };
                if caught.as_ref().is_none_or(|known| found.seed < known.seed) {
                    caught = Some(found);
                }
            }
            false
        });
    }
}
