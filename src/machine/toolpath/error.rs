//! Owns: what can be wrong with a document, and where. Every error names the step, so that a person can find it.

use std::fmt;
use std::io;

use thiserror::Error;

/// A document that is refused.
#[derive(Debug, Error)]
#[error("{at}: {problem}")]
pub struct DocumentError {
    pub at: Spot,
    pub problem: Problem,
}

/// The part of a document an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    Document,
    /// A path by its id.
    Path(String),
    /// A step by its id.
    Step(String),
    /// A step whose id could not be read: its number in the document, from 1.
    StepNumber(u64),
    /// A line of the `.path.jsonl` form, from 1.
    Line(u64),
}

#[derive(Debug, Error)]
pub enum Problem {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is not valid JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("ends too early: the document is truncated")]
    EndsEarly,
    #[error("{0}")]
    Syntax(&'static str),
    #[error("has more than {0} bytes")]
    TooLong(usize),
    #[error("has more than {0} steps")]
    TooManySteps(u32),
    #[error("is nested deeper than JSON readers allow (128 levels)")]
    TooDeep,
    #[error("has an unknown key {0:?}: extra keys are allowed in `structural` and `meta` only")]
    UnknownKey(String),
    #[error("`{field}` must be {expected}")]
    Wrong { field: String, expected: &'static str },
    #[error("has the kind {0:?}; only agent-coding-session v1.1.0 and v1.0.0 are known")]
    WrongKind(String),
    #[error("states no kind in `meta.kind`; only agent-coding-session v1.1.0 and v1.0.0 are known")]
    NoKind,
    #[error("is a reference ($ref {0:?}): give the document it refers to")]
    Reference(String),
    #[error("the document holds no path")]
    NoPath,
    #[error("this id occurs twice")]
    DuplicateId,
    #[error("the parent {0:?} is no step of this path")]
    ParentMissing(String),
    #[error("the head {0:?} is no step of this path")]
    HeadMissing(String),
    #[error("names no head, and more than one step could be it")]
    HeadUnknown,
    #[error("is its own ancestor: the parents form a cycle")]
    Cycle,
    #[error("`timestamp` {0:?} is no RFC 3339 date and time")]
    BadDate(String),
    #[error("`token_usage` stands twice in the group {0:?}; the last step of a group states it, once")]
    UsageTwice(String),
    #[error("`actor` {0:?} must be human:…, agent:…, tool:… or ci:…")]
    BadActor(String),
    #[error("the signature is for {0:?}, which is no earlier step and not \"path\"")]
    SignatureOfNothing(String),
}

impl DocumentError {
    pub fn new(at: Spot, problem: impl Into<Problem>) -> DocumentError {
        DocumentError { at, problem: problem.into() }
    }
}

impl Spot {
    pub fn step(id: &str) -> Spot {
        Spot::Step(id.to_owned())
    }
}

impl Problem {
    pub fn wrong(field: impl Into<String>, expected: &'static str) -> Problem {
        Problem::Wrong { field: field.into(), expected }
    }

    /// What the JSON reader says about bytes that end where their brackets end.
    pub fn of_json(error: serde_json::Error) -> Problem {
        // The reader has no typed error for its depth limit; the category tells syntax from the end of the input.
        match error.classify() {
            serde_json::error::Category::Eof => Problem::EndsEarly,
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Data => Problem::NotJson(error),
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spot::Document => f.write_str("document"),
            Spot::Path(id) => write!(f, "path {:?}", shortened(id)),
            Spot::Step(id) => write!(f, "step {:?}", shortened(id)),
            Spot::StepNumber(number) => write!(f, "step number {number}"),
            Spot::Line(number) => write!(f, "line {number}"),
        }
    }
}

/// An id fit for one line of an error.
fn shortened(id: &str) -> String {
    match id.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &id[..end]),
        None => id.to_owned(),
    }
}
