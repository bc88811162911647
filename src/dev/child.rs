//! Owns: one node process: how it is started, whether it runs, and how it is stopped.
//!
//! The node stops with its parent: it reads standard input, and that pipe closes when the parent exits for any reason.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::DevError;
use super::plan::Seat;

/// Enough of a log to see why a node did not start.
const LOG_LINES: usize = 15;

pub struct Child {
    seat: Seat,
    process: std::process::Child,
    ended_at: Option<Instant>,
}

impl Child {
    pub fn start(seat: &Seat) -> Result<Child, DevError> {
        let process = spawn(seat)?;
        Ok(Child { seat: seat.clone(), process, ended_at: None })
    }

    pub fn restart(&mut self) -> Result<(), DevError> {
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
        log_file(&self.seat)
    }

    /// The exit status of a process that ended. Returned once, so that it is reported once.
    pub fn take_exit_status(&mut self) -> Option<ExitStatus> {
        if self.ended_at.is_some() {
            return None;
        }
        let status = self.process.try_wait().ok().flatten()?;
        self.ended_at = Some(Instant::now());
        Some(status)
    }

    /// Whether the process ended at least `pause` ago.
    pub fn is_down_for(&self, pause: Duration) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() >= pause)
    }

    pub fn is_down(&mut self) -> bool {
        self.ended_at.is_some() || self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Closes the node's standard input, which it takes as the request to stop.
    pub fn request_stop(&mut self) {
        drop(self.process.stdin.take());
    }

    pub fn kill(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// The command that starts this node by hand.
    pub fn command_line(&self) -> String {
        let words = arguments(&self.seat);
        let quoted = words.iter().map(|word| if word.contains(' ') { format!("'{word}'") } else { word.clone() });
        format!("session-manager {}", quoted.collect::<Vec<_>>().join(" "))
    }

    /// The last lines of the node's log, indented.
    pub fn log_tail(&self) -> String {
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
    // Node 1 founds the cluster and the others join it. Neither has an effect on a data directory that is not empty.
    if seat.node != 1 {
        words.push("--join".to_owned());
    }
    words.extend(seat.arguments.iter().cloned());
    words
}

fn spawn(seat: &Seat) -> Result<std::process::Child, DevError> {
    let failed = |action: &'static str| move |why: std::io::Error| DevError::Spawn { node: seat.node, action, why };
    let program = std::env::current_exe().map_err(failed("find this program"))?;
    let log = File::options().create(true).append(true).open(log_file(seat)).map_err(failed("open its log file"))?;
    let mut command = Command::new(program);
    command.args(arguments(seat)).arg("--exit-with-parent");
    // III_URL tells clients where this cluster is. A node would take it as the engine to attach to.
    command.env_remove("III_URL");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    command.spawn().map_err(failed("start its process"))
}

fn log_file(seat: &Seat) -> PathBuf {
    Path::with_extension(&seat.data_dir, "log")
}
