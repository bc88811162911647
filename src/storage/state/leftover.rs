//! Owns: the keys that list which entries wait to be freed; the values are empty.

use super::family::Family;
use super::key::{self, Key, KeyReader};
use crate::machine::ids::SessionId;
use crate::machine::long::{Home, Leftover};
use crate::machine::refusal::Fault;

/// The session, then its home unless the entries are stored under the session's own id.
pub fn key(leftover: &Leftover) -> Vec<u8> {
    let mut key = key::of_session(Family::Leftover, &leftover.session_id);
    if let Some(home) = leftover.home {
        key.extend(home.0.to_be_bytes());
    }
    key
}

pub fn prefix() -> Vec<u8> {
    vec![Family::Leftover as u8]
}

/// Parses what follows the family byte.
pub(super) fn parse_key(rest: &mut KeyReader<'_>) -> Result<Key, Fault> {
    let session_id = SessionId::from(rest.text()?);
    let home = match rest.is_empty() {
        true => None,
        false => Some(Home(u128::from_be_bytes(rest.array()?))),
    };
    Ok(Key::Leftover(Leftover { session_id, home }))
}

#[cfg(test)]
#[test]
fn the_bytes_of_a_leftover_stay_as_they_are() {
    use super::family::hex;
    let own = Leftover { session_id: "s".into(), home: None };
    let moved = Leftover { home: Some(Home(3)), ..own.clone() };
    assert_eq!((hex(&key(&own)), hex(&key(&moved))), ("50730001".to_owned(), format!("50730001{:032x}", 3)));
}
