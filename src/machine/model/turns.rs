//! Owns: the turns that the model asks for, and the decisions of people about tool calls.

use serde_json::{Value, json};

use super::people::Person;
use super::profile::{Profile, Status};
use super::records;
use super::scene::{Fields, Scene};
use super::source::Posted;
use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::turn::ask::{self, AskTurn};
use crate::machine::turn::driver::Agent;
use crate::machine::turn::order::{self, Order};
use crate::machine::turn::record::Unclaimed;
use crate::machine::turn::work::Work;
use crate::machine::view::View;

/// A message waits so long for a driver.
const CLAIM_WITHIN_MS: i64 = 10 * 60 * 1000;

/// A turn that a message asks for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub turn_id: &'a str,
    pub message_id: &'a str,
    pub entry_id: &'a EntryId,
    /// What the agent reads.
    pub prompt_text: &'a str,
    pub message: &'a Posted,
    pub sender: Option<&'a Person>,
}

pub fn new_turn_id(stamp: &Stamp) -> String {
    const TURN_ORDINAL: u64 = 1002; // after the ids of entries, users and checkpoints
    stamp.entry_id(TURN_ORDINAL).as_str().replacen("e_", "t_", 1)
}

/// Asks for a turn. It waits behind those that the session has.
pub fn ask(scene: &mut Scene<'_>, asked: &Ask<'_>) -> Result<(), Failure> {
    let command = AskTurn {
        session_id: scene.draft.session_id.clone(),
        door: "model".to_owned(),
        turn_id: Some(asked.turn_id.to_owned()),
        asked_by: asked.sender.map(|sender| sender.user_id.clone()),
        key: Some(asked.message_id.to_owned()),
        queue: true,
        agent: Agent { agent_id: Some(scene.profile.agent_id.clone()), ..Agent::default() },
        entry: None,
        message_entry_id: Some(asked.entry_id.clone()),
        request: request(scene, asked)?,
        claim_within_ms: Some(CLAIM_WITHIN_MS),
        unclaimed: Unclaimed::Fail,
    };
    let stamp = scene.stamp;
    let mut work = Work::open(scene.view, &stamp, scene.draft.session_id)?;
    let answer = ask::ask(&mut work, &command)?;
    if let Some(why) = answer.get("refused").and(answer.get("message")).and_then(Value::as_str) {
        return Err(Refusal::RequestInvalid(format!("message: {why}")).into());
    }
    let outcome = work.finish(&answer)?;
    scene.absorb(outcome);
    if scene.profile.status != Status::AwaitingApproval {
        scene.profile.status = Status::Running;
    }
    Ok(())
}

/// What a driver needs to know to run the turn.
fn request(scene: &Scene<'_>, asked: &Ask<'_>) -> Result<Fields, Failure> {
    let profile: &Profile = &scene.profile;
    let mut fields = Fields::new();
    let mut put = |name: &str, value: Json| drop(fields.insert(name.to_owned(), value));
    put("message_id", Json::print(&asked.message_id));
    put("prompt_text", Json::print(&asked.prompt_text));
    put("text", Json::print(&asked.message.text));
    put("source", Json::print(&profile.source));
    put("history_cursor", Json::print(&profile.counted.event_id));
    if let Some(attachments) = &asked.message.attachments {
        put("attachments", Json::print(attachments));
    }
    if let Some(participants) = &asked.message.participants {
        put("participants", Json::print(participants));
    }
    if let Some(sender) = asked.sender {
        let name = asked.message.sender.as_ref().and_then(|sender| sender.display_name.as_ref());
        let mut about = json!({ "user_id": sender.user_id });
        if let Some(role) = sender.role {
            about["role"] = json!(role);
        }
        if let Some(name) = name {
            about["name"] = json!(name);
        }
        put("sender", Json::print(&about));
    }
    if !profile.metadata.is_empty() {
        put("metadata", Json::print(&profile.metadata));
    }
    if let Some(instruction) = &profile.custom_instruction {
        put("custom_instruction", Json::print(instruction));
    }
    if let Some(memory) = records::memory(scene.view, scene.draft.session_id)? {
        put("working_memory", Json::print(&memory.text));
    }
    Ok(fields)
}

/// A decision about a tool call that waits for one. `decision` is the model's word for it.
pub fn decide(
    view: &dyn View,
    stamp: &Stamp,
    session_id: &SessionId,
    tool_call_id: &str,
    decision: &str,
) -> Result<Outcome, Failure> {
    let mut work = Work::open(view, stamp, session_id)?;
    let waits = work.stream.requests.iter().find(|request| {
        let call: Option<String> = request.event.field("toolCallId").and_then(|id| serde_json::from_str(id).ok());
        request.request_id == tool_call_id || call.as_deref() == Some(tool_call_id)
    });
    let Some(request_id) = waits.map(|request| request.request_id.clone()) else {
        return Ok(Outcome::unchanged(Answer::Value(Json::adopt("{\"resolved\":false}"))));
    };
    let order = Order::Approve {
        request_id,
        approved: decision == "approved",
        reason: None,
        fields: Fields::from([
            ("decision".to_owned(), Json::print(&decision)),
            ("toolCallId".to_owned(), Json::print(&tool_call_id)),
        ]),
    };
    let answer = order::give(&mut work, &order)?;
    work.finish(&json!({ "resolved": answer["resolved"] == true }))
}
