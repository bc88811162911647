//! Owns: the ids of the model: the id of a session in the store, namespaces of channels, ids of entries.

use crate::machine::ids::{EntryId, SessionId};

/// Messages of clients have entry ids with this prefix, so that a message id finds its entry.
const MESSAGE_PREFIX: &str = "m:";

/// The id of a session in the store. Two agents may both have `cli:default`. `%` and `/` of the agent are escaped, so the
/// first `/` ends it.
pub fn store_id(agent_id: &str, session_id: &str) -> SessionId {
    let agent = agent_id.replace('%', "%25").replace('/', "%2F");
    SessionId::from(format!("{agent}/{session_id}"))
}

/// The entry of a message.
pub fn entry_id(message_id: &str) -> EntryId {
    EntryId::from(format!("{MESSAGE_PREFIX}{message_id}"))
}

/// The message of an entry, if a client posted it.
pub fn message_id(entry_id: &str) -> Option<&str> {
    entry_id.strip_prefix(MESSAGE_PREFIX)
}

/// Whether a session belongs to a channel: its id starts with the namespace and a colon.
pub fn is_in_namespace(session_id: &str, namespace: &str) -> bool {
    session_id.strip_prefix(namespace).is_some_and(|rest| rest.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_and_sessions_never_share_a_store_id() {
        let pairs = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("a%b", "c"), ("", "a/b/c"), ("a", "b")];
        let ids: std::collections::BTreeSet<SessionId> = pairs.iter().map(|(a, s)| store_id(a, s)).collect();
        assert_eq!(ids.len(), pairs.len());
        assert_eq!(store_id("a/b", "cli:x").as_str(), "a%2Fb/cli:x");
    }

    #[test]
    fn a_namespace_ends_with_its_colon() {
        assert!(is_in_namespace("telegram:1", "telegram"));
        for outside in ["telegramm:1", "telegram", "slack:1", "Telegram:1", ":telegram:"] {
            assert!(!is_in_namespace(outside, "telegram"), "{outside}");
        }
    }

    #[test]
    fn a_message_is_found_by_its_entry() {
        assert_eq!(message_id(entry_id("x:1").as_str()), Some("x:1"));
        assert_eq!(message_id("e_1"), None);
    }
}
