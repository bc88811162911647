//! Owns: the options of a call in its metadata, under our own name: `{"session-manager": {"consistency": "local"}}`.
//! Everything under other names is ignored.
//! Never: what an option does.

use serde::Deserialize;

use crate::machine::refusal::Refusal;

/// The key of our part of the metadata, in calls and in deliveries.
pub const NAME: &str = "session-manager";

/// How fresh the data of a read must be. If the caller gives none, the node's configuration decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    Linearizable,
    Local,
}

/// The options of one call.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    pub consistency: Option<Consistency>,
    /// These fields come with a delivered event. A handler may send them along with its own calls; they are ignored.
    #[serde(default, rename = "position")]
    _position: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "seq")]
    _seq: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "lagged")]
    _lagged: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "compacted")]
    _compacted: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "skipped")]
    _skipped: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Sidecar {
    #[serde(default, rename = "session-manager")]
    ours: Option<Terms>,
}

/// Parses the options in a call's metadata.
pub fn read(metadata: Option<&str>) -> Result<Terms, Refusal> {
    let Some(metadata) = metadata.filter(|metadata| metadata.contains(NAME)) else { return Ok(Terms::default()) };
    if !metadata.trim_start().starts_with('{') {
        return Ok(Terms::default());
    }
    let wrong = |error| Refusal::RequestInvalid(format!("metadata.{NAME}: {error}"));
    let sidecar: Sidecar = serde_json::from_str(metadata).map_err(wrong)?;
    Ok(sidecar.ours.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_under_our_name_only() {
        for silent in [None, Some("null"), Some("[1]"), Some("\"session-manager\""), Some(r#"{"other": {"a": 1}}"#)] {
            assert_eq!(read(silent), Ok(Terms::default()), "{silent:?}");
        }
        let local = read(Some(r#"{"tenant": "t", "session-manager": {"consistency": "local"}}"#)).unwrap();
        assert_eq!(local.consistency, Some(Consistency::Local));
        for passed_on in [
            r#"{"session-manager": {"position": "c.0.1.0", "seq": 7}}"#,
            r#"{"session-manager": {"position": "c.0.1.0", "seq": 7, "lagged": true, "compacted": "c.0.0.0"}}"#,
        ] {
            assert_eq!(read(Some(passed_on)).unwrap().consistency, None, "{passed_on}");
        }
    }

    #[test]
    fn unknown_options_are_refused_by_name() {
        for (metadata, named) in [
            (r#"{"session-manager": {"consistancy": "local"}}"#, "consistancy"),
            (r#"{"session-manager": {"consistency": "eventual"}}"#, "eventual"),
            (r#"{"session-manager": 7}"#, "metadata.session-manager"),
        ] {
            let refusal = read(Some(metadata)).unwrap_err();
            assert!(refusal.to_string().contains(named), "{refusal}");
        }
    }
}
