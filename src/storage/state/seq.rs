//! Owns: the sequence number of a session's last event, 8 bytes.

use bytes::Bytes;

use super::family::Family;
use super::key;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Fault;

pub fn key(session_id: &SessionId) -> Vec<u8> {
    key::of_session(Family::Seq, session_id)
}

pub fn encode(seq: u64) -> Bytes {
    Bytes::copy_from_slice(&seq.to_be_bytes())
}

pub fn decode(session_id: &SessionId, value: &[u8]) -> Result<u64, Fault> {
    let fault = |_| Family::Seq.fault(format_args!("session {:?}: {} bytes, not 8", session_id.as_str(), value.len()));
    value.try_into().map(u64::from_be_bytes).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;

    #[test]
    fn the_bytes_of_a_sequence_number_stay_as_they_are() {
        assert_eq!((hex(&key(&"s".into())), hex(&encode(258))), ("12730001".to_owned(), "0000000000000102".to_owned()));
    }

    #[test]
    fn damage_is_a_fault_that_names_the_family() {
        assert!(decode(&"s".into(), b"1").unwrap_err().0.contains("damaged seq record"));
    }
}
