//! `session::post`: stores a message, tells the stream, and asks for a turn where the routing says so. With `append` it is
//! only stored. One command does all of it.

use serde_json::{Map, Value, json};

use super::access::Caller;
use super::command::Mode;
use super::people::{self, Person};
use super::profile::{DescriptionSource, Status};
use super::routing::{self, Said};
use super::scene::{Asked, Fields, Scene, id_of, not_found};
use super::source::{Attachment, Author, Posted, Sender};
use super::turns::{self, Ask};
use super::{checkpoints, names, texts, timers};
use crate::machine::command::{Answer, Outcome};
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, List};
use crate::machine::message::{AgentMessage, ContentBlock, Message, StopReason};
use crate::machine::model::checkpoint::{Reason, passive_limit_reached};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::toolpath::time;
use crate::machine::view::View;

pub fn apply(
    view: &dyn View,
    stamp: &Stamp,
    asked: &Asked<'_>,
    message: &Posted,
    mode: Mode,
) -> Result<Outcome, Failure> {
    let store_id = id_of(asked);
    let (mut scene, person) = Scene::open(view, stamp, asked, &store_id)?;
    let message_id = match &message.message_id {
        Some(message_id) => message_id.clone(),
        None => stamp.entry_id(0).as_str().replacen("e_", "msg_", 1),
    };
    let entry_id = names::entry_id(&message_id);
    if message.message_id.is_some()
        && let Some(entry) = view.entry(&store_id, &entry_id)?
    {
        return Ok(Outcome::unchanged(Answer::Value(Json::print(&repeated(&store_id, &message_id, &entry)))));
    }
    let sender = sender(view, stamp, asked, message, person, &scene)?;

    // 1. The sender takes part from now on.
    if let Some(sender) = &sender {
        scene.draft.changes.extend(sender.changes.iter().cloned());
        scene.add_participant(sender)?;
        scene.profile.current_user = Some(sender.user_id.clone());
    }
    // 2. The counts, and what a list shows.
    scene.profile.last_activity_at = stamp.at_ms;
    scene.profile.message_count += 1;
    scene.profile.counted.rows += 1;
    timers::watch_activity(&mut scene.draft, &mut scene.profile, stamp.at_ms);

    let author = match mode {
        Mode::Post => Author::User,
        Mode::Append => message.append_as.unwrap_or_default(),
    };
    let said = Said {
        session_type: scene.profile.source.session_type(),
        by_owner: sender.as_ref().is_some_and(Person::is_owner),
        mentioned: message.is_mentioned(),
        text: &message.text,
        name: name_of(message),
        owner_always: asked.terms.group_owner_always,
    };
    let prompt = match mode {
        Mode::Post => routing::prompt(&said),
        Mode::Append => None,
    };
    let turn_id = prompt.is_some().then(|| turns::new_turn_id(stamp));

    // 3. The transcript has the message as it was written.
    let timestamp = message.occurred_at.as_deref().and_then(time::parse).unwrap_or(stamp.at_ms);
    let (content, attachments) = content(message);
    let body = Body::Message(Message::new(match author {
        Author::User => AgentMessage::User { content, timestamp },
        Author::Assistant => AgentMessage::Assistant {
            content,
            stop_reason: StopReason::End,
            native_stop_reason: None,
            error_message: None,
            error_kind: None,
            usage: None,
            warnings: None,
            model: String::new(),
            provider: String::new(),
            timestamp,
        },
    }));
    let origin = origin(asked.caller, message, sender.as_ref(), attachments, turn_id.as_deref());
    scene.append(entry_id.clone(), stamp.at_ms, Some(origin), body)?;

    // 4. The stream. A message that asks for a turn belongs to it.
    if author == Author::User {
        let mut fields = Fields::from([("text".to_owned(), Json::print(&message.text))]);
        if let Some(name) = name_of(message) {
            fields.insert("name".to_owned(), Json::print(&name));
        }
        if let Some(attachments) = &message.attachments {
            fields.insert("attachments".to_owned(), Json::print(attachments));
        }
        let correlation = turn_id.is_some().then_some(message_id.as_str());
        scene.hand().stream("user_message", fields, correlation);
    }

    // 5. The turn.
    if mode == Mode::Post {
        describe(&mut scene, &message.text);
        scene.profile.idle_due = None;
        if scene.profile.status == Status::Inactive {
            scene.set_status(Status::Idle);
        }
        match (&turn_id, prompt) {
            (Some(turn_id), Some(prompt_text)) => {
                let ask = Ask {
                    turn_id,
                    message_id: &message_id,
                    entry_id: &entry_id,
                    prompt_text: &prompt_text,
                    message,
                    sender: sender.as_ref(),
                };
                turns::ask(&mut scene, &ask)?;
            }
            (Some(_), None) | (None, _) => {
                scene.profile.counted.passive += 1;
                let limit = asked.terms.checkpoint_passive;
                if passive_limit_reached(&scene.profile.counted, &scene.profile.cursor, limit) {
                    checkpoints::begin(&mut scene.hand(), Reason::Idle)?;
                }
            }
        }
    }
    scene.answer(json!({
        "session_id": store_id.as_str(),
        "message_id": message_id,
        "entry_id": entry_id.as_str(),
        "turn_id": turn_id,
        "triggered": turn_id.is_some(),
        "deduped": false,
    }))
}

/// The answer to a message that is stored already.
fn repeated(store_id: &SessionId, message_id: &str, entry: &Entry) -> Value {
    let origin = entry.origin.as_ref().map(Json::value).unwrap_or_default();
    let turn_id = origin.get("turn_id").cloned().unwrap_or_default();
    json!({
        "session_id": store_id.as_str(),
        "message_id": message_id,
        "entry_id": entry.id.as_str(),
        "triggered": !turn_id.is_null(),
        "turn_id": turn_id,
        "deduped": true,
    })
}

/// Who wrote a message: a person who calls wrote it; an adapter or an admin says who did; else the last person who opened the
/// session or wrote to it.
fn sender(
    view: &dyn View,
    stamp: &Stamp,
    asked: &Asked<'_>,
    message: &Posted,
    person: Option<Person>,
    scene: &Scene<'_>,
) -> Result<Option<Person>, Failure> {
    if person.is_some() {
        return Ok(person);
    }
    match (&message.sender, asked.caller) {
        (Some(sender), Caller::Channel { namespace }) if sender.channel != *namespace => {
            let why = format!("sender.channel is {:?}: this token is for {namespace:?}", sender.channel);
            Err(Refusal::RequestInvalid(why).into())
        }
        (Some(sender), _) => {
            let identity = (sender.channel.as_str(), sender.channel_user_id.as_str());
            let met = people::meet(view, stamp, asked.agent_id, identity, asked.terms.access)?;
            // The agent talks to no strangers: nothing of theirs is stored, and nothing is told to them.
            Ok(Some(met.filter(|person| person.role.is_some()).ok_or_else(|| not_found(asked))?))
        }
        (None, _) => match &scene.profile.current_user {
            Some(user_id) => Ok(people::acquaintance(view, asked.agent_id, user_id)?),
            None => Ok(None),
        },
    }
}

fn name_of(message: &Posted) -> Option<&str> {
    message.sender.as_ref()?.display_name.as_deref()
}

/// The first message describes the session until a worker does it better.
fn describe(scene: &mut Scene<'_>, text: &str) {
    scene.profile.preview = Some(texts::preview(text));
    if scene.profile.description.is_some() {
        return;
    }
    let Some(description) = texts::fallback_description(text) else { return };
    scene.meta.description = description.clone();
    scene.profile.description = Some(description);
    scene.profile.description_source = Some(DescriptionSource::Fallback);
    scene.report_meta();
}

/// The content of a message, and its attachments without the pictures that became blocks of it.
fn content(message: &Posted) -> (List<ContentBlock>, Vec<Value>) {
    let mut blocks = vec![ContentBlock::Text { text: message.text.clone() }];
    let mut attachments = Vec::new();
    for attachment in message.attachments.iter().flatten() {
        match picture(attachment) {
            Some(block) => {
                blocks.push(block);
                let mut rest = json!(Attachment { data: None, ..attachment.clone() });
                rest["inline"] = Value::Bool(true);
                attachments.push(rest);
            }
            None => attachments.push(json!(attachment)),
        }
    }
    (List::of(&blocks), attachments)
}

fn picture(attachment: &Attachment) -> Option<ContentBlock> {
    let mime = attachment.mime_type.as_ref().filter(|mime| mime.starts_with("image/"))?;
    Some(ContentBlock::Image { data: attachment.data.clone()?, mime: mime.clone() })
}

/// A person is the sender, whatever the message says; only the name counts.
fn own_sender(caller: &Caller, said: &Sender) -> Sender {
    match caller {
        Caller::User { channel, channel_user_id } => Sender {
            channel: channel.clone(),
            channel_user_id: channel_user_id.clone(),
            display_name: said.display_name.clone(),
        },
        Caller::Admin | Caller::Channel { .. } => said.clone(),
    }
}

fn origin(
    caller: &Caller,
    message: &Posted,
    sender: Option<&Person>,
    attachments: Vec<Value>,
    turn_id: Option<&str>,
) -> Json {
    let mut origin = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            origin.insert(name.to_owned(), value);
        }
    };
    put("turn_id", turn_id.map(Value::from));
    put("user_id", sender.map(|sender| Value::from(sender.user_id.as_str())));
    put("name", name_of(message).map(Value::from));
    put("sender", message.sender.as_ref().map(|sender| json!(own_sender(caller, sender))));
    put("mentioned", message.mentioned.map(Value::from));
    put("metadata", message.metadata.clone().map(Value::Object));
    put("attachments", (!attachments.is_empty()).then_some(Value::Array(attachments)));
    put("occurred_at", message.occurred_at.as_deref().map(Value::from));
    Json::print(&origin)
}
