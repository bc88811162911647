//! What each function of the API takes and gives.
//!
//! Owns: one file per function with its Request, Response, schemas and stateless checks; the table of all functions.
//! May touch: the machine's vocabulary. Never: state, time, the wire.

use schemars::JsonSchema;
use schemars::schema::RootSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command, Found, Query};

/// Bounds a request is checked against. They come from the configuration and may change while the node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Page size of `list` and `messages` when the request names none.
    pub default_list_limit: usize,
    /// The largest page a request can ask for.
    pub max_list_limit: usize,
}

/// What a request turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Propose(Command),
    Ask(Query),
    /// `session::config-status`: answered by the node itself.
    ConfigStatus,
    /// `session::on-config-change`: carried out by the node itself.
    ReloadConfig,
}

/// A function that mutates: its request becomes a command, the machine's answer its response.
pub trait Mutation: DeserializeOwned + JsonSchema {
    const ID: &'static str;
    const DESCRIPTION: &'static str;
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
    type Response: Serialize + JsonSchema;

    fn query(self, limits: &Limits) -> Result<Query, Refusal>;
    fn response(found: Found) -> Option<Self::Response>;
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
}
