//! Owns: the level of a cluster: which commands its log may hold. Nodes of an older build cannot read newer commands, so
//! the level is raised only when every member knows it. Until then the older build can take over again.
//! Never: who knows which level. The leader asks the members (`replication/raise.rs`).

use super::beside::{RecordKey, Space};
use super::change::Change;
use super::command::{Answer, Command, Outcome};
use super::json::Json;
use super::refusal::{Failure, Fault};
use super::stamp::Stamp;
use super::view::View;

/// Sessions, documents and the feed: version 0.1.
pub const FIRST: u32 = 1;

/// Records beside sessions: turns, the gateway and the session model.
pub const BESIDE: u32 = 2;

/// The newest level that this build knows.
pub const NEWEST: u32 = BESIDE;

/// Raises the level of the cluster. It is never lowered.
#[derive(Debug, Clone, PartialEq)]
pub struct RaiseLevel {
    pub level: u32,
}

impl Command {
    /// The level that a cluster needs to have this command in its log.
    pub fn level(&self) -> u32 {
        match self {
            Command::Beside(_) => BESIDE,
            Command::Create(_)
            | Command::Ensure(_)
            | Command::SetMeta(_)
            | Command::SetStatus(_)
            | Command::Delete(_)
            | Command::Append(_)
            | Command::AppendMany(_)
            | Command::UpdateMessage(_)
            | Command::Fork(_)
            | Command::SetActiveLeaf(_)
            | Command::Import(_)
            | Command::Store(_)
            | Command::Feed(_)
            | Command::Long(_) => FIRST,
        }
    }
}

/// The level of the cluster.
pub fn level(view: &dyn View) -> Result<u32, Fault> {
    let Some(stored) = view.record(&key())? else { return Ok(FIRST) };
    let level: Result<u32, _> = serde_json::from_str(stored.text());
    level.map_err(|error| Fault(format!("the record of the cluster's level cannot be read: {error}")))
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &RaiseLevel) -> Result<Outcome, Failure> {
    let level = level(view)?;
    let raised = level.max(command.level);
    let answer = Ok(Answer::Value(Json::print(&raised)));
    let mut changes = Vec::new();
    if raised > level {
        changes.push(Change::put_record(key(), Json::print(&raised)));
        changes.push(Change::Clock(stamp.at_ms));
    }
    Ok(Outcome { answer, changes, events: Vec::new() })
}

fn key() -> RecordKey {
    RecordKey::of_cluster(Space::Cluster).with("level")
}
