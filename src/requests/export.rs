//! `session::export`: a session as the lines of a Toolpath document, page by page.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Limits, Question, checks};
use crate::machine::ids::SessionId;
use crate::machine::query::export::{ExportPage, ExportQuery};
use crate::machine::refusal::Refusal;
use crate::machine::toolpath::export::{self, Head, Options};
use crate::machine::toolpath::redact::Field;
use crate::machine::toolpath::step::Shown;
use crate::machine::{Found, Query};

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ExportRequest {
    pub session_id: SessionId,
    /// Leave the lossless copy out, so that a redactor finds every text where it is visible.
    pub redactable: Option<bool>,
    /// Fields to black out: text, thinking, tool_input, tool_result, event_data, files, environment, title. Leaves the
    /// lossless copy out as well.
    pub redact: Option<Vec<String>>,
    /// Where the page before this one ended, as it said in `next_cursor`.
    pub cursor: Option<String>,
    /// How many steps at most; clamped to what the configuration allows.
    pub limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportResponse {
    /// The next lines of the document: the lines of all pages, one per line, are a `.path.jsonl` file.
    pub lines: Vec<Value>,
    /// There is more: the cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Question for ExportRequest {
    const ID: &'static str = "session::export";
    const DESCRIPTION: &'static str = "Page through a session as a Toolpath document (agent-coding-session v1.1.0): \
                                       every entry of its tree, as lines of the .path.jsonl form.";
    type Response = ExportResponse;

    fn query(self, limits: &Limits) -> Result<Query, Refusal> {
        let ExportRequest { session_id, redactable, redact, cursor, limit } = self;
        checks::id("session_id", session_id.as_str())?;
        checks::cursor(cursor.as_deref())?;
        let parse = |name: String| {
            name.parse::<Field>()
                .map_err(|error| checks::invalid(format!("redact: {}", checks::shortened(&error.to_string()))))
        };
        let redact = redact.unwrap_or_default().into_iter().map(parse).collect::<Result<Vec<Field>, Refusal>>()?;
        let options = Options { redactable: redactable.unwrap_or(false), redact };
        Ok(Query::Export(ExportQuery { session_id, options, cursor, limit: limits.page(limit) }))
    }

    fn response(found: Found) -> Option<ExportResponse> {
        let Found::Export(page) = found else { return None };
        Some(ExportResponse { lines: lines(&page), next_cursor: page.next_cursor })
    }
}

fn lines(page: &ExportPage) -> Vec<Value> {
    let mut lines = Vec::new();
    if let Some(opening) = &page.opening {
        let (leaf, head) = (opening.leaf.as_ref(), opening.head.as_ref());
        let head = Head { meta: &opening.meta, leaf, head, document: page.document.as_ref() };
        lines.extend(export::open(&head, &page.options));
    }
    let mut actors: BTreeSet<String> = page.document.as_ref().map(export::actors).unwrap_or_default();
    for step in &page.steps {
        lines.extend(export::actor_line(&step.entry, &mut actors));
        let shown = Shown { entry: &step.entry, parent: step.parent.as_ref(), results: &step.results };
        lines.push(export::step(page.session_id.as_str(), &shown, &page.options));
    }
    if page.next_cursor.is_none() {
        lines.push(export::close());
    }
    lines
}
