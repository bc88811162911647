//! Owns: what a node without a cluster remembers: its name, its instance, and the founding that it promised to take part
//! in (file `formation`).
//! Never: when it changes (`decide.rs`).

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::identity::{IdentityError, checksum};
use crate::storage::disk::{Disk, read_whole, write_whole};

pub const FILE: &str = "formation";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Who {
    pub name: String,
    /// The random id of its data directory.
    pub instance: String,
    /// Where peers reach it: host:port.
    pub address: String,
}

/// The first members of a cluster to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founding {
    /// Becomes the id of the cluster.
    pub id: String,
    /// Sorted by name. The first one is node 1.
    pub members: Vec<Who>,
}

impl Founding {
    pub fn includes(&self, instance: &str) -> bool {
        self.members.iter().any(|member| member.instance == instance)
    }

    /// The id of a member.
    pub fn node(&self, instance: &str) -> Option<u64> {
        self.members.iter().position(|member| member.instance == instance).map(|at| at as u64 + 1)
    }

    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }
}

/// The word of a node to take part in one founding and in no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    pub founding: Founding,
    /// It cannot be completed: the node waits until all members know that, and is free again.
    pub frozen: bool,
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub name: String,
    pub instance: String,
    pub promised: Option<Promise>,
    /// The foundings that were given up. A promise to one of them is never given again.
    pub voided: Vec<String>,
    /// All members of the promised founding have promised it: the cluster exists.
    pub decided: bool,
}

impl Record {
    /// The first members of the cluster that this node founded together with others.
    pub fn founding(&self) -> Option<&Founding> {
        self.promised.as_ref().filter(|_| self.decided).map(|promise| &promise.founding)
    }
}

#[derive(Serialize, Deserialize)]
struct Filed {
    record: Record,
    checksum: String,
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// The record of a directory; `None` if it has none.
pub fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Record>, IdentityError> {
    let Some(content) = read_whole(disk, &path(dir))? else { return Ok(None) };
    let unreadable = |error: serde_json::Error| IdentityError::UnreadableFormation(error.to_string());
    let Filed { record, checksum: written } = serde_json::from_slice(&content).map_err(unreadable)?;
    if written != checksum(&record)? {
        return Err(IdentityError::UnreadableFormation("its checksum does not match".to_owned()));
    }
    Ok(Some(record))
}

pub fn write(disk: &dyn Disk, dir: &Path, record: &Record) -> Result<(), IdentityError> {
    let filed = Filed { record: record.clone(), checksum: checksum(record)? };
    let content = serde_json::to_vec_pretty(&filed).map_err(io::Error::from)?;
    Ok(write_whole(disk, &path(dir), &content)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::RealDisk;

    #[test]
    fn a_record_reads_back_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&RealDisk, dir.path()).unwrap(), None);
        let record = Record { name: "a".to_owned(), instance: "i".to_owned(), ..Record::default() };
        write(&RealDisk, dir.path(), &record).unwrap();
        assert_eq!(read(&RealDisk, dir.path()).unwrap(), Some(record));
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        std::fs::write(dir.path().join(FILE), text.replace("\"a\"", "\"b\"")).unwrap();
        assert!(read(&RealDisk, dir.path()).unwrap_err().to_string().contains("checksum"));
    }
}
