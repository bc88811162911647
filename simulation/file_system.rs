//! Owns: the file system of a simulated host: its files in memory, and what is left of them after a power loss.
//! Never: faults on demand (`disk.rs`), or what the bytes mean.
//!
//! As on Linux, a write is durable after a sync of its file, and a name after a sync of its directory. A power loss tears
//! each unsynced write: of its blocks the first few survive, or none, or all.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::determinism::Chance;

/// What differs between the file systems of two runs.
#[derive(Debug, Clone, Copy)]
pub struct Writing {
    /// A power loss tears writes between blocks of this size.
    pub block_bytes: usize,
    /// The system writes a file back after one write in so many. `None`: only after a sync.
    pub back_one_in: Option<u64>,
}

/// What a name stands for.
#[derive(Clone)]
enum Node {
    Directory,
    File(Arc<Mutex<Content>>),
}

type Names = BTreeMap<PathBuf, Node>;

pub struct FileSystem {
    state: Mutex<State>,
    writing: Writing,
}

struct State {
    names: Names,
    /// The names that survive a power loss.
    durable: Names,
    chance: Chance,
}

/// The content of a file. It outlives its name while the file is open.
struct Content {
    /// The name that the file got last.
    path: PathBuf,
    bytes: Vec<u8>,
    /// What survives a power loss for certain.
    durable: Vec<u8>,
    /// The changes since, in order.
    unsynced: Vec<Change>,
}

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    SetLen(usize),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{}: no such file or directory", path.display()))
}

fn put(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[at..end].copy_from_slice(bytes);
}

impl Content {
    fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            match change {
                Change::Write { at, bytes } => put(&mut self.durable, at, &bytes),
                Change::SetLen(len) => self.durable.resize(len, 0),
            }
        }
    }

    /// Blocks of unsynced writes survive; an unsynced length does not.
    fn lose_power(&mut self, block_bytes: usize, chance: &mut Chance) {
        for change in self.unsynced.drain(..) {
            if let Change::Write { at, bytes } = change {
                let survive = chance.below(bytes.len().div_ceil(block_bytes) + 1) * block_bytes;
                put(&mut self.durable, at, &bytes[..survive.min(bytes.len())]);
            }
        }
        self.bytes.clone_from(&self.durable);
    }
}

impl FileSystem {
    pub fn new(writing: Writing, chance: Chance) -> FileSystem {
        let names = Names::from([(PathBuf::from("/"), Node::Directory)]);
        FileSystem { state: Mutex::new(State { durable: names.clone(), names, chance }), writing }
    }

    pub fn exists(&self, path: &Path) -> bool {
        lock(&self.state).names.contains_key(path)
    }

    pub fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.parent_of(path)?;
        state.names.entry(path.to_owned()).or_insert(Node::Directory);
        Ok(())
    }

    /// The names in a directory, in random order.
    pub fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut state = lock(&self.state);
        state.directory(dir)?;
        let within = within(&state.names, dir).filter_map(|(path, _)| path.file_name()?.to_str().map(str::to_owned));
        let mut names: Vec<String> = within.collect();
        for last in (1..names.len()).rev() {
            names.swap(last, state.chance.below(last + 1));
        }
        Ok(names)
    }

    pub fn open(&self, path: &Path) -> io::Result<File> {
        match lock(&self.state).names.get(path) {
            Some(Node::File(content)) => Ok(File { content: content.clone() }),
            Some(Node::Directory) | None => Err(not_found(path)),
        }
    }

    /// Creates a file, or empties the one that is there.
    pub fn create(&self, path: &Path) -> io::Result<File> {
        if let Ok(file) = self.open(path) {
            file.set_len(0);
            return Ok(file);
        }
        let mut state = lock(&self.state);
        state.parent_of(path)?;
        let content = Content { path: path.to_owned(), bytes: Vec::new(), durable: Vec::new(), unsynced: Vec::new() };
        let content = Arc::new(Mutex::new(content));
        state.names.insert(path.to_owned(), Node::File(content.clone()));
        Ok(File { content })
    }

    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.open(from)?;
        let mut state = lock(&self.state);
        state.parent_of(to)?;
        lock(&file.content).path = to.to_owned();
        state.names.remove(from);
        state.names.insert(to.to_owned(), Node::File(file.content));
        Ok(())
    }

    pub fn remove(&self, path: &Path) -> io::Result<()> {
        self.open(path)?;
        lock(&self.state).names.remove(path);
        Ok(())
    }

    /// The names in this directory become durable.
    pub fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.directory(dir)?;
        let named: Names = within(&state.names, dir).map(|(path, node)| (path.clone(), node.clone())).collect();
        state.durable.retain(|path, _| path.parent() != Some(dir));
        state.durable.extend(named);
        Ok(())
    }

    /// After a write the system may write the file back, without a sync.
    pub fn write_back(&self, file: &File) {
        if self.writing.back_one_in.is_some_and(|count| lock(&self.state).chance.one_in(count)) {
            file.sync();
        }
    }

    /// The host loses power, or its process and all that the system has not written back.
    pub fn lose_power(&self) {
        let mut state = lock(&self.state);
        let State { names, durable, chance } = &mut *state;
        names.clear();
        // A directory comes before what is in it, and is lost with it.
        for (path, node) in durable.iter() {
            if path.parent().is_none_or(|parent| names.contains_key(parent)) {
                if let Node::File(content) = node {
                    lock(content).lose_power(self.writing.block_bytes, chance);
                }
                names.insert(path.clone(), node.clone());
            }
        }
        *durable = names.clone();
    }
}

fn within<'a>(names: &'a Names, dir: &'a Path) -> impl Iterator<Item = (&'a PathBuf, &'a Node)> {
    names.iter().filter(move |(path, _)| path.parent() == Some(dir))
}

impl State {
    fn directory(&self, path: &Path) -> io::Result<()> {
        match self.names.get(path) {
            Some(Node::Directory) => Ok(()),
            Some(Node::File(_)) | None => Err(not_found(path)),
        }
    }

    fn parent_of(&self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |parent| self.directory(parent))
    }
}

/// An open file.
pub struct File {
    content: Arc<Mutex<Content>>,
}

impl File {
    /// The current name.
    pub fn path(&self) -> PathBuf {
        lock(&self.content).path.clone()
    }

    pub fn len(&self) -> usize {
        lock(&self.content).bytes.len()
    }

    /// How many bytes were read.
    pub fn read_at(&self, at: usize, into: &mut [u8]) -> usize {
        let content = lock(&self.content);
        let rest = content.bytes.get(at..).unwrap_or_default();
        let read = rest.len().min(into.len());
        into[..read].copy_from_slice(&rest[..read]);
        read
    }

    pub fn write_at(&self, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut content = lock(&self.content);
            put(&mut content.bytes, at, bytes);
            content.unsynced.push(Change::Write { at, bytes: bytes.to_vec() });
        }
    }

    pub fn set_len(&self, len: usize) {
        let mut content = lock(&self.content);
        content.bytes.resize(len, 0);
        content.unsynced.push(Change::SetLen(len));
    }

    pub fn sync(&self) {
        lock(&self.content).sync();
    }
}
