//! Owns: the records beside sessions: their keys, and the keys that a drop or a free writes. A value is the JSON text.
//!
//! ```text
//! 60 session generation space part…   a record of a session
//! 61 session                          the generation of the session's records, if not the first
//! 62 session generation               records of a deleted session that wait to be freed
//! 63 space part…                      a record of the cluster
//! ```
//!
//! A part is `01` and eight bytes (a number, big-endian), or `02` and a text. So keys sort like their parts, and the
//! parts of a key are a prefix of the keys under it.

use bytes::Bytes;

use super::family::Family;
use super::key::{self, Key, KeyReader, put_text};
use super::kv::{Changed, Kv, Layer, some_keys};
use super::view::collect;
use crate::machine::beside::{DROP_MAX, Part, RecordKey, RecordLeftover, Space};
use crate::machine::change::RecordChange;
use crate::machine::ids::SessionId;
use crate::machine::json::Json;
use crate::machine::refusal::Fault;

const NUMBER: u8 = 1;
const TEXT: u8 = 2;

/// The key of a record of the cluster, or of a session's record in this generation.
pub fn key(record: &RecordKey, generation: u32) -> Vec<u8> {
    let mut key = match &record.session_id {
        Some(session_id) => session_prefix(session_id, generation),
        None => vec![Family::ClusterRecord as u8],
    };
    key.push(record.space as u8);
    for part in &record.parts {
        match part {
            Part::Number(number) => {
                key.push(NUMBER);
                key.extend(number.to_be_bytes());
            }
            Part::Text(text) => {
                key.push(TEXT);
                put_text(&mut key, text);
            }
        }
    }
    key
}

/// The common prefix of all records of a session.
pub fn session_prefix(session_id: &SessionId, generation: u32) -> Vec<u8> {
    let mut key = key::of_session(Family::SessionRecord, session_id);
    key.extend(generation.to_be_bytes());
    key
}

pub fn generation_key(session_id: &SessionId) -> Vec<u8> {
    key::of_session(Family::RecordGeneration, session_id)
}

pub fn leftover_key(leftover: &RecordLeftover) -> Vec<u8> {
    let mut key = key::of_session(Family::RecordLeftover, &leftover.session_id);
    key.extend(leftover.generation.to_be_bytes());
    key
}

/// The generation of a session's records.
pub fn generation<K: Kv + ?Sized>(kv: &K, session_id: &SessionId) -> Result<u32, Fault> {
    let Some(value) = kv.get(&generation_key(session_id))? else { return Ok(0) };
    let bytes: [u8; 4] = value.as_ref().try_into().map_err(|_| {
        Family::RecordGeneration.fault(format_args!("session {:?}: {} bytes", session_id.as_str(), value.len()))
    })?;
    Ok(u32::from_be_bytes(bytes))
}

/// The key of a record as it is stored now.
pub fn key_now<K: Kv + ?Sized>(kv: &K, record: &RecordKey) -> Result<Vec<u8>, Fault> {
    let generation = match &record.session_id {
        Some(session_id) => generation(kv, session_id)?,
        None => 0,
    };
    Ok(key(record, generation))
}

pub fn encode(value: &Json) -> Bytes {
    Bytes::copy_from_slice(value.text().as_bytes())
}

pub fn decode(key: &[u8], value: &[u8]) -> Result<Json, Fault> {
    let family = if Family::SessionRecord.owns(key) { Family::SessionRecord } else { Family::ClusterRecord };
    let text = str::from_utf8(value).map_err(|error| family.fault(format_args!("its value is no text: {error}")))?;
    Ok(Json::adopt(text))
}

pub(super) fn parse_session_key(rest: &mut KeyReader<'_>) -> Result<Key, Fault> {
    let session_id = SessionId::from(rest.text()?);
    let generation = u32::from_be_bytes(rest.array()?);
    let (space, parts) = parse_parts(rest)?;
    Ok(Key::SessionRecord(RecordKey { session_id: Some(session_id), space, parts }, generation))
}

pub(super) fn parse_cluster_key(rest: &mut KeyReader<'_>) -> Result<Key, Fault> {
    let (space, parts) = parse_parts(rest)?;
    Ok(Key::ClusterRecord(RecordKey { session_id: None, space, parts }))
}

fn parse_parts(rest: &mut KeyReader<'_>) -> Result<(Space, Vec<Part>), Fault> {
    let byte = rest.byte()?;
    let space = Space::ALL.into_iter().find(|space| *space as u8 == byte).ok_or_else(|| rest.fault())?;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        parts.push(match rest.byte()? {
            NUMBER => Part::Number(u64::from_be_bytes(rest.array()?)),
            TEXT => Part::Text(rest.text()?.into()),
            _other => return Err(rest.fault()),
        });
    }
    Ok((space, parts))
}

/// The records under a key, after one of them.
pub(super) fn read<K: Kv + ?Sized>(
    kv: &K,
    under: &RecordKey,
    after: Option<&RecordKey>,
    limit: usize,
) -> Result<Vec<(RecordKey, Json)>, Fault> {
    let prefix = key_now(kv, under)?;
    // No key stands between a key and the first one after it.
    let from = match after {
        Some(after) => [key_now(kv, after)?, vec![0]].concat(),
        None => prefix.clone(),
    };
    let parse = |key: &[u8], value: &Bytes| match Key::parse(key)? {
        Key::SessionRecord(record, _) | Key::ClusterRecord(record) => Ok((record, decode(key, value)?)),
        other => Err(Fault(format!("a key of another family among the records: {other:?}"))),
    };
    collect(kv, from.max(prefix.clone()).as_slice(), key::after(&prefix).as_deref(), limit, parse)
}

pub(super) fn leftovers<K: Kv + ?Sized>(kv: &K, limit: usize) -> Result<Vec<RecordLeftover>, Fault> {
    let parse = |key: &[u8], _: &Bytes| match Key::parse(key)? {
        Key::RecordLeftover(leftover) => Ok(leftover),
        other => Err(Fault(format!("a key of another family among the leftovers: {other:?}"))),
    };
    let prefix = [Family::RecordLeftover as u8];
    collect(kv, &prefix, key::after(&prefix).as_deref(), limit, parse)
}

pub(super) fn write<K: Kv + ?Sized>(
    changed: &mut Changed,
    kv: &K,
    change: &RecordChange,
    value: Bytes,
) -> Result<(), Fault> {
    let layer = Layer { over: changed, base: kv };
    match change {
        RecordChange::Put(record, _) => {
            let key = key_now(&layer, record)?;
            changed.insert(key, Some(value));
            Ok(())
        }
        RecordChange::Delete(record) => {
            let key = key_now(&layer, record)?;
            changed.insert(key, None);
            Ok(())
        }
        RecordChange::DropSession(session_id) => drop_session(changed, kv, session_id),
        RecordChange::Free { leftover, records } => free(changed, kv, leftover, *records as usize),
    }
}

fn drop_session<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, session_id: &SessionId) -> Result<(), Fault> {
    let layer = Layer { over: changed, base: kv };
    let generation = generation(&layer, session_id)?;
    let (found, more) = some_keys(&layer, &session_prefix(session_id, generation), DROP_MAX)?;
    if more {
        let leftover = RecordLeftover { session_id: session_id.clone(), generation };
        changed.insert(leftover_key(&leftover), Some(Bytes::new()));
        // Four billion deletions of one id, each before the last is freed, would be needed to come round.
        let next = generation.wrapping_add(1);
        changed.insert(generation_key(session_id), Some(Bytes::copy_from_slice(&next.to_be_bytes())));
    } else {
        changed.extend(found.into_iter().map(|key| (key, None)));
    }
    Ok(())
}

/// Deletes some of the records that wait. With the last of them goes the note that they wait, and a generation that no
/// record needs.
fn free<K: Kv + ?Sized>(changed: &mut Changed, kv: &K, left: &RecordLeftover, records: usize) -> Result<(), Fault> {
    let layer = Layer { over: changed, base: kv };
    let (found, more) = some_keys(&layer, &session_prefix(&left.session_id, left.generation), records)?;
    changed.extend(found.into_iter().map(|key| (key, None)));
    if more {
        return Ok(());
    }
    changed.insert(leftover_key(left), None);
    let layer = Layer { over: changed, base: kv };
    let waiting = key::of_session(Family::RecordLeftover, &left.session_id);
    let current = session_prefix(&left.session_id, generation(&layer, &left.session_id)?);
    if some_keys(&layer, &waiting, 1)?.0.is_empty() && some_keys(&layer, &current, 1)?.0.is_empty() {
        changed.insert(generation_key(&left.session_id), None);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::encoded::Encoded;
    use super::super::family::hex;
    use super::super::memory::Tree;
    use super::super::{Records, write};
    use super::*;
    use crate::machine::change::Change;
    use crate::machine::view::View;
    use proptest::prelude::*;

    fn journal(seq: u64) -> RecordKey {
        RecordKey::of_session(&"s".into(), Space::Journal).with(seq)
    }

    fn commit(tree: &mut Tree, changes: &[Change]) {
        let changed = write(tree, &Encoded::new(changes)).unwrap();
        tree.merge(changed);
    }

    #[test]
    fn the_bytes_of_a_record_stay_as_they_are() {
        assert_eq!(hex(&key(&journal(258), 0)), "6073000100000000030100000000000001 02".replace(' ', ""));
        let due = RecordKey::of_cluster(Space::Due).with(5i64).with("t");
        assert_eq!(hex(&key(&due, 0)), "63070100000000000000050274 0001".replace(' ', ""));
        assert_eq!(hex(&generation_key(&"s".into())), "61730001");
        let leftover = RecordLeftover { session_id: "s".into(), generation: 3 };
        assert_eq!(hex(&leftover_key(&leftover)), "6273000100000003");
        assert_eq!(encode(&Json::adopt("{\"a\":1}")).as_ref(), b"{\"a\":1}");
    }

    #[test]
    fn records_read_back_in_order_and_after_one_of_them() {
        let mut tree = Tree::default();
        let put = |seq| Change::put_record(journal(seq), Json::print(&seq));
        commit(&mut tree, &[put(300), put(2), put(1), put(70_000)]);
        let view = Records::new(&tree);
        assert_eq!(view.record(&journal(2)).unwrap(), Some(Json::print(&2)));
        assert_eq!(view.record(&journal(3)).unwrap(), None);
        let all = RecordKey::of_session(&"s".into(), Space::Journal);
        let seqs = |after: Option<&RecordKey>, limit| -> Vec<u64> {
            view.records(&all, after, limit).unwrap().iter().filter_map(|(key, _)| key.number(0)).collect()
        };
        assert_eq!(seqs(None, 9), [1, 2, 300, 70_000]);
        assert_eq!(seqs(Some(&journal(2)), 1), [300]);
        assert_eq!(seqs(Some(&journal(9)), 9), [300, 70_000]);
        let other = RecordKey::of_session(&"s".into(), Space::Turn);
        assert!(view.records(&other, None, 9).unwrap().is_empty());
    }

    #[test]
    fn few_records_go_at_once_and_many_in_steps_while_a_new_session_starts_empty() {
        let mut tree = Tree::default();
        let put = |seq| Change::put_record(journal(seq), Json::print(&seq));
        commit(&mut tree, &[put(1), put(2)]);
        commit(&mut tree, &[Change::drop_records(&"s".into())]);
        assert!(!Records::new(&tree).has_records(&"s".into()).unwrap());
        assert!(Records::new(&tree).record_leftovers(9).unwrap().is_empty());

        let many: Vec<Change> = (0..1000).map(put).collect();
        commit(&mut tree, &many);
        commit(&mut tree, &[Change::drop_records(&"s".into()), put(5)]);
        let all = RecordKey::of_session(&"s".into(), Space::Journal);
        assert_eq!(Records::new(&tree).records(&all, None, 9).unwrap().len(), 1);
        let left = Records::new(&tree).record_leftovers(9).unwrap();
        assert_eq!(left, [RecordLeftover { session_id: "s".into(), generation: 0 }]);
        let mut steps = 0;
        while Records::new(&tree).is_record_leftover(&left[0]).unwrap() {
            commit(&mut tree, &[Change::Record(RecordChange::Free { leftover: left[0].clone(), records: 256 })]);
            steps += 1;
        }
        assert_eq!(steps, 4);
        assert_eq!(Records::new(&tree).record(&journal(5)).unwrap(), Some(Json::print(&5)));
        commit(&mut tree, &[Change::drop_records(&"s".into())]);
        assert!(!Records::new(&tree).has_records(&"s".into()).unwrap());
    }

    pub fn any_record_key() -> impl Strategy<Value = RecordKey> {
        use super::super::key::any_text;
        let part =
            prop_oneof![any::<u64>().prop_map(Part::Number), any_text().prop_map(|text| Part::Text(text.into()))];
        let parts = prop::collection::vec(part, 0..3);
        let session = prop::option::of(any_text().prop_map(SessionId::from));
        (session, prop::sample::select(Space::ALL.to_vec()), parts).prop_map(|(session_id, space, parts)| RecordKey {
            session_id,
            space,
            parts,
        })
    }

    proptest! {
        #[test]
        fn keys_sort_like_their_parts_and_read_back(a in any_record_key(), b in any_record_key()) {
            prop_assert_eq!(key(&a, 0).cmp(&key(&b, 0)), a.cmp(&b));
            let read = match Key::parse(&key(&a, 7)).unwrap() {
                Key::SessionRecord(record, 7) | Key::ClusterRecord(record) => record,
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            };
            prop_assert_eq!(read, a);
        }
    }
}
