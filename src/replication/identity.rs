//! Owns: who a data directory belongs to (`identity`: cluster, node, format), and that one process uses it at a time.
//! Never: what else is in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::info;

use super::replica::StartError;
use crate::storage::disk::{Disk, Hold, read_whole, write_whole};

/// The layout of the directory as a whole: `identity`, `log/`, `snapshots/`, `state/`.
const FORMAT: u32 = 1;
const FILE: &str = "identity";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub format: u32,
    /// Random, given once to the first node of a cluster and taken over by every node that joins.
    pub cluster_id: String,
    pub node_id: u64,
}

/// A data directory that this process holds.
pub struct DataDir {
    pub identity: Identity,
    pub path: PathBuf,
    _hold: Hold,
}

impl DataDir {
    /// Takes hold of a directory and finds out whose it is; an empty one becomes ours.
    pub fn open(disk: &Arc<dyn Disk>, path: &Path, node_id: u64) -> Result<DataDir, StartError> {
        let wrong = |why: String| StartError::DataDir { path: path.to_owned(), why };
        disk.create_dir(path).map_err(|error| wrong(error.to_string()))?;
        let hold = disk.hold(path).map_err(|error| wrong(error.to_string()))?;
        let file = path.join(FILE);
        let content = read_whole(&**disk, &file).map_err(|error| wrong(error.to_string()))?;
        let identity = match content {
            Some(content) => read(&content, node_id).map_err(wrong)?,
            None => {
                let identity = found(&**disk, path, node_id).map_err(wrong)?;
                let content = serde_json::to_vec_pretty(&identity).map_err(|error| wrong(error.to_string()))?;
                write_whole(&**disk, &file, &content).map_err(|error| wrong(error.to_string()))?;
                info!(cluster = identity.cluster_id, node = node_id, dir = %path.display(), "a new data directory");
                identity
            }
        };
        Ok(DataDir { identity, path: path.to_owned(), _hold: hold })
    }

    pub fn log_dir(&self) -> PathBuf {
        self.path.join("log")
    }

    pub fn snapshot_dir(&self) -> PathBuf {
        self.path.join("snapshots")
    }
}

/// Where the state of a data directory lies. It can be rebuilt from the rest at any time.
pub fn state_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("state")
}

fn read(content: &[u8], node_id: u64) -> Result<Identity, String> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let unreadable = |error: serde_json::Error| format!("its file {FILE} cannot be read: {error}");
    let Format { format } = serde_json::from_slice(content).map_err(unreadable)?;
    if format != FORMAT {
        return Err(format!("it has data format {format}; this build reads format {FORMAT}"));
    }
    let identity: Identity = serde_json::from_slice(content).map_err(unreadable)?;
    if identity.node_id != node_id {
        let theirs = identity.node_id;
        return Err(format!("it belongs to node {theirs}, not to node {node_id}: set node_id to {theirs}"));
    }
    Ok(identity)
}

/// Founds a cluster, unless the directory holds a log whose identity was lost: its votes must not be given twice.
fn found(disk: &dyn Disk, path: &Path, node_id: u64) -> Result<Identity, String> {
    let names = disk.list(path).map_err(|error| error.to_string())?;
    if let Some(name) = names.iter().find(|name| ["log", "snapshots"].contains(&name.as_str())) {
        return Err(format!("it holds {name}/ but no file {FILE}: restore that file, or choose an empty directory"));
    }
    Ok(Identity { format: FORMAT, cluster_id: uuid::Uuid::new_v4().to_string(), node_id })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::RealDisk;
    use std::fs;

    fn open(path: &Path, node_id: u64) -> Result<Identity, String> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        DataDir::open(&disk, path, node_id).map(|dir| dir.identity.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_directory_keeps_its_identity_and_refuses_others() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), 1).unwrap();
        assert_eq!(open(dir.path(), 1).unwrap(), first);
        let why = open(dir.path(), 2).unwrap_err();
        assert!(why.contains("belongs to node 1"), "{why}");

        fs::write(dir.path().join(FILE), r#"{"format":9,"unknown":true}"#).unwrap();
        let why = open(dir.path(), 1).unwrap_err();
        assert!(why.contains("data format 9"), "{why}");
        fs::write(dir.path().join(FILE), "nonsense").unwrap();
        assert!(open(dir.path(), 1).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn a_log_without_an_identity_is_not_adopted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        assert!(open(dir.path(), 1).unwrap_err().contains("no file identity"));
    }

    #[test]
    fn two_processes_never_share_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let held = DataDir::open(&disk, dir.path(), 1).unwrap();
        assert!(open(dir.path(), 1).unwrap_err().contains("in use"));
        drop(held);
        open(dir.path(), 1).unwrap();
    }
}
