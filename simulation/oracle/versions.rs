//! Owns: the versions of each session, one for each entry of the log that changed it. A version holds only the data of
//! its session, so that it stays small. Never: checks.

use std::collections::BTreeMap;

use session_manager::machine::ids::SessionId;

use super::replay::{Replay, State};

pub struct Versions {
    sessions: BTreeMap<SessionId, Vec<(u64, State)>>,
    nothing: Vec<(u64, State)>,
}

impl Versions {
    pub fn of(replay: &Replay) -> Versions {
        let nothing = vec![(0, State::default())];
        let mut sessions: BTreeMap<SessionId, Vec<(u64, State)>> = BTreeMap::new();
        for step in replay.steps.iter().filter(|step| step.effective) {
            for session_id in step.session_id().into_iter().chain(step.forked()) {
                let versions = sessions.entry(session_id.clone()).or_insert_with(|| nothing.clone());
                let mut state = versions.last().map(|(_, state)| state.clone()).unwrap_or_default();
                state.merge(&step.changed);
                versions.push((step.index, state));
            }
        }
        Versions { sessions, nothing }
    }

    /// All versions, each with the first entry at which it was valid.
    pub fn all(&self, session_id: &SessionId) -> &[(u64, State)] {
        self.sessions.get(session_id).unwrap_or(&self.nothing)
    }

    /// The versions that were valid at this entry or later.
    pub fn since(&self, session_id: &SessionId, after: u64) -> &[(u64, State)] {
        let all = self.all(session_id);
        let held = all.partition_point(|(from, _)| *from <= after).saturating_sub(1);
        &all[held..]
    }
}
