//! Owns: archiving a session: one key of its metadata, changed without touching the others.

use serde_json::Value;

use crate::machine::apply::set_meta::SetMeta;
use crate::machine::apply::{known, set_meta};
use crate::machine::command::Outcome;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Failure;
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// The metadata key that says whether a session is archived.
const ARCHIVED: &str = "archived";

pub fn apply(view: &dyn View, stamp: &Stamp, session_id: &SessionId, archived: bool) -> Result<Outcome, Failure> {
    let mut metadata = known(view, session_id)?.metadata.unwrap_or_default();
    metadata.insert(ARCHIVED.to_owned(), Value::from(archived));
    let change = SetMeta { session_id: session_id.clone(), title: None, description: None, metadata: Some(metadata) };
    set_meta::apply(view, stamp, &change)
}
