//! Owns: the members of a tenant and the rules about their roles: the first user of a tenant owns it, nobody grants or
//! takes a role above his own, and a tenant keeps an owner.
//! Never: who presents which credentials.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::role::MemberRole;
use crate::machine::beside::{RecordKey, Space};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::json::Json;
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// More members than a tenant has. It bounds what a list reads.
pub const MEMBERS_MAX: u64 = 10_000;
/// The members of one page of a list.
pub const PAGE_MAX: usize = 500;
const NAME_BYTES_MAX: usize = 256;

/// A member of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    pub role: MemberRole,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    pub added_at: i64,
}

/// How many members a tenant has, so that no command counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    members: u64,
    owners: u64,
}

/// A user who acts, with the role of his credentials. The role of his record counts, if he has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    pub user: String,
    pub role: MemberRole,
}

fn key(tenant: &str, user: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Member).with(tenant).with(user)
}

fn counts_key(tenant: &str) -> RecordKey {
    RecordKey::of_cluster(Space::Gateway).with("members").with(tenant)
}

pub fn read(view: &dyn View, tenant: &str, user: &str) -> Result<Option<MemberRecord>, Fault> {
    let Some(value) = view.record(&key(tenant, user))? else { return Ok(None) };
    value.parse().map(Some).map_err(|error| Fault(format!("damaged member record: {error}")))
}

fn counts(view: &dyn View, tenant: &str) -> Result<Counts, Fault> {
    let Some(value) = view.record(&counts_key(tenant))? else { return Ok(Counts::default()) };
    value.parse().map_err(|error| Fault(format!("damaged count of members: {error}")))
}

/// What the door needs to know about a user.
pub fn look_up(view: &dyn View, tenant: &str, user: &str) -> Result<Json, Failure> {
    let role = read(view, tenant, user)?.map(|member| member.role);
    Ok(Json::print(&json!({ "role": role, "members": counts(view, tenant)?.members })))
}

/// A page of members in the order of their names, after one of them.
pub fn list(view: &dyn View, tenant: &str, after: Option<&str>, limit: usize) -> Result<Json, Failure> {
    let under = RecordKey::of_cluster(Space::Member).with(tenant);
    let after = after.map(|user| key(tenant, user));
    let found = view.records(&under, after.as_ref(), limit.clamp(1, PAGE_MAX))?;
    let mut members = Vec::with_capacity(found.len());
    for (key, value) in &found {
        let member: MemberRecord = value.parse().map_err(|error| Fault(format!("damaged member record: {error}")))?;
        let mut shown = json!({ "userId": key.text(1), "role": member.role, "addedAt": member.added_at });
        if let Some(email) = member.email {
            shown["email"] = Value::from(email);
        }
        members.push(shown);
    }
    Ok(Json::print(&members))
}

/// Why a change of members is refused. The door spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRefusal {
    NotFound,
    LastOwner,
    AboveOwnRole,
    NotAdmin,
    TooMany,
}

/// The first user of a tenant becomes its owner. Anybody else changes nothing.
pub fn arrive(
    view: &dyn View,
    stamp: &Stamp,
    tenant: &str,
    user: &str,
    email: Option<&str>,
) -> Result<Outcome, Failure> {
    check_names(tenant, user)?;
    if let Some(member) = read(view, tenant, user)? {
        return Ok(Outcome::unchanged(role_answer(Some(member.role))));
    }
    let counts = counts(view, tenant)?;
    if counts.members > 0 {
        return Ok(Outcome::unchanged(role_answer(None)));
    }
    let member = MemberRecord { role: MemberRole::Owner, email: email.map(str::to_owned), added_at: stamp.at_ms };
    let counts = Counts { members: 1, owners: 1 };
    Ok(outcome(stamp, role_answer(Some(MemberRole::Owner)), [put(tenant, user, &member), put_counts(tenant, counts)]))
}

pub fn set_role(
    view: &dyn View,
    stamp: &Stamp,
    tenant: &str,
    by: &Actor,
    user: &str,
    role: MemberRole,
) -> Result<Outcome, Failure> {
    check_names(tenant, user)?;
    let before = read(view, tenant, user)?;
    let had = before.as_ref().map(|member| member.role);
    let mut counts = counts(view, tenant)?;
    if let Some(refused) = refused(view, tenant, by, had, Some(role), counts)? {
        return Ok(Outcome::unchanged(refusal_answer(refused)));
    }
    counts.owners = counts
        .owners
        .saturating_add(u64::from(role == MemberRole::Owner))
        .saturating_sub(u64::from(had == Some(MemberRole::Owner)));
    counts.members += u64::from(before.is_none());
    let member = match before {
        Some(member) => MemberRecord { role, ..member },
        None => MemberRecord { role, email: None, added_at: stamp.at_ms },
    };
    Ok(outcome(stamp, role_answer(Some(role)), [put(tenant, user, &member), put_counts(tenant, counts)]))
}

pub fn remove(view: &dyn View, stamp: &Stamp, tenant: &str, by: &Actor, user: &str) -> Result<Outcome, Failure> {
    check_names(tenant, user)?;
    let had = read(view, tenant, user)?.map(|member| member.role);
    let mut counts = counts(view, tenant)?;
    if let Some(refused) = refused(view, tenant, by, had, None, counts)? {
        return Ok(Outcome::unchanged(refusal_answer(refused)));
    }
    counts.owners = counts.owners.saturating_sub(u64::from(had == Some(MemberRole::Owner)));
    counts.members = counts.members.saturating_sub(1);
    Ok(outcome(stamp, role_answer(None), [Change::delete_record(key(tenant, user)), put_counts(tenant, counts)]))
}

/// `next` is the role that the user gets, or `None` for a removal.
fn refused(
    view: &dyn View,
    tenant: &str,
    by: &Actor,
    had: Option<MemberRole>,
    next: Option<MemberRole>,
    counts: Counts,
) -> Result<Option<MemberRefusal>, Failure> {
    let own = read(view, tenant, &by.user)?.map_or(by.role, |member| member.role);
    let is_last_owner = had == Some(MemberRole::Owner) && counts.owners <= 1;
    Ok(if own < MemberRole::Admin {
        Some(MemberRefusal::NotAdmin)
    } else if had.is_none() && next.is_none() {
        Some(MemberRefusal::NotFound)
    } else if next > Some(own) || had > Some(own) {
        Some(MemberRefusal::AboveOwnRole)
    } else if is_last_owner && next != Some(MemberRole::Owner) {
        Some(MemberRefusal::LastOwner)
    } else if had.is_none() && counts.members >= MEMBERS_MAX {
        Some(MemberRefusal::TooMany)
    } else {
        None
    })
}

fn check_names(tenant: &str, user: &str) -> Result<(), Refusal> {
    for (field, name) in [("tenant", tenant), ("userId", user)] {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let why = format!("{field}: give a name of 1 to {NAME_BYTES_MAX} bytes");
            return Err(Refusal::RequestInvalid(why));
        }
    }
    Ok(())
}

fn put(tenant: &str, user: &str, member: &MemberRecord) -> Change {
    Change::put_record(key(tenant, user), Json::print(member))
}

fn put_counts(tenant: &str, counts: Counts) -> Change {
    Change::put_record(counts_key(tenant), Json::print(&counts))
}

fn outcome(stamp: &Stamp, answer: Answer, changes: [Change; 2]) -> Outcome {
    let [first, second] = changes;
    Outcome { answer: Ok(answer), changes: vec![first, second, Change::Clock(stamp.at_ms)], events: Vec::new() }
}

fn role_answer(role: Option<MemberRole>) -> Answer {
    Answer::Value(Json::print(&json!({ "role": role })))
}

fn refusal_answer(refused: MemberRefusal) -> Answer {
    Answer::Value(Json::print(&json!({ "refused": refused })))
}
