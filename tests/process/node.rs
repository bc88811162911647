//! Owns: one `session-manager` process of a test: started on a free port, killed when dropped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const START_MAX: Duration = Duration::from_secs(30);
const STOP_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// How many lines of a log a failing test shows.
const LOG_LINES_MAX: usize = 200;
/// The environment variable with the log level of the nodes, to trace a failure.
const NODE_LOG: &str = "NODE_LOG";

pub struct NodeProcess {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
}

/// The program with a data directory, not started yet.
pub fn command(data_dir: &Path, arguments: &[&str]) -> Command {
    let mut command = program();
    if !arguments.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.arg("--data-dir").arg(data_dir).args(arguments);
    command
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_session-manager"));
    command.env_remove("RUST_LOG").env_remove("III_URL").stdin(Stdio::null()).stdout(Stdio::null());
    if let Ok(level) = std::env::var(NODE_LOG) {
        command.env("RUST_LOG", level);
    }
    command
}

impl NodeProcess {
    /// Starts a node and returns once it listens. Its log and its port file are beside the data directory.
    pub fn start(data_dir: &Path, arguments: &[&str]) -> NodeProcess {
        NodeProcess::begin(data_dir, command(data_dir, arguments))
    }

    /// The same, with the data directory of the settings. Log and port file are beside the given path.
    #[allow(dead_code, reason = "the features use it")]
    pub fn start_by_settings(beside: &Path, arguments: &[&str]) -> NodeProcess {
        let mut command = program();
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        NodeProcess::begin(beside, command)
    }

    fn begin(data_dir: &Path, mut command: Command) -> NodeProcess {
        let port_file = data_dir.with_extension("port");
        let log = data_dir.with_extension("log");
        let _ = std::fs::remove_file(&port_file);
        let log_file = std::fs::File::options().create(true).append(true).open(&log).expect("a log file");
        let mut child = command.arg("--port-file").arg(&port_file).stderr(log_file).spawn().expect("the binary starts");
        let begun = Instant::now();
        let port = loop {
            if let Ok(port) = std::fs::read_to_string(&port_file) {
                break port.trim().parse::<u16>().expect("a port in the port file");
            }
            let ended = child.try_wait().expect("the child's state");
            assert!(ended.is_none(), "the node ended with {ended:?}:\n{}", tail_of(&log));
            assert!(begun.elapsed() < START_MAX, "the node does not listen:\n{}", tail_of(&log));
            std::thread::sleep(POLL);
        };
        NodeProcess { child, address: SocketAddr::from(([127, 0, 0, 1], port)), log }
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("the killed child");
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success(), "the node ended before the signal");
    }

    pub fn wait(mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child's state") {
                return status;
            }
            assert!(begun.elapsed() < STOP_MAX, "the node does not stop:\n{}", tail_of(&self.log));
            std::thread::sleep(POLL);
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child's state").is_none()
    }

    /// Resident memory in bytes; `None` where there is no /proc.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.memory("VmRSS:")
    }

    /// The largest resident memory so far, in bytes.
    #[allow(dead_code, reason = "the features do not use it")]
    pub fn peak_bytes(&self) -> Option<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, row: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find(|line| line.starts_with(row))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    }

    pub fn log(&self) -> String {
        tail_of(&self.log)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of a log.
pub fn tail_of(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
}
