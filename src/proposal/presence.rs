//! Owns: which drivers are there. A driver that names its `driver_id` when it binds `session::turn::requested` at this
//! node is attached as long as the binding stands; the node says so every few seconds through the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Adapter, Proposal};
use crate::events::feed::Feed;
use crate::machine::Command;
use crate::machine::apply::beside::Beside;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::driver::AttachDriver;

/// The time between two looks at the bindings.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// A driver is told of again after so many looks, 3 s: three times before it would count as gone.
const RENEW_AFTER: u32 = 6;
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The task that keeps the drivers of this node attached.
pub struct Presence {
    pub adapter: Arc<dyn Adapter>,
    pub feed: Arc<Feed>,
}

impl Presence {
    /// Works until shutdown. What fails is tried again at the next look.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut told: BTreeMap<String, (AttachDriver, u32)> = BTreeMap::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = shutdown.cancelled() => return,
            }
            self.look(&mut told).await;
        }
    }

    async fn look(&self, told: &mut BTreeMap<String, (AttachDriver, u32)>) {
        let here = self.feed.drivers();
        told.values_mut().for_each(|(_, looks)| *looks += 1);
        for driver in &here {
            let known = told.get(&driver.driver_id);
            let is_fresh = known.is_some_and(|(known, looks)| known == driver && *looks < RENEW_AFTER);
            if !is_fresh && self.propose(TurnCommand::Attach(driver.clone())).await {
                told.insert(driver.driver_id.clone(), (driver.clone(), 0));
            }
        }
        let gone: Vec<String> =
            told.keys().filter(|id| here.iter().all(|driver| driver.driver_id != **id)).cloned().collect();
        for driver_id in gone {
            if self.propose(TurnCommand::Detach { driver_id: driver_id.clone() }).await {
                told.remove(&driver_id);
            }
        }
    }

    async fn propose(&self, command: TurnCommand) -> bool {
        let command = Command::Beside(Beside::Turn(command));
        match self.adapter.propose(Proposal::new(command, Instant::now() + CALL_TIMEOUT)).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, "the drivers of this node are not told of; retrying");
                false
            }
        }
    }
}
