//! Owns: one node process of a development cluster: how it is started, whether it runs, and that it ends with us: it
//! reads its standard input, and the pipe closes when this process ends, however it ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::plan::Seat;

/// Enough of a log to see why a node did not start.
const LOG_LINES: usize = 15;

pub struct Child {
    seat: Seat,
    process: std::process::Child,
    ended_at: Option<Instant>,
}

impl Child {
    pub fn start(seat: &Seat) -> Result<Child, String> {
        let process = spawn(seat)?;
        Ok(Child { seat: seat.clone(), process, ended_at: None })
    }

    pub fn start_again(&mut self) -> Result<(), String> {
        self.process = spawn(&self.seat)?;
        self.ended_at = None;
        Ok(())
    }

    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn log(&self) -> PathBuf {
        log_of(&self.seat)
    }

    /// How it ended, told once.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.ended_at.is_some() {
            return None;
        }
        let status = self.process.try_wait().ok().flatten()?;
        self.ended_at = Some(Instant::now());
        Some(status)
    }

    pub fn is_down_since(&self, pause: Duration) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() >= pause)
    }

    pub fn is_down(&mut self) -> bool {
        self.ended_at.is_some() || self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Closes the pipe that it reads.
    pub fn ask_to_end(&mut self) {
        drop(self.process.stdin.take());
    }

    pub fn kill(&mut self) {
        // It may have ended meanwhile, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// What a person types to start this node by hand.
    pub fn command_line(&self) -> String {
        let words = arguments(&self.seat);
        let quoted = words.iter().map(|word| if word.contains(' ') { format!("'{word}'") } else { word.clone() });
        format!("session-manager {}", quoted.collect::<Vec<_>>().join(" "))
    }

    /// The end of its log, indented.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        last.iter().map(|line| format!("\n  {line}")).collect()
    }
}

fn arguments(seat: &Seat) -> Vec<String> {
    let mut words = vec![
        "serve".to_owned(),
        "--listen".to_owned(),
        seat.client.to_string(),
        "--data-dir".to_owned(),
        seat.data_dir.display().to_string(),
        "--node-id".to_owned(),
        seat.node.to_string(),
        "--peer-listen".to_owned(),
        seat.peer.to_string(),
    ];
    // The first node founds the cluster; the others wait for it. Both only matter on an empty data directory.
    if seat.node != 1 {
        words.push("--join".to_owned());
    }
    words
}

fn spawn(seat: &Seat) -> Result<std::process::Child, String> {
    let failed = |what: &str, error: std::io::Error| format!("node {}: {what}: {error}", seat.node);
    let program = std::env::current_exe().map_err(|error| failed("this program's path", error))?;
    let log = log_of(seat);
    let log = File::options().create(true).append(true).open(&log).map_err(|error| failed("its log", error))?;
    let mut command = Command::new(program);
    command.args(arguments(seat)).arg("--exit-with-parent");
    // Where clients of this cluster look for it, not an engine its nodes should attach to.
    command.env_remove("III_URL");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    command.spawn().map_err(|error| failed("its process", error))
}

fn log_of(seat: &Seat) -> PathBuf {
    Path::with_extension(&seat.data_dir, "log")
}
