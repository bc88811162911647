//! Owns: the stream of a backup: the newest snapshot of this node, with a head that says where it comes from.
//! Never: when a snapshot is built. A slow receiver holds the files of its snapshot, and nothing else waits for it.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use tonic::Status;

use super::checkpoint::Checkpoint;
use super::state_machine::off_runtime;
use crate::access::credentials::now_ms;
use crate::proto::admin::backup_part::Part;
use crate::proto::admin::{BackupHead, BackupPart};
use crate::storage::disk::Disk;
use crate::storage::snapshot::{Sealed, SnapshotError, Snapshots};

/// Small, because messages are encoded on the thread of consensus.
const CHUNK_BYTES: usize = 64 << 10;

/// A newer snapshot may replace the newest one between two steps, so opening it is tried this often.
const OPEN_ATTEMPTS: usize = 10;

/// The head, and then the newest snapshot in chunks. A read error ends the stream with its reason.
pub async fn parts(
    disk: &Arc<dyn Disk>,
    snapshots: &Arc<Snapshots>,
    group: u32,
    node: u64,
    cluster_id: String,
) -> Result<impl Stream<Item = Result<BackupPart, Status>> + Send + use<>, Status> {
    let (disk, snapshots) = (disk.clone(), snapshots.clone());
    let opened = off_runtime(move || open_newest(&*disk, &snapshots)).await.and_then(|opened| opened);
    let (sealed, file) = opened.map_err(|error| unreadable(&error))?;
    let checkpoint = Checkpoint::decode(&sealed.checkpoint, group).map_err(|fault| Status::data_loss(fault.0))?;
    let head = BackupHead {
        cluster_id,
        node,
        index: sealed.index,
        state_hash: format!("{:032x}", checkpoint.state_hash),
        snapshot_bytes: sealed.whole_bytes(),
        taken_at_ms: now_ms(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let chunks = stream::unfold(Some(file), |file| async {
        let file = file?;
        match off_runtime(move || next_chunk(file)).await.and_then(|chunk| chunk) {
            Ok(Some((chunk, file))) => Some((Ok(BackupPart { part: Some(Part::Chunk(chunk)) }), Some(file))),
            Ok(None) => None,
            Err(error) => Some((Err(unreadable(&error)), None)),
        }
    });
    Ok(stream::iter([Ok(BackupPart { part: Some(Part::Head(head)) })]).chain(chunks))
}

/// What is open stays readable after the snapshot was replaced.
fn open_newest(disk: &dyn Disk, snapshots: &Snapshots) -> io::Result<(Sealed, Input)> {
    let mut attempts = 0;
    loop {
        let sealed = snapshots.newest().ok_or_else(|| io::Error::other("there is no snapshot"))?;
        attempts += 1;
        match sealed.stream(disk) {
            Ok(stream) => return Ok((sealed, stream)),
            Err(SnapshotError::Disk { kind: io::ErrorKind::NotFound, .. }) if attempts < OPEN_ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
}

type Input = Box<dyn Read + Send>;

fn next_chunk(mut input: Input) -> io::Result<Option<(Bytes, Input)>> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let read = input.read(&mut chunk)?;
    chunk.truncate(read);
    Ok((read > 0).then(|| (chunk.into(), input)))
}

fn unreadable(error: &io::Error) -> Status {
    Status::data_loss(format!("the snapshot cannot be read: {error}"))
}
