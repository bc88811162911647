//! Owns: who a data directory belongs to (`identity`: cluster, node, instance, format), and that one process uses it at
//! a time. Never: what else is in it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Random, given once to the first node of a cluster and taken over by every node that joins. Empty while the
    /// node waits to be invited.
    pub cluster_id: String,
    pub node_id: u64,
    /// Random, given with the directory: the same node with another disk has another.
    #[serde(default)]
    pub instance: String,
    /// It was begun to join a cluster: it never founds one by itself.
    #[serde(default)]
    pub joins: bool,
}

/// What an empty directory is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The first member of a new cluster.
    Found,
    /// A member of whichever cluster invites it.
    Join,
}

/// A data directory that this process holds.
pub struct DataDir {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    identity: Mutex<Identity>,
    _hold: Hold,
}

impl DataDir {
    /// Takes hold of a directory and finds out whose it is; an empty one becomes ours.
    pub fn open(disk: &Arc<dyn Disk>, path: &Path, node_id: u64, purpose: Purpose) -> Result<DataDir, StartError> {
        let wrong = |why: String| StartError::DataDir { path: path.to_owned(), why };
        disk.create_dir(path).map_err(|error| wrong(error.to_string()))?;
        let hold = disk.hold(path).map_err(|error| wrong(error.to_string()))?;
        let content = read_whole(&**disk, &path.join(FILE)).map_err(|error| wrong(error.to_string()))?;
        let mut identity = match content {
            Some(content) => read(&content, node_id).map_err(wrong)?,
            None => begin(&**disk, path, node_id, purpose).map_err(wrong)?,
        };
        if identity.instance.is_empty() {
            identity.instance = random_id();
            write(&**disk, path, &identity).map_err(wrong)?;
            let Identity { cluster_id, instance, .. } = &identity;
            info!(cluster = cluster_id, node = node_id, instance, dir = %path.display(), "a new data directory");
        }
        Ok(DataDir { path: path.to_owned(), disk: disk.clone(), identity: Mutex::new(identity), _hold: hold })
    }

    pub fn identity(&self) -> Identity {
        self.lock().clone()
    }

    /// Makes the directory part of a cluster, durably. One that belongs to another cluster refuses, with the reason.
    pub fn join(&self, cluster_id: &str) -> Result<(), String> {
        let mut identity = self.lock();
        if cluster_id.is_empty() {
            return Err("the cluster id is empty".to_owned());
        }
        if identity.cluster_id == cluster_id {
            return Ok(());
        }
        if !identity.cluster_id.is_empty() {
            let (node, ours) = (identity.node_id, &identity.cluster_id);
            return Err(format!("node {node} belongs to cluster {ours}, not to cluster {cluster_id}"));
        }
        let joined = Identity { cluster_id: cluster_id.to_owned(), ..identity.clone() };
        write(&*self.disk, &self.path, &joined)?;
        info!(cluster = cluster_id, node = joined.node_id, "this node belongs to a cluster now");
        *identity = joined;
        Ok(())
    }

    pub fn log_dir(&self) -> PathBuf {
        self.path.join("log")
    }

    pub fn snapshot_dir(&self) -> PathBuf {
        self.path.join("snapshots")
    }

    fn lock(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the state of a data directory lies. It can be rebuilt from the rest at any time.
pub fn state_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("state")
}

pub fn random_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The file: the identity and a checksum of it, so that a damaged name is never taken for another one.
#[derive(Serialize, Deserialize)]
struct Filed {
    #[serde(flatten)]
    identity: Identity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

fn checksum(identity: &Identity) -> Result<String, String> {
    let bytes = serde_json::to_vec(identity).map_err(|error| error.to_string())?;
    Ok(format!("{:08x}", crc32fast::hash(&bytes)))
}

fn write(disk: &dyn Disk, path: &Path, identity: &Identity) -> Result<(), String> {
    let filed = Filed { identity: identity.clone(), checksum: Some(checksum(identity)?) };
    let content = serde_json::to_vec_pretty(&filed).map_err(|error| error.to_string())?;
    write_whole(disk, &path.join(FILE), &content).map_err(|error| error.to_string())
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
    let Filed { identity, checksum: written } = serde_json::from_slice(content).map_err(unreadable)?;
    if let Some(written) = written
        && written != checksum(&identity)?
    {
        return Err(format!("its file {FILE} is damaged: its checksum does not match. Restore that file"));
    }
    if identity.node_id != node_id {
        let theirs = identity.node_id;
        return Err(format!("it belongs to node {theirs}, not to node {node_id}: set node_id to {theirs}"));
    }
    Ok(identity)
}

/// Begins a directory, unless it holds a log whose identity was lost: its votes must not be given twice.
fn begin(disk: &dyn Disk, path: &Path, node_id: u64, purpose: Purpose) -> Result<Identity, String> {
    let names = disk.list(path).map_err(|error| error.to_string())?;
    if let Some(name) = names.iter().find(|name| ["log", "snapshots"].contains(&name.as_str())) {
        return Err(format!("it holds {name}/ but no file {FILE}: restore that file, or choose an empty directory"));
    }
    let (cluster_id, joins) = match purpose {
        Purpose::Found => (random_id(), false),
        Purpose::Join => (String::new(), true),
    };
    Ok(Identity { format: FORMAT, cluster_id, node_id, instance: String::new(), joins })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::RealDisk;
    use std::fs;

    fn open(path: &Path, node_id: u64) -> Result<Identity, String> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        DataDir::open(&disk, path, node_id, Purpose::Found).map(|dir| dir.identity()).map_err(|error| error.to_string())
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
    fn a_flipped_bit_never_makes_another_identity() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), 1).unwrap();
        let path = dir.path().join(FILE);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[at / 8] ^= 1 << (at % 8);
            fs::write(&path, bad).unwrap();
            if let Ok(read) = open(dir.path(), 1) {
                assert_eq!(read, first, "bit {at}");
            }
            fs::write(&path, &good).unwrap();
        }
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
        let held = DataDir::open(&disk, dir.path(), 1, Purpose::Found).unwrap();
        assert!(open(dir.path(), 1).unwrap_err().contains("in use"));
        drop(held);
        open(dir.path(), 1).unwrap();
    }

    #[test]
    fn a_directory_joins_one_cluster_once_and_keeps_its_instance() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let held = DataDir::open(&disk, dir.path(), 3, Purpose::Join).unwrap();
        let waiting = held.identity();
        assert_eq!(waiting.cluster_id, "");
        held.join("c").unwrap();
        held.join("c").unwrap();
        assert!(held.join("d").unwrap_err().contains("belongs to cluster c, not to cluster d"));
        drop(held);
        let again = DataDir::open(&disk, dir.path(), 3, Purpose::Join).unwrap().identity();
        assert_eq!(again, Identity { cluster_id: "c".to_owned(), ..waiting });
    }
}
