//! Owns: the handshake with a bus: finds out whether a main that decides mutations, a main that only stores records, a
//! bridge, this same process or something else answers there.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::connection::{CallFailure, Connection};
use super::error::BridgeError;

/// An id that no session has, so that the probe reads nothing.
const PROBE_SESSION: &str = "session-manager-bridge-probe";

/// What a main can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MainKind {
    /// A node of this project. It decides whole mutations, creates their events, and its feed has positions.
    Deciding { cluster: String },
    /// It stores records and forwards events. The bridge decides.
    RecordsOnly(NameStyle),
}

/// How a main without `session::store::about` spells its function ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameStyle {
    /// `session::store::get-meta`
    Kebab,
    /// `session::store::get_meta`, as in version 0.1.2.
    Snake,
}

impl NameStyle {
    pub fn function_id(self, name: &str) -> String {
        match self {
            NameStyle::Kebab => format!("session::store::{name}"),
            NameStyle::Snake => format!("session::store::{}", name.replace('-', "_")),
        }
    }
}

/// The answer of `session::store::about`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MainInfo {
    pub instance: String,
    pub cluster: String,
    /// The newest position of its feed.
    pub position: Option<String>,
    /// The main still has every event after this position.
    pub oldest: Option<String>,
    /// Why the feed cannot be resumed after the position we asked for.
    pub gap: Option<String>,
    /// The nodes of the main, as far as the one that answers knows them.
    #[serde(default)]
    pub urls: Vec<String>,
    /// The time of its log, in milliseconds since the epoch.
    pub now_ms: i64,
}

/// Asks what answers on a bus, and whether its feed can be resumed after a position.
pub async fn handshake(
    connection: &dyn Connection,
    after: Option<&str>,
    within: Duration,
) -> Result<(MainKind, Option<MainInfo>), BridgeError> {
    let answer = tokio::time::timeout(within, async {
        let about = connection.call("session::store::about", json!({ "after": after }), within);
        match about.await {
            Ok(answer) => read_about(answer),
            Err(CallFailure::NoSuchFunction) => {
                Ok((MainKind::RecordsOnly(probe_names(connection, within).await?), None))
            }
            // A bridge refuses this function; a main accepts every `after`.
            Err(CallFailure::Refused { code, .. }) if code == "session/invalid_request" => Err(BridgeError::IsABridge),
            Err(failure) => Err(unusable(failure)),
        }
    });
    answer.await.unwrap_or(Err(BridgeError::TimedOut(within)))
}

fn read_about(answer: Value) -> Result<(MainKind, Option<MainInfo>), BridgeError> {
    let info: MainInfo = serde_json::from_value(answer)
        .map_err(|error| BridgeError::UnexpectedAnswer(format!("session::store::about: {error}")))?;
    Ok((MainKind::Deciding { cluster: info.cluster.clone() }, Some(info)))
}

async fn probe_names(connection: &dyn Connection, within: Duration) -> Result<NameStyle, BridgeError> {
    for style in [NameStyle::Kebab, NameStyle::Snake] {
        match connection.call(&style.function_id("get-meta"), json!({ "session_id": PROBE_SESSION }), within).await {
            Ok(_) => return Ok(style),
            Err(CallFailure::NoSuchFunction) => {}
            Err(failure) => return Err(unusable(failure)),
        }
    }
    Err(BridgeError::NotASessionManager)
}

fn unusable(failure: CallFailure) -> BridgeError {
    match failure {
        CallFailure::NoSuchFunction | CallFailure::Refused { .. } => BridgeError::UnexpectedAnswer(failure.to_string()),
        CallFailure::Unavailable(why) => BridgeError::Unavailable(why),
        CallFailure::NotSent(why) | CallFailure::OutcomeUnknown(why) => BridgeError::Unreachable(why),
    }
}

#[cfg(test)]
impl MainInfo {
    pub fn example(position: Option<u64>, gap: Option<&str>) -> MainInfo {
        MainInfo {
            instance: "main".to_owned(),
            cluster: "c".to_owned(),
            position: position.map(|index| format!("c.0.{index}.0")),
            oldest: position.map(|index| format!("c.0.{}.0", index - 5)),
            gap: gap.map(str::to_owned),
            urls: Vec::new(),
            now_ms: 0,
        }
    }
}
