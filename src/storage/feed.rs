//! Owns: the feed in the store: the bytes of its lines, of its edge, of tombs and cursors, and the keys that a commit
//! writes for them.
//! Never: what an old event says (`machine/query/feed.rs`).

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message as _;

use super::keys::{self, Family, Key};
use super::kv::{Changed, Kv, Layer};
use super::records::{parse_role, parse_status, print_role, print_status};
use crate::machine::event::EventKind;
use crate::machine::feed::{FeedEdge, Record, Recorded};
use crate::machine::ids::{FeedPlace, Position};
use crate::machine::json::{Json, Object};
use crate::machine::refusal::Fault;
use crate::proto::store as proto;

/// The layout this build writes, and the newest it reads.
const VERSION: u32 = 1;

pub fn print_record(record: &Record) -> Bytes {
    let mut spelled = proto::FeedRecord {
        version: VERSION,
        kind: print_kind(record.kind()) as i32,
        session_id: record.session_id.as_str().to_owned(),
        seq: record.seq,
        at_ms: record.at_ms,
        ..Default::default()
    };
    match &record.what {
        Recorded::Created | Recorded::MetaUpdated => {}
        Recorded::MessageAdded(entry_id) => spelled.entry_id = entry_id.to_string(),
        Recorded::MessageUpdated { entry_id, revision, origin } => {
            spelled.entry_id = entry_id.to_string();
            spelled.revision = *revision;
            spelled.origin = origin.as_ref().map(|origin| origin.text().to_owned());
        }
        Recorded::StatusChanged { status, previous, reason } => {
            let pair = (print_status(*status) as i32, print_status(*previous) as i32);
            spelled.status = Some(proto::StatusPair { status: pair.0, previous: pair.1 });
            spelled.status_reason = reason.clone();
        }
        Recorded::Deleted { metadata } => spelled.metadata = metadata.as_ref().map(object_text),
        Recorded::Published { role, payload, metadata, .. } => {
            spelled.metadata = metadata.as_ref().map(object_text);
            let role = role.map(|role| print_role(role) as i32);
            spelled.published = Some(proto::Published { payload: payload.text().to_owned(), role });
        }
    }
    spelled.encode_to_vec().into()
}

pub fn parse_record(place: FeedPlace, value: &[u8]) -> Result<Record, Fault> {
    let fault =
        |what: String| Family::Feed.fault(format_args!("event {} of entry {}: {what}", place.ordinal, place.index));
    let spelled = proto::FeedRecord::decode(value).map_err(|error| fault(error.to_string()))?;
    if spelled.version != VERSION {
        return Err(fault(format!("layout {}; this build reads {VERSION}", spelled.version)));
    }
    let unknown_status = || fault("a status this build does not know".to_owned());
    let metadata = object(spelled.metadata.as_deref()).map_err(fault)?;
    let kind = parse_kind(spelled.kind()).ok_or_else(|| fault(format!("kind {}", spelled.kind)))?;
    let entry_id = spelled.entry_id.as_str().into();
    let what = match (spelled.published, kind) {
        (Some(published), kind) => {
            let role = published.role.map(proto::Role::try_from).transpose();
            let role = role.map_err(|error| fault(error.to_string()))?.and_then(parse_role);
            Recorded::Published { kind, role, payload: Json::adopt(&published.payload), metadata }
        }
        (None, EventKind::Created) => Recorded::Created,
        (None, EventKind::MessageAdded) => Recorded::MessageAdded(entry_id),
        (None, EventKind::MessageUpdated) => {
            let origin = spelled.origin.as_deref().map(Json::adopt);
            Recorded::MessageUpdated { entry_id, revision: spelled.revision, origin }
        }
        (None, EventKind::StatusChanged) => {
            let pair = spelled.status.ok_or_else(|| fault("no status".to_owned()))?;
            Recorded::StatusChanged {
                status: parse_status(pair.status()).ok_or_else(unknown_status)?,
                previous: parse_status(pair.previous()).ok_or_else(unknown_status)?,
                reason: spelled.status_reason,
            }
        }
        (None, EventKind::MetaUpdated) => Recorded::MetaUpdated,
        (None, EventKind::Deleted) => Recorded::Deleted { metadata },
    };
    Ok(Record { session_id: spelled.session_id.into(), seq: spelled.seq, at_ms: spelled.at_ms, what })
}

pub fn print_edge(edge: &FeedEdge) -> Bytes {
    let spelled = proto::FeedEdge {
        version: VERSION,
        trimmed: edge.trimmed.map(spell_place),
        newest: edge.newest.map(spell_place),
        bytes: edge.bytes,
    };
    spelled.encode_to_vec().into()
}

pub fn parse_edge(value: &[u8]) -> Result<FeedEdge, Fault> {
    let spelled = proto::FeedEdge::decode(value).map_err(|error| Family::Edge.fault(error))?;
    if spelled.version != VERSION {
        return Err(Family::Edge.fault(format_args!("layout {}; this build reads {VERSION}", spelled.version)));
    }
    let place = |place: Option<proto::FeedPlace>| place.map(understand_place);
    Ok(FeedEdge { trimmed: place(spelled.trimmed), newest: place(spelled.newest), bytes: spelled.bytes })
}

pub fn print_tomb(place: FeedPlace) -> Bytes {
    spell_place(place).encode_to_vec().into()
}

pub fn parse_tomb(value: &[u8]) -> Result<FeedPlace, Fault> {
    proto::FeedPlace::decode(value).map(understand_place).map_err(|error| Family::Tomb.fault(error))
}

pub fn print_cursor(position: Position) -> Bytes {
    let place = Some(spell_place(position.place()));
    proto::Cursor { version: VERSION, group: position.group, place }.encode_to_vec().into()
}

pub fn parse_cursor(value: &[u8]) -> Result<Position, Fault> {
    let spelled = proto::Cursor::decode(value).map_err(|error| Family::Cursor.fault(error))?;
    if spelled.version != VERSION {
        return Err(Family::Cursor.fault(format_args!("layout {}; this build reads {VERSION}", spelled.version)));
    }
    let place = spelled.place.map(understand_place).ok_or_else(|| Family::Cursor.fault("no place"))?;
    Ok(place.in_group(spelled.group))
}

/// Adds the lines of one log entry.
pub fn write_records<K: Kv + ?Sized>(
    changed: &mut Changed,
    kv: &K,
    index: u64,
    records: &[Record],
) -> Result<(), Fault> {
    let mut edge = edge_of(changed, kv)?;
    if edge.trimmed.is_none() {
        edge.trimmed = Some(if nothing_happened(kv)? {
            FeedPlace::BEGINNING
        } else {
            // A feed that begins in the middle of a history knows nothing of what was before.
            FeedPlace { index: index.saturating_sub(1), ordinal: u32::MAX }
        });
    }
    for (ordinal, record) in (0..).zip(records) {
        let place = FeedPlace { index, ordinal };
        let (key, value) = (keys::feed(place), print_record(record));
        if record.kind() == EventKind::Deleted {
            changed.insert(keys::tomb(&record.session_id), Some(print_tomb(place)));
        }
        edge.bytes += cost(&key, &value);
        edge.newest = Some(place);
        changed.insert(key, Some(value));
    }
    changed.insert(keys::edge(), Some(print_edge(&edge)));
    Ok(())
}

/// The first change of a state that is new: its feed keeps everything there will be. Said now, since much may change
/// before the first event, and nobody could tell this state then from one that kept none of its events.
pub fn write_beginning<K: Kv + ?Sized>(changed: &mut Changed, kv: &K) -> Result<(), Fault> {
    if nothing_happened(kv)? {
        let edge = edge_of(changed, kv)?;
        let trimmed = edge.trimmed.or(Some(FeedPlace::BEGINNING));
        changed.insert(keys::edge(), Some(print_edge(&FeedEdge { trimmed, ..edge })));
    }
    Ok(())
}

/// Whatever reports something moves the clock: a state without one never had an event.
fn nothing_happened<K: Kv + ?Sized>(kv: &K) -> Result<bool, Fault> {
    Ok(kv.get(&keys::clock())?.is_none())
}

/// Drops the lines up to a place, and the tombs whose deletion goes with them.
pub fn write_trim<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, upto: FeedPlace) -> Result<(), Fault> {
    let mut edge = edge_of(changed, kv)?;
    let (from, _) = keys::feed_after(None);
    let (to, _) = keys::feed_after(Some(upto));
    let layer = Layer { over: changed, base: kv };
    let mut gone = Vec::new();
    let mut deleted = BTreeSet::new();
    let mut scanned = Ok(());
    layer.scan(&from, Some(&to), &mut |key, value| {
        edge.bytes = edge.bytes.saturating_sub(cost(key, value));
        gone.push(key.to_vec());
        scanned = place_of(key).and_then(|place| parse_record(place, value)).map(|record| {
            if record.kind() == EventKind::Deleted {
                deleted.insert(record.session_id);
            }
        });
        if scanned.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    scanned?;
    for session_id in deleted {
        let tomb = keys::tomb(&session_id);
        let place = layer.get(&tomb)?.map(|value| parse_tomb(&value)).transpose()?;
        // A later deletion of the same session has put up its own, which stays.
        if place.is_some_and(|place| place <= upto) {
            gone.push(tomb);
        }
    }
    changed.extend(gone.into_iter().map(|key| (key, None)));
    edge.trimmed = Some(upto);
    changed.insert(keys::edge(), Some(print_edge(&edge)));
    Ok(())
}

pub fn place_of(key: &[u8]) -> Result<FeedPlace, Fault> {
    match Key::parse(key)? {
        Key::Feed(place) => Ok(place),
        other => Err(Fault(format!("a key of another family in the feed: {other:?}"))),
    }
}

pub fn attach_of(key: &[u8]) -> Result<String, Fault> {
    match Key::parse(key)? {
        Key::Cursor(attach) => Ok(attach),
        other => Err(Fault(format!("a key of another family among the cursors: {other:?}"))),
    }
}

fn edge_of<K: Kv + ?Sized>(changed: &Changed, kv: &K) -> Result<FeedEdge, Fault> {
    let value = Layer { over: changed, base: kv }.get(&keys::edge())?;
    Ok(value.map(|value| parse_edge(&value)).transpose()?.unwrap_or_default())
}

/// What a line takes, its key included.
pub fn line_bytes(record: &Record) -> u64 {
    const KEY_BYTES: u64 = 13;
    KEY_BYTES + print_record(record).len() as u64
}

fn cost(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64
}

fn spell_place(place: FeedPlace) -> proto::FeedPlace {
    proto::FeedPlace { index: place.index, ordinal: place.ordinal }
}

fn understand_place(place: proto::FeedPlace) -> FeedPlace {
    FeedPlace { index: place.index, ordinal: place.ordinal }
}

fn print_kind(kind: EventKind) -> proto::EventKind {
    match kind {
        EventKind::Created => proto::EventKind::Created,
        EventKind::MessageAdded => proto::EventKind::MessageAdded,
        EventKind::MessageUpdated => proto::EventKind::MessageUpdated,
        EventKind::StatusChanged => proto::EventKind::StatusChanged,
        EventKind::MetaUpdated => proto::EventKind::MetaUpdated,
        EventKind::Deleted => proto::EventKind::Deleted,
    }
}

fn parse_kind(kind: proto::EventKind) -> Option<EventKind> {
    match kind {
        proto::EventKind::Unspecified => None,
        proto::EventKind::Created => Some(EventKind::Created),
        proto::EventKind::MessageAdded => Some(EventKind::MessageAdded),
        proto::EventKind::MessageUpdated => Some(EventKind::MessageUpdated),
        proto::EventKind::StatusChanged => Some(EventKind::StatusChanged),
        proto::EventKind::MetaUpdated => Some(EventKind::MetaUpdated),
        proto::EventKind::Deleted => Some(EventKind::Deleted),
    }
}

fn object_text(object: &Object) -> String {
    Json::print(object).text().to_owned()
}

fn object(text: Option<&str>) -> Result<Option<Object>, String> {
    text.map(serde_json::from_str).transpose().map_err(|error| format!("metadata: {error}"))
}

#[cfg(test)]
#[path = "feed_test.rs"]
mod tests;
