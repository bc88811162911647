//! Owns: the cursor of an attach point: the position up to which it has delivered events.

use bytes::Bytes;
use prost::Message as _;

use super::family::{Family, VERSION, check_version};
use super::key::{self, Key};
use crate::machine::ids::Position;
use crate::machine::refusal::Fault;
use crate::proto::store as proto;
use crate::storage::proto_types::{place_from_proto, place_to_proto};

pub fn key(attach: &str) -> Vec<u8> {
    let mut key = vec![Family::Cursor as u8];
    key::put_text(&mut key, attach);
    key
}

/// The common prefix of all cursors whose names start with `starting`.
pub fn prefix(starting: &str) -> Vec<u8> {
    let mut prefix = key(starting);
    prefix.truncate(prefix.len() - key::TEXT_END.len());
    prefix
}

pub fn attach_of(key: &[u8]) -> Result<String, Fault> {
    match Key::parse(key)? {
        Key::Cursor(attach) => Ok(attach),
        other => Err(Fault(format!("a key of another family among the cursors: {other:?}"))),
    }
}

pub fn encode(position: Position) -> Bytes {
    let place = Some(place_to_proto(position.place()));
    proto::Cursor { version: VERSION, group: position.group, place }.encode_to_vec().into()
}

pub fn decode(value: &[u8]) -> Result<Position, Fault> {
    let record = proto::Cursor::decode(value).map_err(|error| Family::Cursor.fault(error))?;
    check_version(record.version).map_err(|error| Family::Cursor.fault(error))?;
    let place = record.place.map(place_from_proto).ok_or_else(|| Family::Cursor.fault("no place"))?;
    Ok(place.in_group(record.group))
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_a_cursor_stay_as_they_are() {
        assert_eq!(hex(&key("engine")), "42656e67696e650001");
        assert_eq!(hex(&encode(Position { group: 0, index: 5, ordinal: 1 })), "08011a0408051001");
    }

    #[test]
    fn a_cursor_reads_back_as_written() {
        let cursor = Position { group: 2, index: 5, ordinal: 1 };
        assert_eq!(decode(&encode(cursor)), Ok(cursor));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fault_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
