//! Owns: the active leaf of a session: the id of its entry, as text.

use bytes::Bytes;

use super::family::Family;
use super::key;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Fault;

pub fn key(session_id: &SessionId) -> Vec<u8> {
    key::of_session(Family::Leaf, session_id)
}

pub fn encode(entry_id: &EntryId) -> Bytes {
    Bytes::copy_from_slice(entry_id.as_str().as_bytes())
}

pub fn decode(session_id: &SessionId, value: &[u8]) -> Result<EntryId, Fault> {
    let fault = |error| Family::Leaf.fault(format_args!("session {:?}: {error}", session_id.as_str()));
    std::str::from_utf8(value).map(EntryId::from).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;

    #[test]
    fn the_bytes_of_a_leaf_stay_as_they_are() {
        assert_eq!((hex(&key(&"".into())), hex(&encode(&"é".into()))), ("110001".to_owned(), "c3a9".to_owned()));
    }

    #[test]
    fn damage_is_a_fault_that_names_the_family() {
        assert!(decode(&"s".into(), b"\xff").unwrap_err().0.contains("damaged leaf record"));
    }
}
