//! Owns: the size limits of requests and the reason for each. They protect memory, the log and the wire.

/// Ids are part of storage keys, and cursors contain them in hexadecimal.
pub const ID_BYTES_MAX: usize = 1024;

/// Titles, descriptions and reasons are part of every page of `session::list`.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

pub use crate::machine::session::METADATA_BYTES_MAX;

/// Values in the metadata, at any depth. Metadata is kept parsed, and a small object takes 600 bytes then.
pub const METADATA_VALUES_MAX: usize = 2000;

/// Each top-level key of the metadata has an index entry.
pub const METADATA_KEYS_MAX: usize = 256;

/// The origin is repeated in every event of its entry.
pub const ORIGIN_BYTES_MAX: usize = 64 * 1024;

/// One body. A page of several bodies must fit into a frame of 64 MiB.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Messages of one append-many, or events of one publish-events. A batch is one log record and is applied in one step.
pub const BATCH_LENGTH_MAX: usize = 1000;

/// All bodies of one batch together. Half a frame, so that the log record fits into a frame with its other fields.
pub const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;

/// One response must fit into a frame of the SDKs (64 MiB) with its other fields.
pub const RESPONSE_BYTES_MAX: usize = 63 * 1024 * 1024;

/// A cursor contains at most one id in hexadecimal and some short fields.
pub const CURSOR_BYTES_MAX: usize = 8 * 1024;

/// JSON parsers stop at 128 levels, here and in the SDKs. A response nests a body some levels deeper than the request
/// did (frame, result, page, item), and every accepted body must be readable.
pub const DEPTH_MAX: usize = 120;

/// An error quotes at most this much of a wrong value.
pub const QUOTED_CHARS_MAX: usize = 400;
