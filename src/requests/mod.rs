//! The functions of the API: requests, responses, and the way from one to the other.
//!
//! Owns: one file per function with its request, response, schemas and stateless checks; the table of all functions.
//! Reads: the types of `machine`. Never: state, time, the wire.

/// The table of functions. One line declares the module of a function and adds its row to the table:
/// `kind module::Request`, where `kind` is `mutation`, `question` or `operation`. Nothing else lists functions.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident: $($kind:ident $module:ident::$request:ident,)+) => {
        $(pub mod $module;)+

        $(#[$doc])*
        pub(in crate::requests) static $table: &[$crate::requests::Function] =
            &[$($crate::requests::table::$kind::<$module::$request>()),+];
    };
}

functions! {
    /// The public functions.
    PUBLIC:
    mutation create::CreateRequest,
    mutation ensure::EnsureRequest,
    question get::GetRequest,
    question list::ListRequest,
    mutation set_meta::SetMetaRequest,
    mutation set_status::SetStatusRequest,
    mutation delete::DeleteRequest,
    mutation append::AppendRequest,
    mutation append_many::AppendManyRequest,
    mutation update_message::UpdateMessageRequest,
    question messages::MessagesRequest,
    question get_message::GetMessageRequest,
    mutation fork::ForkRequest,
    mutation set_active_leaf::SetActiveLeafRequest,
    operation config_status::ConfigStatusRequest,
    operation on_config_change::OnConfigChangeEvent,
}

functions! {
    /// Public functions beyond the published API.
    BEYOND:
    question export::ExportRequest,
    question path::PathRequest,
    question tree::TreeRequest,
}

/// Its row is written by hand: its request may nest deeper than others.
pub mod import;

pub mod store;
pub mod turn;

pub mod model;

pub mod limits;
mod body;
mod checks;
mod client_message;
mod explain;
mod print;
pub mod printed;
mod table;

pub use printed::Printed;
pub use table::{find, functions, legacy_name, served};

use schemars::JsonSchema;
use schemars::schema::RootSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::machine::ids::RequestId;
use crate::machine::model::profile::Terms;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Command, Found, Query};
use config_status::ReloadStatus;
use store::about::Introduction;

/// The configured limits of requests. A reload may change them while the node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Page size of `list` and `messages` if the request names none.
    pub default_list_limit: usize,
    /// The largest page size that a request can ask for.
    pub max_list_limit: usize,
    /// The numbers of the session model.
    pub model: Terms,
}

impl Limits {
    /// Those of `config/default.yaml`.
    pub const DEFAULT: Limits = Limits { default_list_limit: 50, max_list_limit: 500, model: Terms::DEFAULT };

    /// The page size for a request: at least one, at most the maximum.
    pub fn page(&self, asked: Option<usize>) -> usize {
        asked.unwrap_or(self.default_list_limit).clamp(1, self.max_list_limit.max(1))
    }
}

/// What a checked request asks the node to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Propose(Command),
    Ask(Query),
    /// `session::store::propose`: a mutation of `function` on behalf of a bridge, deduplicated by `request_id`.
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
    /// `session::on-config-change`: executed by the node itself.
    ReloadConfig,
}

/// A function that writes: its request becomes a command, and the machine's answer becomes its response.
pub trait Mutation: DeserializeOwned + JsonSchema {
    const ID: &'static str;
    const DESCRIPTION: &'static str;
    const INTERNAL: bool = false;
    type Response: Serialize + JsonSchema;

    /// Stateless checks, then the command.
    fn command(self, limits: &Limits) -> Result<Command, Refusal>;

    /// `None`: the answer belongs to another command. This is a bug and is reported as one.
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

    /// The response as JSON text. Functions that return stored bodies copy their text without parsing it.
    fn print(found: Found) -> Option<Printed> {
        serde_json::to_string(&Self::response(found)?).ok().map(Printed::from)
    }
}

/// A function about the node itself. It reads and writes no sessions.
pub trait Operation: DeserializeOwned + JsonSchema {
    const ID: &'static str;
    const DESCRIPTION: &'static str;
    const INTERNAL: bool = false;
    /// Whether it changes the node.
    const WRITES: bool = false;
    type Response: Serialize + JsonSchema;

    fn decision(self) -> Decision;
    fn response(done: Done) -> Option<Self::Response>;
}

/// One row of the table of functions.
#[derive(Clone, Copy)]
pub struct Function {
    /// The kebab-case id, `session::append-many`.
    pub id: &'static str,
    pub description: &'static str,
    /// Registered with `internal: true`, for bridges and the engine only.
    pub internal: bool,
    /// Whether it changes sessions or the node.
    pub writes: bool,
    pub request_schema: fn() -> RootSchema,
    pub response_schema: fn() -> RootSchema,
    /// Parses and checks a JSON body.
    pub decide: fn(body: &str, limits: &Limits) -> Result<Decision, Refusal>,
    /// The response as JSON text. `None` if the result belongs to another function, which is a bug.
    pub respond: fn(done: Done) -> Option<Printed>,
}

/// The result of a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    Answered(Answer),
    Found(Found),
    Status(ReloadStatus),
    Reloaded { ok: bool },
    Introduced(Introduction),
}
