//! Owns: people: an identity of a channel leads to a user, users can be merged, and a user has a role at each agent.
//! Reads: View. Never: who may see a session (`access.rs`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::access::{self, AgentAccess, Role};
use super::records::{self, known_key, user_key};
use crate::machine::change::Change;
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::Fault;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// A chain of merges is shorter: a merge always leads to the user at the end of the other chain.
const MERGES_MAX: usize = 64;

/// A person.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub created_at: i64,
    /// The user who took this one over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged_into: Option<String>,
    /// The users that were merged into this one, directly or through others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// By agent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, Role>,
}

/// Where an identity of a channel leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    pub user_id: String,
}

/// A person at an agent, as a command sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Person {
    pub user_id: String,
    /// `None`: the agent does not talk to this person.
    pub role: Option<Role>,
    pub aliases: Vec<String>,
    /// What has to be written for the person to be known.
    pub changes: Vec<Change>,
}

impl Person {
    pub fn is_owner(&self) -> bool {
        self.role == Some(Role::Owner)
    }
}

/// The user at the end of a chain of merges.
pub fn merged(view: &dyn View, user_id: &str) -> Result<Option<(String, User)>, Fault> {
    let mut user_id = user_id.to_owned();
    for _ in 0..MERGES_MAX {
        let Some(user) = records::user(view, &user_id)? else { return Ok(None) };
        match user.merged_into.clone() {
            Some(next) => user_id = next,
            None => return Ok(Some((user_id, user))),
        }
    }
    Ok(None)
}

/// The user of an identity, through merges.
pub fn resolve(view: &dyn View, channel: &str, channel_user_id: &str) -> Result<Option<(String, User)>, Fault> {
    match records::read::<Known>(view, &known_key(channel, channel_user_id))? {
        Some(known) => merged(view, &known.user_id),
        None => Ok(None),
    }
}

/// The person behind an identity, who becomes known with this command if the agent talks to everybody. `None`: nobody knows
/// the identity, and the agent talks to no strangers.
pub fn meet(
    view: &dyn View,
    stamp: &Stamp,
    agent_id: &str,
    (channel, channel_user_id): (&str, &str),
    access: AgentAccess,
) -> Result<Option<Person>, Fault> {
    let found = resolve(view, channel, channel_user_id)?;
    let stranger = access::role_of_stranger(access);
    let (user_id, mut user, is_new) = match found {
        Some((user_id, user)) => (user_id, user, false),
        None if stranger.is_none() => return Ok(None),
        None => (new_user_id(stamp), User { created_at: stamp.at_ms, ..User::default() }, true),
    };
    let mut changes = Vec::new();
    let role = match (user.roles.get(agent_id), stranger) {
        (Some(role), _) => Some(*role),
        (None, Some(role)) => {
            user.roles.insert(agent_id.to_owned(), role);
            changes.push(Change::put_record(user_key(&user_id), Json::print(&user)));
            Some(role)
        }
        (None, None) => None,
    };
    if is_new {
        let known = Known { user_id: user_id.clone() };
        changes.push(Change::put_record(known_key(channel, channel_user_id), Json::print(&known)));
    }
    Ok(Some(Person { user_id, role, aliases: user.aliases, changes }))
}

/// A user that is known by its id.
pub fn acquaintance(view: &dyn View, agent_id: &str, user_id: &str) -> Result<Option<Person>, Fault> {
    Ok(merged(view, user_id)?.map(|(user_id, user)| Person {
        role: user.roles.get(agent_id).copied(),
        user_id,
        aliases: user.aliases,
        changes: Vec::new(),
    }))
}

/// Whether a person takes part in a session, also under a user that was merged into it later.
pub fn participates(view: &dyn View, session_id: &SessionId, user_id: &str, aliases: &[String]) -> Result<bool, Fault> {
    for id in std::iter::once(user_id).chain(aliases.iter().map(String::as_str)) {
        if view.record(&records::participants_key(session_id).with(id))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn new_user_id(stamp: &Stamp) -> String {
    const USER_ORDINAL: u64 = 1000; // no command creates as many entries as this before it
    stamp.entry_id(USER_ORDINAL).as_str().replacen("e_", "u_", 1)
}
