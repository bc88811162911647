//! Sessions as Toolpath documents: the kind `agent-coding-session` of <https://toolpath.net>. PURE.
//!
//! Owns: session ⇄ document in both directions, the checks of documents, the JSON and the `.path.jsonl` form.
//! Reads: the machine's nouns, and bytes through `std::io` traits. Never: files, the network, a clock, randomness.
//! No function holds a whole transcript: a document is indexed first and then read step by step.

pub mod actor;
mod answers;
pub mod check;
pub mod difference;
pub mod error;
pub mod export;
pub mod import;
pub mod outline;
pub mod redact;
mod scan;
pub mod step;
pub mod time;
pub mod write;

/// The kind this project writes.
pub const KIND: &str = "https://toolpath.net/kinds/agent-coding-session/v1.1.0";

/// The kind before it: the same shape without the rule that a group states its usage once.
pub const KIND_BEFORE: &str = "https://toolpath.net/kinds/agent-coding-session/v1.0.0";

/// The name under which this project signs documents: the source of a path, an actor, and the key of its extras.
pub const SOURCE: &str = "session-manager";

/// The key of everything this project adds to a document: `structural.session_manager`, `meta.session_manager`.
pub const EXTRAS: &str = "session_manager";

/// The entry that keeps what a foreign document says about its path. It is a custom entry off the transcript.
pub const PATH_ENTRY: &str = "toolpath#path";

/// The type of that entry.
pub const PATH_ENTRY_TYPE: &str = "toolpath:path";

/// The type of a custom entry made from a step that says nothing about the conversation, such as a lone file change.
pub const BARE_STEP_TYPE: &str = "toolpath:step";
