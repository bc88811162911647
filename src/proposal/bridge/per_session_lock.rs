//! Owns: one lock per session. A bridge that decides over fetched records runs the mutations of a session one at a
//! time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::machine::ids::SessionId;

/// The locks of all sessions that are held or waited for.
#[derive(Default)]
pub struct SessionLocks {
    sessions: Mutex<BTreeMap<SessionId, Arc<AsyncMutex<()>>>>,
}

/// Holds the lock of one session until it is dropped.
pub struct SessionLock<'a> {
    locks: &'a SessionLocks,
    session_id: SessionId,
    held: Option<OwnedMutexGuard<()>>,
}

impl SessionLocks {
    /// `None`: the deadline passed while other mutations of the session held the lock.
    pub async fn acquire(&self, session_id: &SessionId, deadline: Instant) -> Option<SessionLock<'_>> {
        let mut lock = SessionLock { locks: self, session_id: session_id.clone(), held: None };
        let mutex = self.sessions().entry(session_id.clone()).or_default().clone();
        lock.held = Some(tokio::time::timeout_at(deadline.into(), mutex.lock_owned()).await.ok()?);
        Some(lock)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<AsyncMutex<()>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionLock<'_> {
    fn drop(&mut self) {
        self.held.take();
        let mut sessions = self.locks.sessions();
        // Holders and waiters each keep a clone, so a count of one means that the entry is unused.
        if sessions.get(&self.session_id).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            sessions.remove(&self.session_id);
        }
    }
}
