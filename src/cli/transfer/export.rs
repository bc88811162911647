//! Owns: `session-manager export`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use iii_sdk::IIIClient;
use serde_json::{Map, Value, json};

use super::{Format, Pending, Progress, TransferError, call, runtime};
use crate::cli::connect::{NodeUrl, connect};
use crate::cli::error::CliError;
use crate::machine::ids::SessionId;
use crate::machine::toolpath::SOURCE;
use crate::machine::toolpath::import::Importer;
use crate::machine::toolpath::outline::Outline;
use crate::machine::toolpath::redact::Field;
use crate::machine::toolpath::write::{Form, Writer};
use crate::storage::jsonl::stored_session::{self, SessionWriter};

const ABOUT: &str = "\
Write sessions as Toolpath documents (agent-coding-session v1.1.0), or as files of the fs adapter.

One session becomes one graph with one path. Several sessions become one graph with several paths, or one file each when \
the output is a directory. A document holds a lossless copy of every entry, so that an import gives the same session again.";

const EXAMPLES: &str = "\
Examples:
  session-manager export s_0199... > session.path.json
  session-manager export s_0199... -o session.path.jsonl        one line per step
  session-manager export --all -o backup/                       one file per session
  session-manager export --metadata tenant=acme -o acme.json
  session-manager export --all --format fs -o files/            as the fs adapter stores them
  session-manager export s_0199... --redactable | redact        no copy behind the visible text
  session-manager export s_0199... --redact tool_input,tool_result";

/// Write sessions as Toolpath documents, or as files of the fs adapter
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct ExportArgs {
    /// The sessions to export
    #[arg(value_name = "ID", required_unless_present_any = ["all", "metadata"])]
    ids: Vec<String>,

    /// Export every session whose metadata has this value; may be given several times
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "ids")]
    metadata: Vec<String>,

    /// Export every session
    #[arg(long, conflicts_with_all = ["ids", "metadata"])]
    all: bool,

    /// The format of the files
    #[arg(long, value_enum, default_value = "toolpath")]
    format: Format,

    /// The file or the directory to write; without it, standard output. A name that ends with .jsonl gives the line form
    #[arg(short, long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,

    /// Write the line form (.path.jsonl) instead of one JSON document
    #[arg(long)]
    lines: bool,

    /// Leave the lossless copy out, so that a redactor finds every text where it is visible
    #[arg(long)]
    redactable: bool,

    /// Black these fields out: text, thinking, tool_input, tool_result, event_data, files, environment, title
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    redact: Vec<Field>,

    /// How many steps to read per call
    #[arg(long, value_name = "N", default_value_t = 200)]
    page: usize,

    /// Print nothing on stderr but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    node: NodeUrl,
}

pub fn run(args: ExportArgs) -> Result<ExitCode, CliError> {
    args.node.trust_ca();
    let filter = filter(&args.metadata)?;
    runtime()?.block_on(async {
        let client = connect(&args.node).await?;
        let exported = export(&client, &args, filter).await;
        client.shutdown_async().await;
        exported?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The metadata every exported session must have.
fn filter(given: &[String]) -> Result<Map<String, Value>, TransferError> {
    let mut filter = Map::new();
    for pair in given {
        let (key, text) = pair.split_once('=').ok_or_else(|| TransferError::Metadata(pair.clone()))?;
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
        filter.insert(key.to_owned(), value);
    }
    Ok(filter)
}

async fn export(client: &IIIClient, args: &ExportArgs, filter: Map<String, Value>) -> Result<(), TransferError> {
    let mut progress = Progress::new(args.quiet);
    let ids = if args.ids.is_empty() { listed(client, filter).await? } else { args.ids.clone() };
    if args.format == Format::Fs {
        return fs_files(client, args, &ids, &mut progress).await;
    }
    let form = form(args);
    match &args.output {
        Some(directory) if is_directory(directory) => {
            let at = |error| TransferError::File { file: directory.clone(), error };
            std::fs::create_dir_all(directory).map_err(at)?;
            for id in &ids {
                let file = directory.join(file_name(id, form));
                written(client, args, std::slice::from_ref(id), form, &file, &mut progress).await?;
            }
        }
        Some(file) => written(client, args, &ids, form, file, &mut progress).await?,
        None => {
            let out = BufWriter::new(std::io::stdout().lock());
            let failed = TransferError::Output;
            document(client, args, &ids, form, out, &failed, &mut progress).await?;
        }
    }
    progress.line(&format!("exported {} sessions", ids.len()));
    Ok(())
}

fn form(args: &ExportArgs) -> Form {
    let ends_with_lines = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "jsonl");
    if args.lines || args.output.as_ref().is_some_and(ends_with_lines) { Form::Lines } else { Form::Json }
}

/// Every session with the metadata asked for, oldest first.
async fn listed(client: &IIIClient, filter: Map<String, Value>) -> Result<Vec<String>, TransferError> {
    let mut request = json!({ "order": "created_asc", "limit": 100, "metadata": filter });
    let mut ids = Vec::new();
    loop {
        let page = call(client, "session::list", &request).await?;
        let sessions = page["sessions"].as_array().into_iter().flatten();
        ids.extend(sessions.filter_map(|meta| meta["session_id"].as_str()).map(str::to_owned));
        match page.get("next_cursor") {
            Some(cursor) => request["cursor"] = cursor.clone(),
            None => return Ok(ids),
        }
    }
}

/// Sessions as files of the fs adapter: one on standard output or in a file, any number in a directory. The directory
/// can be served by the fs adapter.
async fn fs_files(
    client: &IIIClient,
    args: &ExportArgs,
    ids: &[String],
    progress: &mut Progress,
) -> Result<(), TransferError> {
    if args.redactable || !args.redact.is_empty() {
        return Err(TransferError::Arguments("--redactable and --redact belong to --format toolpath"));
    }
    match (&args.output, ids) {
        (Some(directory), _) if is_directory(directory) => {
            let at = |error| TransferError::File { file: directory.clone(), error };
            std::fs::create_dir_all(directory).map_err(at)?;
            for id in ids {
                let name = stored_session::name_of(&id.as_str().into());
                let name = name.map_err(|error| TransferError::Unstorable { id: id.clone(), error })?;
                fs_file(client, args, id, &directory.join(name), progress).await?;
            }
        }
        (Some(file), [id]) => fs_file(client, args, id, file, progress).await?,
        (None, [id]) => {
            let out = BufWriter::new(std::io::stdout().lock());
            fs_session(client, args, id, out, &TransferError::Output, progress).await?;
        }
        (Some(_) | None, _) => {
            return Err(TransferError::Arguments(
                "a file of the fs format holds one session: give a directory with -o",
            ));
        }
    }
    progress.line(&format!("exported {} sessions", ids.len()));
    Ok(())
}

async fn fs_file(
    client: &IIIClient,
    args: &ExportArgs,
    id: &str,
    file: &Path,
    progress: &mut Progress,
) -> Result<(), TransferError> {
    let failed = |error| TransferError::File { file: file.to_owned(), error };
    // No file of a session has this ending, so that half of one is never read.
    let part = file.with_extension("tmp");
    let out = BufWriter::new(File::create(&part).map_err(failed)?);
    let done = fs_session(client, args, id, out, &failed, progress).await;
    if done.is_err() {
        // The error of the export matters more than that of the clean-up.
        let _ = std::fs::remove_file(&part);
        return done;
    }
    std::fs::rename(&part, file).map_err(failed)
}

/// The lossless copies in the document of a session are its entries, to the byte.
async fn fs_session(
    client: &IIIClient,
    args: &ExportArgs,
    id: &str,
    out: impl Write,
    failed: &(impl Fn(std::io::Error) -> TransferError + Sync),
    progress: &mut Progress,
) -> Result<(), TransferError> {
    let mut spooled = tempfile::tempfile().map_err(failed)?;
    let ids = [id.to_owned()];
    document(client, args, &ids, Form::Lines, BufWriter::new(&spooled), failed, progress).await?;
    spooled.seek(SeekFrom::Start(0)).map_err(failed)?;
    let wrong = |error| TransferError::Document { file: PathBuf::from(id), error };
    let outlines = Outline::read(BufReader::with_capacity(1 << 16, &spooled)).map_err(wrong)?;
    let [outline] = outlines.as_slice() else { return Err(TransferError::NotAPage) };
    let mut importer = Importer::new(outline, Some(SessionId::from(id)));
    let mut writer = SessionWriter::new(out);
    let mut reader = &spooled;
    for nth in 0..outline.len() {
        for entry in importer.step(outline.step(&mut reader, nth).map_err(wrong)?) {
            writer.entry(&entry).map_err(failed)?;
        }
    }
    let finish = importer.finish(0, Map::new());
    if let Some(entry) = &finish.document {
        writer.entry(entry).map_err(failed)?;
    }
    writer.finish(finish.leaf.as_ref(), &finish.meta).map_err(failed)?;
    Ok(())
}

/// A file that is there only when it is whole.
async fn written(
    client: &IIIClient,
    args: &ExportArgs,
    ids: &[String],
    form: Form,
    file: &Path,
    progress: &mut Progress,
) -> Result<(), TransferError> {
    let failed = |error| TransferError::File { file: file.to_owned(), error };
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let out = BufWriter::new(File::create(&part).map_err(failed)?);
    let done = document(client, args, ids, form, out, &failed, progress).await;
    if done.is_err() {
        // The error of the export matters more than that of the clean-up.
        let _ = std::fs::remove_file(&part);
        return done;
    }
    std::fs::rename(&part, file).map_err(failed)
}

async fn document(
    client: &IIIClient,
    args: &ExportArgs,
    ids: &[String],
    form: Form,
    out: impl Write,
    failed: &(impl Fn(std::io::Error) -> TransferError + Sync),
    progress: &mut Progress,
) -> Result<(), TransferError> {
    if form == Form::Lines && ids.len() != 1 {
        return Err(TransferError::Arguments("the line form holds one session: give a directory with -o for several"));
    }
    let graph = (ids.len() != 1).then(|| SOURCE.to_owned());
    let mut writer = Writer::new(out, form, graph);
    for id in ids {
        let redact: Vec<&str> = args.redact.iter().map(|field| field.name()).collect();
        let request = json!({ "session_id": id, "limit": args.page, "redactable": args.redactable, "redact": redact });
        let ask = |cursor: Option<Value>| {
            let mut request = request.clone();
            if let Some(cursor) = cursor {
                request["cursor"] = cursor;
            }
            Pending::start(client, "session::export", move || request)
        };
        let mut steps = 0;
        let mut pending = Some(ask(None));
        while let Some(asked) = pending {
            let mut page = asked.answer().await?;
            // The node makes the next page while this one is written.
            pending = page.get_mut("next_cursor").map(Value::take).map(|cursor| ask(Some(cursor)));
            let Some(Value::Array(lines)) = page.get_mut("lines").map(Value::take) else {
                return Err(TransferError::NotAPage);
            };
            for line in &lines {
                writer.line(line).map_err(failed)?;
                steps += u64::from(line.get("Step").is_some());
            }
            progress.step(id, steps, None);
        }
        progress.line(&format!("{id}: {steps} steps"));
    }
    writer.finish().map_err(failed)?;
    Ok(())
}

fn is_directory(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().to_string_lossy().ends_with(std::path::MAIN_SEPARATOR)
}

/// The longest name most file systems take is 255 bytes; the ending and `.part` need some of them.
const NAME_BYTES_MAX: usize = 200;

/// A session's id as a file name: bytes outside `[A-Za-z0-9._-]` become `%XX`. A name that would be too long is cut and
/// gets a hash of the id.
fn file_name(id: &str, form: Form) -> String {
    let mut name = String::new();
    for byte in id.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => name.push(byte as char),
            // A name must not begin with a dot.
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        name.truncate(NAME_BYTES_MAX);
        name.push_str(&format!("-{:016x}", xxhash_rust::xxh3::xxh3_64(id.as_bytes())));
    }
    let ending = match form {
        Form::Json => "path.json",
        Form::Lines => "path.jsonl",
    };
    format!("{name}.{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_leaves_the_directory() {
        assert_eq!(file_name("s_1", Form::Json), "s_1.path.json");
        assert_eq!(file_name("../etc/x", Form::Lines), "%2E.%2Fetc%2Fx.path.jsonl");
        assert_eq!(file_name("..", Form::Json), "%2E..path.json");
        let long = "é".repeat(500);
        assert!(file_name(&long, Form::Json).len() < 240);
        assert_ne!(file_name(&long, Form::Json), file_name(&format!("{long}x"), Form::Json));
    }

    #[test]
    fn a_filter_takes_json_and_plain_text() {
        let given = ["tenant=acme".to_owned(), "n=1".to_owned(), "s=\"1\"".to_owned(), "e=a=b".to_owned()];
        let filter = filter(&given).expect("a filter");
        assert_eq!(Value::Object(filter), json!({"tenant": "acme", "n": 1, "s": "1", "e": "a=b"}));
        assert!(self::filter(&["tenant".to_owned()]).is_err());
    }
}
