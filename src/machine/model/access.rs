//! Owns: who may do what with a session of the model. A session that a caller may not see is not found; nothing is ever
//! forbidden, so that no answer tells of a session that is there.

use serde::{Deserialize, Serialize};

use super::names::is_in_namespace;
use schemars::JsonSchema;

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caller {
    /// Sees and does everything.
    Admin,
    /// An adapter with the token of one channel: it acts for the people of its channel.
    Channel { namespace: String },
    /// A person, known by a channel and the id there.
    User { channel: String, channel_user_id: String },
}

/// What a person may do with an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PersonRole")]
pub enum Role {
    Owner,
    User,
    Guest,
}

/// Who may talk to an agent without a role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentAccess {
    /// Everybody. A stranger becomes a guest.
    #[default]
    Public,
    /// Only people with a role.
    Protected,
    /// Only people with a role.
    Private,
}

/// The decision about one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// As if there were no such session.
    NotFound,
    /// The token of a channel was used outside its namespace.
    OutsideNamespace,
}

/// Decides about a session. `role` and `participates` are the person's; they do not matter for others.
pub fn decide(caller: &Caller, session_id: &str, role: Option<Role>, participates: bool) -> Verdict {
    match caller {
        Caller::Admin => Verdict::Allowed,
        Caller::Channel { namespace } if is_in_namespace(session_id, namespace) => Verdict::Allowed,
        Caller::Channel { .. } => Verdict::OutsideNamespace,
        Caller::User { .. } => match role {
            Some(Role::Owner) => Verdict::Allowed,
            Some(Role::User | Role::Guest) if participates => Verdict::Allowed,
            Some(Role::User | Role::Guest) | None => Verdict::NotFound,
        },
    }
}

/// The role of a person who has none: guest where everybody may talk to the agent.
pub fn role_of_stranger(access: AgentAccess) -> Option<Role> {
    match access {
        AgentAccess::Public => Some(Role::Guest),
        AgentAccess::Protected | AgentAccess::Private => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caller_role_and_participation_has_one_verdict() {
        let roles = [None, Some(Role::Guest), Some(Role::User), Some(Role::Owner)];
        for role in roles {
            for participates in [false, true] {
                for id in ["telegram:1", "slack:1"] {
                    let verdict = |caller: &Caller| decide(caller, id, role, participates);
                    assert_eq!(verdict(&Caller::Admin), Verdict::Allowed);
                    let channel = Caller::Channel { namespace: "telegram".to_owned() };
                    let inside = id.starts_with("telegram:");
                    let expected = if inside { Verdict::Allowed } else { Verdict::OutsideNamespace };
                    assert_eq!(verdict(&channel), expected);
                    let user = Caller::User { channel: "web".to_owned(), channel_user_id: "1".to_owned() };
                    let sees = role == Some(Role::Owner) || (role.is_some() && participates);
                    assert_eq!(verdict(&user), if sees { Verdict::Allowed } else { Verdict::NotFound }, "{role:?}");
                }
            }
        }
    }

    #[test]
    fn a_stranger_is_a_guest_only_where_everybody_may_come() {
        assert_eq!(role_of_stranger(AgentAccess::Public), Some(Role::Guest));
        assert_eq!(role_of_stranger(AgentAccess::Protected), None);
        assert_eq!(role_of_stranger(AgentAccess::Private), None);
    }
}
