//! The files of the fs adapter: one `<encoded id>.jsonl` per session. Each line is a record; the last one of a kind
//! wins.
//!
//! Owns: `JsonlDir`. It opens the files of the upstream project unchanged, and the upstream project opens ours.
//! Never: half a batch. If `write` or `sync` fails, every file that the batch changed is restored.

mod file_name;
mod intent;
mod letter_case;
mod plan;
mod session_file;
pub mod stored_session;

#[cfg(test)]
mod jsonl_test;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::files::{self, DirLock};
use super::state::clock;
use super::state::kv::Changed;
use crate::machine::change::Change;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Fault;
pub use file_name::Unstorable;
use intent::{Append, Intents};
use letter_case::LetterCase;
use plan::Plan;
use session_file::Content;

/// Far below 1024, the usual limit of open files per process.
const HANDLES_MAX: usize = 128;

/// An append of one entry that fits a page is written whole or not at all, also under a kill.
const PAGE_BYTES: usize = 4096;

// Names of files that are no session's: an encoded session id always ends with `.jsonl`.
const REWRITE_NAME: &str = "rewrite.tmp";
const REMOVED_PREFIX: &str = "removed-";

pub struct JsonlDir {
    dir: PathBuf,
    handles: BTreeMap<SessionId, Handle>,
    /// Counts the uses of handles: the least recently used one is closed first.
    uses: u64,
    /// How to undo what was written since the last sync.
    undo: BTreeMap<SessionId, Undo>,
    /// Undo steps that failed. Nothing is written until they succeed.
    pending_undo: BTreeMap<SessionId, Undo>,
    /// A file was created or removed since the last sync.
    names_changed: bool,
    /// Removed files, renamed so that an undo can restore them.
    removed: Vec<PathBuf>,
    /// Number of the next removed file.
    removals: u64,
    letter_case: LetterCase,
    /// Forks under way. Their files have names that the next start removes.
    hidden: BTreeSet<SessionId>,
    intents: Intents,
    _lock: DirLock,
}

struct Handle {
    file: File,
    used: u64,
    unsynced: bool,
    /// The last line has no newline: the next one must not become part of it.
    torn: bool,
}

/// How to restore one session's file.
#[derive(Debug)]
enum Undo {
    Truncate(u64),
    Remove,
    Rewrite(Vec<u8>),
    /// Hide the file of a fork again, and cut it to this length.
    Hide(u64),
    RestoreRemoved(PathBuf),
}

impl JsonlDir {
    /// Opens a directory and reads the state from its files.
    pub fn open(dir: &Path) -> io::Result<(JsonlDir, Changed)> {
        files::create_dir(dir)?;
        let lock = DirLock::acquire(dir)?;
        let intents = Intents::settle(dir)?;
        let mut opened = JsonlDir {
            dir: dir.to_owned(),
            handles: BTreeMap::new(),
            uses: 0,
            undo: BTreeMap::new(),
            pending_undo: BTreeMap::new(),
            names_changed: false,
            removed: Vec::new(),
            removals: 0,
            letter_case: LetterCase::probe(dir),
            hidden: BTreeSet::new(),
            intents,
            _lock: lock,
        };
        let state = opened.load()?;
        Ok((opened, state))
    }

    fn load(&mut self) -> io::Result<Changed> {
        let mut state = Changed::new();
        let mut clock_ms = 0;
        for found in fs::read_dir(&self.dir)? {
            let found = found?;
            let path = found.path();
            if found.file_type()?.is_dir() {
                continue;
            }
            let Some(file_name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if is_leftover(file_name) {
                files::remove(&path)?;
                continue;
            }
            let Some(session_id) = file_name::parse(file_name) else {
                if file_name.ends_with(".jsonl") {
                    tracing::warn!(file = %path.display(), "skipped a file whose name is not an encoded session id");
                }
                continue;
            };
            let content = Content::read(&path)?;
            if let Some(meta) = content.meta() {
                clock_ms = clock_ms.max(meta.updated_at);
                if meta.session_id != session_id {
                    let inside = &meta.session_id;
                    tracing::warn!(file = %path.display(), %inside, "the file name determines the session id");
                }
            }
            state.extend(content.into_state(&session_id).map_err(fault_to_io)?);
            self.letter_case.add(&session_id);
        }
        // Only the clock: the files hold no events, so the feed does not start with the history.
        state.insert(clock::key(), Some(clock::encode(clock_ms)));
        Ok(state)
    }

    /// Why this directory cannot hold a file for the session, if so.
    pub fn refuses(&self, session_id: &SessionId) -> Option<Unstorable> {
        file_name::print(session_id).err().or_else(|| self.letter_case.conflict(session_id))
    }

    /// Writes changes to the files of their sessions, one write per file. They are durable after `sync`.
    pub fn write(&mut self, changes: &[Change]) -> io::Result<()> {
        self.finish_earlier()?;
        let written = self.write_plans(Plan::by_session(changes));
        if written.is_err() {
            self.undo_all();
        }
        written
    }

    fn write_plans(&mut self, plans: BTreeMap<SessionId, Plan>) -> io::Result<()> {
        let mut appends = Vec::new();
        let begun = plans.iter().filter(|(_, plan)| plan.begins_hidden).map(|(session_id, _)| session_id.clone());
        self.hidden.extend(begun);
        for (session_id, plan) in plans.iter().filter(|(_, plan)| plan.only_appends()) {
            if self.hidden.contains(session_id) {
                continue;
            }
            let lines = plan.added.print();
            if plan.added.entries() > 1 || lines.len() > PAGE_BYTES {
                appends.push(self.intended(session_id, &lines)?);
            }
        }
        self.intents.declare(&appends)?;
        for (session_id, plan) in plans {
            self.write_session(&session_id, plan)?;
        }
        Ok(())
    }

    fn intended(&mut self, session_id: &SessionId, lines: &[u8]) -> io::Result<Append> {
        let name = file_name::print(session_id).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let handle = self.handle(session_id)?;
        let length = handle.file.metadata()?.len();
        Ok(match handle.torn {
            true => Append::new(name, length, &[b"\n", lines].concat()),
            false => Append::new(name, length, lines),
        })
    }

    /// Makes the written changes durable, or undoes them.
    pub fn sync(&mut self) -> io::Result<()> {
        if let Err(error) = self.sync_touched() {
            self.undo_all();
            return Err(error);
        }
        self.undo.clear();
        self.intents.clear();
        for path in self.removed.drain(..) {
            if let Err(error) = files::remove(&path) {
                let file = path.display();
                tracing::warn!(%file, %error, "the file of a removed session remains; the next start removes it");
            }
        }
        Ok(())
    }

    fn sync_touched(&mut self) -> io::Result<()> {
        for handle in self.handles.values_mut().filter(|handle| handle.unsynced) {
            handle.file.sync_data()?;
            handle.unsynced = false;
        }
        if self.names_changed {
            files::sync_dir(&self.dir)?;
            self.names_changed = false;
        }
        Ok(())
    }

    /// Completes what earlier calls left, so that a write never follows half of another one.
    fn finish_earlier(&mut self) -> io::Result<()> {
        if !self.undo.is_empty() {
            self.sync()?;
        }
        if !self.pending_undo.is_empty() {
            self.undo = std::mem::take(&mut self.pending_undo);
            self.undo_all();
        }
        match self.pending_undo.first_key_value() {
            None => Ok(()),
            Some((session_id, _)) => {
                let why = format!("an earlier failed write to session {:?} cannot be undone", session_id.as_str());
                Err(io::Error::other(why))
            }
        }
    }

    fn undo_all(&mut self) {
        for (session_id, undo) in std::mem::take(&mut self.undo) {
            // The position of the handle may be past the end of the restored file.
            self.handles.remove(&session_id);
            if let Err(error) = self.undo_one(&session_id, &undo) {
                tracing::error!(%session_id, %error, "a failed write could not be undone; writes stop until it is");
                self.pending_undo.insert(session_id, undo);
            }
        }
        self.removed.clear();
        if self.pending_undo.is_empty() {
            self.intents.clear();
        }
        if let Err(error) = files::sync_dir(&self.dir) {
            tracing::error!(%error, "the directory could not be synced");
            self.names_changed = true;
        }
    }

    fn undo_one(&mut self, session_id: &SessionId, undo: &Undo) -> io::Result<()> {
        let path = self.path(session_id)?;
        match undo {
            Undo::Truncate(length) => {
                let file = OpenOptions::new().write(true).open(&path)?;
                file.set_len(*length)?;
                file.sync_all()
            }
            Undo::Remove => {
                self.letter_case.remove(session_id);
                files::remove(&path)
            }
            Undo::Rewrite(bytes) => self.replace_file(&path, bytes),
            Undo::Hide(length) => {
                self.hidden.insert(session_id.clone());
                let hidden = self.path(session_id)?;
                if path.exists() {
                    fs::rename(&path, &hidden)?;
                }
                OpenOptions::new().write(true).open(&hidden)?.set_len(*length)
            }
            Undo::RestoreRemoved(removed) => {
                self.letter_case.add(session_id);
                match fs::rename(removed, &path) {
                    // An earlier attempt renamed it, and only the sync failed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && path.exists() => Ok(()),
                    renamed => renamed,
                }
            }
        }
    }

    fn write_session(&mut self, session_id: &SessionId, plan: Plan) -> io::Result<()> {
        let path = self.path(session_id)?;
        if plan.only_appends() {
            self.append(session_id, &plan.added.print())?;
            return if plan.shows { self.show(session_id) } else { Ok(()) };
        }
        let remaining = plan.remaining(&path)?.extended(&plan.added);
        self.handles.remove(session_id);
        let written = match (remaining.is_empty(), path.exists()) {
            (true, false) => Ok(()),
            (true, true) => self.remove(session_id, &path),
            (false, _) => self.rewrite(session_id, &path, &remaining.print()),
        };
        // A fork that is removed was given up. An undo brings its file back, but nobody continues it.
        if remaining.is_empty() {
            self.hidden.remove(session_id);
        }
        written
    }

    /// Gives the file of a finished fork the name of a session, once all of it is durable.
    fn show(&mut self, session_id: &SessionId) -> io::Result<()> {
        let hidden = self.path(session_id)?;
        let handle = self.handle(session_id)?;
        handle.file.sync_data()?;
        handle.unsynced = false;
        let length = match self.undo.get(session_id) {
            Some(Undo::Truncate(length)) => *length,
            // The file was created in this batch.
            Some(_) | None => 0,
        };
        self.hidden.remove(session_id);
        self.undo.insert(session_id.clone(), Undo::Hide(length));
        self.names_changed = true;
        fs::rename(&hidden, self.path(session_id)?)
    }

    fn append(&mut self, session_id: &SessionId, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let handle = self.handle(session_id)?;
        handle.unsynced = true;
        let length = handle.file.seek(SeekFrom::End(0))?;
        self.undo.entry(session_id.clone()).or_insert(Undo::Truncate(length));
        let handle = self.handle(session_id)?;
        match std::mem::take(&mut handle.torn) {
            true => handle.file.write_all(&[b"\n", lines].concat()),
            false => handle.file.write_all(lines),
        }
    }

    /// The open file of a session.
    fn handle(&mut self, session_id: &SessionId) -> io::Result<&mut Handle> {
        if !self.handles.contains_key(session_id) {
            let path = self.path(session_id)?;
            self.open_handle(session_id, &path)?;
        }
        self.uses += 1;
        let handle = self.handles.get_mut(session_id).ok_or_else(|| io::Error::other("no handle"))?;
        handle.used = self.uses;
        Ok(handle)
    }

    fn open_handle(&mut self, session_id: &SessionId, path: &Path) -> io::Result<()> {
        if self.handles.len() >= HANDLES_MAX {
            self.close_one_handle()?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let mut file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let created = options.create_new(true).open(path)?;
                self.undo.insert(session_id.clone(), Undo::Remove);
                self.names_changed = true;
                self.letter_case.add(session_id);
                created
            }
            opened => opened?,
        };
        let torn = !ends_with_newline(&mut file)?;
        self.handles.insert(session_id.clone(), Handle { file, used: 0, unsynced: false, torn });
        Ok(())
    }

    fn close_one_handle(&mut self) -> io::Result<()> {
        let oldest = self.handles.iter().min_by_key(|(_, handle)| handle.used).map(|(id, _)| id.clone());
        if let Some(handle) = oldest.and_then(|id| self.handles.remove(&id))
            && handle.unsynced
        {
            handle.file.sync_data()?;
        }
        Ok(())
    }

    fn rewrite(&mut self, session_id: &SessionId, path: &Path, content: &[u8]) -> io::Result<()> {
        let undo = match fs::read(path) {
            Ok(old) => Undo::Rewrite(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Undo::Remove,
            Err(error) => return Err(error),
        };
        self.undo.insert(session_id.clone(), undo);
        self.letter_case.add(session_id);
        self.replace_file(path, content)
    }

    fn replace_file(&mut self, path: &Path, content: &[u8]) -> io::Result<()> {
        let tmp = self.dir.join(REWRITE_NAME);
        let mut file = File::create(&tmp)?;
        file.write_all(content)?;
        file.sync_all()?;
        drop(file);
        self.names_changed = true;
        fs::rename(&tmp, path)
    }

    fn remove(&mut self, session_id: &SessionId, path: &Path) -> io::Result<()> {
        self.removals += 1;
        let removed = self.dir.join(format!("{REMOVED_PREFIX}{}.tmp", self.removals));
        self.names_changed = true;
        fs::rename(path, &removed)?;
        self.undo.insert(session_id.clone(), Undo::RestoreRemoved(removed.clone()));
        self.removed.push(removed);
        self.letter_case.remove(session_id);
        Ok(())
    }

    fn path(&self, session_id: &SessionId) -> io::Result<PathBuf> {
        let name = match self.hidden.contains(session_id) {
            true => file_name::print_hidden(session_id),
            false => file_name::print(session_id),
        };
        Ok(self.dir.join(name.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?))
    }
}

/// Left over from a kill: a rewrite that was not completed, a fork, or a file that was removed. Older builds wrote the names of
/// removed files without `.tmp`.
fn is_leftover(file_name: &str) -> bool {
    let removal = file_name.strip_prefix(REMOVED_PREFIX).map(|rest| rest.strip_suffix(".tmp").unwrap_or(rest));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    file_name == REWRITE_NAME || file_name::is_hidden(file_name) || removal.is_some_and(is_number)
}

/// True for an empty file too.
fn ends_with_newline(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == [b'\n'])
}

fn fault_to_io(fault: Fault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault.0)
}
