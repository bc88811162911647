//! Owns: the records of the feed, one per event: their keys and values, and the keys that an append or a trim writes.
//! Never: what an old event shows to a reader (`machine/query/feed_page.rs`).

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message as _;

use super::encoded::Values;
use super::family::{Family, VERSION, check_version};
use super::key::Key;
use super::kv::{Changed, Kv, Layer};
use super::{feed_edge, tombstone};
use crate::machine::event::EventKind;
use crate::machine::feed_record::{FeedEdge, Record, Recorded};
use crate::machine::ids::FeedPlace;
use crate::machine::json::Json;
use crate::machine::refusal::Fault;
use crate::proto::store as proto;
use crate::storage::proto_types::{
    kind_from_proto, kind_to_proto, object_from_text, object_to_text, role_from_proto, role_to_proto,
    status_from_proto, status_to_proto,
};

const KEY_BYTES: usize = 13;

pub fn key(place: FeedPlace) -> Vec<u8> {
    let mut key = Vec::with_capacity(KEY_BYTES);
    key.push(Family::Feed as u8);
    key.extend(place.index.to_be_bytes());
    key.extend(place.ordinal.to_be_bytes());
    key
}

/// The range of records after a place, to the end of the feed.
pub fn keys_after(after: Option<FeedPlace>) -> (Vec<u8>, Vec<u8>) {
    let from = after.map_or_else(
        || vec![Family::Feed as u8],
        |place| {
            // The next possible key: the same key with a zero byte appended.
            let mut key = key(place);
            key.push(0);
            key
        },
    );
    (from, vec![Family::Feed as u8 + 1])
}

pub fn place_of(key: &[u8]) -> Result<FeedPlace, Fault> {
    match Key::parse(key)? {
        Key::Feed(place) => Ok(place),
        other => Err(Fault(format!("a key of another family in the feed: {other:?}"))),
    }
}

pub fn encode(record: &Record) -> Bytes {
    to_proto(record).encode_to_vec().into()
}

pub(super) fn to_proto(record: &Record) -> proto::FeedRecord {
    let mut encoded = proto::FeedRecord {
        version: VERSION,
        kind: kind_to_proto(record.kind()) as i32,
        session_id: record.session_id.as_str().to_owned(),
        seq: record.seq,
        at_ms: record.at_ms,
        ..Default::default()
    };
    match &record.what {
        Recorded::Created | Recorded::MetaUpdated => {}
        Recorded::MessageAdded(entry_id) => encoded.entry_id = entry_id.to_string(),
        Recorded::MessageUpdated { entry_id, revision, origin } => {
            encoded.entry_id = entry_id.to_string();
            encoded.revision = *revision;
            encoded.origin = origin.as_ref().map(|origin| origin.text().to_owned());
        }
        Recorded::StatusChanged { status, previous, reason } => {
            let pair = (status_to_proto(*status) as i32, status_to_proto(*previous) as i32);
            encoded.status = Some(proto::StatusPair { status: pair.0, previous: pair.1 });
            encoded.status_reason = reason.clone();
        }
        Recorded::Deleted { metadata } => encoded.metadata = metadata.as_ref().map(object_to_text),
        Recorded::Published { role, payload, metadata, .. } => {
            encoded.metadata = metadata.as_ref().map(object_to_text);
            let role = role.map(|role| role_to_proto(role) as i32);
            encoded.published = Some(proto::Published { payload: payload.text().to_owned(), role });
        }
        Recorded::Noted { payload, .. } => encoded.noted = payload.text().to_owned(),
    }
    encoded
}

pub fn decode(place: FeedPlace, value: &[u8]) -> Result<Record, Fault> {
    let fault = |what: &dyn Display| {
        Family::Feed.fault(format_args!("event {} of entry {}: {what}", place.ordinal, place.index))
    };
    let record = proto::FeedRecord::decode(value).map_err(|error| fault(&error))?;
    check_version(record.version).map_err(|error| fault(&error))?;
    let metadata = object_from_text(record.metadata.as_deref());
    let metadata = metadata.map_err(|error| fault(&format_args!("metadata: {error}")))?;
    let kind = kind_from_proto(record.kind).ok_or_else(|| fault(&format_args!("kind {}", record.kind)))?;
    let entry_id = record.entry_id.as_str().into();
    let what = match (record.published, kind) {
        (Some(published), kind) => {
            let role = published.role.filter(|role| *role != proto::Role::Unspecified as i32);
            let unknown = |role: i32| fault(&format_args!("role {role}"));
            let role = role.map(|role| role_from_proto(role).ok_or_else(|| unknown(role))).transpose()?;
            Recorded::Published { kind, role, payload: Json::adopt(&published.payload), metadata }
        }
        (None, EventKind::Created) => Recorded::Created,
        (None, EventKind::MessageAdded) => Recorded::MessageAdded(entry_id),
        (None, EventKind::MessageUpdated) => {
            let origin = record.origin.as_deref().map(Json::adopt);
            Recorded::MessageUpdated { entry_id, revision: record.revision, origin }
        }
        (None, EventKind::StatusChanged) => {
            let pair = record.status.ok_or_else(|| fault(&"no status"))?;
            let status =
                |status: i32| status_from_proto(status).ok_or_else(|| fault(&"a status that this build does not know"));
            Recorded::StatusChanged {
                status: status(pair.status)?,
                previous: status(pair.previous)?,
                reason: record.status_reason,
            }
        }
        (None, EventKind::MetaUpdated) => Recorded::MetaUpdated,
        (None, EventKind::Deleted) => Recorded::Deleted { metadata },
        (
            None,
            EventKind::TurnRequested
            | EventKind::TurnCommand
            | EventKind::CheckpointRequested
            | EventKind::StreamEvent
            | EventKind::ProfileEvent,
        ) => Recorded::Noted { kind, payload: Json::adopt(&record.noted) },
    };
    Ok(Record { session_id: record.session_id.into(), seq: record.seq, at_ms: record.at_ms, what })
}

/// The size of a record, key included.
pub fn size(record: &Record) -> u64 {
    (KEY_BYTES + encode(record).len()) as u64
}

/// The extent of the feed after one more record.
pub fn extend(edge: &mut FeedEdge, place: FeedPlace, value: &[u8]) {
    // A feed that starts in the middle of a history has no record of earlier events.
    edge.trimmed.get_or_insert(FeedPlace { index: place.index.saturating_sub(1), ordinal: u32::MAX });
    edge.bytes += (KEY_BYTES + value.len()) as u64;
    edge.newest = Some(place);
}

/// Appends the records of one log entry.
pub(super) fn append<K: Kv + ?Sized>(
    changed: &mut Changed,
    kv: &K,
    index: u64,
    records: &[(u32, Record)],
    values: Values<'_>,
) -> Result<(), Fault> {
    let mut edge = feed_edge::current(changed, kv)?;
    for ((ordinal, record), value) in records.iter().zip(values.iter()) {
        let place = FeedPlace { index, ordinal: *ordinal };
        if record.kind() == EventKind::Deleted {
            changed.insert(tombstone::key(&record.session_id), Some(tombstone::encode(place)));
        }
        extend(&mut edge, place, &value);
        changed.insert(key(place), Some(value));
    }
    changed.insert(feed_edge::key(), Some(feed_edge::encode(&edge)));
    Ok(())
}

/// Drops the records up to a place, and the tombstones of the deletions among them.
pub(super) fn trim<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, upto: FeedPlace) -> Result<(), Fault> {
    let mut edge = feed_edge::current(changed, kv)?;
    let (from, _) = keys_after(None);
    let (to, _) = keys_after(Some(upto));
    let layer = Layer { over: changed, base: kv };
    let mut dropped = Vec::new();
    let mut deleted = BTreeSet::new();
    let mut scanned = Ok(());
    layer.scan(&from, Some(&to), &mut |key, value| {
        edge.bytes = edge.bytes.saturating_sub(stored_bytes(key, value));
        dropped.push(key.to_vec());
        scanned = place_of(key).and_then(|place| decode(place, value)).map(|record| {
            if record.kind() == EventKind::Deleted {
                deleted.insert(record.session_id);
            }
        });
        if scanned.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    scanned?;
    for session_id in deleted {
        let key = tombstone::key(&session_id);
        let place = layer.get(&key)?.map(|value| tombstone::decode(&value)).transpose()?;
        // The tombstone of a later deletion of the same session stays.
        if place.is_some_and(|place| place <= upto) {
            dropped.push(key);
        }
    }
    changed.extend(dropped.into_iter().map(|key| (key, None)));
    edge.trimmed = Some(upto);
    changed.insert(feed_edge::key(), Some(feed_edge::encode(&edge)));
    Ok(())
}

fn stored_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;
    use crate::machine::message::Role;
    use crate::machine::session::SessionStatus;
    use proptest::prelude::*;
    use serde_json::json;

    fn record(what: Recorded) -> Record {
        Record { session_id: "s".into(), seq: 3, at_ms: -2, what }
    }

    fn every_kind() -> Vec<Record> {
        let metadata = json!({"t": 1}).as_object().cloned();
        [
            Recorded::Created,
            Recorded::MessageAdded("e".into()),
            Recorded::MessageUpdated { entry_id: "e".into(), revision: 9, origin: Some(Json::adopt("{}")) },
            Recorded::MessageUpdated { entry_id: "".into(), revision: 0, origin: None },
            Recorded::StatusChanged {
                status: SessionStatus::Error,
                previous: SessionStatus::Idle,
                reason: Some("r".to_owned()),
            },
            Recorded::MetaUpdated,
            Recorded::Deleted { metadata: None },
            Recorded::Deleted { metadata: metadata.clone() },
            Recorded::Published {
                kind: EventKind::Deleted,
                role: Some(Role::Custom),
                payload: Json::adopt("{\"a\":1}"),
                metadata,
            },
            Recorded::Noted { kind: EventKind::StreamEvent, payload: Json::adopt("{\"seq\":1}") },
            Recorded::Noted { kind: EventKind::TurnRequested, payload: Json::adopt("{}") },
            Recorded::Published { kind: EventKind::Created, role: None, payload: Json::adopt("null"), metadata: None },
        ]
        .map(record)
        .into()
    }

    #[test]
    fn the_bytes_of_a_record_stay_as_they_are() {
        assert_eq!(hex(&key(FeedPlace { index: 258, ordinal: 3 })), "40000000000000010200000003");
        let added = record(Recorded::MessageAdded("e".into()));
        assert_eq!(hex(&encode(&added)), "080110021a017320032803320165");
        assert_eq!(size(&added), 13 + 14);
    }

    #[test]
    fn every_record_reads_back_as_written() {
        for record in every_kind() {
            assert_eq!(decode(FeedPlace { index: 1, ordinal: 0 }, &encode(&record)), Ok(record));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fault_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(FeedPlace { index: 0, ordinal: 0 }, &bytes);
        }
    }
}
