//! Owns: the home of a session's entries, 16 bytes, for sessions whose entries are not stored under their own id; and
//! the first part of an entry's key, which names either.

use bytes::Bytes;

use super::family::{Family, hex};
use super::key;
use crate::machine::ids::SessionId;
use crate::machine::long::Home;
use crate::machine::refusal::Fault;

/// No text begins with this byte, so no session id does.
pub(super) const MARK: u8 = 0xFF;

pub fn key(session_id: &SessionId) -> Vec<u8> {
    key::of_session(Family::Home, session_id)
}

pub fn encode(home: Home) -> Bytes {
    Bytes::copy_from_slice(&home.0.to_be_bytes())
}

pub fn decode(session_id: &SessionId, value: &[u8]) -> Result<Home, Fault> {
    let fault =
        |_| Family::Home.fault(format_args!("session {:?}: {} bytes, not 16", session_id.as_str(), value.len()));
    value.try_into().map(|bytes| Home(u128::from_be_bytes(bytes))).map_err(fault)
}

/// The common prefix of the entries in a home: a mark and hexadecimal digits, ended like a text.
pub(super) fn prefix(home: Home) -> Vec<u8> {
    let mut key = vec![Family::Entry as u8, MARK];
    key.extend_from_slice(hex(&home.0.to_be_bytes()).as_bytes());
    key.extend(key::TEXT_END);
    key
}

/// The home from the digits of a key.
pub(super) fn parse(digits: &str) -> Option<Home> {
    let home = u128::from_str_radix(digits, 16).ok().map(Home)?;
    (hex(&home.0.to_be_bytes()) == digits).then_some(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_home_stay_as_they_are() {
        let home = Home(0x0102);
        assert_eq!((hex(&key(&"s".into())), hex(&encode(home))), ("14730001".to_owned(), format!("{:032x}", 0x0102)));
        assert_eq!(hex(&prefix(home)), format!("13ff{}313032{}", "30".repeat(29), "0001"));
        assert_eq!(decode(&"s".into(), &encode(home)), Ok(home));
    }

    #[test]
    fn damage_is_a_fault_that_names_the_family() {
        assert!(decode(&"s".into(), b"1").unwrap_err().0.contains("damaged home record"));
    }
}
