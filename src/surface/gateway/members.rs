//! Owns: the members of a tenant at the gateway: which role a user has now, and `manage_members`.
//! Never: the rules about roles (`machine::gateway::member`).

use serde_json::{Value, json};

use super::errors::GatewayError;
use super::messages::MemberAction;
use super::person::Person;
use super::sessions::Speaker;
use super::{Gateway, Reads};
use crate::access::Action;
use crate::machine::apply::beside::Beside;
use crate::machine::gateway::member::{Actor, MemberRefusal, PAGE_MAX};
use crate::machine::gateway::{GatewayCommand, GatewayQuery, MemberRole};
use crate::machine::query::beside::BesideQuery;

/// A list has at most so many members.
const LISTED_MAX: usize = 10_000;

impl Gateway {
    /// The role that a user has now, as far as this node knows.
    pub(super) async fn role_of(&self, person: &Person) -> MemberRole {
        match self.member(person).await {
            Ok((Some(role), _)) => role,
            Ok((None, _)) => person.role,
            // A node that cannot read its own state refuses everything else too.
            Err(_) => MemberRole::Guest,
        }
    }

    /// The role of the user's record, and how many members the tenant has.
    async fn member(&self, person: &Person) -> Result<(Option<MemberRole>, u64), GatewayError> {
        let query = GatewayQuery::Member { tenant: person.tenant.to_string(), user: person.user.to_string() };
        let found: Value = self.ask(None, BesideQuery::Gateway(query), Reads::Local).await?;
        let role = found["role"].as_str().and_then(MemberRole::named);
        Ok((role, found["members"].as_u64().unwrap_or(0)))
    }

    /// Makes the first user of a tenant its owner. A user whose token only reads owns nothing.
    pub(super) async fn arrive(&self, person: &Person) -> Result<(), GatewayError> {
        let (role, members) = self.member(person).await?;
        if role.is_some() || members > 0 || !person.identity.may(Action::Write) {
            return Ok(());
        }
        let email = Some(person.email.to_string()).filter(|email| !email.is_empty());
        let (tenant, user) = (person.tenant.to_string(), person.user.to_string());
        self.change(None, Beside::Gateway(GatewayCommand::Arrive { tenant, user, email })).await?;
        Ok(())
    }

    pub(super) async fn manage_members(&self, speaker: &Speaker, action: MemberAction) -> Result<Value, GatewayError> {
        let tenant = speaker.person.tenant.to_string();
        let by = Actor { user: speaker.person.user.to_string(), role: speaker.person.role };
        let (command, reply) = match action {
            MemberAction::List => return self.list_members(&tenant).await,
            MemberAction::SetRole { user, role } => {
                let reply = json!({ "type": "member_updated", "userId": user, "role": role });
                (GatewayCommand::SetRole { tenant, by, user, role }, reply)
            }
            MemberAction::Remove { user } => {
                let reply = json!({ "type": "member_removed", "userId": user });
                (GatewayCommand::RemoveMember { tenant, by, user }, reply)
            }
        };
        let answer = self.change(None, Beside::Gateway(command)).await?;
        match serde_json::from_value::<Option<MemberRefusal>>(answer["refused"].clone()) {
            Ok(None) => Ok(reply),
            Ok(Some(refused)) => Err(match refused {
                MemberRefusal::NotFound => GatewayError::MemberNotFound,
                MemberRefusal::LastOwner => GatewayError::LastOwner,
                MemberRefusal::AboveOwnRole => GatewayError::AboveOwnRole(speaker.role),
                MemberRefusal::NotAdmin => GatewayError::Forbidden { needs: MemberRole::Admin, has: speaker.role },
                MemberRefusal::TooMany => {
                    GatewayError::InvalidMessage("the tenant has as many members as it can have".to_owned())
                }
            }),
            Err(_) => Err(GatewayError::Internal),
        }
    }

    async fn list_members(&self, tenant: &str) -> Result<Value, GatewayError> {
        let mut members: Vec<Value> = Vec::new();
        loop {
            let after = members.last().and_then(|member| member["userId"].as_str()).map(str::to_owned);
            let query = GatewayQuery::Members { tenant: tenant.to_owned(), after, limit: PAGE_MAX };
            let page: Vec<Value> = self.ask(None, BesideQuery::Gateway(query), Reads::Fresh).await?;
            let is_last = page.len() < PAGE_MAX;
            members.extend(page);
            if is_last || members.len() >= LISTED_MAX {
                return Ok(json!({ "type": "member_list", "members": members }));
            }
        }
    }
}
