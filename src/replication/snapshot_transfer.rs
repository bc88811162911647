//! Owns: the transfer of a snapshot between nodes: sent in chunks, received into a draft, and accepted only if
//! length and checksum are as announced. The transport reports an interrupted sender as a clean end, so both are needed.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tonic::{Status, Streaming};
use tracing::warn;

use super::state_machine::off_runtime;
use super::wire;
use crate::planted::{self, Bug};
use crate::proto::peer::snapshot_part::Part;
use crate::proto::peer::{SnapshotHeader, SnapshotPart};
use crate::storage::disk::{Disk, DiskFile};
use crate::storage::snapshot::{Sealed, Snapshots};

const CHUNK_BYTES: usize = 256 << 10;
/// Received bytes are synced in steps, so that the log's fdatasync never waits for all of them.
const SYNC_BYTES: u64 = 8 << 20;

/// The header and then the snapshot in chunks. A read error ends the stream early, and the receiver refuses the snapshot.
pub fn parts(disk: Arc<dyn Disk>, header: SnapshotHeader, sealed: Sealed) -> impl Stream<Item = SnapshotPart> {
    let path = sealed.path.clone();
    let chunks = futures::stream::unfold(Next::Open(disk, sealed), move |next| {
        let path = path.clone();
        async move {
            let read = off_runtime(move || next.chunk()).await.and_then(|read| read);
            read.unwrap_or_else(|error| {
                warn!(%error, file = %path.display(), "a snapshot cannot be sent");
                None
            })
        }
    });
    let header = SnapshotPart { part: Some(Part::Header(header)) };
    futures::stream::iter([header]).chain(chunks.map(|chunk| SnapshotPart { part: Some(Part::Chunk(chunk)) }))
}

/// Where the next chunk comes from. The snapshot is opened for the first one.
enum Next {
    Open(Arc<dyn Disk>, Sealed),
    Read(Box<dyn Read + Send>),
}

impl Next {
    /// The next chunk; `None` at the end.
    fn chunk(self) -> std::io::Result<Option<(Bytes, Next)>> {
        let mut stream = match self {
            Next::Open(disk, sealed) => sealed.stream(&*disk)?,
            Next::Read(stream) => stream,
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = stream.read(&mut chunk)?;
        chunk.truncate(read);
        Ok((read > 0).then(|| (chunk.into(), Next::Read(stream))))
    }
}

/// Receives the chunks after the header into a draft and verifies all of it.
pub async fn receive(
    snapshots: &Arc<Snapshots>,
    disk: &Arc<dyn Disk>,
    header: &SnapshotHeader,
    parts: &mut Streaming<SnapshotPart>,
) -> Result<Sealed, Status> {
    let path = snapshots.draft();
    let received = receive_draft(snapshots, disk, header, parts, path.clone()).await;
    if received.is_err() {
        // If this fails, the next start removes the draft.
        let _ = disk.remove(&path);
    }
    received
}

async fn receive_draft(
    snapshots: &Arc<Snapshots>,
    disk: &Arc<dyn Disk>,
    header: &SnapshotHeader,
    parts: &mut Streaming<SnapshotPart>,
    path: PathBuf,
) -> Result<Sealed, Status> {
    let index = header.last_log.map_or(0, |last| last.index);
    let announced = (header.length, wire::checksum_from_proto(header)?);
    let announced = (!planted::has(Bug::AcceptTruncatedSnapshot)).then_some(announced);
    let mut draft = Draft { file: disk.create(&path).map_err(not_written)?, bytes: 0, synced: 0 };
    while let Some(part) = parts.message().await? {
        let Some(Part::Chunk(chunk)) = part.part else {
            return Err(Status::invalid_argument("part: only chunks follow the header"));
        };
        if draft.bytes + chunk.len() as u64 > header.length {
            return Err(Status::data_loss(format!(
                "the snapshot is longer than the {} bytes announced",
                header.length
            )));
        }
        draft = off_runtime(move || draft.write(&chunk)).await.map_err(not_written)?.map_err(not_written)?;
    }
    if let Some((want, _)) = announced
        && draft.bytes != want
    {
        let got = draft.bytes;
        return Err(Status::data_loss(format!("the snapshot was cut short: {got} of {want} bytes came")));
    }
    let snapshots = snapshots.clone();
    let verified = off_runtime(move || {
        draft.file.sync_data().map_err(not_written)?;
        snapshots.verify(&path, index).map_err(|error| Status::data_loss(error.to_string()))
    });
    let sealed = verified.await.map_err(not_written)??;
    if let Some((_, want)) = announced
        && sealed.checksum != want
    {
        let got = sealed.checksum;
        return Err(Status::data_loss(format!("the snapshot has checksum {got:032x}; {want:032x} was announced")));
    }
    Ok(sealed)
}

struct Draft {
    file: Box<dyn DiskFile>,
    bytes: u64,
    synced: u64,
}

impl Draft {
    fn write(mut self, chunk: &[u8]) -> std::io::Result<Draft> {
        self.file.write_all(chunk)?;
        self.bytes += chunk.len() as u64;
        if self.bytes - self.synced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.bytes;
        }
        Ok(self)
    }
}

fn not_written(error: std::io::Error) -> Status {
    Status::unavailable(format!("the snapshot cannot be written: {error}"))
}
