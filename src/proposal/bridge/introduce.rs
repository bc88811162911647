//! Owns: finding out who answers on a bus: a main that decides whole mutations, one that only keeps records, this very
//! process, or nobody a bridge could attach to.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::line::{CallFailure, Line};

/// A session nobody has: asking for it costs a main nothing.
const PROBE: &str = "session-manager-bridge-probe";

/// What a main can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A node of this project: it decides whole mutations, mints their events, and its feed has positions.
    Whole { cluster: String },
    /// It keeps records, and this bridge decides.
    Plain(Spelling),
}

/// How a plain main spells the names of its functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// `session::store::get-meta`
    Kebab,
    /// `session::store::get_meta`, as in version 0.1.2.
    Snake,
}

impl Spelling {
    pub fn id(self, name: &str) -> String {
        match self {
            Spelling::Kebab => format!("session::store::{name}"),
            Spelling::Snake => format!("session::store::{}", name.replace('-', "_")),
        }
    }
}

/// What a node of this project says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Introduction {
    pub instance: String,
    pub cluster: String,
    pub position: Option<String>,
    /// What it can still tell of is after this.
    pub oldest: Option<String>,
    pub gap: Option<String>,
    pub now_ms: i64,
}

/// Why somebody is no main of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stranger {
    Silent(String),
    /// A bus, but nobody on it serves the store.
    NoMain,
    /// It has a main itself.
    Bridge,
    /// This very process.
    Itself,
    /// It answers, but not what was asked.
    Odd(String),
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stranger::Silent(why) => f.write_str(why),
            Stranger::NoMain => f.write_str("no session-manager serves session::store::* there"),
            Stranger::Bridge => f.write_str("a bridge answers there: name the main it is attached to"),
            Stranger::Itself => f.write_str("this very instance answers there: name the bus of its main"),
            Stranger::Odd(why) => write!(f, "it does not answer as a session-manager: {why}"),
        }
    }
}

/// Asks who is there, and whether its feed can be resumed after a position.
pub async fn ask(
    line: &dyn Line,
    after: Option<&str>,
    within: Duration,
) -> Result<(Kind, Option<Introduction>), Stranger> {
    let asked = tokio::time::timeout(within, async {
        match line.call("session::store::about", json!({ "after": after }), within).await {
            Ok(told) => read(told),
            Err(CallFailure::NoSuchFunction) => plain(line, within).await.map(|spelling| (Kind::Plain(spelling), None)),
            Err(CallFailure::Answered(words)) if words.contains("where the data lives") => Err(Stranger::Bridge),
            Err(CallFailure::Answered(words)) => Err(match words.strip_prefix("session/storage: ") {
                Some(why) => Stranger::Silent(format!("it cannot serve at the moment: {why}")),
                None => Stranger::Odd(words),
            }),
            Err(CallFailure::NotSent(why) | CallFailure::Unanswered(why)) => Err(Stranger::Silent(why)),
        }
    });
    let late = |_| Stranger::Silent(format!("no answer within {} ms", within.as_millis()));
    asked.await.map_err(late)?
}

fn read(told: Value) -> Result<(Kind, Option<Introduction>), Stranger> {
    let introduction: Introduction =
        serde_json::from_value(told).map_err(|error| Stranger::Odd(format!("session::store::about: {error}")))?;
    Ok((Kind::Whole { cluster: introduction.cluster.clone() }, Some(introduction)))
}

async fn plain(line: &dyn Line, within: Duration) -> Result<Spelling, Stranger> {
    for spelling in [Spelling::Kebab, Spelling::Snake] {
        match line.call(&spelling.id("get-meta"), json!({ "session_id": PROBE }), within).await {
            Ok(_) => return Ok(spelling),
            Err(CallFailure::NoSuchFunction) => {}
            Err(CallFailure::Answered(words)) => return Err(Stranger::Odd(words)),
            Err(CallFailure::NotSent(why) | CallFailure::Unanswered(why)) => return Err(Stranger::Silent(why)),
        }
    }
    Err(Stranger::NoMain)
}
