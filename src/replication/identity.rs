//! Owns: the identity of a data directory (file `identity`: cluster, node, instance, format), and its lock: one process
//! uses it at a time.
//! Never: the other content of the directory.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tracing::info;

use crate::storage::disk::{Disk, Lock, read_whole, write_whole};

/// The layout of the directory as a whole: `identity`, `log/`, `snapshots/`, `state/`.
const FORMAT: u32 = 1;
const FILE: &str = "identity";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub format: u32,
    /// Random, minted by the first node of a cluster and adopted by every node that joins. Empty while the node waits
    /// for an invitation.
    pub cluster_id: String,
    pub node_id: u64,
    /// Random, minted with the directory: the same node with another disk has another instance.
    #[serde(default)]
    pub instance: String,
    /// The directory was created to join a cluster: it never founds one.
    #[serde(default)]
    pub joins: bool,
}

/// The use of an empty directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The first member of a new cluster.
    Found,
    /// A member of the cluster that invites it.
    Join,
}

/// Why a data directory cannot be used, or cannot join a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityError {
    /// The file system refused; `why` is its message.
    Disk {
        kind: io::ErrorKind,
        why: String,
    },
    Unreadable(String),
    OtherFormat(u32),
    /// The file does not match its checksum.
    Damaged,
    OtherNode {
        theirs: u64,
        ours: u64,
    },
    /// A log or snapshots without an identity: this node's votes would be given twice.
    NoIdentity {
        found: String,
    },
    EmptyClusterId,
    /// The file `formation` does not say what the node promised: it could promise twice.
    UnreadableFormation(String),
    OtherCluster {
        node: u64,
        ours: String,
        theirs: String,
    },
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityError::Disk { why, .. } => f.write_str(why),
            IdentityError::Unreadable(why) => write!(f, "its file {FILE} cannot be read: {why}"),
            IdentityError::OtherFormat(format) => {
                write!(f, "it has data format {format}; this build reads format {FORMAT}")
            }
            IdentityError::Damaged => {
                write!(f, "its file {FILE} is damaged: its checksum does not match. Restore that file")
            }
            IdentityError::OtherNode { theirs, ours } => {
                write!(f, "it belongs to node {theirs}, not to node {ours}: set node_id to {theirs}")
            }
            IdentityError::NoIdentity { found } => {
                write!(f, "it holds {found}/ but no file {FILE}: restore that file, or choose an empty directory")
            }
            IdentityError::UnreadableFormation(why) => {
                write!(f, "its file formation cannot be read: {why}. Restore that file, or choose an empty directory")
            }
            IdentityError::EmptyClusterId => f.write_str("the cluster id is empty"),
            IdentityError::OtherCluster { node, ours, theirs } => {
                write!(f, "node {node} belongs to cluster {ours}, not to cluster {theirs}")
            }
        }
    }
}

impl std::error::Error for IdentityError {}

impl From<io::Error> for IdentityError {
    fn from(error: io::Error) -> IdentityError {
        IdentityError::Disk { kind: error.kind(), why: error.to_string() }
    }
}

/// A data directory that this process has locked.
pub struct DataDir {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    identity: Mutex<Identity>,
    _hold: Lock,
}

impl DataDir {
    /// Locks a directory and reads its identity. An empty directory gets a new one.
    pub fn open(disk: &Arc<dyn Disk>, path: &Path, node_id: u64, purpose: Purpose) -> Result<DataDir, IdentityError> {
        disk.create_dir(path)?;
        let hold = disk.lock(path)?;
        let mut identity = match read_whole(&**disk, &path.join(FILE))? {
            Some(content) => read(&content, node_id)?,
            None => begin(&**disk, path, node_id, purpose)?,
        };
        if identity.instance.is_empty() {
            identity.instance = random_id();
            write(&**disk, path, &identity)?;
            let Identity { cluster_id, instance, .. } = &identity;
            info!(cluster = cluster_id, node = node_id, instance, dir = %path.display(), "a new data directory");
        }
        Ok(DataDir { path: path.to_owned(), disk: disk.clone(), identity: Mutex::new(identity), _hold: hold })
    }

    pub fn identity(&self) -> Identity {
        self.lock().clone()
    }

    /// Makes the directory part of a cluster, durably. Fails if it belongs to another cluster.
    pub fn join(&self, cluster_id: &str) -> Result<(), IdentityError> {
        let mut identity = self.lock();
        if cluster_id.is_empty() {
            return Err(IdentityError::EmptyClusterId);
        }
        if identity.cluster_id == cluster_id {
            return Ok(());
        }
        if !identity.cluster_id.is_empty() {
            let (node, ours) = (identity.node_id, identity.cluster_id.clone());
            return Err(IdentityError::OtherCluster { node, ours, theirs: cluster_id.to_owned() });
        }
        let joined = Identity { cluster_id: cluster_id.to_owned(), ..identity.clone() };
        write(&*self.disk, &self.path, &joined)?;
        info!(cluster = cluster_id, node = joined.node_id, "this node joined a cluster");
        *identity = joined;
        Ok(())
    }

    /// Makes the directory part of a new cluster, whatever it belonged to, durably.
    pub fn found_again(&self, cluster_id: &str) -> Result<(), IdentityError> {
        let mut identity = self.lock();
        let founded = Identity { cluster_id: cluster_id.to_owned(), ..identity.clone() };
        write(&*self.disk, &self.path, &founded)?;
        info!(from = identity.cluster_id, cluster = cluster_id, node = founded.node_id, "a new cluster");
        *identity = founded;
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

/// The identity of a directory; `None` while it has none.
pub fn peek(disk: &dyn Disk, path: &Path) -> Result<Option<Identity>, IdentityError> {
    let content = read_whole(disk, &path.join(FILE))?;
    content.map(|content| parse(&content)).transpose()
}

/// Gives a directory its place in a cluster, durably. It never founds another one.
pub fn settle(
    disk: &dyn Disk,
    path: &Path,
    cluster_id: &str,
    node_id: u64,
    instance: &str,
) -> Result<(), IdentityError> {
    let (cluster_id, instance) = (cluster_id.to_owned(), instance.to_owned());
    write(disk, path, &Identity { format: FORMAT, cluster_id, node_id, instance, joins: true })?;
    info!(node = node_id, dir = %path.display(), "this node has its place in a cluster");
    Ok(())
}

/// The state of a data directory. It can be rebuilt from the rest at any time.
pub fn state_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("state")
}

pub fn random_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The file: the identity and its checksum, so that a damaged identity is never taken for another one.
#[derive(Serialize, Deserialize)]
struct Filed {
    #[serde(flatten)]
    identity: Identity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

/// The checksum that stands beside a value in its file.
pub fn checksum<T: Serialize>(value: &T) -> Result<String, IdentityError> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::from)?;
    Ok(format!("{:08x}", crc32fast::hash(&bytes)))
}

fn write(disk: &dyn Disk, path: &Path, identity: &Identity) -> Result<(), IdentityError> {
    let filed = Filed { identity: identity.clone(), checksum: Some(checksum(identity)?) };
    let content = serde_json::to_vec_pretty(&filed).map_err(io::Error::from)?;
    Ok(write_whole(disk, &path.join(FILE), &content)?)
}

fn read(content: &[u8], node_id: u64) -> Result<Identity, IdentityError> {
    let identity = parse(content)?;
    if identity.node_id != node_id {
        return Err(IdentityError::OtherNode { theirs: identity.node_id, ours: node_id });
    }
    Ok(identity)
}

fn parse(content: &[u8]) -> Result<Identity, IdentityError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let unreadable = |error: serde_json::Error| IdentityError::Unreadable(error.to_string());
    let Format { format } = serde_json::from_slice(content).map_err(unreadable)?;
    if format != FORMAT {
        return Err(IdentityError::OtherFormat(format));
    }
    let Filed { identity, checksum: written } = serde_json::from_slice(content).map_err(unreadable)?;
    if let Some(written) = written
        && written != checksum(&identity)?
    {
        return Err(IdentityError::Damaged);
    }
    Ok(identity)
}

/// Creates the identity of a directory, unless it holds a log whose identity was lost: no vote may be given twice.
fn begin(disk: &dyn Disk, path: &Path, node_id: u64, purpose: Purpose) -> Result<Identity, IdentityError> {
    let names = disk.list(path)?;
    if let Some(name) = names.iter().find(|name| ["log", "snapshots"].contains(&name.as_str())) {
        return Err(IdentityError::NoIdentity { found: name.clone() });
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
        assert!(held.join("d").unwrap_err().to_string().contains("belongs to cluster c, not to cluster d"));
        drop(held);
        let again = DataDir::open(&disk, dir.path(), 3, Purpose::Join).unwrap().identity();
        assert_eq!(again, Identity { cluster_id: "c".to_owned(), ..waiting });
    }
}
