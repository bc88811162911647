//! Owns: the progress line of a measurement, on stderr because stdout is the result. On a terminal it overwrites
//! itself; elsewhere a new line is printed every few seconds.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often a line is printed when stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

static LAST_PLAIN: Mutex<Option<Instant>> = Mutex::new(None);

pub fn progress(line: &str) {
    if std::io::stderr().is_terminal() {
        show(&format!("\r\x1b[2K{line}"));
        return;
    }
    let Ok(mut last) = LAST_PLAIN.lock() else { return };
    if last.is_none_or(|last| last.elapsed() >= PLAIN_EVERY) {
        *last = Some(Instant::now());
        show(&format!("{line}\n"));
    }
}

/// Clears the line, so that the next output starts on an empty one.
pub fn progress_done() {
    if std::io::stderr().is_terminal() {
        show("\r\x1b[2K");
    }
}

fn show(text: &str) {
    let mut stderr = std::io::stderr();
    // Progress is optional: if stderr is closed, the measurement continues.
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
