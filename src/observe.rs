//! Owns: logging (format and level), and what a panic does to the process.
//! Never: decide anything about sessions.

use std::fmt;
use std::io::IsTerminal;
use std::process::exit;

use tracing_subscriber::EnvFilter;

use crate::storage::sled::panic_guard::is_catching;

/// The default log level of a node. The consensus library logs every heartbeat at `info`, so it is limited to `warn`.
pub const DEFAULT_LEVEL: &str = "info,openraft=warn";

/// The default log level of a client command: it prints its answer and its errors itself.
pub const CLIENT_LEVEL: &str = "off";

/// The exit code after a panic, the same as of other Rust programs.
pub const EXIT_PANIC: i32 = 101;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// One line per event, for people.
    #[default]
    Text,
    /// One JSON object per line, for collectors.
    Json,
}

/// The log level cannot be parsed.
#[derive(Debug)]
pub struct BadLevel(String);

impl fmt::Display for BadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Logs go to stderr, so that stdout holds only the answer of a command.
pub fn start_logging(format: LogFormat, level: &str) -> Result<(), BadLevel> {
    let filter = EnvFilter::builder()
        .parse(level)
        .map_err(|error| BadLevel(format!("log level {level:?}: {error}; try error, warn, info, debug or trace")))?;
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    let started = match format {
        LogFormat::Text => log.with_target(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    };
    // Tests start logging several times in one process. The first one stays.
    if let Err(error) = started {
        tracing::debug!(%error, "logging was already started");
    }
    Ok(())
}

/// Ends the process on a panic. A panic is a bug of unknown extent, and a node with a dead task would answer some calls
/// and hang on others. A restart recovers from disk.
pub fn end_process_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        if is_catching() {
            tracing::warn!(panic = panic.payload_as_str(), "caught a panic");
            return;
        }
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(
            message,
            place,
            "panic: this is a bug; the process ends, and recovers from disk when restarted"
        );
        exit(EXIT_PANIC);
    }));
}
