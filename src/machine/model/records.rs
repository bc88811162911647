//! Owns: where the model keeps what: the keys of its records, and reading them.
//! Reads: View. Never: what a record means for a command.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::people::User;
use super::profile::Profile;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::Fault;
use crate::machine::view::View;

/// What a worker remembers about a session, as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingMemory {
    pub text: String,
    pub updated_at: i64,
}

/// The session and agent that a checkpoint belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOf {
    pub session_id: SessionId,
}

/// The channel that a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelToken {
    pub agent_id: String,
    pub namespace: String,
}

pub fn profile_key(session_id: &SessionId) -> RecordKey {
    RecordKey::of_session(session_id, Space::Profile)
}

fn of_session(session_id: &SessionId, kind: &str) -> RecordKey {
    RecordKey::of_session(session_id, Space::Model).with(kind)
}

/// The events of a session's stream.
pub fn events_key(session_id: &SessionId) -> RecordKey {
    of_session(session_id, "event")
}

pub fn participants_key(session_id: &SessionId) -> RecordKey {
    of_session(session_id, "participant")
}

pub fn memory_key(session_id: &SessionId) -> RecordKey {
    of_session(session_id, "memory")
}

/// The sessions of an agent, the most recently active first.
pub fn activity_key(agent_id: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Model).with("activity").with(agent_id)
}

pub fn activity_of(profile: &Profile) -> RecordKey {
    let newest_first = u64::MAX - profile.last_activity_at.max(0) as u64;
    activity_key(&profile.agent_id).with(newest_first).with(profile.session_id.as_str())
}

pub fn checkpoint_of_key(checkpoint_id: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Model).with("checkpoint").with(checkpoint_id)
}

pub fn user_key(user_id: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Identity).with("user").with(user_id)
}

pub fn known_key(channel: &str, channel_user_id: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Identity).with("known").with(channel).with(channel_user_id)
}

/// A channel token by its digest.
pub fn token_key(digest: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Identity).with("token").with(digest)
}

/// The digest of a channel's token.
pub fn channel_key(agent_id: &str, namespace: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Identity).with("channel").with(agent_id).with(namespace)
}

pub fn profile(view: &dyn View, session_id: &SessionId) -> Result<Option<Profile>, Fault> {
    read(view, &profile_key(session_id))
}

pub fn memory(view: &dyn View, session_id: &SessionId) -> Result<Option<WorkingMemory>, Fault> {
    read(view, &memory_key(session_id))
}

pub fn user(view: &dyn View, user_id: &str) -> Result<Option<User>, Fault> {
    read(view, &user_key(user_id))
}

/// Reads a record. One that this version cannot read is a fault: guessing would let replicas differ.
pub fn read<T: DeserializeOwned>(view: &dyn View, key: &RecordKey) -> Result<Option<T>, Fault> {
    view.record(key)?.map(|json| parse(&json)).transpose()
}

pub fn parse<T: DeserializeOwned>(json: &Json) -> Result<T, Fault> {
    json.parse().map_err(|error| Fault(format!("a record of the session model cannot be read: {error}")))
}
