//! Owns: the tombstone of a session: the place of its last deletion in the feed. Kept as long as the feed keeps that
//! event, so that older events of the session are skipped.

use bytes::Bytes;
use prost::Message as _;

use super::family::Family;
use super::key;
use crate::machine::ids::{FeedPlace, SessionId};
use crate::machine::refusal::Fault;
use crate::proto::store as proto;
use crate::storage::proto_types::{place_from_proto, place_to_proto};

pub fn key(session_id: &SessionId) -> Vec<u8> {
    key::of_session(Family::Tombstone, session_id)
}

pub fn encode(place: FeedPlace) -> Bytes {
    place_to_proto(place).encode_to_vec().into()
}

pub fn decode(value: &[u8]) -> Result<FeedPlace, Fault> {
    proto::FeedPlace::decode(value).map(place_from_proto).map_err(|error| Family::Tombstone.fault(error))
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_a_tombstone_stay_as_they_are() {
        let place = FeedPlace { index: 4, ordinal: 5 };
        assert_eq!((hex(&key(&"s".into())), hex(&encode(place))), ("41730001".to_owned(), "08041005".to_owned()));
        assert_eq!(decode(&encode(place)), Ok(place));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fault_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
