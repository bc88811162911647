//! Owns: the names of those who act in a document: `human:user`, `agent:<model>`, `tool:session-manager`.

use serde_json::{Map, Value, json};

use crate::machine::message::AgentMessage;

pub const HUMAN: &str = "human:user";
pub const TOOL: &str = "tool:session-manager";

/// The actor of a message.
pub fn of_message(message: &AgentMessage) -> String {
    match message {
        AgentMessage::User { .. } => HUMAN.to_owned(),
        AgentMessage::Assistant { model, .. } => of_model(model),
        AgentMessage::FunctionResult { .. } | AgentMessage::Custom { .. } => TOOL.to_owned(),
    }
}

/// `agent:<model>` with every character that actors may not have replaced by `-`.
pub fn of_model(model: &str) -> String {
    let name: String = model.chars().map(|c| if is_name_char(c) { c } else { '-' }).collect();
    if name.is_empty() { "agent:-".to_owned() } else { format!("agent:{name}") }
}

/// What `meta.actors` says about the actor of a message.
pub fn definition(message: &AgentMessage) -> Value {
    match message {
        AgentMessage::User { .. } => json!({ "name": "user" }),
        AgentMessage::Assistant { model, provider, .. } => json!({ "model": model, "provider": provider }),
        AgentMessage::FunctionResult { .. } | AgentMessage::Custom { .. } => json!({ "name": super::SOURCE }),
    }
}

/// The model and the provider of an agent, as far as a document tells.
pub fn model_and_provider(actor: &str, actors: Option<&Map<String, Value>>, source: Option<&str>) -> (String, String) {
    let defined = |field: &str| actors?.get(actor)?.get(field)?.as_str();
    let name = actor.strip_prefix("agent:").unwrap_or(actor);
    let model = defined("model").unwrap_or(name).to_owned();
    let provider = defined("provider").or(source).unwrap_or("unknown").to_owned();
    (model, provider)
}

/// `^(human|agent|tool|ci):[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?$`
pub fn is_valid(actor: &str) -> bool {
    let Some((kind, name)) = actor.split_once(':') else { return false };
    let is_name = |name: &str| !name.is_empty() && name.chars().all(is_name_char);
    let named = match name.split_once('/') {
        Some((name, version)) => is_name(name) && is_name(version),
        None => is_name(name),
    };
    named && matches!(kind, "human" | "agent" | "tool" | "ci")
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_gives_a_valid_actor() {
        for (model, actor) in [
            ("claude-opus-4.1", "agent:claude-opus-4.1"),
            ("openai/gpt-5", "agent:openai-gpt-5"),
            ("modèle 🦀", "agent:mod-le--"),
            ("", "agent:-"),
        ] {
            assert_eq!(of_model(model), actor);
            assert!(is_valid(actor));
        }
        for actor in ["", "agent", "agent:", "robot:x", "agent:a/b/c", "agent:a b", "tool:/x"] {
            assert!(!is_valid(actor), "{actor}");
        }
        assert!(is_valid("agent:a/b"));
    }

    #[test]
    fn the_model_of_an_agent_with_a_slash_is_kept_whole() {
        assert_eq!(model_and_provider("agent:a/b", None, Some("codex")), ("a/b".to_owned(), "codex".to_owned()));
    }
}
