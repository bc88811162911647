//! Owns: the assistant entries of a turn: they grow with the deltas, and close with the calls of tools and the turn.
//! A delta changes only the end of the text, so that a batch costs what it adds.

use serde::Serialize;

use super::record::{Block, Turn, UsageSoFar};
use super::work::Work;
use crate::machine::entry::{Body, Entry};
use crate::machine::ids::EntryId;
use crate::machine::json::Json;
use crate::machine::message::{ContentBlock, Message, Role, StopReason};
use crate::machine::refusal::Fault;

/// The texts of one assistant entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    pub text: String,
    pub thinking: String,
}

/// Adds a delta to the reply that is open, or begins one.
pub fn grow(work: &mut Work<'_>, turn: &mut Turn, block: Block, delta: &str) -> Result<(), Fault> {
    if delta.is_empty() {
        return Ok(());
    }
    let open = match turn.open {
        Some(last) => content_of(work, turn.replies.last())?.map(|content| (content, last)),
        None => None,
    };
    match open {
        Some((content, last)) => {
            let content = extended(&content, Some(last), block, delta);
            let message = assistant(turn, &content, StopReason::End, None, work.now());
            if let Some(entry_id) = turn.replies.last() {
                work.update(&entry_id.clone(), message)?;
            }
        }
        None => {
            let content = extended("[]", None, block, delta);
            let message = assistant(turn, &content, StopReason::End, None, work.now());
            begin(work, turn, message)?;
        }
    }
    turn.open = Some(block);
    Ok(())
}

/// Closes the open reply with the reason it ended.
pub fn close(work: &mut Work<'_>, turn: &mut Turn, reason: StopReason, error: Option<&str>) -> Result<(), Fault> {
    if turn.open.take().is_none() {
        return Ok(());
    }
    let Some(entry_id) = turn.replies.last().cloned() else { return Ok(()) };
    let Some(content) = content_of(work, Some(&entry_id))? else { return Ok(()) };
    let message = assistant(turn, &content, reason, error, work.now());
    if work.entry(&entry_id)?.is_some_and(|entry| entry.body != Body::Message(message.clone())) {
        work.update(&entry_id, message)?;
    }
    Ok(())
}

/// Says what the whole text of the reply is. Deltas that already said so change nothing.
pub fn complete(work: &mut Work<'_>, turn: &mut Turn, whole: &str) -> Result<(), Fault> {
    let so_far = so_far(turn, |entry_id| work.entry(entry_id))?;
    let last = match turn.replies.last() {
        Some(entry_id) => work.entry(entry_id)?.map(|entry| texts(&entry.body)).unwrap_or_default(),
        None => Texts::default(),
    };
    if whole.is_empty() {
        return Ok(());
    }
    turn.says_all = so_far.text == whole && last.text != whole;
    if turn.says_all || last.text == whole {
        return Ok(());
    }
    let replace = turn.open.is_some() || !last.text.is_empty();
    let mut content = String::from("[]");
    if replace && !last.thinking.is_empty() {
        content = extended(&content, None, Block::Thinking, &last.thinking);
    }
    let content = extended(&content, None, Block::Text, whole);
    let message = assistant(turn, &content, StopReason::End, None, work.now());
    match turn.replies.last().cloned().filter(|_| replace) {
        Some(entry_id) => drop(work.update(&entry_id, message)?),
        None => begin(work, turn, message)?,
    }
    turn.open = Some(Block::Text);
    Ok(())
}

/// All text and thinking of the turn so far.
pub fn so_far(turn: &Turn, entry: impl Fn(&EntryId) -> Result<Option<Entry>, Fault>) -> Result<Texts, Fault> {
    let mut all = Texts::default();
    for entry_id in &turn.replies {
        let texts = entry(entry_id)?.map(|entry| texts(&entry.body)).unwrap_or_default();
        all.text.push_str(&texts.text);
        all.thinking.push_str(&texts.thinking);
    }
    Ok(all)
}

/// Whether an entry is an assistant message that says or thinks something.
pub fn is_reply(entry: &Entry) -> bool {
    let Body::Message(message) = &entry.body else { return false };
    let texts = texts(&entry.body);
    message.role == Role::Assistant && !(texts.text.is_empty() && texts.thinking.is_empty())
}

/// The texts of a message.
pub fn texts(body: &Body) -> Texts {
    let mut found = Texts::default();
    let Body::Message(message) = body else { return found };
    let blocks = message.body.field("content").map(serde_json::from_str::<Vec<ContentBlock>>);
    for block in blocks.and_then(Result::ok).unwrap_or_default() {
        match block {
            ContentBlock::Text { text } => found.text.push_str(&text),
            ContentBlock::Thinking { text, .. } => found.thinking.push_str(&text),
            ContentBlock::Image { .. } | ContentBlock::FunctionCall { .. } | ContentBlock::FunctionResult { .. } => {}
        }
    }
    found
}

fn begin(work: &mut Work<'_>, turn: &mut Turn, message: Message) -> Result<(), Fault> {
    let rank = turn.replies.len() + 1;
    let id = if rank == 1 { format!("{}.a", turn.turn_id) } else { format!("{}.a.{rank}", turn.turn_id) };
    let entry_id = EntryId::from(id);
    if !work.append(entry_id.clone(), origin(turn), Body::Message(message.clone()))? {
        work.update(&entry_id, message)?;
    }
    turn.replies.push(entry_id);
    Ok(())
}

/// What the entries of a turn say about where they come from.
pub fn origin(turn: &Turn) -> Option<Json> {
    Some(Json::print(&serde_json::json!({ "turn_id": turn.turn_id })))
}

fn content_of(work: &Work<'_>, entry_id: Option<&EntryId>) -> Result<Option<String>, Fault> {
    let Some(entry_id) = entry_id else { return Ok(None) };
    let Some(entry) = work.entry(entry_id)? else { return Ok(None) };
    let Body::Message(message) = &entry.body else { return Ok(None) };
    Ok(message.body.field("content").filter(|text| text.starts_with('[')).map(str::to_owned))
}

/// The blocks with one more piece of text at their end.
fn extended(content: &str, last: Option<Block>, block: Block, delta: &str) -> String {
    let quoted = Json::print(&delta);
    let inner = &quoted.text()[1..quoted.text().len() - 1];
    if last == Some(block)
        && let Some(head) = content.strip_suffix("\"}]")
    {
        return [head, inner, "\"}]"].concat();
    }
    let kind = match block {
        Block::Text => "text",
        Block::Thinking => "thinking",
    };
    let head = content.strip_suffix(']').unwrap_or("[");
    let comma = if head == "[" { "" } else { "," };
    format!("{head}{comma}{{\"type\":\"{kind}\",\"text\":\"{inner}\"}}]")
}

/// An assistant message. `content` is JSON text that is copied as it is.
pub fn assistant(turn: &Turn, content: &str, stop_reason: StopReason, error: Option<&str>, at_ms: i64) -> Message {
    #[derive(Serialize)]
    struct Printed<'a> {
        role: &'a str,
        content: &'a Json,
        stop_reason: StopReason,
        #[serde(skip_serializing_if = "Option::is_none")]
        error_message: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<PrintedUsage>,
        model: &'a str,
        provider: &'a str,
        timestamp: i64,
    }
    #[derive(Serialize)]
    struct PrintedUsage {
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        output: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_read: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    }
    let none = UsageSoFar::default();
    let usage = turn.usage.as_ref().unwrap_or(&none);
    let printed = Printed {
        role: "assistant",
        content: &Json::adopt(content),
        stop_reason,
        error_message: error,
        usage: turn.usage.as_ref().map(|usage| PrintedUsage {
            input: usage.input,
            output: usage.output,
            cache_read: usage.cache_read,
            cost_usd: usage.cost_micro_dollars.map(|cost| cost as f64 / 1e6),
        }),
        model: usage.model.as_deref().unwrap_or("unknown"),
        provider: usage.provider.as_deref().unwrap_or("unknown"),
        timestamp: turn.started_at.unwrap_or(at_ms),
    };
    Message { role: Role::Assistant, body: Json::print(&printed) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_grows_at_its_end_and_blocks_follow_each_other() {
        let one = extended("[]", None, Block::Thinking, "hm");
        let two = extended(&one, Some(Block::Thinking), Block::Thinking, "m\n");
        let three = extended(&two, Some(Block::Thinking), Block::Text, "\"a\"}]");
        let four = extended(&three, Some(Block::Text), Block::Text, "b");
        assert_eq!(four, r#"[{"type":"thinking","text":"hmm\n"},{"type":"text","text":"\"a\"}]b"}]"#);
    }

    proptest! {
        #[test]
        fn the_text_is_the_deltas_whatever_they_are(deltas in prop::collection::vec(any::<String>(), 1..8)) {
            let mut content = "[]".to_owned();
            let mut last = None;
            for delta in &deltas {
                content = extended(&content, last, Block::Text, delta);
                last = Some(Block::Text);
            }
            let body = Json::adopt(&format!("{{\"role\":\"assistant\",\"content\":{content}}}"));
            let texts = texts(&Body::Message(Message { role: Role::Assistant, body }));
            prop_assert_eq!(texts.text, deltas.concat());
        }
    }
}
