//! Owns: openraft's view of our state: applying entries, building a snapshot while entries are applied, installing one.
//! Never: what an entry does (`apply.rs`), or the format of a snapshot file (`storage/snapshot.rs`).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::{Stream, TryStreamExt};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use tokio::runtime::{Handle, RuntimeFlavor};
use tracing::{info, warn};

use super::checkpoint::Checkpoint;
use super::disk_space::DiskSpace;
use super::figures::{self, Figures};
use super::pace::{Pace, Steps};
use super::threads::ApplyThread;
use super::types::{LogId, SnapshotMeta, StoredMembership, Types};
use crate::machine::refusal::Fault;
use crate::storage::snapshot::{Sealed, Snapshots};
use crate::storage::{Frozen, Store};

/// Entries are applied in batches of at most this many. In between, other tasks run and the batch is freed.
const BATCH_ENTRIES: usize = 64;
/// A batch ends with the entry that reaches this size: entries may be large.
const BATCH_BYTES: usize = 1 << 20;

pub struct StateMachine {
    apply: ApplyThread,
    group: u32,
    snapshots: Arc<Snapshots>,
    figures: Arc<Figures>,
    disk_space: Arc<DiskSpace>,
    pace: Pace,
}

impl StateMachine {
    pub fn new(
        apply: ApplyThread,
        group: u32,
        snapshots: Arc<Snapshots>,
        figures: Arc<Figures>,
        disk_space: Arc<DiskSpace>,
        pace: Pace,
    ) -> StateMachine {
        StateMachine { apply, group, snapshots, figures, disk_space, pace }
    }

    async fn apply_batch(&mut self, batch: Vec<EntryResponder<Types>>) -> io::Result<()> {
        let figures = self.figures.clone();
        let begun = self.apply.begin(move |applier| {
            let mut began = Instant::now();
            for (entry, responder) in batch {
                let reply = |reply| {
                    if let Some(responder) = responder {
                        responder.send(reply);
                    }
                };
                applier.apply(&entry, reply)?;
                let ended = Instant::now();
                figures.apply.observe(ended - began);
                began = ended;
            }
            Ok(())
        });
        begun.await
    }
}

fn io_error(fault: Fault) -> io::Error {
    io::Error::other(fault)
}

/// Runs disk work on a blocking thread. A runtime of one thread (a test, the simulation) runs it in place.
pub(super) async fn off_runtime<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> io::Result<R> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(work()),
        _ => tokio::task::spawn_blocking(work).await.map_err(io::Error::other),
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = Sealed;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let checkpoint = self.apply.run(|applier| applier.checkpoint().clone()).await?;
        Ok((checkpoint.applied_id(), checkpoint.stored_membership().map_err(io_error)?))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((entry, responder)) = entries.try_next().await? {
            bytes += entry.weight();
            batch.push((entry, responder));
            if batch.len() == BATCH_ENTRIES || bytes >= BATCH_BYTES {
                self.apply_batch(std::mem::take(&mut batch)).await?;
                bytes = 0;
                tokio::task::yield_now().await;
            }
        }
        if batch.is_empty() { Ok(()) } else { self.apply_batch(batch).await }
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        // Frozen between two entries. Reading it out later does not delay apply.
        let frozen = self.apply.run(|applier| (applier.store().clone(), applier.store().freeze())).await;
        let (store, frozen) = match frozen {
            Ok((store, frozen)) => (Some(store), frozen),
            Err(error) => (None, Err(Fault(error.to_string()))),
        };
        let (snapshots, figures, disk_space) = (self.snapshots.clone(), self.figures.clone(), self.disk_space.clone());
        let (group, pace) = (self.group, self.pace);
        Builder { frozen: Mutex::new(Some(frozen)), store, group, snapshots, figures, disk_space, pace }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Sealed) -> io::Result<()> {
        let began = Instant::now();
        let installed = self.install(meta, snapshot).await;
        record(&self.figures.installed, began, &installed);
        installed
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, Sealed>>> {
        self.snapshots.newest().map(|sealed| described(sealed, self.group)).transpose()
    }
}

impl StateMachine {
    async fn install(&mut self, meta: &SnapshotMeta, snapshot: Sealed) -> io::Result<()> {
        info!(index = snapshot.index, bytes = snapshot.whole_bytes(), "installing a snapshot");
        let store = self.apply.run(|applier| applier.store().clone()).await?;
        let (snapshots, group) = (self.snapshots.clone(), self.group);
        let want = meta.last_log_id;
        off_runtime(move || {
            // The state is replaced only after the file is verified and durable under its name.
            let verified = snapshots.verify(&snapshot.path, snapshot.index)?;
            let checkpoint = Checkpoint::decode(&verified.checkpoint, group).map_err(io_error)?;
            if checkpoint.applied_id() != want {
                let why = format!("{} is not the snapshot it was announced as", verified.path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            let published = snapshots.publish(verified)?;
            let pairs = snapshots.pairs(&published)?;
            store.replace(pairs, published.checkpoint.clone()).map_err(io_error)
        })
        .await??;
        self.apply.run(|applier| applier.resume()).await?.map_err(io_error)?;
        info!("the snapshot is installed");
        Ok(())
    }
}

fn record<R>(figures: &figures::Snapshots, began: Instant, outcome: &io::Result<R>) {
    match outcome {
        Ok(_) => figures.took.observe(began.elapsed()),
        Err(_) => figures.failed.count(),
    }
}

fn described(sealed: Sealed, group: u32) -> io::Result<SnapshotOf<Types, Sealed>> {
    let checkpoint = Checkpoint::decode(&sealed.checkpoint, group).map_err(io_error)?;
    let meta = checkpoint.snapshot_meta().map_err(io_error)?;
    Ok(SnapshotOf::<Types, Sealed> { meta, snapshot: sealed })
}

/// Writes one frozen state to a snapshot file.
pub struct Builder {
    /// Only one task builds; the lock makes the type `Sync`, which openraft requires.
    frozen: Mutex<Option<Result<Frozen, Fault>>>,
    /// To freeze it again, if the first snapshot did not fit on the disk.
    store: Option<Arc<dyn Store>>,
    group: u32,
    snapshots: Arc<Snapshots>,
    figures: Arc<Figures>,
    disk_space: Arc<DiskSpace>,
    pace: Pace,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = Sealed;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, Sealed>> {
        let began = Instant::now();
        let built = self.build().await;
        record(&self.figures.built, began, &built);
        built
    }
}

impl Builder {
    async fn build(&mut self) -> io::Result<SnapshotOf<Types, Sealed>> {
        let used = || io::Error::other("a snapshot builder builds once");
        let frozen = self.frozen.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let mut frozen = frozen.ok_or_else(used)?.map_err(io_error)?;
        loop {
            let (snapshots, group, pace) = (self.snapshots.clone(), self.group, self.pace);
            let disk_space = self.disk_space.clone();
            let written = off_runtime(move || write(&snapshots, group, frozen, &disk_space, pace)).await?;
            let no_room = match written {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => error,
                written => return described(written?, group),
            };
            // openraft ends the node if this fails, and without writes nothing else would build a snapshot.
            warn!(error = %no_room, "a snapshot does not fit on the disk; it is built when there is more space");
            self.figures.built.failed.count();
            let Some(store) = self.store.clone().filter(|_| !self.snapshots.is_closed()) else { return Err(no_room) };
            if !self.disk_space.grows(|| self.snapshots.is_closed()).await {
                return Err(no_room);
            }
            frozen = store.freeze().map_err(io_error)?;
        }
    }
}

/// How much of a snapshot is written between two looks at the disk.
const LOOK_EVERY_BYTES: usize = 1 << 20;

/// Writes one frozen state and makes it the newest snapshot. Stops before the log has no space left.
fn write(snapshots: &Snapshots, group: u32, frozen: Frozen, disk_space: &DiskSpace, pace: Pace) -> io::Result<Sealed> {
    let checkpoint = Checkpoint::of(frozen.checkpoint.clone(), group).map_err(io_error)?;
    let index = checkpoint.applied.map_or(0, |applied| applied.index);
    let (mut out_of_room, mut since_look) = (false, 0);
    let mut steps = Steps::new(pace);
    // A snapshot that frees space is needed now.
    let may_rest = || !snapshots.is_closed() && !disk_space.own_is_low();
    let watch = &mut |bytes| {
        steps.add(bytes, may_rest);
        since_look += bytes;
        if since_look >= LOOK_EVERY_BYTES {
            since_look = 0;
            out_of_room = !disk_space.leaves_room_for_log();
        }
        if out_of_room { Err(Fault("the disk is nearly full".to_owned())) } else { Ok(()) }
    };
    let written = snapshots.build(index, checkpoint.encode(), frozen, watch);
    match written {
        Err(error) if out_of_room => Err(io::Error::new(io::ErrorKind::StorageFull, error)),
        written => Ok(snapshots.publish(written?)?),
    }
}
