//! Owns: how large a request may be, with the reason for each bound. They guard memory, log and wire, not taste.

/// Ids become keys of the store, and a cursor carries one in hexadecimal.
pub const ID_BYTES_MAX: usize = 1024;

/// Titles, descriptions and reasons ride in every page of `session::list`.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Metadata is kept in each session's record and compared on every event.
pub const METADATA_BYTES_MAX: usize = 64 * 1024;

/// Each top-level key of the metadata is an entry of an index.
pub const METADATA_KEYS_MAX: usize = 256;

/// Origin is correlation, echoed on every event of its entry, not a place for content.
pub const ORIGIN_BYTES_MAX: usize = 64 * 1024;

/// One body: a page of a few must still fit a frame of 64 MiB, in the log as on the wire.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Messages of one append-many, events of one publish-events: a batch is one log record, applied in one step.
pub const BATCH_LENGTH_MAX: usize = 1000;

/// All bodies of one batch together: half a frame, so that the record still fits with everything around it.
pub const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;

/// One response must fit a frame of the SDKs (64 MiB) with everything around it.
pub const RESPONSE_BYTES_MAX: usize = 63 * 1024 * 1024;

/// Our cursors are at most an id in hexadecimal and a few words.
pub const CURSOR_BYTES_MAX: usize = 8 * 1024;

/// JSON readers stop at 128 levels, ours and those of the SDKs. A body comes back a few levels deeper than it was
/// sent (frame, result, page, item), and what was accepted must be readable.
pub const DEPTH_MAX: usize = 120;

/// An error quotes what it complains about, up to here.
pub const QUOTED_CHARS_MAX: usize = 400;
