//! Owns: who a connection of the gateway speaks for: a user of a tenant, made of checked credentials.
//! Never: whether credentials are right (`access`).

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::access::identity::Proof;
use crate::access::{Action, Identity, Role};
use crate::machine::gateway::MemberRole;
use crate::machine::json::Object;
use crate::machine::scope::Scope;
use crate::surface::gate::{Caller, Door};

/// The metadata key with a session's tenant.
pub const TENANT: &str = "tenantId";
/// The metadata key with the users that may read a session as guests.
const GUESTS: &str = "guests";

/// Everybody at a node without credentials.
const DEV_USER: &str = "dev-user-001";
const DEV_EMAIL: &str = "developer@example.com";
pub const DEV_TENANT: &str = "dev";

/// A user of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    pub user: Arc<str>,
    pub email: Arc<str>,
    pub tenant: Arc<str>,
    /// The role of a user that is not a listed member.
    pub role: MemberRole,
    /// Nobody needs credentials here: the user owns the tenant `dev`, which has the sessions without a tenant too.
    pub is_dev: bool,
    /// As it was checked.
    pub identity: Arc<Identity>,
    /// As it calls functions: within the tenant.
    pub caller: Caller,
}

/// Why checked credentials do not make a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPerson {
    NoTenant,
    TwoTenants,
    ScopeTooLarge,
    NoRead(Role),
}

impl fmt::Display for NoPerson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPerson::NoTenant => write!(
                f,
                "the token names no tenant: use a JWT with the claim tenant_id, or a token with the scope \
                 {{\"{TENANT}\": \"…\"}}"
            ),
            NoPerson::TwoTenants => f.write_str("the claim and the scope of the token name different tenants"),
            NoPerson::ScopeTooLarge => f.write_str("the scope of the token has no room for the tenant"),
            NoPerson::NoRead(role) => write!(f, "the role {role} may not read sessions"),
        }
    }
}

impl std::error::Error for NoPerson {}

impl Person {
    pub fn of(identity: &Arc<Identity>) -> Result<Person, NoPerson> {
        if identity.proof == Proof::Nothing {
            return Ok(Person {
                user: DEV_USER.into(),
                email: DEV_EMAIL.into(),
                tenant: DEV_TENANT.into(),
                role: MemberRole::Owner,
                is_dev: true,
                identity: identity.clone(),
                caller: Caller { door: Door::Gateway, identity: identity.clone() },
            });
        }
        if !identity.may(Action::Read) {
            return Err(NoPerson::NoRead(identity.role));
        }
        let mut fields = identity.scope.as_ref().map_or_else(Object::new, |scope| scope.fields().clone());
        let scoped = fields.get(TENANT).map(|tenant| tenant.as_str().unwrap_or_default());
        let tenant: Arc<str> = match (identity.tenant.as_deref(), scoped) {
            (Some(claimed), Some(scoped)) if claimed != scoped => return Err(NoPerson::TwoTenants),
            (Some(tenant), _) | (None, Some(tenant)) if !tenant.is_empty() => tenant.into(),
            (_, _) => return Err(NoPerson::NoTenant),
        };
        fields.insert(TENANT.to_owned(), Value::from(&*tenant));
        let scope = Scope::new(Value::Object(fields)).map_err(|_| NoPerson::ScopeTooLarge)?;
        let within = Identity { scope: Some(Arc::new(scope)), ..(**identity).clone() };
        Ok(Person {
            user: identity.user.clone().unwrap_or_else(|| identity.name.clone()),
            email: identity.email.clone().unwrap_or_default(),
            tenant,
            role: of_token(identity.role),
            is_dev: false,
            identity: identity.clone(),
            caller: Caller { door: Door::Gateway, identity: Arc::new(within) },
        })
    }

    /// The scope of what this person can see; `None` in dev mode, where `sees` decides alone.
    pub fn scope(&self) -> Option<Arc<Scope>> {
        self.caller.identity.scope.clone()
    }

    /// Whether a session with this metadata belongs to the tenant, and to what a guest may read.
    pub fn sees(&self, metadata: Option<&Object>, role: MemberRole) -> bool {
        let field = |name: &str| metadata.and_then(|metadata| metadata.get(name));
        let in_tenant = match field(TENANT) {
            Some(tenant) => tenant.as_str() == Some(&*self.tenant),
            None => self.is_dev,
        };
        let names_guest = || {
            let guests = field(GUESTS).and_then(Value::as_array);
            guests.is_some_and(|guests| guests.iter().any(|guest| guest.as_str() == Some(&*self.user)))
        };
        in_tenant && (role > MemberRole::Guest || names_guest())
    }

    pub fn is_same_user(&self, other: &Person) -> bool {
        self.user == other.user && self.tenant == other.tenant
    }

    /// Whether the token allows to run agents.
    pub fn may_drive(&self) -> bool {
        self.identity.may(Action::Workers) && self.identity.may(Action::Write)
    }

    pub fn frame(&self, role: MemberRole) -> Value {
        json!({
            "type": "authenticated",
            "identity": {
                "userId": &*self.user, "email": &*self.email, "tenantId": &*self.tenant, "role": role.name(),
            },
        })
    }
}

/// The role of a user that the tenant does not list.
fn of_token(role: Role) -> MemberRole {
    match role {
        Role::Admin => MemberRole::Admin,
        Role::App | Role::Bridge => MemberRole::Developer,
        Role::Reader | Role::Monitor => MemberRole::Viewer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(tenant: Option<&str>, scope: Option<&str>, role: Role) -> Result<Person, NoPerson> {
        Person::of(&Arc::new(Identity {
            tenant: tenant.map(Into::into),
            scope: scope.map(|scope| Arc::new(Scope::parse(scope).unwrap())),
            ..Identity::new("u", role, Proof::Until(i64::MAX))
        }))
    }

    #[test]
    fn a_person_acts_within_the_tenant_of_the_claim_or_of_the_scope() {
        for (tenant, scope) in [(Some("a"), None), (None, Some(r#"{"tenantId":"a"}"#)), (Some("a"), Some(r#"{"x":1}"#))]
        {
            let person = with(tenant, scope, Role::App).unwrap();
            assert_eq!((&*person.tenant, person.role), ("a", MemberRole::Developer));
            let within = person.scope().unwrap();
            assert_eq!(within.fields()["tenantId"], "a");
            assert!(person.sees(json!({"tenantId": "a"}).as_object(), MemberRole::Viewer));
            for other in [json!({"tenantId": "b"}), json!({}), json!({"tenantId": ["a"]})] {
                assert!(!person.sees(other.as_object(), MemberRole::Owner), "{other}");
            }
            assert!(!person.sees(None, MemberRole::Owner));
        }
        assert_eq!(with(None, None, Role::Admin), Err(NoPerson::NoTenant));
        assert_eq!(with(Some(""), None, Role::Admin), Err(NoPerson::NoTenant));
        assert_eq!(with(None, Some(r#"{"tenantId":7}"#), Role::App), Err(NoPerson::NoTenant));
        assert_eq!(with(Some("b"), Some(r#"{"tenantId":"a"}"#), Role::App), Err(NoPerson::TwoTenants));
        assert_eq!(with(Some("a"), None, Role::Monitor), Err(NoPerson::NoRead(Role::Monitor)));
    }

    #[test]
    fn in_dev_mode_everybody_owns_the_sessions_without_a_tenant() {
        let person = Person::of(&Identity::open()).unwrap();
        assert_eq!((&*person.user, &*person.tenant, person.role), (DEV_USER, "dev", MemberRole::Owner));
        assert!(person.sees(None, MemberRole::Owner));
        assert!(person.sees(json!({"tenantId": "dev"}).as_object(), MemberRole::Owner));
        assert!(!person.sees(json!({"tenantId": "acme"}).as_object(), MemberRole::Owner));
    }

    #[test]
    fn a_guest_reads_the_sessions_that_name_him() {
        let person = with(Some("a"), None, Role::Reader).unwrap();
        let named = json!({"tenantId": "a", "guests": ["x", "u"]});
        assert!(person.sees(named.as_object(), MemberRole::Guest));
        for metadata in [json!({"tenantId": "a"}), json!({"tenantId": "a", "guests": "u"})] {
            assert!(!person.sees(metadata.as_object(), MemberRole::Guest));
            assert!(person.sees(metadata.as_object(), MemberRole::Viewer));
        }
    }
}
