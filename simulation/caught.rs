//! Owns: the hunt for planted bugs (`session_manager::planted`): how many seeds it takes until a law is violated.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use session_manager::planted::Bug;

use crate::arguments::scenario_of;
use crate::scenario::{self, Scenario};
use crate::seed_process::{self, Running};
use crate::single_run::replay;

/// A bug that none of this many seeds shows counts as missed.
const SEEDS_MAX: u64 = 50;

/// The characters of a violation to print.
const LAW_CHARS: usize = 110;

/// How one bug was found.
struct Caught {
    seed: u64,
    scenario: &'static str,
    law: String,
}

/// Chooses the scenario of a seed during a hunt.
pub type ChooseScenario = fn(Bug, u64) -> &'static Scenario;

/// All scenarios in turn, as in a campaign.
pub fn in_turn(_: Bug, seed: u64) -> &'static Scenario {
    scenario_of(seed)
}

/// The scenario that shows the bug soonest, for the short time of CI.
pub fn where_it_shows(bug: Bug, seed: u64) -> &'static Scenario {
    let name = match bug {
        Bug::SkipFsync | Bug::ApplyTwiceAfterRestart => "crashes",
        Bug::AnswerBeforeCommit | Bug::ReadWithoutBarrier | Bug::PublishBeforeCommit => "partitions",
        Bug::ForgetDedup | Bug::ReuseIdsAfterFailover | Bug::ForgetOverdue => "skew",
        Bug::AcceptTruncatedSnapshot => "snapshots",
        Bug::ConstantElectionTimes => "slow-disks",
        Bug::HeartbeatsWaitForDisk => "patience",
        Bug::ForwardWithoutScope | Bug::GapsOverKeptEvents => "calm",
    };
    scenario::named(name).unwrap_or_else(|| scenario_of(seed))
}

/// Plants each bug and runs seeds from 1 on, until one of them violates a law.
pub fn run(bugs: &[Bug], choose: ChooseScenario, jobs: usize) -> ExitCode {
    println!("{:<27} {:>5}  {:<12} {:>7}  law", "planted", "seeds", "scenario", "real s");
    let mut missed = 0;
    for bug in bugs {
        let begun = Instant::now();
        let caught = hunt(*bug, choose, jobs);
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

fn hunt(bug: Bug, choose: ChooseScenario, jobs: usize) -> Option<Caught> {
    let (mut running, mut next, mut caught): (Vec<Running>, u64, Option<Caught>) = (Vec::new(), 1, None);
    loop {
        // Lower seeds may still run and may find the bug too.
        let wanted = caught.is_none() && next <= SEEDS_MAX;
        if wanted && running.len() < jobs {
            running.extend(seed_process::start(next, choose(bug, next), Some(bug), None));
            next += 1;
            continue;
        }
        if running.is_empty() {
            return caught;
        }
        std::thread::sleep(Duration::from_millis(10));
        running.retain_mut(|one| {
            let Some(ended) = one.ended() else { return true };
            if let Err(failure) = ended {
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
        // Only a lower seed could still change the result.
        if let Some(known) = &caught {
            running.retain_mut(|one| one.seed < known.seed || (one.abandon(), false).1);
        }
    }
}
