//! openraft's own tests of a log store and a state machine, on ours.

use std::sync::Arc;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use super::RAFT_GROUP;
use super::apply::Applier;
use super::disk_space::DiskSpace;
use super::log_store::LogStore;
use super::pace::Pace;
use super::state_machine::StateMachine;
use super::threads::ApplyThread;
use super::types::Types;
use crate::events::{Committed, EventSink};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::log::{Limits, Log};
use crate::storage::snapshot::Snapshots;
use crate::storage::state::memory::MemoryStore;

struct NoSubscribers;

impl EventSink for NoSubscribers {
    fn publish(&self, _events: Vec<Arc<Committed>>) {}
}

struct Builder;

impl StoreBuilder<Types, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let (log, writer) = Log::open(disk.clone(), &dir.path().join("log"), RAFT_GROUP, Limits::default()).unwrap();
        writer.on_thread().unwrap();
        let applier =
            Applier::new(Arc::new(MemoryStore::new()), Arc::new(NoSubscribers), RAFT_GROUP).unwrap().with_gaps();
        let snapshots = Arc::new(Snapshots::open(disk, &dir.path().join("snapshots")).unwrap());
        let apply = ApplyThread::here(applier, Arc::new(|| std::time::Duration::ZERO));
        let disk_space = Arc::new(DiskSpace::new(1, Arc::new(|| None), 0));
        let machine = StateMachine::new(apply, RAFT_GROUP, snapshots, Arc::default(), disk_space, Pace::Full);
        Ok((dir, LogStore::new(log), machine))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openrafts_own_suite_passes_on_our_log_and_state_machine() {
    Suite::test_all(Builder).await.unwrap();
}
