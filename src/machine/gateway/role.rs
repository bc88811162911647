//! Owns: the roles that a tenant's members have at the gateway, in ascending order.
//! Never: who has one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a member of a tenant may do. A higher role may do everything that a lower one may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Reads the sessions whose metadata `guests` names the user
    Guest,
    /// Reads all sessions of the tenant
    Viewer,
    /// Writes sessions and runs turns
    Developer,
    /// Deletes sessions and manages members
    Admin,
    /// Makes and removes owners
    Owner,
}

impl MemberRole {
    pub const ALL: [MemberRole; 5] =
        [MemberRole::Guest, MemberRole::Viewer, MemberRole::Developer, MemberRole::Admin, MemberRole::Owner];

    pub fn name(self) -> &'static str {
        match self {
            MemberRole::Guest => "guest",
            MemberRole::Viewer => "viewer",
            MemberRole::Developer => "developer",
            MemberRole::Admin => "admin",
            MemberRole::Owner => "owner",
        }
    }

    pub fn named(name: &str) -> Option<MemberRole> {
        MemberRole::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl fmt::Display for MemberRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_ascend_and_are_found_by_their_names() {
        assert!(MemberRole::ALL.is_sorted());
        for role in MemberRole::ALL {
            assert_eq!(MemberRole::named(role.name()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
        assert_eq!(MemberRole::named("root"), None);
    }
}
