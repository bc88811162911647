//! Owns: what one batch of changes does to each session's file.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::session_file::Content;
use crate::machine::change::{Change, SessionChange, WorkChange};
use crate::machine::ids::SessionId;

/// The changes of one batch to one session.
#[derive(Debug, Default)]
pub struct Plan {
    deletes_meta: bool,
    deletes_entries: bool,
    deletes_leaf: bool,
    pub added: Content,
    /// The session is a fork under way: its file does not count yet.
    pub begins_hidden: bool,
    /// The fork is a session now.
    pub shows: bool,
}

impl Plan {
    /// Groups changes by session. A delete discards earlier changes of its kind; later ones stay.
    pub fn by_session(changes: &[Change]) -> BTreeMap<SessionId, Plan> {
        let mut plans: BTreeMap<SessionId, Plan> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Session(session_id, change) => plans.entry(session_id.clone()).or_default().add(change),
                Change::Work(WorkChange::Detach { session_id, .. }) => {
                    plans.entry(session_id.clone()).or_default().add(&SessionChange::DeleteEntries);
                }
                Change::Work(WorkChange::PutFork(pending)) => {
                    let plan = plans.entry(pending.fork.clone()).or_default();
                    plan.begins_hidden |= pending.copied == 0;
                }
                Change::Work(WorkChange::EndFork { fork, shown, .. }) => {
                    let plan = plans.entry(fork.clone()).or_default();
                    plan.shows = *shown;
                    (plan.deletes_meta, plan.deletes_leaf) = (!shown, !shown);
                }
                // The format has no place for them: they live as long as the process.
                Change::Answer(_)
                | Change::Feed(_)
                | Change::Record(_)
                | Change::Clock(_)
                | Change::Work(WorkChange::Free { .. }) => {}
            }
        }
        plans
    }

    fn add(&mut self, change: &SessionChange) {
        match change {
            SessionChange::PutMeta(meta) => self.added.put_meta(meta.clone()),
            SessionChange::PutEntry(entry) => self.added.put_entry(entry.clone()),
            SessionChange::SetLeaf(entry_id) => self.added.set_leaf(entry_id.clone()),
            SessionChange::DeleteMeta => {
                self.deletes_meta = true;
                self.added.clear_meta();
            }
            SessionChange::DeleteEntries => {
                self.deletes_entries = true;
                self.added.clear_entries();
            }
            SessionChange::DeleteLeaf => {
                self.deletes_leaf = true;
                self.added.clear_leaf();
            }
        }
    }

    /// True if new lines at the end of the file are enough.
    pub fn only_appends(&self) -> bool {
        !self.deletes_meta && !self.deletes_entries && !self.deletes_leaf
    }

    /// What the deletes leave of the file.
    pub fn remaining(&self, path: &Path) -> io::Result<Content> {
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
