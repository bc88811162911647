//! Owns: the bugs that are put in on purpose (`session_manager::planted`), and how many seeds it takes to notice each.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use session_manager::planted::Bug;

use crate::arguments::scenario_of;
use crate::one::replay;
use crate::process::{self, Running};
use crate::scenario::{self, Scenario};

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

/// Which scenario a seed runs while a bug is sought.
pub type Hunting = fn(Bug, u64) -> &'static Scenario;

/// As a campaign would.
pub fn in_turn(_: Bug, seed: u64) -> &'static Scenario {
    scenario_of(seed)
}

/// The one that breaks what the bug is about: what CI has time for.
pub fn where_it_shows(bug: Bug, seed: u64) -> &'static Scenario {
    let name = match bug {
        Bug::SkipFsync | Bug::ApplyTwiceAfterRestart => "crashes",
        Bug::AnswerBeforeCommit | Bug::ReadWithoutBarrier | Bug::PublishBeforeCommit => "partitions",
        Bug::ForgetDedup | Bug::ReuseIdsAfterFailover => "skew",
        Bug::AcceptTruncatedSnapshot => "snapshots",
    };
    scenario::named(name).unwrap_or_else(|| scenario_of(seed))
}

/// Plants each bug in turn, with the seeds from the first one on, until one of them breaks a law.
pub fn run(bugs: &[Bug], hunting: Hunting, jobs: usize) -> ExitCode {
    println!("{:<27} {:>5}  {:<12} {:>7}  law", "planted", "seeds", "scenario", "real s");
    let mut missed = 0;
    for bug in bugs {
        let begun = Instant::now();
        let caught = hunt(*bug, hunting, jobs);
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

fn hunt(bug: Bug, hunting: Hunting, jobs: usize) -> Option<Caught> {
    let (mut running, mut next, mut caught): (Vec<Running>, u64, Option<Caught>) = (Vec::new(), 1, None);
    loop {
        // Seeds before the one that caught it may still run, and may catch it too.
        let wanted = caught.is_none() && next <= SEEDS_MAX;
        if wanted && running.len() < jobs {
            running.extend(process::start(next, hunting(bug, next), Some(bug), None));
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
