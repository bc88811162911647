//! Owns: openraft's view of our state: applying entries, building a snapshot while apply goes on, installing one.
//! Never: what an entry does (`apply.rs`), what a snapshot file looks like (`storage/snapshot.rs`).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, TryStreamExt};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use tokio::runtime::{Handle, RuntimeFlavor};
use tracing::info;

use super::apply::Applier;
use super::mark::Mark;
use super::types::{self, LogId, SnapshotMeta, StoredMembership, Types};
use crate::machine::refusal::Fault;
use crate::storage::Frozen;
use crate::storage::snapshot::{Sealed, Snapshots};

/// Apply lets others run after this many entries: it does not wait for anything itself.
const ENTRIES_PER_TURN: usize = 64;

pub struct StateMachine {
    applier: Applier,
    snapshots: Arc<Snapshots>,
}

impl StateMachine {
    pub fn new(applier: Applier, snapshots: Arc<Snapshots>) -> StateMachine {
        StateMachine { applier, snapshots }
    }
}

fn broken(fault: Fault) -> io::Error {
    io::Error::other(fault)
}

/// Runs work that keeps a disk busy off the runtime's own threads. A runtime of one thread (a test, the simulation)
/// has no others to keep free.
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
        let mark = self.applier.mark();
        Ok((mark.applied_id(), mark.stored_membership().map_err(broken)?))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut turn = 0;
        while let Some((entry, responder)) = entries.try_next().await? {
            let entry = types::our_entry(entry);
            let reply = |reply| {
                if let Some(responder) = responder {
                    responder.send(reply);
                }
            };
            self.applier.carry_out(&entry, reply).map_err(broken)?;
            turn += 1;
            if turn % ENTRIES_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        // The moment is now, between two entries; reading it out comes later and disturbs nobody.
        let frozen = self.applier.store().freeze();
        Builder {
            frozen: Mutex::new(Some(frozen)),
            group: self.applier.mark().group,
            snapshots: self.snapshots.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Sealed) -> io::Result<()> {
        info!(index = snapshot.index, bytes = snapshot.bytes, "installing a snapshot");
        let (snapshots, store) = (self.snapshots.clone(), self.applier.store().clone());
        let group = self.applier.mark().group;
        let want = meta.last_log_id;
        off_runtime(move || {
            // Verified to its last byte, durable under its name, and only then the state.
            let verified = snapshots.verify(&snapshot.path, snapshot.index)?;
            let mark = Mark::parse(&verified.mark, group).map_err(broken)?;
            if mark.applied_id() != want {
                let why = format!("{} is not the snapshot it was announced as", verified.path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            let published = snapshots.publish(verified)?;
            let pairs = snapshots.pairs(&published)?;
            store.replace(pairs, published.mark.clone()).map_err(broken)
        })
        .await??;
        self.applier.resume().map_err(broken)?;
        info!("the snapshot is installed");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, Sealed>>> {
        let group = self.applier.mark().group;
        self.snapshots.newest().map(|sealed| described(sealed, group)).transpose()
    }
}

fn described(sealed: Sealed, group: u32) -> io::Result<SnapshotOf<Types, Sealed>> {
    let meta = Mark::parse(&sealed.mark, group).and_then(|mark| mark.snapshot_meta()).map_err(broken)?;
    Ok(SnapshotOf::<Types, Sealed> { meta, snapshot: sealed })
}

/// Writes one frozen moment to a snapshot file.
pub struct Builder {
    /// The lock only makes it shareable, as openraft asks: one task builds.
    frozen: Mutex<Option<Result<Frozen, Fault>>>,
    group: u32,
    snapshots: Arc<Snapshots>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = Sealed;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, Sealed>> {
        let used = || io::Error::other("a snapshot builder builds once");
        let frozen = self.frozen.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let frozen = frozen.ok_or_else(used)?.map_err(broken)?;
        let (snapshots, group) = (self.snapshots.clone(), self.group);
        let published = off_runtime(move || {
            let mark = Mark::of(frozen.mark, group).map_err(broken)?;
            let index = mark.applied.map_or(0, |applied| applied.index);
            let sealed = snapshots.write(index, mark.print(), frozen.pairs)?;
            io::Result::Ok(snapshots.publish(sealed)?)
        })
        .await??;
        described(published, group)
    }
}
