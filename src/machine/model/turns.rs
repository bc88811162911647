//! Owns: the turns that the model asks for, and the decisions of people about tool calls.

use serde_json::json;

use super::people::Person;
use super::profile::Status;
use super::scene::Scene;
use super::source::Posted;
use crate::machine::command::Outcome;
use crate::machine::ids::EntryId;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;

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

pub fn ask(scene: &mut Scene<'_>, ask: &Ask<'_>) -> Result<(), Failure> {
    let _ = ask;
    scene.set_status(Status::Running);
    Ok(())
}

pub fn approve(scene: Scene<'_>, tool_call_id: &str, approved: bool) -> Result<Outcome, Failure> {
    let _ = (tool_call_id, approved);
    scene.answer(json!({ "resolved": false }))
}
