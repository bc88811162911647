//! Owns: the command line of the simulation.

use std::path::PathBuf;
use std::time::Duration;

use session_manager::planted::Bug;

use crate::scenario::{self, Scenario};

pub const USAGE: &str = "\
Usage: cargo sim -- [--seeds A..B] [--scenario NAME] [--minutes M] [--jobs N]
       cargo sim -- --seed N [--scenario NAME] [--trace FILE] [--bug BUG]
       cargo sim -- --planted [--bug BUG] [--jobs N]

  --seeds A..B     run the seeds from A to B - 1, one process each
  --minutes M      run seeds from A (or 1) until M minutes have passed
  --jobs N         processes at a time; by default the number of processors
  --scenario NAME  calm, partitions, crashes, disk, membership, snapshots, skew, everything, slow-disks,
                   patience; by default all in turn
  --seed N         run one seed in this process and print the result
  --trace FILE     write the timeline of that seed to a file
  --planted        enable each planted bug and count the seeds until one finds it
  --bug BUG        only this one: skip-fsync, answer-before-commit, read-without-barrier, forget-dedup,
                   publish-before-commit, apply-twice-after-restart, reuse-ids-after-failover, accept-truncated-snapshot,
                   constant-election-times, heartbeats-wait-for-disk, forward-without-scope, forget-overdue,
                   gaps-over-kept-events
";

pub enum Wanted {
    One { seed: u64, scenario: &'static Scenario, bug: Option<Bug>, trace: Option<PathBuf>, quiet: bool },
    Many(Campaign),
    Planted { bugs: Vec<Bug>, jobs: usize },
    ShortSet,
    Nothing(String),
}

/// Many seeds.
#[derive(Debug, Clone)]
pub struct Campaign {
    pub first: u64,
    /// The seed after the last one; `None`: run until the time is over.
    pub end: Option<u64>,
    pub scenario: Option<&'static Scenario>,
    pub within: Option<Duration>,
    pub jobs: usize,
}

impl Campaign {
    pub fn scenario_of(&self, seed: u64) -> &'static Scenario {
        self.scenario.unwrap_or_else(|| scenario_of(seed))
    }
}

/// Without `--scenario`, the seeds take the scenarios in turn.
pub fn scenario_of(seed: u64) -> &'static Scenario {
    &scenario::ALL[(seed % scenario::ALL.len() as u64) as usize]
}

pub fn read(arguments: &[String]) -> Result<Wanted, String> {
    let mut seeds = None;
    let (mut seed, mut minutes, mut jobs, mut chosen, mut trace, mut quiet) = (None, None, None, None, None, false);
    let (mut bug, mut planted) = (None, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            // Flags that `cargo test` passes to every test program, and the separator of `cargo sim -- …`.
            "--" | "--quiet" | "-q" | "--nocapture" | "--no-capture" => {}
            "--seeds" => seeds = Some(range(value()?)?),
            "--seed" => seed = Some(number(argument, value()?)?),
            "--minutes" => minutes = Some(number(argument, value()?)?),
            "--jobs" => jobs = Some(number(argument, value()?)?),
            "--trace" => trace = Some(PathBuf::from(value()?)),
            "--report" => quiet = true,
            "--planted" => planted = true,
            "--bug" => {
                let name = value()?;
                let found = Bug::ALL.into_iter().find(|bug| bug.name() == name);
                bug = Some(found.ok_or_else(|| format!("--bug: there is no planted bug {name:?}"))?);
            }
            "--scenario" => {
                let name = value()?;
                let found = scenario::named(name);
                chosen = Some(found.ok_or_else(|| format!("--scenario: there is no scenario {name:?}"))?);
            }
            word if !word.starts_with('-') && !"simulation".contains(word) => {
                return Ok(Wanted::Nothing(format!("there is no simulation {word:?}")));
            }
            word if !word.starts_with('-') => {}
            other => return Err(format!("{other} is not an option")),
        }
    }
    if let Some(seed) = seed {
        let scenario = chosen.unwrap_or_else(|| scenario_of(seed));
        return Ok(Wanted::One { seed, scenario, bug, trace, quiet });
    }
    let jobs = jobs.map_or_else(processors, |jobs| jobs.max(1) as usize);
    if planted {
        return Ok(Wanted::Planted { bugs: bug.map_or(Bug::ALL.to_vec(), |bug| vec![bug]), jobs });
    }
    if bug.is_some() {
        return Err("--bug needs --seed or --planted".to_owned());
    }
    if seeds.is_none() && minutes.is_none() && chosen.is_none() {
        return Ok(Wanted::ShortSet);
    }
    let (first, end) = seeds.unwrap_or((1, None));
    let end = end.or(if minutes.is_none() { Some(first + 50) } else { None });
    let within = minutes.map(|minutes| Duration::from_secs(60 * minutes));
    Ok(Wanted::Many(Campaign { first, end, scenario: chosen, within, jobs }))
}

pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{name}: {text:?} is not a number"))
}

fn range(text: &str) -> Result<(u64, Option<u64>), String> {
    let wrong = || format!("--seeds: {text:?} is not a range: write 1..100");
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    let first = first.parse().map_err(|_| wrong())?;
    let end = if end.is_empty() { None } else { Some(end.parse().map_err(|_| wrong())?) };
    match end {
        Some(end) if end <= first => Err(wrong()),
        end => Ok((first, end)),
    }
}
