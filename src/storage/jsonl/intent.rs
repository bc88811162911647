//! Owns: the intent file. Before a batch that a kill could tear is appended to session files, the file says how long
//! each of them was. The next start cuts off what was not written to its end, so that a batch is there whole or not.
//! Never: a batch that fits one page and adds one entry. The file system writes it whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::file_name;
use crate::storage::files;

/// No session id is encoded to a name without `.jsonl`.
pub const NAME: &str = "batch.intent";

/// What is about to be appended to one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Append {
    pub file_name: String,
    /// The length before.
    pub from: u64,
    pub to: u64,
    /// The hash of the new bytes.
    pub hash: u64,
}

impl Append {
    pub fn new(file_name: String, from: u64, bytes: &[u8]) -> Append {
        Append { file_name, from, to: from + bytes.len() as u64, hash: xxh3_64(bytes) }
    }

    /// Cuts the file back if its new bytes are not all there.
    fn settle(&self, dir: &Path) -> io::Result<()> {
        // The name leads to no other directory, whatever stands in the file.
        if file_name::parse(&self.file_name).is_none() {
            return Ok(());
        }
        let path = dir.join(&self.file_name);
        let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        // A longer file was changed by somebody else since.
        if length <= self.from || length > self.to {
            return Ok(());
        }
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.from))?;
        file.read_to_end(&mut bytes)?;
        if length == self.to && xxh3_64(&bytes) == self.hash {
            return Ok(());
        }
        tracing::warn!(file = %path.display(), bytes = bytes.len(), "cut off a batch that was not written to its end");
        file.set_len(self.from)?;
        file.sync_all()
    }
}

/// The open intent file.
pub struct Intents {
    path: PathBuf,
    file: Option<File>,
    /// The file says something.
    open: bool,
}

impl Intents {
    /// Settles what an earlier process left unfinished.
    pub fn settle(dir: &Path) -> io::Result<Intents> {
        let path = dir.join(NAME);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => {
                for append in parse(&read?) {
                    append.settle(dir)?;
                }
                files::remove(&path)?;
            }
        }
        Ok(Intents { path, file: None, open: false })
    }

    /// Makes the intents durable. Only then may the files be appended to.
    pub fn declare(&mut self, appends: &[Append]) -> io::Result<()> {
        if appends.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = File::create(&self.path)?;
                files::sync_parent(&self.path)?;
                self.file.insert(file)
            }
        };
        self.open = true;
        let text = serde_json::to_vec(appends).map_err(io::Error::other)?;
        let content = [&xxh3_64(&text).to_be_bytes()[..], &text].concat();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&content)?;
        file.set_len(content.len() as u64)?;
        file.sync_data()
    }

    /// The batch is durable or undone. Not synced: an intent that was carried out cuts nothing off.
    pub fn clear(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.set_len(0)
        {
            tracing::warn!(%error, "the intent file could not be emptied");
        }
    }
}

/// Nothing if the file was torn: then nothing was appended either.
fn parse(bytes: &[u8]) -> Vec<Append> {
    let Some((hash, text)) = bytes.split_first_chunk::<8>() else { return Vec::new() };
    if xxh3_64(text) != u64::from_be_bytes(*hash) {
        return Vec::new();
    }
    serde_json::from_slice(text).unwrap_or_default()
}
