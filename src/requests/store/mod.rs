//! `session::store::*`: raw reads and writes for bridges, one file per function.
//!
//! Owns: the shapes they share. They bypass idempotency and counting by design and are served only where the data
//! lives.

pub mod about;
pub mod delete_active_leaf;
pub mod delete_entries;
pub mod delete_meta;
pub mod get_active_leaf;
pub mod get_entry;
pub mod get_meta;
pub mod list_entries;
pub mod list_metas;
pub mod publish_events;
pub mod propose;
pub mod put_entry;
pub mod put_meta;
pub mod set_active_leaf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::machine::Answer;

/// What a raw write answers.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OkResponse {
    pub ok: bool,
}

impl OkResponse {
    fn stored(answer: Answer) -> Option<OkResponse> {
        let Answer::Stored = answer else { return None };
        Some(OkResponse { ok: true })
    }
}
