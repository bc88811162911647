//! The materialised state as ordered keys and values: one file per key family, with its key, its value and the golden
//! bytes of both.
//!
//! Owns: the keys and values of the state, the machine's `View` over them (`view.rs`), the keys that each `Change`
//! writes (`write.rs`), and the state in memory (`memory.rs`). Never: a disk.
//!
//! ```text
//! 01                              checkpoint   how far the log is applied
//! 02                              clock        the latest stamp
//! 03                              feed edge    the extent of the feed
//! 10 session                      meta
//! 11 session                      leaf
//! 12 session                      seq          the sequence number of the session's last event
//! 13 session entry                entry        all entries of a session are adjacent, ordered by id
//! 14 session                      home         where its entries are, if not under its own id
//! 20 facet order time session     list         a forward scan gives the order, ties by session id
//! 30 request                      answer       kept for the retries of a proposal
//! 40 index ordinal                feed         one record per event, in the order of the log
//! 41 session                      tombstone    the place of the session's last deletion in the feed
//! 42 attach                       cursor       how far an attach point has delivered
//! 50 session home                 leftover     entries that wait to be freed
//! 51 session fork                 fork         a fork whose entries are being copied
//! 60 session generation space …   record       a JSON value beside a session (`beside.rs`)
//! 61 session                      generation   of the records beside a session, if not the first
//! 62 session generation           leftover     records of a deleted session that wait to be freed
//! 63 space …                      record       a JSON value of the cluster
//! ```
//!
//! An entry that is in a home has the home in the place of its session.
//! A family byte comes first, so that a scan never crosses into another family.

pub mod answer;
pub mod beside;
pub mod checkpoint;
pub mod clock;
pub mod cursor;
pub mod encoded;
pub mod entry;
pub mod entry_cache;
pub mod family;
pub mod feed_edge;
pub mod feed_record;
pub mod home;
pub mod key;
pub mod kv;
pub mod leaf;
pub mod leftover;
pub mod list;
pub mod memory;
pub mod meta;
pub mod pending_fork;
pub mod section_cache;
pub mod seeded_hash;
pub mod seq;
pub mod tombstone;
pub mod view;
pub mod write;

#[cfg(test)]
mod feed_test;
#[cfg(test)]
mod list_test;

pub use encoded::Encoded;
pub use view::Records;
pub use write::write;
