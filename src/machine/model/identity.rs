//! `session::identity::…`: which identities of channels belong to which user, merges, roles, and the tokens of channels.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::access::Role;
use super::people::{self, Known, User, new_user_id};
use super::records::{self, ChannelToken, channel_key, known_key, token_key, user_key};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::json::Json;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// Users that can be merged into one. Every look at a participant asks for each of them.
const ALIASES_MAX: usize = 256;

fn written(stamp: &Stamp, mut changes: Vec<Change>, answer: Value) -> Outcome {
    changes.push(Change::Clock(stamp.at_ms));
    Outcome { answer: Ok(Answer::Value(Json::print(&answer))), changes, events: Vec::new() }
}

fn put_user(user_id: &str, user: &User) -> Change {
    Change::put_record(user_key(user_id), Json::print(user))
}

/// The user at the end of the merges, or a refusal that names the field.
fn known_user(view: &dyn View, field: &str, user_id: &str) -> Result<(String, User), Failure> {
    let unknown = || Refusal::RequestInvalid(format!("{field}: there is no user {user_id:?}"));
    Ok(people::merged(view, user_id)?.ok_or_else(unknown)?)
}

/// Makes an identity lead to a user: the given one, or a new one.
pub fn link(
    view: &dyn View,
    stamp: &Stamp,
    channel: &str,
    channel_user_id: &str,
    user_id: Option<&str>,
) -> Result<Outcome, Failure> {
    let mut changes = Vec::new();
    let user_id = match user_id {
        Some(user_id) => known_user(view, "user_id", user_id)?.0,
        None => match people::resolve(view, channel, channel_user_id)? {
            Some((user_id, _)) => {
                return Ok(Outcome::unchanged(Answer::Value(Json::print(&json!({ "user_id": user_id })))));
            }
            None => {
                let user_id = new_user_id(stamp);
                changes.push(put_user(&user_id, &User { created_at: stamp.at_ms, ..User::default() }));
                user_id
            }
        },
    };
    let known = Known { user_id: user_id.clone() };
    changes.push(Change::put_record(known_key(channel, channel_user_id), Json::print(&known)));
    Ok(written(stamp, changes, json!({ "user_id": user_id })))
}

pub fn unlink(view: &dyn View, stamp: &Stamp, channel: &str, channel_user_id: &str) -> Result<Outcome, Failure> {
    let key = known_key(channel, channel_user_id);
    if view.record(&key)?.is_none() {
        return Ok(Outcome::unchanged(Answer::Value(Json::print(&json!({ "unlinked": false })))));
    }
    Ok(written(stamp, vec![Change::delete_record(key)], json!({ "unlinked": true })))
}

/// One user takes over another: identities, and roles that it does not have. Sessions follow, because participants are
/// compared through merges.
pub fn merge(view: &dyn View, stamp: &Stamp, user_id: &str, into: &str) -> Result<Outcome, Failure> {
    let (from_id, mut from) = known_user(view, "user_id", user_id)?;
    let (into_id, mut into) = known_user(view, "into", into)?;
    if from_id == into_id {
        return Ok(Outcome::unchanged(Answer::Value(Json::print(&json!({ "user_id": into_id, "merged": false })))));
    }
    if into.aliases.len() + from.aliases.len() + 1 > ALIASES_MAX {
        let why = format!("into: at most {ALIASES_MAX} users can be merged into one");
        return Err(Refusal::RequestInvalid(why).into());
    }
    into.aliases.push(from_id.clone());
    into.aliases.append(&mut from.aliases);
    let missing: BTreeMap<String, Role> =
        from.roles.iter().filter(|(agent, _)| !into.roles.contains_key(*agent)).map(|(a, r)| (a.clone(), *r)).collect();
    into.roles.extend(missing);
    from.merged_into = Some(into_id.clone());
    let changes = vec![put_user(&from_id, &from), put_user(&into_id, &into)];
    Ok(written(stamp, changes, json!({ "user_id": into_id, "merged": true })))
}

pub fn set_role(
    view: &dyn View,
    stamp: &Stamp,
    agent_id: &str,
    user_id: &str,
    role: Option<Role>,
) -> Result<Outcome, Failure> {
    let (user_id, mut user) = known_user(view, "user_id", user_id)?;
    let answer = json!({ "user_id": user_id, "role": role });
    if user.roles.get(agent_id).copied() == role {
        return Ok(Outcome::unchanged(Answer::Value(Json::print(&answer))));
    }
    match role {
        Some(role) => user.roles.insert(agent_id.to_owned(), role),
        None => user.roles.remove(agent_id),
    };
    Ok(written(stamp, vec![put_user(&user_id, &user)], answer))
}

/// Sets the token of a channel's adapter, by its digest. The token before it is void.
pub fn set_channel_token(
    view: &dyn View,
    stamp: &Stamp,
    agent_id: &str,
    namespace: &str,
    digest: Option<&str>,
) -> Result<Outcome, Failure> {
    let key = channel_key(agent_id, namespace);
    let mut changes = Vec::new();
    if let Some(old) = records::read::<String>(view, &key)? {
        changes.push(Change::delete_record(token_key(&old)));
    }
    match digest {
        Some(digest) => {
            let taken: Option<ChannelToken> = records::read(view, &token_key(digest))?;
            if taken.is_some_and(|taken| taken.agent_id != agent_id || taken.namespace != namespace) {
                let why = "token: another channel has this token: make a new one for each";
                return Err(Refusal::RequestInvalid(why.to_owned()).into());
            }
            let token = ChannelToken { agent_id: agent_id.to_owned(), namespace: namespace.to_owned() };
            changes.push(Change::put_record(token_key(digest), Json::print(&token)));
            changes.push(Change::put_record(key, Json::print(&digest)));
        }
        None => changes.push(Change::delete_record(key)),
    }
    Ok(written(stamp, changes, json!({ "set": digest.is_some() })))
}
