//! Owns: `session-manager import`.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use iii_sdk::IIIClient;
use serde_json::{Map, Value, json};

use super::foreign::{self, Producer};
use super::{Format, Pending, Progress, TransferError, runtime};
use crate::cli::connect::{NodeUrl, connect};
use crate::cli::error::CliError;
use crate::machine::entry::Entry;
use crate::machine::ids::SessionId;
use crate::machine::toolpath::import::{Importer, Tally};
use crate::machine::toolpath::outline::Outline;
use crate::storage::files::DirLock;
use crate::storage::jsonl::stored_session::{self, StoredSession};

const ABOUT: &str = "\
Read sessions from Toolpath documents, from files of the fs adapter, or from the session files of coding agents.

Every document is checked as a whole before anything of it is written. A file that is refused is named with the step that \
is wrong; the other files are imported.

A session is written in batches of 500 entries and becomes visible with the last one. An import that was broken off \
leaves entries that no reader sees: run the same command again to finish it, or with --replace to start over.";

const EXAMPLES: &str = "\
Examples:
  session-manager import session.path.json
  session-manager import backup/                               every document of a directory
  session-manager import - < session.path.jsonl
  session-manager import --dry-run *.path.json                 check only
  session-manager import session.path.json --as copy-of-it
  session-manager import session.path.json --merge             add what the session lacks
  session-manager import --format fs old-data/                 everything that a node with the fs adapter stored
  session-manager import --from claude ~/.claude/projects/my-project
  session-manager import --from codex ~/.codex/sessions";

/// A batch stays far below what one call may hold (1000 entries, 32 MiB).
const BATCH_ENTRIES: usize = 500;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Read sessions from Toolpath documents, files of the fs adapter, or the files of coding agents
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct ImportArgs {
    /// The files or directories to read; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Check the documents and say what would be imported, without a node
    #[arg(long)]
    dry_run: bool,

    /// The id of the session, instead of that of the path; for a document with one path
    #[arg(long = "as", value_name = "ID")]
    session_id: Option<String>,

    /// Add the entries that an existing session lacks
    #[arg(long, group = "if_exists")]
    merge: bool,

    /// Delete an existing session first; one of more than 500 entries is missing for readers until its import ends
    #[arg(long, group = "if_exists")]
    replace: bool,

    /// Leave existing sessions alone
    #[arg(long, group = "if_exists")]
    skip: bool,

    /// The format of the files
    #[arg(long, value_enum, default_value = "toolpath")]
    format: Format,

    /// The files are session files of this coding agent
    #[arg(long, value_enum, value_name = "AGENT")]
    from: Option<Producer>,

    /// Print nothing on stderr but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    node: NodeUrl,
}

pub fn run(args: ImportArgs) -> Result<ExitCode, CliError> {
    args.node.trust_ca();
    if args.format == Format::Fs && args.from.is_some() {
        return Err(TransferError::Arguments("--format fs and --from name two formats: give one of them").into());
    }
    let files = files(&args)?;
    let _claims = if args.format == Format::Fs { claim(&args.files)? } else { Vec::new() };
    if args.session_id.is_some() && files.len() > 1 {
        return Err(TransferError::Arguments("--as names one session: give one file with it").into());
    }
    runtime()?.block_on(async {
        let client = match args.dry_run {
            true => None,
            false => Some(connect(&args.node).await?),
        };
        let imported = import(client.as_ref(), &args, &files).await;
        if let Some(client) = client {
            client.shutdown_async().await;
        }
        imported?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The files to read: those named, and what directories hold.
fn files(args: &ImportArgs) -> Result<Vec<PathBuf>, TransferError> {
    let mut files = Vec::new();
    for given in &args.files {
        if !given.is_dir() {
            files.push(given.clone());
            continue;
        }
        let before = files.len();
        let is_document = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            match (args.from, args.format) {
                (Some(producer), _) => foreign::is_transcript(producer, path),
                (None, Format::Fs) => stored_session::session_of(path).is_some(),
                (None, Format::Toolpath) => name.ends_with(".json") || name.ends_with(".jsonl"),
            }
        };
        walk(given, &is_document, &mut files).map_err(|error| TransferError::File { file: given.clone(), error })?;
        if files.len() == before {
            return Err(TransferError::NothingFound(given.clone()));
        }
        files[before..].sort();
    }
    Ok(files)
}

fn walk(directory: &Path, wanted: &dyn Fn(&Path) -> bool, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, wanted, found)?;
        } else if wanted(&path) {
            found.push(path);
        }
    }
    Ok(())
}

/// What came of all files.
#[derive(Default)]
struct Total {
    sessions: u64,
    unchanged: u64,
    skipped: u64,
    entries: u64,
}

impl Total {
    fn add(&mut self, outcome: &Value, entries: u64) {
        match outcome.as_str() {
            Some("skipped") => self.skipped += 1,
            Some("unchanged") => self.unchanged += 1,
            Some(_) | None => self.sessions += 1,
        }
        self.entries += entries;
    }
}

/// Keeps nodes from using the directories that are read.
fn claim(given: &[PathBuf]) -> Result<Vec<DirLock>, TransferError> {
    let mut claims = Vec::new();
    for directory in given.iter().filter(|given| given.is_dir()) {
        let at = |error| TransferError::File { file: directory.clone(), error };
        claims.extend(stored_session::claim(directory).map_err(at)?);
    }
    Ok(claims)
}

async fn import(client: Option<&IIIClient>, args: &ImportArgs, files: &[PathBuf]) -> Result<(), TransferError> {
    let mut import = Import { client, args, total: Total::default(), progress: Progress::new(args.quiet) };
    let mut failed = 0;
    for file in files {
        if let Err(error) = import.file(file).await {
            failed += 1;
            if files.len() == 1 {
                return Err(error);
            }
            // Named at once, and counted at the end; the other files are imported.
            import.progress.clear();
            eprintln!("session-manager: {error}");
        }
    }
    let verb = if args.dry_run { "would import" } else { "imported" };
    let Total { sessions, unchanged, skipped, entries } = import.total;
    import.progress.line(&format!(
        "{verb} {sessions} sessions with {entries} entries; {unchanged} were there already, {skipped} skipped, {failed} \
         files refused"
    ));
    if failed > 0 {
        return Err(TransferError::Some { failed, all: files.len() });
    }
    Ok(())
}

/// The files of one command on their way to a node.
struct Import<'a> {
    /// None with `--dry-run`.
    client: Option<&'a IIIClient>,
    args: &'a ImportArgs,
    total: Total,
    progress: Progress,
}

impl Import<'_> {
    /// One session as the fs adapter stored it.
    async fn stored(&mut self, file: &Path) -> Result<(), TransferError> {
        let Import { client, args, .. } = *self;
        let refused = |error| TransferError::NoSession { file: file.to_owned(), error };
        let StoredSession { mut meta, leaf, entries } = stored_session::read(file).map_err(refused)?;
        if let Some(id) = &args.session_id {
            meta.session_id = SessionId::from(id.as_str());
        }
        let id = meta.session_id.clone();
        let mut session = SessionImport::new(client, args, file, id.as_str());
        let (all, mut done, mut outcome) = (entries.len() as u64, 0, Value::Null);
        for entry in entries {
            outcome = session.push(&id, entry).await?;
            if outcome == "skipped" {
                break;
            }
            done += 1;
            self.progress.step(id.as_str(), done, Some(all));
        }
        if outcome != "skipped" {
            outcome = session.end(&id, json!({ "meta": meta, "active_leaf": leaf })).await?;
        }
        self.total.add(&outcome, session.added);
        let outcome = outcome.as_str().unwrap_or("checked");
        self.progress.line(&format!("{}: {outcome} {id}: {all} entries", file.display()));
        Ok(())
    }

    async fn file(&mut self, file: &Path) -> Result<(), TransferError> {
        let Import { client, args, .. } = *self;
        if args.format == Format::Fs {
            return self.stored(file).await;
        }
        let at = |error| TransferError::File { file: file.to_owned(), error };
        let (mut document, notes) = match args.from {
            Some(producer) => {
                let transcript = foreign::read(producer, file)?;
                let mut spooled = tempfile::tempfile().map_err(at)?;
                spooled.write_all(transcript.document.to_string().as_bytes()).map_err(at)?;
                (spooled, transcript.notes)
            }
            None if file == Path::new("-") => (spool(std::io::stdin().lock()).map_err(at)?, Vec::new()),
            None => (File::open(file).map_err(at)?, Vec::new()),
        };
        let refused = |error| TransferError::Document { file: file.to_owned(), error };
        document.seek(SeekFrom::Start(0)).map_err(at)?;
        let outlines = Outline::read(BufReader::with_capacity(1 << 16, &document)).map_err(refused)?;
        if args.session_id.is_some() && outlines.len() > 1 {
            return Err(TransferError::Arguments("--as names one session: the document has several paths"));
        }
        for outline in &outlines {
            let mut session = SessionImport::new(client, args, file, outline.id());
            let mut importer = Importer::new(outline, args.session_id.as_deref().map(SessionId::from));
            let id = importer.session_id().clone();
            // Each step is read at its place with its length: a buffer would be filled anew for each.
            let mut reader = &document;
            let mut outcome = Value::Null;
            for nth in 0..outline.len() {
                let step = outline.step(&mut reader, nth).map_err(refused)?;
                for entry in importer.step(step) {
                    outcome = session.push(&id, entry).await?;
                    if outcome == "skipped" {
                        break;
                    }
                    if outcome == "staged" && args.replace && session.batches == 2 {
                        self.progress.line(&format!("{id}: deleted; readers see the new session when its import ends"));
                    }
                }
                self.progress.step(id.as_str(), nth as u64 + 1, Some(outline.len() as u64));
                if outcome == "skipped" {
                    break;
                }
            }
            let tally = importer.tally;
            if outcome != "skipped" {
                let mut metadata = Map::new();
                if let Some(name) = file.file_name().filter(|_| file != Path::new("-")) {
                    metadata.insert("imported_from".to_owned(), Value::from(name.to_string_lossy()));
                }
                let finish = importer.finish(now_ms(), metadata);
                session.entries.extend(finish.document);
                let finish = json!({ "meta": finish.meta, "active_leaf": finish.leaf });
                outcome = session.end(&id, finish).await?;
            }
            self.total.add(&outcome, session.added);
            self.progress.line(&format!("{}: {}", file.display(), summary(id.as_str(), &outcome, &tally, &notes)));
        }
        Ok(())
    }
}

fn summary(id: &str, outcome: &Value, tally: &Tally, notes: &[String]) -> String {
    let outcome = outcome.as_str().unwrap_or("checked");
    let Tally { steps, messages, custom_entries, copied, results } = tally;
    let mut line = format!(
        "{outcome} {id}: {steps} steps, {messages} messages ({results} of them tool results), {custom_entries} events"
    );
    if *copied > 0 {
        line.push_str(&format!(", {copied} lossless"));
    }
    for note in notes {
        line.push_str("; ");
        line.push_str(note);
    }
    line
}

/// One session on its way to the node, batch by batch.
struct SessionImport<'a> {
    client: Option<&'a IIIClient>,
    args: &'a ImportArgs,
    file: &'a Path,
    /// The path of the document, or the session, for errors.
    path: &'a str,
    batches: u64,
    entries: Vec<Entry>,
    bytes: usize,
    /// The batch that the node is writing while the next one is made.
    pending: Option<Pending>,
    added: u64,
}

impl<'a> SessionImport<'a> {
    fn new(client: Option<&'a IIIClient>, args: &'a ImportArgs, file: &'a Path, path: &'a str) -> SessionImport<'a> {
        let (entries, pending) = (Vec::new(), None);
        SessionImport { client, args, file, path, batches: 0, entries, bytes: 0, pending, added: 0 }
    }

    /// Adds an entry and sends the batch when it is full. Gives the outcome of the batch before, null without one.
    async fn push(&mut self, id: &SessionId, entry: Entry) -> Result<Value, TransferError> {
        self.bytes += entry.body.bytes() + entry.origin.as_ref().map_or(0, |origin| origin.text().len());
        self.entries.push(entry);
        if self.entries.len() < BATCH_ENTRIES && self.bytes < BATCH_BYTES {
            return Ok(Value::Null);
        }
        self.send(id, None).await
    }

    /// Sends the last batch. Gives the outcome of the import.
    async fn end(&mut self, id: &SessionId, finish: Value) -> Result<Value, TransferError> {
        match self.send(id, Some(finish)).await? {
            outcome if outcome == "skipped" => Ok(outcome),
            _ => self.answered().await,
        }
    }

    /// Waits for the batch before, which has the parents of this one, and starts to send what was gathered.
    async fn send(&mut self, id: &SessionId, finish: Option<Value>) -> Result<Value, TransferError> {
        let outcome = self.answered().await?;
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        let Some(client) = self.client else {
            self.added += entries.len() as u64;
            return Ok(outcome);
        };
        if outcome == "skipped" {
            return Ok(outcome);
        }
        let if_exists = match self.args {
            ImportArgs { merge: true, .. } => "merge",
            ImportArgs { replace: true, .. } => "replace",
            ImportArgs { skip: true, .. } => "skip",
            ImportArgs { .. } => "refuse",
        };
        let (id, is_first) = (id.clone(), self.batches == 0);
        self.batches += 1;
        self.pending = Some(Pending::start(client, "session::import", move || {
            // As objects, the entries would lose the spelling of their values on the way.
            let entries: Vec<String> = entries.iter().map(Entry::json_text).collect();
            let mut request =
                json!({ "session_id": id, "entries": entries, "first": is_first, "if_exists": if_exists });
            if let Some(finish) = finish {
                request["finish"] = finish;
            }
            request
        }));
        Ok(outcome)
    }

    /// The outcome of the batch that is under way, null without one.
    async fn answered(&mut self) -> Result<Value, TransferError> {
        let Some(pending) = self.pending.take() else { return Ok(Value::Null) };
        let mut response = pending.answer().await.map_err(|error| self.named(error))?;
        self.added += response["added"].as_u64().unwrap_or(0);
        Ok(response["outcome"].take())
    }

    /// A refusal of the node with the file and the path it is about, and with what earlier batches left behind.
    fn named(&self, error: TransferError) -> TransferError {
        let TransferError::Refused(error) = error else { return error };
        let (file, path) = (self.file.to_owned(), self.path.to_owned());
        match (self.batches, self.args.merge) {
            (0 | 1, _) => TransferError::RefusedPath { file, path, error },
            (_, true) => TransferError::HalfMerged { file, path, error },
            (_, false) => TransferError::HalfWritten { file, path, error },
        }
    }
}

/// Standard input is read twice, and cannot be: it goes to a file first.
fn spool(mut input: impl Read) -> std::io::Result<File> {
    let mut file = tempfile::tempfile()?;
    std::io::copy(&mut input, &mut file)?;
    Ok(file)
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
