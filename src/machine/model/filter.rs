//! Owns: the filters of a list of sessions.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::names::is_in_namespace;
use super::profile::{Profile, Status};

/// What a list is asked for. Every filter that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Filters {
    pub kind: Option<String>,
    pub platform: Option<String>,
    pub interactive: Option<bool>,
    /// The prefix of session ids, with or without its colon.
    pub channel: Option<String>,
    /// Compared as text.
    pub metadata: Vec<(String, String)>,
    pub include_inactive: bool,
}

impl Filters {
    pub fn include(&self, profile: &Profile) -> bool {
        let source = &profile.source;
        let same = |wanted: &Option<String>, has: Option<&str>| match wanted {
            Some(wanted) => has == Some(wanted.as_str()),
            None => true,
        };
        (self.include_inactive || profile.status != Status::Inactive)
            && same(&self.kind, Some(&source.kind))
            && same(&self.platform, source.platform.as_deref())
            && self.interactive.is_none_or(|wanted| wanted == source.interactive)
            && self.channel.as_deref().is_none_or(|channel| {
                is_in_namespace(&profile.session_id, channel.strip_suffix(':').unwrap_or(channel))
            })
            && self.metadata.iter().all(|(key, wanted)| profile.metadata.get(key).map(text).as_ref() == Some(wanted))
    }
}

/// A value as text: a string without its quotes.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::machine::model::profile::Terms;
    use crate::machine::model::source::Source;

    fn profile() -> Profile {
        let source = Source {
            kind: "channel".to_owned(),
            interactive: true,
            platform: Some("telegram".to_owned()),
            trigger_id: None,
            session_type: None,
        };
        let metadata = json!({ "telegram_chat_id": 42, "a": "b", "c": true }).as_object().unwrap().clone();
        Profile { metadata, ..Profile::new("main", "telegram:1", source, 0, Terms::default()) }
    }

    #[test]
    fn every_filter_can_leave_a_session_out() {
        let some = |text: &str| Some(text.to_owned());
        let meta = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        let all = Filters::default();
        for (holds, filters) in [
            (true, all.clone()),
            (true, Filters { kind: some("channel"), ..all.clone() }),
            (false, Filters { kind: some("cli"), ..all.clone() }),
            (true, Filters { platform: some("telegram"), ..all.clone() }),
            (false, Filters { platform: some("slack"), ..all.clone() }),
            (true, Filters { interactive: Some(true), ..all.clone() }),
            (false, Filters { interactive: Some(false), ..all.clone() }),
            (true, Filters { channel: some("telegram:"), ..all.clone() }),
            (true, Filters { channel: some("telegram"), ..all.clone() }),
            (false, Filters { channel: some("tele"), ..all.clone() }),
            (true, Filters { metadata: meta("telegram_chat_id", "42"), ..all.clone() }),
            (true, Filters { metadata: meta("a", "b"), ..all.clone() }),
            (true, Filters { metadata: meta("c", "true"), ..all.clone() }),
            (false, Filters { metadata: meta("a", "\"b\""), ..all.clone() }),
            (false, Filters { metadata: meta("missing", ""), ..all.clone() }),
        ] {
            assert_eq!(filters.include(&profile()), holds, "{filters:?}");
        }
    }

    #[test]
    fn inactive_sessions_are_shown_on_request_only() {
        let inactive = Profile { status: Status::Inactive, ..profile() };
        assert!(!Filters::default().include(&inactive));
        assert!(Filters { include_inactive: true, ..Filters::default() }.include(&inactive));
    }
}
