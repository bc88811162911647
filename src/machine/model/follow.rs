//! Owns: what the events of a turn mean for the profile of its session: counts, status, the words of the stream, and what is
//! due after the turn. The commands of turns call it with every batch.

use serde_json::{Map, Value};

use super::checkpoint::{Reason, turn_limit_reached};
use super::command::Timer;
use super::profile::{Profile, Status};
use super::scene::{Hand, trim, write_profile};
use super::spelling::{self, Means};
use super::{checkpoints, names, records, texts, timers};
use crate::machine::apply::Draft;
use crate::machine::json::Object;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// An event of the journal.
#[derive(Debug, Clone, Copy)]
pub struct Heard<'e> {
    pub name: &'e str,
    pub fields: &'e Map<String, Value>,
}

/// The turn that the events belong to.
#[derive(Debug, Clone, Copy)]
pub struct OfTurn<'t> {
    /// The entry of the message that asked for it.
    pub message_entry_id: Option<&'t str>,
    /// Whether another turn of the session waits or runs after these events.
    pub others_unfinished: bool,
}

/// Follows the events of a turn. A session without a profile is left alone.
pub fn follow(
    view: &dyn View,
    stamp: &Stamp,
    draft: &mut Draft<'_>,
    metadata: Option<&Object>,
    turn: OfTurn<'_>,
    events: &[Heard<'_>],
) -> Result<(), Failure> {
    // Only sessions of the model have this field: the others cost no read.
    if metadata.is_none_or(|metadata| !metadata.contains_key("profile")) {
        return Ok(());
    }
    let Some(before) = records::profile(view, draft.session_id)? else { return Ok(()) };
    let mut profile = before.clone();
    let message_id = turn.message_entry_id.and_then(names::message_id);
    for heard in events {
        let mut hand = Hand { view, stamp: *stamp, draft, metadata, profile: &mut profile };
        hear(&mut hand, heard, message_id, turn.others_unfinished)?;
    }
    trim(view, draft, &mut profile)?;
    write_profile(draft, Some(&before), &profile);
    Ok(())
}

fn hear(
    hand: &mut Hand<'_, '_>,
    heard: &Heard<'_>,
    message_id: Option<&str>,
    others_unfinished: bool,
) -> Result<(), Failure> {
    let means = spelling::meaning(heard.name);
    let text = || heard.fields.get("finalText").or(heard.fields.get("text")).and_then(Value::as_str);
    // 1. Counts and status.
    match means {
        Means::Started => hand.profile.status = Status::Running,
        Means::Speaks => hand.profile.speaking = true,
        Means::Calls => complete_message(hand.profile, None),
        Means::AsksPerson => hand.profile.status = Status::AwaitingApproval,
        Means::PersonAnswered => hand.profile.status = Status::Running,
        Means::Completed => {
            let said = text().filter(|said| !said.is_empty());
            hand.profile.speaking |= said.is_some();
            complete_message(hand.profile, said);
            hand.profile.completed_turn_count += 1;
            hand.profile.counted.turns += 1;
        }
        Means::Failed => {
            complete_message(hand.profile, None);
            hand.profile.counted.rows += 1;
        }
        Means::Nothing => {}
    }
    // 2. The stream.
    for mut told in spelling::tell(heard.name, heard.fields) {
        if let ("agent_end", Some(message_id)) = (told.kind, message_id) {
            told.fields.insert("messageId".to_owned(), Value::from(message_id));
        }
        hand.stream(told.kind, told.fields, message_id);
    }
    // 3. What follows from the end of a turn.
    if matches!(means, Means::Completed | Means::Failed) {
        hand.profile.last_activity_at = hand.profile.last_activity_at.max(hand.stamp.at_ms);
        ended(hand, means == Means::Completed, others_unfinished)?;
    }
    Ok(())
}

/// An assistant message is complete.
fn complete_message(profile: &mut Profile, said: Option<&str>) {
    if std::mem::take(&mut profile.speaking) {
        profile.message_count += 1;
        profile.counted.rows += 1;
    }
    if let Some(said) = said {
        profile.preview = Some(texts::preview(said));
    }
}

fn ended(hand: &mut Hand<'_, '_>, well: bool, others_unfinished: bool) -> Result<(), Failure> {
    if others_unfinished {
        hand.profile.status = Status::Running;
        return Ok(());
    }
    hand.profile.status = Status::Idle;
    // A checkpoint that waited for this, or one that is due now.
    checkpoints::request(hand)?;
    let turns_max = hand.profile.terms.checkpoint_turns;
    if well && turn_limit_reached(&hand.profile.counted, &hand.profile.cursor, turns_max) {
        checkpoints::begin(hand, Reason::TurnLimit)?;
    }
    if hand.profile.terms.idle_ms > 0 {
        let due = hand.stamp.at_ms + hand.profile.terms.idle_ms;
        hand.profile.idle_due = Some(due);
        timers::set(hand.draft, Timer::Idle, due);
    }
    Ok(())
}
