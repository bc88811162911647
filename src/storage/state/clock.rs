//! Owns: the clock of the state: the latest stamp applied, 8 bytes.

use bytes::Bytes;

use super::family::Family;
use crate::machine::refusal::Fault;

pub fn key() -> Vec<u8> {
    vec![Family::Clock as u8]
}

pub fn encode(at_ms: i64) -> Bytes {
    Bytes::copy_from_slice(&at_ms.to_be_bytes())
}

pub fn decode(value: &[u8]) -> Result<i64, Fault> {
    let fault = |_| Family::Clock.fault(format_args!("{} bytes, not 8", value.len()));
    value.try_into().map(i64::from_be_bytes).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;

    #[test]
    fn the_bytes_of_the_clock_stay_as_they_are() {
        assert_eq!((hex(&key()), hex(&encode(-2))), ("02".to_owned(), "fffffffffffffffe".to_owned()));
    }

    #[test]
    fn damage_is_a_fault_that_names_the_family() {
        assert!(decode(b"").unwrap_err().0.contains("damaged clock record"));
    }
}
