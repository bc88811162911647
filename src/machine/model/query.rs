//! Owns: the questions about the session model. Each reads a bounded number of records; longer answers come in pages.
//! Reads: View. Never: writes. A caller who is not known yet stays unknown.

use serde_json::{Value, json};

use super::access::{self, Caller, Role, Verdict};
use super::filter::Filters;
use super::history;
use super::names::{is_in_namespace, store_id};
use super::people::{self, User};
use super::profile::{Profile, Summary};
use super::records::{self, ChannelToken};
use super::scene::outside;
use crate::machine::beside::{Part, RecordKey};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::query::window::{self, WindowQuery};
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::view::View;

/// Profiles that one page of a list looks at.
const LIST_STEP: usize = 256;
/// Entries of one page of a history.
const HISTORY_STEP: usize = 200;
/// Participants that a summary names. A page of a list has many summaries.
const PARTICIPANTS_MAX: usize = 100;

/// The session that a question is about, and who asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub agent_id: String,
    pub session_id: String,
    pub caller: Caller,
}

/// Where the next page of a list begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListAfter {
    pub rank: u64,
    pub session_id: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ModelQuery {
    /// The profile, as far as clients see it.
    Get(Place),
    /// A page of the sessions of an agent, the most recently active first.
    List { agent_id: String, caller: Caller, filters: Filters, after: Option<ListAfter>, limit: usize },
    /// A page of the history, oldest first. `leaf` keeps the pages on one path.
    History { place: Place, first: u64, leaf: Option<EntryId> },
    /// Events of the stream after one; `None`: none at all, only where the stream stands.
    Events { place: Place, after: Option<u64>, limit: usize },
    /// Who an identity is.
    Resolve { agent_id: Option<String>, channel: String, channel_user_id: String },
    /// What a channel token is for, by its digest.
    Token { digest: String },
}

impl ModelQuery {
    /// The session whose records it reads, if it names one. It is known only by its agent, so none is told here.
    pub fn session_id(&self) -> Option<&SessionId> {
        None
    }
}

pub fn query(view: &dyn View, query: &ModelQuery) -> Result<Json, Failure> {
    match query {
        ModelQuery::Get(place) => get(view, place),
        ModelQuery::List { agent_id, caller, filters, after, limit } => {
            list(view, agent_id, caller, filters, after.as_ref(), *limit)
        }
        ModelQuery::History { place, first, leaf } => history_page(view, place, *first, leaf.as_ref()),
        ModelQuery::Events { place, after, limit } => events(view, place, *after, *limit),
        ModelQuery::Resolve { agent_id, channel, channel_user_id } => {
            resolve(view, agent_id.as_deref(), channel, channel_user_id)
        }
        ModelQuery::Token { digest } => {
            let token: Option<ChannelToken> = records::read(view, &records::token_key(digest))?;
            Ok(Json::print(&token))
        }
    }
}

/// The user of a caller who is a person that is known.
fn user_of(view: &dyn View, caller: &Caller) -> Result<Option<(String, User)>, Fault> {
    match caller {
        Caller::Admin | Caller::Channel { .. } => Ok(None),
        Caller::User { channel, channel_user_id } => people::resolve(view, channel, channel_user_id),
    }
}

/// The profile of a session that the caller may see.
fn visible(view: &dyn View, place: &Place) -> Result<(SessionId, Profile), Failure> {
    if let Caller::Channel { namespace } = &place.caller
        && !is_in_namespace(&place.session_id, namespace)
    {
        return Err(outside(namespace).into());
    }
    let not_found = || Refusal::SessionUnknown(SessionId::from(place.session_id.as_str()));
    let id = store_id(&place.agent_id, &place.session_id);
    let profile = records::profile(view, &id)?.ok_or_else(not_found)?;
    let (role, participates) = match user_of(view, &place.caller)? {
        Some((user_id, user)) => {
            // A person without a role may still take part: the role was taken away, or is that of a guest.
            let role = user.roles.get(&place.agent_id).copied().or(access::role_of_stranger(profile.terms.access));
            let participates = people::participates(view, &id, &user_id, &user.aliases)?;
            (role, participates)
        }
        None => (None, false),
    };
    match access::decide(&place.caller, &place.session_id, role, participates) {
        Verdict::Allowed => Ok((id, profile)),
        Verdict::NotFound | Verdict::OutsideNamespace => Err(not_found().into()),
    }
}

fn participants(view: &dyn View, session_id: &SessionId) -> Result<Vec<String>, Fault> {
    let found = view.records(&records::participants_key(session_id), None, PARTICIPANTS_MAX)?;
    let mut users = Vec::new();
    for (key, _) in found {
        let Some(user_id) = key.text(1) else { continue };
        let user_id = people::merged(view, user_id)?.map_or_else(|| user_id.to_owned(), |(user_id, _)| user_id);
        if !users.contains(&user_id) {
            users.push(user_id);
        }
    }
    Ok(users)
}

fn summary(view: &dyn View, session_id: &SessionId, profile: &Profile, caller: &Caller) -> Result<Summary, Fault> {
    let user_ids = match caller {
        Caller::Admin => Some(participants(view, session_id)?),
        Caller::Channel { .. } | Caller::User { .. } => None,
    };
    Ok(profile.summary(user_ids))
}

fn get(view: &dyn View, place: &Place) -> Result<Json, Failure> {
    let (id, profile) = visible(view, place)?;
    let mut about = json!(summary(view, &id, &profile, &place.caller)?);
    about["storeSessionId"] = Value::from(id.as_str());
    about["completedTurnCount"] = Value::from(profile.completed_turn_count);
    about["oldestEventId"] = Value::from(profile.oldest_event_id);
    about["descriptionSource"] = json!(profile.description_source);
    about["cursor"] = json!({ "eventId": profile.cursor.event_id });
    about["checkpoint"] = json!({
        "underway": profile.underway.as_ref().map(|underway| &underway.checkpoint_id),
        "ended": profile.ended.as_ref().map(|ended| &ended.checkpoint_id),
        "checkpointed": profile.ended.as_ref().map(|ended| ended.checkpointed),
    });
    if let Some(memory) = records::memory(view, &id)? {
        about["workingMemory"] = Value::from(memory.text);
        about["workingMemoryUpdatedAt"] = Value::from(crate::machine::toolpath::time::print(memory.updated_at));
    }
    Ok(Json::print(&about))
}

fn list(
    view: &dyn View,
    agent_id: &str,
    caller: &Caller,
    filters: &Filters,
    after: Option<&ListAfter>,
    limit: usize,
) -> Result<Json, Failure> {
    let under = records::activity_key(agent_id);
    let user = user_of(view, caller)?;
    if matches!(caller, Caller::User { .. }) && user.is_none() {
        return Ok(Json::print(&json!({ "rows": [], "next": null })));
    }
    let after = after.map(|after| under.clone().with(after.rank).with(after.session_id.as_str()));
    let found = view.records(&under, after.as_ref(), LIST_STEP)?;
    let is_last = found.len() < LIST_STEP;
    let (mut rows, mut next) = (Vec::new(), None);
    for (key, _) in found {
        let Some((rank, session_id)) = place_in_list(&key) else { continue };
        next = Some(json!({ "rank": rank.to_string(), "session_id": session_id }));
        let id = store_id(agent_id, session_id);
        let Some(profile) = records::profile(view, &id)? else { continue };
        let shown = match (caller, &user) {
            (Caller::Admin, _) => true,
            (Caller::Channel { namespace }, _) => is_in_namespace(session_id, namespace),
            (Caller::User { .. }, Some((user_id, user))) => people::participates(view, &id, user_id, &user.aliases)?,
            (Caller::User { .. }, None) => false,
        };
        if shown && filters.include(&profile) {
            rows.push(summary(view, &id, &profile, caller)?);
            if rows.len() >= limit {
                return Ok(Json::print(&json!({ "rows": rows, "next": null })));
            }
        }
    }
    let next = next.filter(|_| !is_last);
    Ok(Json::print(&json!({ "rows": rows, "next": next })))
}

fn place_in_list(key: &RecordKey) -> Option<(u64, &str)> {
    match (key.parts.get(2)?, key.parts.get(3)?) {
        (Part::Number(rank), Part::Text(session_id)) => Some((*rank, session_id)),
        (Part::Number(_) | Part::Text(_), Part::Number(_) | Part::Text(_)) => None,
    }
}

fn history_page(view: &dyn View, place: &Place, first: u64, leaf: Option<&EntryId>) -> Result<Json, Failure> {
    let (session_id, _) = visible(view, place)?;
    let window = WindowQuery {
        session_id,
        from_entry_id: leaf.cloned(),
        first: Some(first),
        limit: HISTORY_STEP,
        strings_max: None,
    };
    let found = window::query(view, &window)?;
    let read = found.first + found.entries.len() as u64;
    let rows: Vec<history::Row> = found.entries.iter().flat_map(history::rows).collect();
    let next = (read < found.length && !found.entries.is_empty()).then_some(read);
    Ok(Json::print(&json!({ "rows": rows, "next": next, "leaf": found.leaf })))
}

fn events(view: &dyn View, place: &Place, after: Option<u64>, limit: usize) -> Result<Json, Failure> {
    let (id, profile) = visible(view, place)?;
    let under = records::events_key(&id);
    // Joined as text: an event may have numbers that fit no 64 bits.
    let mut events: Vec<String> = Vec::new();
    if let Some(after) = after {
        for (key, event) in view.records(&under, Some(&under.clone().with(after)), limit)? {
            let Some(event_id) = key.number(1) else { continue };
            events.push(format!("{{\"event_id\":{event_id},\"event\":{}}}", event.text()));
        }
    }
    let (oldest, last) = (profile.oldest_event_id, profile.counted.event_id);
    let events = events.join(",");
    Ok(Json::adopt(&format!("{{\"events\":[{events}],\"oldest\":{oldest},\"last\":{last}}}")))
}

fn resolve(view: &dyn View, agent_id: Option<&str>, channel: &str, channel_user_id: &str) -> Result<Json, Failure> {
    let found = people::resolve(view, channel, channel_user_id)?;
    let role = |user: &User| -> Option<Role> { user.roles.get(agent_id?).copied() };
    Ok(Json::print(&match found {
        Some((user_id, user)) => json!({ "user_id": user_id, "role": role(&user) }),
        None => json!({ "user_id": null }),
    }))
}
