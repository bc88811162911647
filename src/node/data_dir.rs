//! Owns: the check whether a directory is, or may become, the data directory of an adapter. A wrong path or adapter must
//! not put new files among files of another kind.
//! Never: create anything.

use std::fmt;
use std::io;
use std::path::Path;

use crate::config::AdapterConfig;
use crate::storage::disk::Disk;

/// The first file that the raft adapter writes.
const IDENTITY: &str = "identity";

/// Files that a start may leave behind if it is killed before `identity` is written.
const LEFT_BY_KILLED_START: [&str; 4] = ["LOCK", "identity.new", "formation", "formation.new"];

/// What a node that was removed from its cluster, and joins again, has set aside.
const SET_ASIDE: &str = "removed-node-";

/// Why a directory cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataDirError {
    /// The file system refused; the text is its message.
    Disk(String),
    HoldsRaftData,
    HoldsFsData {
        file: String,
    },
    HoldsOtherFiles {
        file: String,
    },
}

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataDirError::Disk(why) => f.write_str(why),
            DataDirError::HoldsRaftData => {
                f.write_str("it holds the data of the raft adapter: use --adapter raft, or another directory")
            }
            DataDirError::HoldsFsData { file } => {
                write!(f, "it holds {file}, data of the fs adapter: use --adapter fs, or another directory")
            }
            DataDirError::HoldsOtherFiles { file } => {
                write!(f, "it holds {file} and no data of ours: choose an empty or a new directory")
            }
        }
    }
}

impl std::error::Error for DataDirError {}

/// Refuses a directory that holds anything but the adapter's own data.
pub fn check(disk: &dyn Disk, adapter: &AdapterConfig) -> Result<(), DataDirError> {
    let Some(data_dir) = adapter.data_dir() else { return Ok(()) };
    let names = names_in(disk, data_dir).map_err(|error| DataDirError::Disk(error.to_string()))?;
    let is_raft = names.iter().any(|name| name == IDENTITY);
    match adapter {
        AdapterConfig::Fs(_) if is_raft => Err(DataDirError::HoldsRaftData),
        AdapterConfig::Raft(_) if !is_raft => {
            match names
                .iter()
                .find(|name| !LEFT_BY_KILLED_START.contains(&name.as_str()) && !name.starts_with(SET_ASIDE))
            {
                Some(name) if name.ends_with(".jsonl") => Err(DataDirError::HoldsFsData { file: name.clone() }),
                Some(name) => Err(DataDirError::HoldsOtherFiles { file: name.clone() }),
                None => Ok(()),
            }
        }
        AdapterConfig::Raft(_) | AdapterConfig::Fs(_) | AdapterConfig::Bridge(_) => Ok(()),
    }
}

/// The names in a directory, sorted; none when it does not exist.
fn names_in(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    let mut names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed?,
    };
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DataDir;
    use crate::storage::disk::RealDisk;

    fn check_with(names: &[&str], adapter: fn(DataDir) -> AdapterConfig) -> Result<(), DataDirError> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in names {
            std::fs::write(dir.path().join(name), "").expect("a written file");
        }
        check(&RealDisk, &adapter(DataDir { data_dir: dir.path().to_owned() }))
    }

    #[test]
    fn an_adapter_takes_an_empty_directory_or_its_own() {
        for adapter in [AdapterConfig::Raft, AdapterConfig::Fs] {
            assert_eq!(check_with(&[], adapter), Ok(()));
            assert_eq!(check(&RealDisk, &adapter(DataDir { data_dir: "/no/such/directory".into() })), Ok(()));
        }
        assert_eq!(check_with(&["LOCK", "identity.new"], AdapterConfig::Raft), Ok(()));
        assert_eq!(check_with(&["identity", "log"], AdapterConfig::Raft), Ok(()));
        assert_eq!(check_with(&["LOCK", "chat.jsonl", "notes.txt"], AdapterConfig::Fs), Ok(()));
    }

    #[test]
    fn a_directory_of_another_kind_is_refused_by_what_it_holds() {
        assert!(check_with(&["chat.jsonl"], AdapterConfig::Raft).unwrap_err().to_string().contains("--adapter fs"));
        assert!(
            check_with(&["identity", "log"], AdapterConfig::Fs).unwrap_err().to_string().contains("--adapter raft")
        );
        assert!(check_with(&["holiday.jpg"], AdapterConfig::Raft).unwrap_err().to_string().contains("holiday.jpg"));
    }
}
