//! Owns: the extent of the feed: the place up to which it is trimmed, its newest event and its size.

use bytes::Bytes;
use prost::Message as _;

use super::clock;
use super::family::{Family, VERSION, check_version};
use super::kv::{Changed, Kv, Layer};
use crate::machine::feed_record::FeedEdge;
use crate::machine::ids::FeedPlace;
use crate::machine::refusal::Fault;
use crate::proto::store as proto;
use crate::storage::proto_types::{place_from_proto, place_to_proto};

pub fn key() -> Vec<u8> {
    vec![Family::FeedEdge as u8]
}

pub fn encode(edge: &FeedEdge) -> Bytes {
    let record = proto::FeedEdge {
        version: VERSION,
        trimmed: edge.trimmed.map(place_to_proto),
        newest: edge.newest.map(place_to_proto),
        bytes: edge.bytes,
    };
    record.encode_to_vec().into()
}

pub fn decode(value: &[u8]) -> Result<FeedEdge, Fault> {
    let record = proto::FeedEdge::decode(value).map_err(|error| Family::FeedEdge.fault(error))?;
    check_version(record.version).map_err(|error| Family::FeedEdge.fault(error))?;
    let (trimmed, newest) = (record.trimmed.map(place_from_proto), record.newest.map(place_from_proto));
    Ok(FeedEdge { trimmed, newest, bytes: record.bytes })
}

/// The edge as the changes so far leave it.
pub(super) fn current<K: Kv + ?Sized>(changed: &Changed, kv: &K) -> Result<FeedEdge, Fault> {
    let value = Layer { over: changed, base: kv }.get(&key())?;
    Ok(value.map(|value| decode(&value)).transpose()?.unwrap_or_default())
}

/// Starts the feed with the first command of a history, even if that command has no event. No event was before it,
/// so a reader may start from any place. Every command sets the clock: a state without one is empty.
pub(super) fn begin<K: Kv + ?Sized>(changed: &mut Changed, kv: &K) -> Result<(), Fault> {
    if kv.get(&clock::key())?.is_some() {
        return Ok(());
    }
    let mut edge = current(changed, kv)?;
    edge.trimmed.get_or_insert(FeedPlace::BEGINNING);
    changed.insert(key(), Some(encode(&edge)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;
    use proptest::prelude::*;

    fn place(index: u64, ordinal: u32) -> FeedPlace {
        FeedPlace { index, ordinal }
    }

    #[test]
    fn the_bytes_of_the_feed_edge_stay_as_they_are() {
        let edge = FeedEdge { trimmed: Some(place(0, 1)), newest: Some(place(7, 0)), bytes: 3 };
        assert_eq!((hex(&key()), hex(&encode(&edge))), ("03".to_owned(), "0801120210011a0208072003".to_owned()));
    }

    #[test]
    fn a_feed_edge_reads_back_as_written() {
        let edge = FeedEdge { trimmed: Some(place(1, u32::MAX)), newest: Some(place(7, 2)), bytes: 300 };
        for edge in [edge, FeedEdge::default()] {
            assert_eq!(decode(&encode(&edge)), Ok(edge));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fault_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
