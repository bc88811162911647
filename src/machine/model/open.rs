//! `session::open`: creates a session of the model, or opens it again. Opening again keeps the source, merges the metadata
//! and looks the caller up anew, so that merges and new roles count.

use serde_json::{Value, json};

use super::access::Caller;
use super::people::{self, Person};
use super::profile::{Profile, Status};
use super::scene::{Asked, Scene, caller_person, check_access, id_of, in_namespace, not_found, outside};
use super::source::{SessionType, Source};
use super::{records, timers};
use crate::machine::apply::create::{CreateSession, new_session};
use crate::machine::command::Outcome;
use crate::machine::event::Happened;
use crate::machine::json::Object;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

pub fn apply(
    view: &dyn View,
    stamp: &Stamp,
    asked: &Asked<'_>,
    source: &Source,
    metadata: &Object,
    custom_instruction: Option<&str>,
) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    let person = caller_person(view, stamp, asked)?;
    if let (Caller::Channel { namespace }, false) = (asked.caller, in_namespace(asked)) {
        return Err(outside(namespace).into());
    }
    // A person that the agent does not talk to finds nothing here.
    if matches!(asked.caller, Caller::User { .. }) && person.as_ref().is_none_or(|person| person.role.is_none()) {
        return Err(not_found(asked).into());
    }
    let (mut scene, created) = match records::profile(view, &store_id)? {
        Some(profile) => {
            check_access(view, asked, &store_id, person.as_ref())?;
            let mut scene = Scene::of(view, stamp, &store_id, profile)?;
            scene.profile.terms = asked.terms.clone();
            (scene, false)
        }
        None => {
            let terms = asked.terms.clone();
            let mut profile = Profile::new(asked.agent_id, asked.session_id, source.clone(), stamp.at_ms, terms);
            profile.custom_instruction = custom_instruction.map(str::to_owned);
            let scene = match view.meta(&store_id)? {
                // A session of the store becomes one of the model.
                Some(meta) => {
                    let mut scene = Scene::begin(view, stamp, &store_id, meta, profile)?;
                    scene.meta.updated_at = scene.meta.updated_at.saturating_add(1).max(stamp.at_ms);
                    scene
                }
                None => {
                    let blank = CreateSession { title: String::new(), description: String::new(), metadata: None };
                    let meta = new_session(&store_id, stamp, &blank);
                    Scene::begin(view, stamp, &store_id, meta, profile)?
                }
            };
            (scene, true)
        }
    };
    let is_new_in_store = created && view.meta(&store_id)?.is_none();

    // 1. Metadata: the new values win.
    let merged = merge(&mut scene, metadata);
    if is_new_in_store {
        let created = Happened::created(&scene.meta);
        scene.draft.report(created, scene.meta.metadata.as_ref());
    } else if merged || created {
        scene.report_meta();
    }
    // 2. The person who opens it takes part in a new session. Opening it again adds nobody.
    let opener = match person {
        Some(person) => Some(person),
        None => implied_opener(view, stamp, asked, &scene.profile.source, &scene.profile.metadata)?,
    };
    if let Some(opener) = &opener {
        scene.draft.changes.extend(opener.changes.iter().cloned());
        scene.profile.current_user = Some(opener.user_id.clone());
        if created {
            scene.add_participant(opener)?;
        }
    }
    // 3. A session that is not working is idle, and one that was put aside is back.
    if !scene.profile.is_busy() {
        scene.set_status(Status::Idle);
    }
    timers::watch_activity(&mut scene.draft, &mut scene.profile, stamp.at_ms);
    let answer = json!({
        "session_id": asked.session_id,
        "store_session_id": store_id.as_str(),
        "created": created,
        "status": scene.profile.status,
    });
    scene.answer(answer)
}

/// Merges metadata into the profile and into the session's own record. Returns whether anything changed.
fn merge(scene: &mut Scene<'_>, metadata: &Object) -> bool {
    for (key, value) in metadata {
        scene.profile.metadata.insert(key.clone(), value.clone());
    }
    let mut stored = scene.meta.metadata.clone().unwrap_or_default();
    for (key, value) in &scene.profile.metadata {
        stored.insert(key.clone(), value.clone());
    }
    let profile = &scene.profile;
    let session_type = match profile.source.session_type() {
        SessionType::Direct => "direct",
        SessionType::Group => "group",
    };
    let about = json!({ "agent_id": profile.agent_id, "kind": profile.source.kind, "type": session_type });
    stored.insert("profile".to_owned(), about);
    let changed = scene.meta.metadata.as_ref() != Some(&stored);
    scene.meta.metadata = Some(stored);
    changed
}

/// Whom a schedule or an adapter opens a session for.
fn implied_opener(
    view: &dyn View,
    stamp: &Stamp,
    asked: &Asked<'_>,
    source: &Source,
    metadata: &Object,
) -> Result<Option<Person>, Failure> {
    let text = |key: &str| match metadata.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => None,
    };
    if source.kind == "schedule" {
        return match text("schedule_user_id") {
            Some(user_id) => Ok(people::acquaintance(view, asked.agent_id, &user_id)?),
            None => Ok(None),
        };
    }
    if source.platform.as_deref() != Some("telegram") || source.is_group() {
        return Ok(None);
    }
    let names = ["telegram_user_id", "telegram_chat_id", "telegram_username"];
    match names.into_iter().find_map(text) {
        Some(id) => {
            let met = people::meet(view, stamp, asked.agent_id, ("telegram", &id), asked.terms.access)?;
            match (met.filter(|person| person.role.is_some()), asked.caller) {
                // The adapter acts for somebody whom the agent does not talk to.
                (None, Caller::Channel { .. }) => Err(not_found(asked).into()),
                (met, _) => Ok(met),
            }
        }
        None => Ok(None),
    }
}
