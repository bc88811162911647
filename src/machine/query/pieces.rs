//! The raw lists of the store protocol have no pages. They are read piece by piece, and a list that is too long for one
//! answer is refused before it is read. A store releases its lock between two pieces, so every record is as it was at some
//! moment of the call.

use std::collections::BTreeSet;

use super::{Found, Query, sorted};
use crate::machine::entry::Entry;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::session::SessionMeta;
use crate::machine::view::{ListOrder, ListPoint};

/// Records of one piece: a few milliseconds.
pub const PIECE_RECORDS: usize = 512;
/// Bodies of one piece.
pub const PIECE_BYTES: usize = 1 << 20;

/// The longest answer. A frame has 64 MiB.
const ANSWER_BYTES_MAX: usize = 60 << 20;
/// A list that exceeds this is only counted at first: one that is too long is refused with little memory.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// What a record takes in an answer beside its bodies: names, ids, times.
const RECORD_BYTES: usize = 128;

/// A list as it is put together.
pub struct Pieces {
    list: List,
    bytes: usize,
    done: bool,
    pass: Pass,
}

/// A short list is read once. A longer one is counted to its end, and then read again from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Short,
    Counting,
    Again,
}

enum List {
    Entries { session_id: SessionId, entries: Vec<Entry>, read: BTreeSet<EntryId>, parents: Vec<EntryId> },
    Metas(Vec<SessionMeta>),
}

impl Pieces {
    /// The list that a query asks for; `None` for queries that one piece answers.
    pub fn of(query: &Query) -> Option<Pieces> {
        match query {
            Query::Entries(session_id) => Some(Pieces::entries(session_id)),
            Query::Metas => Some(Pieces::metas()),
            _one => None,
        }
    }

    pub(super) fn entries(session_id: &SessionId) -> Pieces {
        let (session_id, read) = (session_id.clone(), BTreeSet::new());
        let list = List::Entries { session_id, entries: Vec::new(), read, parents: Vec::new() };
        Pieces { list, bytes: 0, done: false, pass: Pass::Short }
    }

    pub(super) fn metas() -> Pieces {
        Pieces { list: List::Metas(Vec::new()), bytes: 0, done: false, pass: Pass::Short }
    }

    /// The next piece to ask for.
    pub fn next_query(&mut self) -> Option<Query> {
        match &mut self.list {
            List::Entries { session_id, entries, .. } if !self.done => {
                Some(Query::EntriesAfter(session_id.clone(), entries.last().map(|last| last.id.clone())))
            }
            // Entries that came while the list was read may stand below others that came too late for it.
            List::Entries { session_id, parents, .. } => Some(Query::Entry(session_id.clone(), parents.pop()?)),
            List::Metas(metas) if !self.done => {
                Some(Query::MetasFrom(metas.last().map(|last| ListOrder::CreatedAsc.point(last))))
            }
            List::Metas(_) => None,
        }
    }

    /// Takes the answer to the last piece.
    pub fn add(&mut self, found: Found) -> Result<(), Refusal> {
        match (&mut self.list, found) {
            (List::Entries { entries, read, parents, .. }, Found::Entries(piece)) => {
                self.done = piece.is_empty();
                self.bytes += piece.iter().map(entry_bytes).sum::<usize>();
                read.extend(piece.iter().map(|entry| entry.id.clone()));
                entries.extend(piece);
                if self.done {
                    let unread = |entry: &Entry| entry.parent_id.clone().filter(|parent| !read.contains(parent));
                    *parents = entries.iter().filter_map(unread).collect();
                }
            }
            (List::Entries { entries, read, parents, .. }, Found::Entry(found)) => {
                if let Some(entry) = found.filter(|entry| read.insert(entry.id.clone())) {
                    self.bytes += entry_bytes(&entry);
                    parents.extend(entry.parent_id.clone().filter(|parent| !read.contains(parent)));
                    entries.push(entry);
                }
            }
            (List::Metas(metas), Found::Metas(mut piece)) => {
                // A piece begins with the last session of the one before, if that is still there.
                if let (Some(last), Some(first)) = (metas.last(), piece.first())
                    && point(last) == point(first)
                {
                    piece.remove(0);
                }
                self.done = piece.is_empty();
                self.bytes += piece.iter().map(meta_bytes).sum::<usize>();
                metas.extend(piece);
            }
            (List::Entries { .. } | List::Metas(_), _other) => self.done = true,
        }
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(self.too_long());
        }
        match self.pass {
            Pass::Short if self.bytes > KEPT_BYTES_MAX && !self.done => self.pass = Pass::Counting,
            Pass::Short | Pass::Counting | Pass::Again => {}
        }
        if self.pass == Pass::Counting {
            self.forget_all_but_last();
        }
        Ok(())
    }

    /// While records are counted, only the last one is kept: the next piece begins after it. At the end of the list the
    /// second pass begins.
    fn forget_all_but_last(&mut self) {
        let kept = usize::from(!self.done);
        match &mut self.list {
            List::Entries { entries, read, parents, .. } => {
                drop(entries.drain(..entries.len().saturating_sub(kept)));
                read.clear();
                parents.clear();
            }
            List::Metas(metas) => drop(metas.drain(..metas.len().saturating_sub(kept))),
        }
        if self.done {
            (self.pass, self.done, self.bytes) = (Pass::Again, false, 0);
        }
    }

    pub fn finish(&mut self) -> Found {
        match &mut self.list {
            List::Entries { entries, .. } => Found::Entries(sorted(std::mem::take(entries))),
            List::Metas(metas) => Found::Metas(std::mem::take(metas)),
        }
    }

    fn too_long(&self) -> Refusal {
        let most = ANSWER_BYTES_MAX >> 20;
        Refusal::RequestInvalid(match &self.list {
            List::Entries { session_id, .. } => format!(
                "session_id: the entries of {:?} have more than {most} MiB, too much for one answer; read them in \
                 pages with session::messages or session::export",
                session_id.as_str()
            ),
            List::Metas(_) => format!(
                "the records of all sessions have more than {most} MiB, too much for one answer; read them in pages \
                 with session::list"
            ),
        })
    }
}

fn point(meta: &SessionMeta) -> ListPoint {
    ListOrder::CreatedAsc.point(meta)
}

fn entry_bytes(entry: &Entry) -> usize {
    RECORD_BYTES + entry.body.bytes() + entry.origin.as_ref().map_or(0, |origin| origin.text().len())
}

fn meta_bytes(meta: &SessionMeta) -> usize {
    let metadata: usize = meta.metadata.iter().flatten().map(|(key, value)| key.len() + value.to_string().len()).sum();
    RECORD_BYTES + meta.title.len() + meta.description.len() + metadata
}
