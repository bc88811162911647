//! Owns: which drivers are there. A driver that names its `driver_id` when it binds `session::turn::requested` at this
//! node is attached as long as the binding stands; the node says so every few seconds through the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Adapter, Proposal};
use crate::events::feed::Feed;
use crate::machine::Command;
use crate::machine::apply::beside::Beside;
use crate::machine::scope::Scope;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::driver::AttachDriver;

/// The time between two looks at the bindings.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// A driver is told of again after so many looks, 3 s: three times before it would count as gone.
const RENEW_AFTER: u32 = 6;
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The drivers that were told of, by name and scope.
type Told = BTreeMap<(String, Option<String>), ToldOf>;

struct ToldOf {
    driver: AttachDriver,
    scope: Option<Arc<Scope>>,
    looks: u32,
}

/// The task that keeps the drivers of this node attached.
pub struct Presence {
    pub adapter: Arc<dyn Adapter>,
    pub feed: Arc<Feed>,
}

impl Presence {
    /// Works until shutdown. What fails is tried again at the next look.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut told = Told::new();
        let node = Uuid::new_v4().to_string();
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = shutdown.cancelled() => return,
            }
            self.look(&node, &mut told).await;
        }
    }

    async fn look(&self, node: &str, told: &mut Told) {
        let mut here = self.feed.drivers();
        here.iter_mut().for_each(|(driver, _)| driver.node = Some(node.to_owned()));
        told.values_mut().for_each(|told| told.looks += 1);
        let key = |driver: &AttachDriver, scope: &Option<Arc<Scope>>| {
            (driver.driver_id.clone(), scope.as_ref().map(|scope| scope.text().to_owned()))
        };
        for (driver, scope) in &here {
            let known = told.get(&key(driver, scope));
            let is_fresh = known.is_some_and(|known| known.driver == *driver && known.looks < RENEW_AFTER);
            if !is_fresh && self.propose(TurnCommand::Attach(driver.clone()), scope.clone()).await {
                told.insert(key(driver, scope), ToldOf { driver: driver.clone(), scope: scope.clone(), looks: 0 });
            }
        }
        let stays: Vec<_> = here.iter().map(|(driver, scope)| key(driver, scope)).collect();
        let gone: Vec<_> =
            told.iter().filter(|(id, _)| !stays.contains(id)).map(|(id, of)| (id.clone(), of.scope.clone())).collect();
        for (id, scope) in gone {
            if self.propose(TurnCommand::Detach { driver_id: id.0.clone(), node: Some(node.to_owned()) }, scope).await {
                told.remove(&id);
            }
        }
    }

    /// On behalf of the caller that bound the driver, with its scope.
    async fn propose(&self, command: TurnCommand, scope: Option<Arc<Scope>>) -> bool {
        let command = Command::Beside(Beside::Turn(command));
        let proposal = Proposal { scope, ..Proposal::new(command, Instant::now() + CALL_TIMEOUT) };
        match self.adapter.propose(proposal).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, "the drivers of this node are not told of; retrying");
                false
            }
        }
    }
}
