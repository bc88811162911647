//! Owns: the content of one session's file: its lines, and the records that result if the last line of a kind wins.
//! Never: rejects a file because of one bad line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::machine::change::Change;
use crate::machine::entry::Entry;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::path;
use crate::machine::refusal::Fault;
use crate::machine::session::SessionMeta;
use crate::storage::state::kv::{Changed, Layer, Nothing};
use crate::storage::state::{Encoded, Records, write};

/// One line, as it is written.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Line<'a> {
    Meta { meta: &'a SessionMeta },
    Entry { entry: &'a Entry },
    Leaf { entry_id: &'a EntryId },
}

/// One line, as it is read. Unknown fields of other builds are ignored. Not a tagged enum: serde would parse a line as
/// a tree before it looks at the tag.
#[derive(Deserialize)]
struct ReadLine<'a> {
    r#type: LineType,
    meta: Option<SessionMeta>,
    /// As text: a message keeps the spelling of the client that wrote it.
    #[serde(borrow)]
    entry: Option<&'a RawValue>,
    entry_id: Option<EntryId>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum LineType {
    Meta,
    Entry,
    Leaf,
}

/// The records in a file; also the records that a batch adds to a file.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Content {
    entries: Vec<Entry>,
    rank: BTreeMap<EntryId, usize>,
    /// Oldest first. The last one whose entry exists is used.
    leaves: Vec<EntryId>,
    meta: Option<SessionMeta>,
}

impl Content {
    /// Reads a file. A line that does not parse is skipped with a warning.
    pub fn read(path: &Path) -> io::Result<Content> {
        Content::read_with(path, |line, _, error| {
            tracing::warn!(file = %path.display(), line, %error, "skipped a line that cannot be read");
        })
    }

    /// Reads a file. Calls `skipped` for a line that does not parse, with its number and whether its newline is missing.
    pub fn read_with(path: &Path, mut skipped: impl FnMut(u64, bool, &serde_json::Error)) -> io::Result<Content> {
        let mut file = BufReader::new(File::open(path)?);
        let mut content = Content::default();
        let mut line = Vec::new();
        for number in 1u64.. {
            line.clear();
            if file.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<ReadLine<'_>>(&line).and_then(|line| content.add(line)) {
                Ok(()) => {}
                Err(error) => skipped(number, !line.ends_with(b"\n"), &error),
            }
        }
        Ok(content)
    }

    fn add(&mut self, line: ReadLine<'_>) -> Result<(), serde_json::Error> {
        let missing = serde::de::Error::missing_field;
        match line.r#type {
            LineType::Meta => self.meta = Some(line.meta.ok_or_else(|| missing("meta"))?),
            LineType::Entry => self.put_entry(Entry::parse(line.entry.ok_or_else(|| missing("entry"))?.get())?),
            LineType::Leaf => self.set_leaf(line.entry_id.ok_or_else(|| missing("entry_id"))?),
        }
        Ok(())
    }

    pub fn put_meta(&mut self, meta: SessionMeta) {
        self.meta = Some(meta);
    }

    pub fn put_entry(&mut self, entry: Entry) {
        match self.rank.get(&entry.id) {
            Some(rank) => self.entries[*rank] = entry,
            None => {
                self.rank.insert(entry.id.clone(), self.entries.len());
                self.entries.push(entry);
            }
        }
    }

    pub fn set_leaf(&mut self, entry_id: EntryId) {
        if self.leaves.last() != Some(&entry_id) {
            self.leaves.push(entry_id);
        }
    }

    pub fn clear_meta(&mut self) {
        self.meta = None;
    }

    pub fn clear_entries(&mut self) {
        self.entries.clear();
        self.rank.clear();
    }

    pub fn clear_leaf(&mut self) {
        self.leaves.clear();
    }

    /// How many entries it holds.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.leaves.is_empty() && self.meta.is_none()
    }

    /// This content, then the changes of `later`.
    pub fn extended(mut self, later: &Content) -> Content {
        later.entries.iter().cloned().for_each(|entry| self.put_entry(entry));
        later.leaves.iter().cloned().for_each(|leaf| self.set_leaf(leaf));
        self.meta = later.meta.clone().or(self.meta);
        self
    }

    /// The lines in the order entries, leaf, meta: a reader sees an entry before a leaf or a count refers to it.
    pub fn print(&self) -> Vec<u8> {
        let entries = self.entries.iter().map(|entry| Line::Entry { entry });
        let leaf = self.leaves.last().map(|entry_id| Line::Leaf { entry_id });
        let meta = self.meta.as_ref().map(|meta| Line::Meta { meta });
        let mut bytes = Vec::new();
        for line in entries.chain(leaf).chain(meta) {
            bytes.extend_from_slice(Json::print(&line).text().as_bytes());
            bytes.push(b'\n');
        }
        bytes
    }

    /// The keys of this session. Places and counts are computed and not taken from the file.
    pub fn into_state(mut self, session_id: &SessionId) -> Result<Changed, Fault> {
        let mut state = Changed::new();
        for entry in self.parents_first() {
            let layer = Layer { over: &state, base: &Nothing };
            let place = path::place_of(&Records::new(&layer), session_id, &entry)?;
            let put = write(&Nothing, &Encoded::new(&[Change::put_entry(session_id, Entry { place, ..entry })]))?;
            state.extend(put);
        }
        let mut rest = Vec::new();
        if let Some(leaf) = self.surviving_leaf() {
            rest.push(Change::set_leaf(session_id, leaf));
        }
        if let Some(meta) = self.meta.take() {
            let message_count = self.entries.iter().filter(|entry| entry.is_message()).count() as u64;
            rest.push(Change::put_meta(SessionMeta { session_id: session_id.clone(), message_count, ..meta }));
        }
        state.extend(write(&Nothing, &Encoded::new(&rest))?);
        Ok(state)
    }

    pub fn meta(&self) -> Option<&SessionMeta> {
        self.meta.as_ref()
    }

    /// The last leaf whose entry could be read; if there is none, the last leaf.
    pub fn surviving_leaf(&self) -> Option<EntryId> {
        let alive = self.leaves.iter().rev().find(|leaf| self.rank.contains_key(leaf));
        alive.or(self.leaves.last()).cloned()
    }

    /// The entries sorted so that each follows its parent. Entries that are not connected to a root come last.
    pub fn parents_first(&self) -> Vec<Entry> {
        let mut children: BTreeMap<Option<&EntryId>, Vec<usize>> = BTreeMap::new();
        for (rank, entry) in self.entries.iter().enumerate() {
            children.entry(entry.parent_id.as_ref()).or_default().push(rank);
        }
        let mut order = children.remove(&None).unwrap_or_default();
        let mut at = 0;
        while let Some(rank) = order.get(at) {
            order.extend(children.remove(&Some(&self.entries[*rank].id)).unwrap_or_default());
            at += 1;
        }
        order.extend(children.into_values().flatten());
        order.into_iter().map(|rank| self.entries[rank].clone()).collect()
    }
}
