//! What each function of the API takes and gives.
//!
//! Owns: one file per function with its Request, Response, schemas and stateless checks; the table of all functions.
//! May touch: the machine's vocabulary. Never: state, time, the wire.

pub mod append;
pub mod append_many;
pub mod config_status;
pub mod create;
pub mod delete;
pub mod ensure;
pub mod fork;
pub mod get;
pub mod get_message;
pub mod list;
pub mod messages;
pub mod on_config_change;
pub mod set_active_leaf;
pub mod set_meta;
pub mod set_status;
pub mod store;
pub mod update_message;

pub mod limits;
mod body;
mod checks;
mod explain;
mod print;
mod table;

pub use table::{find, functions, legacy_name, served};

use schemars::JsonSchema;
use schemars::schema::RootSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::machine::ids::RequestId;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command, Found, Query};
use config_status::ReloadStatus;
use store::about::Introduction;

/// Bounds a request is checked against. They come from the configuration and may change while the node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Page size of `list` and `messages` when the request names none.
    pub default_list_limit: usize,
    /// The largest page a request can ask for.
    pub max_list_limit: usize,
}

impl Limits {
    /// The page size for what a request asked: at least one, at most the maximum.
    pub fn page(&self, asked: Option<usize>) -> usize {
        asked.unwrap_or(self.default_list_limit).clamp(1, self.max_list_limit.max(1))
    }
}

/// What a request turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Propose(Command),
    Ask(Query),
    /// `session::store::propose`: a mutation of `function`, ordered by a bridge under a name of its own.
    ProposeOnce {
        command: Command,
        request_id: RequestId,
        function: &'static str,
    },
    /// `session::store::about`: answered by the node itself.
    Introduce {
        after: Option<String>,
    },
    /// `session::config-status`: answered by the node itself.
    ConfigStatus,
    /// `session::on-config-change`: carried out by the node itself.
    ReloadConfig,
}

/// A function that mutates: its request becomes a command, the machine's answer its response.
pub trait Mutation: DeserializeOwned + JsonSchema {
    const ID: &'static str;
    const DESCRIPTION: &'static str;
    const INTERNAL: bool = false;
    type Response: Serialize + JsonSchema;

    /// Stateless checks, then the command.
    fn command(self, limits: &Limits) -> Result<Command, Refusal>;

    /// `None`: the machine answered something this function never asked for (a bug, reported as such).
    fn response(answer: Answer) -> Option<Self::Response>;
}

/// A function that reads.
pub trait Question: DeserializeOwned + JsonSchema {
    const ID: &'static str;
    const DESCRIPTION: &'static str;
    const INTERNAL: bool = false;
    type Response: Serialize + JsonSchema;

    fn query(self, limits: &Limits) -> Result<Query, Refusal>;
    fn response(found: Found) -> Option<Self::Response>;

    /// The response as text. Functions that answer with stored bodies print them without reading them again.
    fn print(found: Found) -> Option<String> {
        serde_json::to_string(&Self::response(found)?).ok()
    }
}

/// A function about the node itself: no state is read or written.
pub trait Operation: DeserializeOwned + JsonSchema {
    const ID: &'static str;
    const DESCRIPTION: &'static str;
    const INTERNAL: bool = false;
    type Response: Serialize + JsonSchema;

    fn decision(self) -> Decision;
    fn response(done: Done) -> Option<Self::Response>;
}

/// One row of the table of functions.
pub struct Function {
    /// The kebab-case id, `session::append-many`.
    pub id: &'static str,
    pub description: &'static str,
    /// Store functions carry `internal: true` in their registration metadata.
    pub internal: bool,
    pub request_schema: fn() -> RootSchema,
    pub response_schema: fn() -> RootSchema,
    /// Parses and checks a JSON body.
    pub decide: fn(body: &str, limits: &Limits) -> Result<Decision, Refusal>,
    /// Prints the response to the machine's answer, as JSON text.
    pub respond: fn(done: Done) -> Option<String>,
}

/// What came back for a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    Answered(Answer),
    Found(Found),
    Status(ReloadStatus),
    Reloaded { ok: bool },
    Introduced(Introduction),
}
