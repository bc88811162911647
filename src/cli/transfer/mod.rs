//! `session-manager export` and `session-manager import`: sessions as Toolpath documents, or as files of the fs adapter.
//!
//! Owns: files, standard input and output, progress and retries. Reads: a running node, through `session::export` and
//! `session::import`. Never: what a document means; that is `machine::toolpath`.

mod error;
pub mod export;
pub mod foreign;
pub mod import;

pub use error::TransferError;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use iii_sdk::IIIClient;
use iii_sdk::protocol::TriggerRequest;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::connect::api_error;
use super::error::CliError;

/// How a session is written as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A Toolpath document, which other tools read
    Toolpath,
    /// One JSONL file per session, as the fs adapter stores it
    Fs,
}

/// How long one call may take.
const CALL_MAX_MS: u64 = 30_000;

/// How long calls are retried while the cluster has no leader.
const RETRY_FOR: Duration = Duration::from_secs(90);
const RETRY_AFTER: Duration = Duration::from_millis(300);

/// The error code that means: try again.
const RETRYABLE: &str = "session/storage";

/// Calls run on a thread of their own, so that documents are read and written meanwhile.
fn runtime() -> Result<Runtime, CliError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().map_err(CliError::Runtime)
}

/// A call that is under way.
struct Pending(JoinHandle<Result<Value, TransferError>>);

impl Pending {
    /// Starts a call; its request is made on the thread of the call.
    fn start(client: &IIIClient, function: &'static str, request: impl FnOnce() -> Value + Send + 'static) -> Pending {
        let client = client.clone();
        Pending(tokio::spawn(async move { call(&client, function, &request()).await }))
    }

    async fn answer(self) -> Result<Value, TransferError> {
        match self.0.await {
            Ok(answer) => answer,
            // Nothing cancels the task, so it panicked.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Calls a function and retries while the node says that a retry may help. Exports read, and every batch of an import may
/// be sent twice, so a retry after an unknown outcome is safe.
async fn call(client: &IIIClient, function: &str, request: &Value) -> Result<Value, TransferError> {
    let started = Instant::now();
    loop {
        let call = TriggerRequest {
            timeout_ms: Some(CALL_MAX_MS),
            ..TriggerRequest::new(function.to_owned(), request.clone())
        };
        let error = match client.trigger(call).await {
            Ok(response) => return Ok(response),
            Err(error) => api_error(&error),
        };
        let code = error.split_once(": ").map_or(error.as_str(), |(code, _)| code);
        if code != RETRYABLE || started.elapsed() > RETRY_FOR {
            return Err(TransferError::Refused(error));
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// Lines on stderr about what is going on. A terminal also sees how far the current session has come.
struct Progress {
    quiet: bool,
    live: bool,
    shown: Option<Instant>,
}

impl Progress {
    fn new(quiet: bool) -> Progress {
        Progress { quiet, live: !quiet && std::io::stderr().is_terminal(), shown: None }
    }

    /// How far one session has come; at most a few times per second.
    fn step(&mut self, session_id: &str, done: u64, of: Option<u64>) {
        if !self.live || self.shown.is_some_and(|shown| shown.elapsed() < Duration::from_millis(200)) {
            return;
        }
        self.shown = Some(Instant::now());
        let of = of.map_or_else(String::new, |of| format!(" of {of}"));
        eprint!("\r\x1b[K{session_id}: {done}{of} steps");
    }

    /// Takes the line about the current session away.
    fn clear(&mut self) {
        if self.live && self.shown.take().is_some() {
            eprint!("\r\x1b[K");
        }
    }

    fn line(&mut self, line: &str) {
        self.clear();
        if !self.quiet {
            eprintln!("{line}");
        }
    }
}
