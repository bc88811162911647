//! Owns: one seed in a child process: start it, wait for its end, read its verdict.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use session_manager::planted::Bug;

use crate::scenario::Scenario;
use crate::single_run::Verdict;

/// A seed takes seconds, or longer on a busy machine. One that takes this long hangs.
const SEED_MAX: Duration = Duration::from_secs(600);
/// A longer time between two looks is one in which this process was stopped too, and does not count.
const LOOK_MAX: Duration = Duration::from_secs(1);

pub struct Running {
    pub seed: u64,
    pub scenario: &'static Scenario,
    /// The last look, and the time until then without pauses of this process.
    looked: Instant,
    lasted: Duration,
    child: Child,
}

/// A seed that broke a law or ended without a verdict.
pub struct Failure {
    /// The first violation; `None` without a verdict.
    pub violation: Option<String>,
    /// Its output for people.
    pub words: String,
}

impl Failure {
    fn without_verdict(words: String) -> Failure {
        Failure { violation: None, words }
    }
}

pub fn start(
    seed: u64,
    scenario: &'static Scenario,
    bug: Option<Bug>,
    trace: Option<&Path>,
) -> std::io::Result<Running> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--seed", &seed.to_string(), "--scenario", scenario.name, "--report"]);
    if let Some(bug) = bug {
        command.args(["--bug", bug.name()]);
    }
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    // The allocator gives memory back by the clock, which is simulated, so it would fetch the same pages again and again.
    command.env("MIMALLOC_PURGE_DELAY", "-1");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    Ok(Running { seed, scenario, looked: Instant::now(), lasted: Duration::ZERO, child })
}

impl Running {
    /// Ends the process. Its result is not needed.
    pub fn abandon(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The result, once the process has ended.
    pub fn ended(&mut self) -> Option<Result<Verdict, Failure>> {
        self.lasted += self.looked.elapsed().min(LOOK_MAX);
        self.looked = Instant::now();
        match self.child.try_wait() {
            Ok(None) if self.lasted > SEED_MAX => {
                self.abandon();
                Some(Err(Failure::without_verdict(format!("it hangs: it did not end within {SEED_MAX:?}\n"))))
            }
            Ok(None) => None,
            Ok(Some(status)) => Some(self.read_out(&status.to_string())),
            Err(error) => Some(Err(Failure::without_verdict(format!("{error}\n")))),
        }
    }

    fn read_out(&mut self, status: &str) -> Result<Verdict, Failure> {
        let (mut report, mut words) = (String::new(), String::new());
        if let Some(out) = &mut self.child.stdout {
            let _ = out.read_to_string(&mut report);
        }
        if let Some(out) = &mut self.child.stderr {
            let _ = out.read_to_string(&mut words);
        }
        let verdict: Result<Verdict, _> = serde_json::from_str(report.trim());
        match verdict {
            Ok(verdict) if verdict.violations.is_empty() => Ok(verdict),
            Ok(verdict) => Err(Failure { violation: verdict.violations.into_iter().next(), words }),
            Err(_) => Err(Failure::without_verdict(format!("it ended with {status} and no verdict\n{words}"))),
        }
    }
}
