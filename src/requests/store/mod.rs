//! `session::store::*`: raw reads and writes for bridges, one file per function.
//!
//! Owns: the types they share. They skip deduplication and counting by design, and only a node that has the data serves
//! them.

functions! {
    /// The raw store functions of the published API.
    RAW:
    question get_meta::GetMetaRequest,
    mutation put_meta::PutMetaRequest,
    mutation delete_meta::DeleteMetaRequest,
    question list_metas::ListMetasRequest,
    question get_entry::GetEntryRequest,
    mutation put_entry::PutEntryRequest,
    question list_entries::ListEntriesRequest,
    mutation delete_entries::DeleteEntriesRequest,
    question get_active_leaf::GetActiveLeafRequest,
    mutation set_active_leaf::PutActiveLeafRequest,
    mutation delete_active_leaf::DeleteActiveLeafRequest,
    mutation publish_events::PublishEventsRequest,
}

functions! {
    /// What nodes of this project ask each other beyond the published API.
    BEYOND:
    operation about::AboutRequest,
}

/// Its row is written by hand: its response is that of the function it executes.
pub mod propose;

use schemars::JsonSchema;
use serde::Serialize;

use crate::machine::Answer;

/// The response of a raw write.
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
