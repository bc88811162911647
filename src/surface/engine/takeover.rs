//! Owns: when a replica may take a shared engine over from the previous one: it must hold the engine's lock, and no
//! other worker may serve our functions. Replicas that disconnected or do not answer are not waited for.
//! Never: registering anything (`registration`), reading the cursors (`delivery_cursors`).

use std::time::Duration;

use tokio::time::timeout;

use super::control::{ControlConnection, FunctionOwner, Liveness};
use super::engine_lock::EngineLock;
use super::error::EngineError;
use crate::proposal::AdapterError;

/// A replica that does not answer for this long counts as frozen. Its last deliveries may then be delivered again.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(5);
/// How often the lock and the owner of the functions are checked.
const CHECK_EVERY: Duration = Duration::from_millis(25);

/// Waits until this replica holds the lock, if there is one, and no other replica serves.
pub async fn previous_replica_stopped(control: &ControlConnection, lock: Option<&EngineLock>) {
    let lock_held = async {
        while let Some(lock) = lock
            && !holds_lock(control, lock).await
        {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    };
    let functions_free = async {
        while !are_functions_free(control).await {
            let _ = timeout(CHECK_EVERY, control.workers_changed()).await;
        }
    };
    tokio::join!(lock_held, functions_free);
}

/// Writes this replica's lock entry and looks for others. Entries of replicas that disconnected, or do not answer, are
/// removed.
async fn holds_lock(control: &ControlConnection, lock: &EngineLock) -> bool {
    let others = match lock.request().await {
        Ok(()) => lock.others().await,
        Err(AdapterError::Refused(refusal)) => {
            tracing::warn!(%refusal, "the lock of the engine cannot be written; serving without it");
            return true;
        }
        Err(error) => Err(error),
    };
    let Ok(others) = others else { return false };
    let mut is_only_entry = true;
    for other in others {
        match control.liveness(&other, UNRESPONSIVE_AFTER).await {
            Liveness::Alive => {
                is_only_entry = false;
                continue;
            }
            Liveness::Disconnected => {}
            Liveness::Unresponsive => {
                tracing::warn!(other, "a replica that has the lock of the engine does not answer; taking over");
            }
        }
        // In the background: this replica ignores the entry already, the removal is for later ones.
        let lock = lock.clone();
        tokio::spawn(async move { lock.remove_entry_of(&other).await });
    }
    is_only_entry
}

/// Whether no other replica serves our functions, or only one that does not answer.
async fn are_functions_free(control: &ControlConnection) -> bool {
    let owner = match control.function_owner().await {
        Ok(FunctionOwner::None) => return true,
        Ok(FunctionOwner::Worker(owner) | FunctionOwner::PartOf(owner)) => owner,
        Err(EngineError::NoAnswer(_)) => return false,
        // An engine without this function cannot tell, so there is nothing to wait for.
        Err(_) => return true,
    };
    if owner == control.settings.name {
        return true;
    }
    let is_frozen = control.is_unresponsive(&owner, UNRESPONSIVE_AFTER).await;
    if is_frozen {
        tracing::warn!(owner, "the replica that served before does not answer; taking over");
    }
    is_frozen
}
