//! Owns: the line that tells a waiting person how far a measurement is. On a terminal it overwrites itself; elsewhere a
//! line of its own comes every few seconds. Always on stderr: stdout is the result.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often a log gets a line.
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

/// Takes the line away, so that what comes next begins on an empty one.
pub fn progress_done() {
    if std::io::stderr().is_terminal() {
        show("\r\x1b[2K");
    }
}

fn show(text: &str) {
    let mut stderr = std::io::stderr();
    // Whoever watched may be gone; the measurement goes on.
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
