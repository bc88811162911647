//! Owns: what a node knows about a caller after it checked the credentials.
//! Never: the credentials themselves.

use std::sync::{Arc, LazyLock};

use super::role::{Action, Role};
use super::token::TokenHash;
use crate::machine::scope::Scope;

/// A caller whose credentials were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The name of the token, the subject of a JWT, or the name in a client certificate.
    pub name: Arc<str>,
    pub role: Role,
    /// The caller sees only sessions with this metadata. `None`: all sessions.
    pub scope: Option<Arc<Scope>>,
    pub tenant: Option<Arc<str>>,
    pub user: Option<Arc<str>>,
    pub email: Option<Arc<str>>,
    pub proof: Proof,
}

/// What the identity rests on. A connection that outlives it is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// No credentials are configured: everybody who reaches the port may do everything.
    Nothing,
    /// A line of the token file. Valid as long as the line is there and has not expired.
    Token(TokenHash),
    /// Valid until this time, in milliseconds since the epoch.
    Until(i64),
    /// Set by the configuration for a connection, such as the one to an engine.
    Configured,
}

static OPEN: LazyLock<Arc<Identity>> =
    LazyLock::new(|| Arc::new(Identity::new("anonymous", Role::Admin, Proof::Nothing)));

impl Identity {
    pub fn new(name: &str, role: Role, proof: Proof) -> Identity {
        Identity { name: name.into(), role, scope: None, tenant: None, user: None, email: None, proof }
    }

    /// Everybody, at a node without credentials.
    pub fn open() -> Arc<Identity> {
        OPEN.clone()
    }

    /// Whether the role matrix allows an action. A scoped caller has nothing that concerns the whole store, whatever its
    /// role.
    pub fn may(&self, action: Action) -> bool {
        let whole_store = matches!(action, Action::RawStore | Action::Administer | Action::Metrics);
        self.role.may(action) && !(whole_store && self.scope.is_some())
    }

    /// Whether two connections belong to the same caller.
    pub fn is_same_caller(&self, other: &Identity) -> bool {
        self.name == other.name && self.role == other.role && self.scope == other.scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scoped_caller_has_no_raw_store_whatever_its_role() {
        let scope = Scope::parse(r#"{"owner": "u_1"}"#).unwrap();
        for role in Role::ALL {
            let scoped = Identity { scope: Some(Arc::new(scope.clone())), ..Identity::new("a", role, Proof::Nothing) };
            for whole in [Action::RawStore, Action::Administer, Action::Metrics] {
                assert!(!scoped.may(whole), "{role}");
            }
            assert_eq!(scoped.may(Action::Read), role.may(Action::Read), "{role}");
        }
    }
}
