//! Owns: a log that is applied to a store (`Run`), stamped commands and small messages for it, and outcomes as JSON for
//! the comparison with the model.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use session_manager::machine::change::{Change, SessionChange};
use session_manager::machine::entry::Body;
use session_manager::machine::event::Event;
use session_manager::machine::ids::RequestId;
use session_manager::machine::json::{Json, List};
use session_manager::machine::message::{AgentMessage, ContentBlock, Message};
use session_manager::machine::refusal::Refusal;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::view::View;
use session_manager::machine::{self, Answer, Command, Found, Outcome, Query, Stamped};
use session_manager::storage::{Store, with_view};

/// A store and the index of the last applied entry. Each entry is applied and committed, as in the product.
pub struct Run {
    pub store: Arc<dyn Store>,
    pub index: u64,
}

impl Run {
    pub fn new(store: Arc<dyn Store>) -> Run {
        Run { store, index: 0 }
    }

    pub fn apply(&mut self, stamped: &Stamped) -> Outcome {
        self.index += 1;
        let outcome = with_view(&*self.store, |view| machine::apply(view, stamped)).expect("the store can be read");
        let mark = Bytes::copy_from_slice(&self.index.to_be_bytes());
        self.store.commit(&outcome.changes, mark).expect("the store can be written");
        outcome
    }

    pub fn ask(&self, query: &Query) -> Result<Found, Refusal> {
        self.look(|view| machine::query(view, query)).expect("the store can be read")
    }

    pub fn look<R>(&self, read: impl FnOnce(&dyn View) -> R) -> R {
        with_view(&*self.store, read)
    }
}

/// The `n`-th stamped command of a log: time and seed follow from `n`, so that a run can be repeated exactly.
pub fn stamped(n: u64, at_ms: i64, command: Command) -> Stamped {
    let seed = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1;
    Stamped {
        stamp: Stamp { at_ms, seed },
        request_id: RequestId::new(at_ms, u128::from(n)),
        is_retry: false,
        scope: None,
        command,
    }
}

pub fn text(text: &str) -> List<ContentBlock> {
    List::of(&[ContentBlock::Text { text: text.to_owned() }])
}

/// A message of one of the four roles.
pub fn message(role: u8, content: &str) -> Message {
    let content = text(content);
    Message::new(match role % 4 {
        0 => AgentMessage::User { content, timestamp: 1 },
        1 => serde_json::from_str(&format!(
            r#"{{"role":"assistant","content":{},"stop_reason":"end","model":"m","provider":"p","timestamp":2}}"#,
            serde_json::to_string(&content).unwrap()
        ))
        .unwrap(),
        2 => AgentMessage::FunctionResult {
            function_call_id: "c".to_owned(),
            function_id: "f::g".to_owned(),
            content,
            details: Json::print(&json!({ "n": 1 })),
            is_error: false,
            timestamp: 3,
        },
        _three => {
            AgentMessage::Custom { custom_type: "note".to_owned(), content, display: None, details: None, timestamp: 4 }
        }
    })
}

pub fn custom(custom_type: &str, data: &Value) -> Body {
    Body::Custom { custom_type: custom_type.to_owned(), data: Json::print(data) }
}

/// An answer as JSON, as the model gives it; a refusal is its code.
pub fn answer_json(answer: &Result<Answer, Refusal>) -> Result<Value, String> {
    let answer = answer.as_ref().map_err(|refusal| refusal.code().to_owned())?;
    Ok(match answer {
        Answer::Created { meta } | Answer::MetaSet { meta } | Answer::Forked { meta } => json!({ "meta": meta }),
        Answer::Ensured { meta, created } => json!({ "meta": meta, "created": created }),
        Answer::StatusSet { status, previous } => json!({ "status": status, "previous_status": previous }),
        Answer::Deleted { deleted } => json!({ "deleted": deleted }),
        Answer::Appended { entry_id, parent_id, timestamp } => {
            json!({ "entry_id": entry_id, "parent_id": parent_id, "timestamp": timestamp })
        }
        Answer::AppendedMany { entry_ids } => json!({ "entry_ids": entry_ids }),
        Answer::Updated { updated, revision } => json!({ "updated": updated, "revision": revision }),
        Answer::LeafSet { entry_id } => json!({ "active_leaf": entry_id }),
        Answer::Stored => json!({ "ok": true }),
        Answer::Published { published } => json!({ "published": published }),
        Answer::Imported { added, imported } => json!({ "added": added, "outcome": imported }),
        Answer::ForkBegun { .. } => json!({ "begun": true }),
        Answer::BaseMoved => json!("base moved"),
        Answer::Forgotten => json!("forgotten"),
        Answer::Value(value) => value.value(),
    })
}

/// An event as JSON, as the model gives it.
pub fn event_json(event: &Event) -> Value {
    let mut reported = json!({
        "kind": event.kind().trigger_type(),
        "session": event.session_id,
        "seq": event.seq,
        "payload": event.payload().value(),
    });
    if let Some(metadata) = &event.metadata {
        reported["metadata"] = json!(metadata);
    }
    reported
}

/// The ids that a command derived from its stamp: first the one of a new session, then those of new entries, parents
/// first.
pub fn minted(outcome: &Outcome) -> Vec<String> {
    let session = match &outcome.answer {
        Ok(Answer::Created { meta } | Answer::Forked { meta }) => Some(meta.session_id.as_str().to_owned()),
        Ok(Answer::ForkBegun { fork, .. }) => Some(fork.as_str().to_owned()),
        Ok(_) | Err(_) => None,
    };
    let entries = outcome.changes.iter().filter_map(|change| {
        let Change::Session(_, SessionChange::PutEntry(entry)) = change else { return None };
        Some(entry.id.as_str().to_owned())
    });
    session.into_iter().chain(entries).collect()
}
