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
use tracing::info;

use super::checkpoint::Checkpoint;
use super::figures::{self, Figures};
use super::threads::ApplyThread;
use super::types::{LogId, SnapshotMeta, StoredMembership, Types};
use crate::machine::refusal::Fault;
use crate::storage::Frozen;
use crate::storage::snapshot::{Sealed, Snapshots};

/// Entries are applied in batches of at most this many. In between, other tasks run and the batch is freed.
const BATCH_ENTRIES: usize = 64;
/// A batch ends with the entry that reaches this size: entries may be large.
const BATCH_BYTES: usize = 1 << 20;

pub struct StateMachine {
    apply: ApplyThread,
    group: u32,
    snapshots: Arc<Snapshots>,
    figures: Arc<Figures>,
}

impl StateMachine {
    pub fn new(apply: ApplyThread, group: u32, snapshots: Arc<Snapshots>, figures: Arc<Figures>) -> StateMachine {
        StateMachine { apply, group, snapshots, figures }
    }

    async fn apply_batch(&mut self, batch: Vec<EntryResponder<Types>>) -> io::Result<()> {
        let figures = self.figures.clone();
        let applied = self.apply.run(move |applier| {
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
        applied.await?.map_err(io_error)
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
        let frozen = self.apply.run(|applier| applier.store().freeze()).await;
        let frozen = frozen.unwrap_or_else(|error| Err(Fault(error.to_string())));
        let (snapshots, figures) = (self.snapshots.clone(), self.figures.clone());
        Builder { frozen: Mutex::new(Some(frozen)), group: self.group, snapshots, figures }
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
        info!(index = snapshot.index, bytes = snapshot.bytes, "installing a snapshot");
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
    group: u32,
    snapshots: Arc<Snapshots>,
    figures: Arc<Figures>,
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
        let frozen = frozen.ok_or_else(used)?.map_err(io_error)?;
        let (snapshots, group) = (self.snapshots.clone(), self.group);
        let published = off_runtime(move || {
            let checkpoint = Checkpoint::of(frozen.checkpoint, group).map_err(io_error)?;
            let index = checkpoint.applied.map_or(0, |applied| applied.index);
            let sealed = snapshots.write(index, checkpoint.encode(), frozen.pairs)?;
            io::Result::Ok(snapshots.publish(sealed)?)
        })
        .await??;
        described(published, group)
    }
}
