//! Owns: the ordered indexes of sessions: their keys (the values are empty), and which keys change with a session's
//! record.

use std::collections::BTreeSet;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::family::Family;
use super::key::{self, Key, KeyReader};
use super::kv::Changed;
use crate::machine::ids::SessionId;
use crate::machine::json::canonical;
use crate::machine::refusal::Fault;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::view::{Facet, ListOrder, ListPoint};

/// A facet in a key. Values of metadata are hashed, so that keys stay short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FacetKey {
    All,
    Status(SessionStatus),
    Metadata(u128),
}

impl FacetKey {
    pub fn of(facet: &Facet) -> FacetKey {
        match facet {
            Facet::All => FacetKey::All,
            Facet::Status(status) => FacetKey::Status(*status),
            Facet::Metadata { key, value } => FacetKey::metadata(key, value),
        }
    }

    /// Every facet that a session is listed under.
    pub fn of_meta(meta: &SessionMeta) -> Vec<FacetKey> {
        let metadata = meta.metadata.iter().flatten();
        let mut facets: Vec<FacetKey> =
            metadata.map(|(key, value)| FacetKey::metadata(key, &canonical(value))).collect();
        facets.extend([FacetKey::All, FacetKey::Status(meta.status)]);
        facets
    }

    fn metadata(key: &str, value: &str) -> FacetKey {
        let mut hash = Xxh3::new();
        // The length distinguishes ("a", "bc") from ("ab", "c").
        hash.update(&(key.len() as u64).to_be_bytes());
        hash.update(key.as_bytes());
        hash.update(value.as_bytes());
        FacetKey::Metadata(hash.digest128())
    }
}

/// The common prefix of one ordered index.
pub fn prefix(facet: FacetKey, order: ListOrder) -> Vec<u8> {
    let mut key = vec![Family::List as u8];
    match facet {
        FacetKey::All => key.push(0),
        FacetKey::Status(status) => key.extend([1, status_byte(status)]),
        FacetKey::Metadata(hash) => {
            key.push(2);
            key.extend(hash.to_be_bytes());
        }
    }
    key.push(order_byte(order));
    key
}

pub fn key(facet: FacetKey, order: ListOrder, point: &ListPoint) -> Vec<u8> {
    let mut key = prefix(facet, order);
    key.reserve(point.session_id.as_str().len() + 10);
    key.extend(time_bytes(order, point.time));
    key::put_text(&mut key, point.session_id.as_str());
    key
}

/// Parses what follows the family byte.
pub(super) fn parse_key(rest: &mut KeyReader<'_>) -> Result<Key, Fault> {
    let facet = match rest.byte()? {
        0 => FacetKey::All,
        1 => {
            let byte = rest.byte()?;
            let status = STATUSES.into_iter().find(|status| status_byte(*status) == byte);
            FacetKey::Status(status.ok_or_else(|| rest.fault())?)
        }
        2 => FacetKey::Metadata(u128::from_be_bytes(rest.array()?)),
        _other => return Err(rest.fault()),
    };
    let byte = rest.byte()?;
    let order = ORDERS.into_iter().find(|order| order_byte(*order) == byte).ok_or_else(|| rest.fault())?;
    let time = time_from(order, rest.array()?);
    let session_id = SessionId::from(rest.text()?);
    Ok(Key::List(facet, order, ListPoint { time, session_id }))
}

/// Moves a session in the indexes. Only keys that differ are changed.
pub(in crate::storage) fn reindex(changed: &mut Changed, old: Option<&SessionMeta>, new: Option<&SessionMeta>) {
    // An append changes the time of update and nothing else. Do not build the keys of the other orders for it.
    if let (Some(old), Some(new)) = (old, new)
        && old.status == new.status
        && old.created_at == new.created_at
        && old.metadata == new.metadata
    {
        let order = ListOrder::UpdatedDesc;
        if old.updated_at != new.updated_at {
            for facet in FacetKey::of_meta(new) {
                changed.insert(key(facet, order, &order.point(old)), None);
                changed.insert(key(facet, order, &order.point(new)), Some(Bytes::new()));
            }
        }
        return;
    }
    let (before, after) = (keys_of(old), keys_of(new));
    changed.extend(before.difference(&after).map(|key| (key.clone(), None)));
    changed.extend(after.difference(&before).map(|key| (key.clone(), Some(Bytes::new()))));
}

/// Every index key of a session.
fn keys_of(meta: Option<&SessionMeta>) -> BTreeSet<Vec<u8>> {
    let Some(meta) = meta else { return BTreeSet::new() };
    let facets = FacetKey::of_meta(meta);
    let of_order = |order: ListOrder| {
        let point = order.point(meta);
        facets.iter().map(move |facet| key(*facet, order, &point)).collect::<Vec<_>>()
    };
    ORDERS.into_iter().flat_map(of_order).collect()
}

/// Big-endian bytes with the sign bit flipped sort like the number. Inverted they sort in the opposite order.
fn time_bytes(order: ListOrder, time: i64) -> [u8; 8] {
    let ascending = (time as u64) ^ (1 << 63);
    match order {
        ListOrder::CreatedAsc => ascending.to_be_bytes(),
        ListOrder::CreatedDesc | ListOrder::UpdatedDesc => (!ascending).to_be_bytes(),
    }
}

fn time_from(order: ListOrder, bytes: [u8; 8]) -> i64 {
    let stored = u64::from_be_bytes(bytes);
    let ascending = match order {
        ListOrder::CreatedAsc => stored,
        ListOrder::CreatedDesc | ListOrder::UpdatedDesc => !stored,
    };
    (ascending ^ (1 << 63)) as i64
}

const ORDERS: [ListOrder; 3] = [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc];

fn order_byte(order: ListOrder) -> u8 {
    match order {
        ListOrder::CreatedAsc => 1,
        ListOrder::CreatedDesc => 2,
        ListOrder::UpdatedDesc => 3,
    }
}

const STATUSES: [SessionStatus; 4] =
    [SessionStatus::Idle, SessionStatus::Working, SessionStatus::Done, SessionStatus::Error];

fn status_byte(status: SessionStatus) -> u8 {
    match status {
        SessionStatus::Idle => 1,
        SessionStatus::Working => 2,
        SessionStatus::Done => 3,
        SessionStatus::Error => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::super::key::{any_list_key, any_text};
    use super::*;
    use proptest::prelude::*;

    fn point(time: i64, id: &str) -> ListPoint {
        ListPoint { time, session_id: id.into() }
    }

    #[test]
    fn the_bytes_of_index_keys_stay_as_they_are() {
        let all = key(FacetKey::All, ListOrder::CreatedAsc, &point(1, "s"));
        assert_eq!(hex(&all), "2000018000000000000001730001");
        let done = key(FacetKey::Status(SessionStatus::Done), ListOrder::UpdatedDesc, &point(1, "s"));
        assert_eq!(hex(&done), "200103037ffffffffffffffe730001");
        let team = key(FacetKey::metadata("team", "\"red\""), ListOrder::CreatedDesc, &point(-1, "s"));
        assert_eq!(hex(&team), "2002a1826c354dd25ee744775ccf82b579f5028000000000000000730001");
    }

    proptest! {
        #[test]
        fn keys_sort_like_their_order(
            list in any_list_key(), at in any::<i64>(), bt in -3i64..3, a in any_text(), b in any_text(),
        ) {
            let Key::List(f, order, _) = list else { unreachable!("a list key") };
            for (x, y) in [(point(at, &a), point(bt, &b)), (point(bt, &a), point(bt, &b))] {
                prop_assert_eq!(key(f, order, &x).cmp(&key(f, order, &y)), order.compare(&x, &y));
            }
        }
    }
}
