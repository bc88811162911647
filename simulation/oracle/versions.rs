//! Owns: the states each session went through, entry by entry of the log. Only what the session's own commands changed is in
//! them, so that they stay small. Never: judge.

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

    /// From which entry on each state held.
    pub fn all(&self, session_id: &SessionId) -> &[(u64, State)] {
        self.sessions.get(session_id).unwrap_or(&self.nothing)
    }

    /// Those that still held after this entry.
    pub fn since(&self, session_id: &SessionId, after: u64) -> &[(u64, State)] {
        let all = self.all(session_id);
        let held = all.partition_point(|(from, _)| *from <= after).saturating_sub(1);
        &all[held..]
    }
}
