//! Owns: the turns of a session: where the machine decides over fetched records, one mutation of a session after another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::machine::ids::SessionId;
use crate::proposal::Undone;

/// Sessions somebody writes to or waits for.
#[derive(Default)]
pub struct Turns {
    sessions: Mutex<BTreeMap<SessionId, Arc<Turn<()>>>>,
}

/// One session's turn; the next begins when this is dropped.
pub struct Taken<'a> {
    turns: &'a Turns,
    session_id: SessionId,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    pub async fn take(&self, session_id: &SessionId, deadline: Instant) -> Result<Taken<'_>, Undone> {
        let mut taken = Taken { turns: self, session_id: session_id.clone(), turn: None };
        let turn = self.lock().entry(session_id.clone()).or_default().clone();
        let waited = tokio::time::timeout_at(deadline.into(), turn.lock_owned()).await;
        let late = |_| Undone::Unavailable("the deadline passed while earlier mutations of the session ran".to_owned());
        taken.turn = Some(waited.map_err(late)?);
        Ok(taken)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Turn<()>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.turn.take();
        let mut sessions = self.turns.lock();
        // Nobody else holds it or waits for it: whoever wants one holds a clone.
        if sessions.get(&self.session_id).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            sessions.remove(&self.session_id);
        }
    }
}
