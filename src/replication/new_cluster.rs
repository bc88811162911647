//! Owns: making the first member of a new cluster, out of a backup (`restore`) or out of the data directory of one node
//! whose cluster has lost its quorum (`recover`). Both get a new cluster id, so that positions, members and tools of the
//! old cluster are refused by name. No node runs meanwhile.
//! Never: which commands were acknowledged by the old cluster and are missing here; nobody knows that.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::RAFT_GROUP;
use super::checkpoint::Checkpoint;
use super::identity::{self, DataDir, IdentityError, Purpose};
use crate::machine::refusal::Fault;
use crate::storage::backup::{BackupError, BackupReader, Head};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::log::record::{Entry, LeaderId, LogId, Membership, Payload, Peer, Vote};
use crate::storage::log::{Limits, Log, LogError};
use crate::storage::snapshot::{SnapshotError, Snapshots};
use crate::storage::state::family::Family;

/// Why a new cluster cannot be made. Nothing has changed then.
#[derive(Debug)]
pub enum NewClusterError {
    Backup(BackupError),
    /// The checkpoint of the backup cannot be used.
    State {
        file: PathBuf,
        why: Fault,
    },
    NotEmpty {
        dir: PathBuf,
        found: String,
    },
    /// The directory is not one of the raft adapter.
    NoData(PathBuf),
    /// The node waits for an invitation and holds nothing.
    NothingToRecover(PathBuf),
    Identity {
        dir: PathBuf,
        why: IdentityError,
    },
    Disk {
        dir: PathBuf,
        error: io::Error,
    },
    Log(LogError),
    Snapshot(SnapshotError),
}

impl fmt::Display for NewClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NewClusterError::Backup(error) => write!(f, "{error}"),
            NewClusterError::State { file, why } => write!(f, "{}: the backup cannot be used: {why}", file.display()),
            NewClusterError::NotEmpty { dir, found } => write!(
                f,
                "data directory {}: it is not empty (it holds {found}): choose an empty or a new directory",
                dir.display()
            ),
            NewClusterError::NoData(dir) => {
                write!(f, "data directory {}: it holds no data of the raft adapter", dir.display())
            }
            NewClusterError::NothingToRecover(dir) => write!(
                f,
                "data directory {}: its node never was a member of a cluster and holds nothing to recover",
                dir.display()
            ),
            NewClusterError::Identity { dir, why } => write!(f, "data directory {}: {why}", dir.display()),
            NewClusterError::Disk { dir, error } => write!(f, "data directory {}: {error}", dir.display()),
            NewClusterError::Log(error) => write!(f, "{error}"),
            NewClusterError::Snapshot(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for NewClusterError {}

impl From<LogError> for NewClusterError {
    fn from(error: LogError) -> NewClusterError {
        NewClusterError::Log(error)
    }
}

/// What an intact backup holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub head: Head,
    pub sessions: u64,
    pub entries: u64,
    /// All keys of the state, with indexes and the feed.
    pub keys: u64,
    /// A hash of all keys and values. Equal for two backups of the same sessions and events, also of different clusters.
    pub content_hash: u128,
}

/// Reads a backup to its end and checks every byte. `progress` is called with the bytes that were read so far.
pub fn verify<R: Read>(
    mut backup: BackupReader<R>,
    file: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Contents, NewClusterError> {
    let (mut sessions, mut entries, mut keys, mut hash) = (0, 0, 0, Xxh3::new());
    while let Some((key, value)) = backup.pair().map_err(NewClusterError::Backup)? {
        keys += 1;
        for part in [&key[..], &value] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        sessions += u64::from(Family::Meta.owns(&key));
        entries += u64::from(Family::Entry.owns(&key));
        if keys % 1024 == 0 {
            progress(backup.bytes());
        }
    }
    checkpoint_of(&backup, file)?;
    Ok(Contents { head: backup.head, sessions, entries, keys, content_hash: hash.digest128() })
}

/// The checkpoint, if it is what the head says.
fn checkpoint_of<R: Read>(backup: &BackupReader<R>, file: &Path) -> Result<Checkpoint, NewClusterError> {
    let wrong = |why: Fault| NewClusterError::State { file: file.to_owned(), why };
    let checkpoint = Checkpoint::decode(&backup.checkpoint, RAFT_GROUP).map_err(wrong)?;
    let Head { index, state_hash, .. } = &backup.head;
    let same_index = checkpoint.applied.map(|applied| applied.index) == Some(*index);
    if !same_index || format!("{:032x}", checkpoint.state_hash) != *state_hash {
        return Err(wrong(Fault("its head describes another state".to_owned())));
    }
    Ok(checkpoint)
}

/// A data directory that became the first member of a new cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founded {
    pub cluster_id: String,
    pub node_id: u64,
    /// The last log entry it holds.
    pub index: u64,
}

/// Makes an empty directory the first member of a new cluster with the state of a backup. The backup is read twice: it is
/// checked to its end before anything is written.
pub async fn restore(
    file: &Path,
    dir: &Path,
    node_id: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(Founded, Contents), NewClusterError> {
    let existed = check_empty(dir)?;
    let contents = verify(BackupReader::open(file).map_err(NewClusterError::Backup)?, file, progress)?;
    let founded = fill(file, dir, node_id).await;
    if founded.is_err() {
        clear(dir, existed);
    }
    Ok((founded?, contents))
}

/// Whether the directory exists, if it holds nothing.
fn check_empty(dir: &Path) -> Result<bool, NewClusterError> {
    let at = |error| NewClusterError::Disk { dir: dir.to_owned(), error };
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        listed => match listed.map_err(at)?.next() {
            None => Ok(true),
            Some(entry) => {
                let found = entry.map_err(at)?.file_name().to_string_lossy().into_owned();
                Err(NewClusterError::NotEmpty { dir: dir.to_owned(), found })
            }
        },
    }
}

/// Removes what a failed restore has written. The directory was empty before.
fn clear(dir: &Path, existed: bool) {
    for name in ["snapshots", "log"] {
        // What cannot be removed is reported by the next restore, as a directory that is not empty.
        let _ = fs::remove_dir_all(dir.join(name));
    }
    for name in ["LOCK", "identity", "identity.new"] {
        let _ = fs::remove_file(dir.join(name));
    }
    if !existed {
        let _ = fs::remove_dir(dir);
    }
}

async fn fill(file: &Path, dir: &Path, node_id: u64) -> Result<Founded, NewClusterError> {
    let at = |error| NewClusterError::Disk { dir: dir.to_owned(), error };
    let identity_error = |why| NewClusterError::Identity { dir: dir.to_owned(), why };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    disk.create_dir(dir).map_err(at)?;
    let _lock = disk.lock(dir).map_err(at)?;
    let backup = BackupReader::open(file).map_err(NewClusterError::Backup)?;
    let (instance, cluster_id) = (identity::random_id(), identity::random_id());
    let mut checkpoint = checkpoint_of(&backup, file)?;
    let nothing = || NewClusterError::State { file: file.to_owned(), why: Fault("it is empty".to_owned()) };
    let applied = checkpoint.applied.ok_or_else(nothing)?;
    checkpoint.set_membership(alone(node_id, &instance), applied);
    let snapshots = Snapshots::open(disk.clone(), &dir.join("snapshots")).map_err(NewClusterError::Snapshot)?;
    let sealed = snapshots.write(applied.index, checkpoint.encode(), Box::new(backup));
    snapshots.publish(sealed.map_err(NewClusterError::Snapshot)?).map_err(NewClusterError::Snapshot)?;
    let log = open_log(&disk, &dir.join("log"))?;
    log.save_vote(Vote { term: applied.leader.term + 1, node: node_id, committed: false }).await?;
    log.close().await;
    // Last: a directory without an identity is never served.
    identity::settle(&*disk, dir, &cluster_id, node_id, &instance).map_err(identity_error)?;
    Ok(Founded { cluster_id, node_id, index: applied.index })
}

/// What a data directory holds that may be recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    pub node_id: u64,
    pub cluster_id: String,
    /// The last log entry it holds.
    pub last: LogId,
}

/// A stopped node that may become a cluster of its own.
pub struct Recovery {
    dir: PathBuf,
    data_dir: DataDir,
    log: Log,
    survivor: Survivor,
}

impl Recovery {
    /// Opens the data directory of a stopped node, and locks it. Changes nothing but a frame that a crash left
    /// incomplete at the end of the log.
    pub fn open(dir: &Path) -> Result<Recovery, NewClusterError> {
        let identity_error = |why| NewClusterError::Identity { dir: dir.to_owned(), why };
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let found = identity::peek(&*disk, dir).map_err(identity_error)?;
        let identity = found.ok_or_else(|| NewClusterError::NoData(dir.to_owned()))?;
        let data_dir = DataDir::open(&disk, dir, identity.node_id, Purpose::Join).map_err(identity_error)?;
        let snapshots = Snapshots::open(disk.clone(), &data_dir.snapshot_dir()).map_err(NewClusterError::Snapshot)?;
        let log = open_log(&disk, &data_dir.log_dir())?;
        // A snapshot that was just received may be ahead of the log.
        let snapshot = match snapshots.newest() {
            Some(newest) => {
                let wrong = |why| NewClusterError::State { file: newest.path.clone(), why };
                Checkpoint::decode(&newest.checkpoint, RAFT_GROUP).map_err(wrong)?.applied
            }
            None => None,
        };
        let last = log.edges().last.max(snapshot).filter(|_| !identity.cluster_id.is_empty());
        let last = last.ok_or_else(|| NewClusterError::NothingToRecover(dir.to_owned()))?;
        let survivor = Survivor { node_id: identity.node_id, cluster_id: identity.cluster_id, last };
        Ok(Recovery { dir: dir.to_owned(), data_dir, log, survivor })
    }

    pub fn survivor(&self) -> &Survivor {
        &self.survivor
    }

    /// Makes the directory a cluster of one member, with everything it holds: also entries of which nobody knows whether
    /// they were committed. An interrupted call can be repeated.
    pub async fn found(self) -> Result<Founded, NewClusterError> {
        let Recovery { dir, data_dir, log, survivor: Survivor { node_id, last, .. } } = self;
        // 1. The new id first: from here on, members of the old cluster refuse this node, and it refuses them.
        let cluster_id = identity::random_id();
        data_dir.found_again(&cluster_id).map_err(|why| NewClusterError::Identity { dir, why })?;
        // 2. A later term than any that this node has seen.
        let term = log.vote().map_or(0, |vote| vote.term).max(last.leader.term) + 1;
        log.save_vote(Vote { term, node: node_id, committed: false }).await?;
        // 3. The membership in force is the last one in the log.
        if log.edges().last < Some(last) {
            log.purge(last).await?;
        }
        let id = LogId { leader: LeaderId { term, node: node_id }, index: last.index + 1 };
        let membership = alone(node_id, &data_dir.identity().instance);
        let entry = Entry { id, payload: Payload::Membership(membership) };
        let (tell, told) = tokio::sync::oneshot::channel();
        let done = Box::new(move |outcome| {
            // The receiver waits below.
            let _ = tell.send(outcome);
        });
        log.append(vec![entry], done).await?;
        told.await.unwrap_or(Err(LogError::Closed))?;
        log.close().await;
        Ok(Founded { cluster_id, node_id, index: last.index })
    }
}

fn open_log(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Log, NewClusterError> {
    let (log, writer) = Log::open(disk.clone(), dir, RAFT_GROUP, Limits::default())?;
    writer.on_thread().map_err(|error| NewClusterError::Disk { dir: dir.to_owned(), error })?;
    Ok(log)
}

/// The membership of a node that is its own cluster. It records its address when it starts.
fn alone(node_id: u64, instance: &str) -> Membership {
    let peer = Peer { instance: instance.to_owned(), ..Peer::default() };
    Membership { configs: vec![[node_id].into()], members: [(node_id, peer)].into() }
}
