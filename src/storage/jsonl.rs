//! Owns: `JsonlDir`, the files of the fs adapter: one `<encoded id>.jsonl` per session, each line a record, the last
//! one of a kind wins. Files of the upstream project open unchanged, and it opens ours.
//! Never: half a batch. A `write` that fails, and one whose `sync` fails, is taken back from every file it touched.

mod name;
mod session_file;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::files::{self, DirLock};
use super::kv::Changed;
use super::{keys, records};
use crate::machine::ids::SessionId;
use crate::machine::refusal::Fault;
use crate::machine::view::Change;
use session_file::Content;

/// Far below the usual limit of 1024 open files of a process.
const HANDLES_MAX: usize = 128;

const REWRITE_NAME: &str = "rewrite.tmp";
const REMOVED_PREFIX: &str = "removed-";

pub struct JsonlDir {
    dir: PathBuf,
    handles: BTreeMap<SessionId, Handle>,
    /// Counts uses of handles: the one used longest ago is closed first.
    uses: u64,
    /// How to take back what was written since the last sync.
    undo: BTreeMap<SessionId, Undo>,
    /// What could not be taken back yet. Nothing is written until it is.
    owed: BTreeMap<SessionId, Undo>,
    /// A name appeared or went since the last sync.
    names_changed: bool,
    /// Removed files that still have a name of their own, to be able to come back.
    removed: Vec<PathBuf>,
    removals: u64,
    spellings: Spellings,
    _lock: DirLock,
}

struct Handle {
    file: File,
    used: u64,
    unsynced: bool,
    /// The last line has no end: a new one must not be swallowed by it.
    torn: bool,
}

/// One session's file as it was.
#[derive(Debug)]
enum Undo {
    Truncate(u64),
    Remove,
    Restore(Vec<u8>),
    BringBack(PathBuf),
}

/// What one write does to one session.
#[derive(Debug, Default)]
struct Plan {
    deletes_meta: bool,
    deletes_entries: bool,
    deletes_leaf: bool,
    added: Content,
}

impl JsonlDir {
    /// Opens a directory and reads the state its files add up to.
    pub fn open(dir: &Path) -> io::Result<(JsonlDir, Changed)> {
        fs::create_dir_all(dir)?;
        let lock = DirLock::acquire(dir)?;
        let mut opened = JsonlDir {
            dir: dir.to_owned(),
            handles: BTreeMap::new(),
            uses: 0,
            undo: BTreeMap::new(),
            owed: BTreeMap::new(),
            names_changed: false,
            removed: Vec::new(),
            removals: 0,
            spellings: Spellings::probe(dir),
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
            if file_name == REWRITE_NAME || file_name.starts_with(REMOVED_PREFIX) {
                // Left over from a kill: the one was never put in place, the other was removed.
                files::remove(&path)?;
                continue;
            }
            let Some(session_id) = name::parse(file_name) else {
                if file_name.ends_with(".jsonl") {
                    tracing::warn!(file = %path.display(), "skipped a file whose name is not an encoded session id");
                }
                continue;
            };
            let content = Content::read(&path)?;
            if let Some(meta) = content.meta() {
                clock_ms = clock_ms.max(meta.updated_at);
                if meta.session_id != session_id {
                    tracing::warn!(file = %path.display(), inside = %meta.session_id, "the file's name decides its session id");
                }
            }
            state.extend(content.into_state(&session_id).map_err(fault_to_io)?);
            self.spellings.claim(&session_id);
        }
        // The clock alone: files keep no events, so this feed does not begin with the history.
        state.insert(keys::clock(), Some(records::print_clock(clock_ms)));
        Ok(state)
    }

    /// Why a session can have no file here, if so.
    pub fn refuses(&self, session_id: &SessionId) -> Option<String> {
        name::print(session_id).err().or_else(|| self.spellings.conflict(session_id))
    }

    /// Writes changes to the files of their sessions, one write per file. They last once `sync` said so.
    pub fn write(&mut self, changes: &[Change]) -> io::Result<()> {
        self.settle()?;
        for (session_id, plan) in plan(changes) {
            if let Err(error) = self.carry_out(&session_id, plan) {
                self.take_back();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes what was written durable, or takes it back.
    pub fn sync(&mut self) -> io::Result<()> {
        if let Err(error) = self.sync_touched() {
            self.take_back();
            return Err(error);
        }
        self.undo.clear();
        for path in self.removed.drain(..) {
            if let Err(error) = files::remove(&path) {
                tracing::warn!(file = %path.display(), %error, "a removed session's file is still there; the next start removes it");
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

    /// Pays what earlier failures left, so that a write never builds on half of another one.
    fn settle(&mut self) -> io::Result<()> {
        if !self.undo.is_empty() {
            self.sync()?;
        }
        if !self.owed.is_empty() {
            self.undo = std::mem::take(&mut self.owed);
            self.take_back();
        }
        match self.owed.first_key_value() {
            None => Ok(()),
            Some((session_id, _)) => {
                let why = format!("an earlier failed write to session {:?} cannot be taken back", session_id.as_str());
                Err(io::Error::other(why))
            }
        }
    }

    fn take_back(&mut self) {
        for (session_id, undo) in std::mem::take(&mut self.undo) {
            // The handle may stand past the end of the restored file.
            self.handles.remove(&session_id);
            if let Err(error) = self.undo_one(&session_id, &undo) {
                tracing::error!(%session_id, %error, "a failed write could not be taken back; nothing is written until it is");
                self.owed.insert(session_id, undo);
            }
        }
        self.removed.clear();
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
                self.spellings.release(session_id);
                files::remove(&path)
            }
            Undo::Restore(bytes) => self.put_in_place(&path, bytes),
            Undo::BringBack(removed) => {
                self.spellings.claim(session_id);
                match fs::rename(removed, &path) {
                    // Tried before, and only the sync failed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && path.exists() => Ok(()),
                    renamed => renamed,
                }
            }
        }
    }

    fn carry_out(&mut self, session_id: &SessionId, plan: Plan) -> io::Result<()> {
        let path = self.path(session_id)?;
        if !plan.deletes_meta && !plan.deletes_entries && !plan.deletes_leaf {
            return self.append(session_id, &path, &plan.added.print());
        }
        let remaining = plan.remaining(&path)?.extended(&plan.added);
        self.handles.remove(session_id);
        match (remaining.is_empty(), path.exists()) {
            (true, false) => Ok(()),
            (true, true) => self.remove(session_id, &path),
            (false, _) => self.rewrite(session_id, &path, &remaining.print()),
        }
    }

    fn append(&mut self, session_id: &SessionId, path: &Path, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if !self.handles.contains_key(session_id) {
            self.open_handle(session_id, path)?;
        }
        self.uses += 1;
        let Some(handle) = self.handles.get_mut(session_id) else { return Err(io::Error::other("no handle")) };
        handle.used = self.uses;
        handle.unsynced = true;
        let length = handle.file.seek(SeekFrom::End(0))?;
        self.undo.entry(session_id.clone()).or_insert(Undo::Truncate(length));
        match std::mem::take(&mut handle.torn) {
            true => handle.file.write_all(&[b"\n", lines].concat()),
            false => handle.file.write_all(lines),
        }
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
                self.spellings.claim(session_id);
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
            Ok(old) => Undo::Restore(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Undo::Remove,
            Err(error) => return Err(error),
        };
        self.undo.insert(session_id.clone(), undo);
        self.spellings.claim(session_id);
        self.put_in_place(path, content)
    }

    fn put_in_place(&mut self, path: &Path, content: &[u8]) -> io::Result<()> {
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
        let removed = self.dir.join(format!("{REMOVED_PREFIX}{}", self.removals));
        self.names_changed = true;
        fs::rename(path, &removed)?;
        self.undo.insert(session_id.clone(), Undo::BringBack(removed.clone()));
        self.removed.push(removed);
        self.spellings.release(session_id);
        Ok(())
    }

    fn path(&self, session_id: &SessionId) -> io::Result<PathBuf> {
        let name = name::print(session_id).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(self.dir.join(name))
    }
}

impl Plan {
    /// What the deletes leave of the file.
    fn remaining(&self, path: &Path) -> io::Result<Content> {
        if self.deletes_meta && self.deletes_entries && self.deletes_leaf {
            return Ok(Content::default());
        }
        let mut content = match Content::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
            read => read?,
        };
        if self.deletes_meta {
            content.clear_meta();
        }
        if self.deletes_entries {
            content.clear_entries();
        }
        if self.deletes_leaf {
            content.clear_leaf();
        }
        Ok(content)
    }
}

/// The changes by session. A delete forgets what came before it, what comes after it stays.
fn plan(changes: &[Change]) -> BTreeMap<SessionId, Plan> {
    let mut plans: BTreeMap<SessionId, Plan> = BTreeMap::new();
    for change in changes {
        match change {
            Change::PutMeta(meta) => of(&mut plans, &meta.session_id).added.put_meta(meta.clone()),
            Change::PutEntry(session_id, entry) => of(&mut plans, session_id).added.put_entry(entry.clone()),
            Change::SetLeaf(session_id, entry_id) => of(&mut plans, session_id).added.set_leaf(entry_id.clone()),
            Change::DeleteMeta(session_id) => {
                let plan = of(&mut plans, session_id);
                plan.deletes_meta = true;
                plan.added.clear_meta();
            }
            Change::DeleteEntries(session_id) => {
                let plan = of(&mut plans, session_id);
                plan.deletes_entries = true;
                plan.added.clear_entries();
            }
            Change::DeleteLeaf(session_id) => {
                let plan = of(&mut plans, session_id);
                plan.deletes_leaf = true;
                plan.added.clear_leaf();
            }
            // Event sequences and the clock live as long as the process; files of this format have no place for them.
            Change::SetSeq(..)
            | Change::DeleteSeq(_)
            | Change::SetClock(_)
            | Change::Remember(..)
            | Change::Forget(_)
            | Change::Record { .. }
            | Change::TrimFeed { .. }
            | Change::SetCursor(..) => {}
        }
    }
    plans
}

fn of<'a>(plans: &'a mut BTreeMap<SessionId, Plan>, session_id: &SessionId) -> &'a mut Plan {
    plans.entry(session_id.clone()).or_default()
}

/// An empty file has no line that could be torn.
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

/// Where the file system does not tell `A` from `a`, two sessions must not meet in one file.
struct Spellings {
    /// `None` where the file system tells them apart.
    taken: Option<BTreeMap<String, SessionId>>,
}

impl Spellings {
    /// `LOCK` is there already; does `lock` answer as well?
    fn probe(dir: &Path) -> Spellings {
        Spellings { taken: dir.join("lock").exists().then(BTreeMap::new) }
    }

    fn claim(&mut self, session_id: &SessionId) {
        if let Some(taken) = &mut self.taken {
            taken.insert(session_id.as_str().to_ascii_lowercase(), session_id.clone());
        }
    }

    fn release(&mut self, session_id: &SessionId) {
        if let Some(taken) = &mut self.taken {
            taken.remove(&session_id.as_str().to_ascii_lowercase());
        }
    }

    fn conflict(&self, session_id: &SessionId) -> Option<String> {
        let other = self.taken.as_ref()?.get(&session_id.as_str().to_ascii_lowercase())?;
        (other != session_id).then(|| {
            format!("session_id differs from {:?} only in case, which this file system ignores", other.as_str())
        })
    }
}

#[cfg(test)]
mod tests;
