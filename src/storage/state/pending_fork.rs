//! Owns: the record of a fork under way. Its value does not repeat the two sessions, which the key holds.

use bytes::Bytes;
use prost::Message as _;

use super::family::{Family, VERSION, check_version};
use super::key;
use crate::machine::ids::SessionId;
use crate::machine::long::PendingFork;
use crate::machine::refusal::Fault;
use crate::machine::stamp::Stamp;
use crate::proto::store as proto;

pub fn key(source: &SessionId, fork: &SessionId) -> Vec<u8> {
    let mut key = prefix_of(source);
    key::put_text(&mut key, fork.as_str());
    key
}

/// The common prefix of the forks of one session.
pub fn prefix_of(source: &SessionId) -> Vec<u8> {
    key::of_session(Family::Fork, source)
}

pub fn prefix() -> Vec<u8> {
    vec![Family::Fork as u8]
}

pub fn encode(pending: &PendingFork) -> Bytes {
    let record = proto::PendingForkRecord {
        version: VERSION,
        entry_id: pending.entry_id.to_string(),
        title: pending.title.clone(),
        at_ms: pending.stamp.at_ms,
        seed: Bytes::copy_from_slice(&pending.stamp.seed.to_be_bytes()),
        copied: pending.copied,
        messages: pending.messages,
        moved_at: pending.moved_at,
    };
    record.encode_to_vec().into()
}

pub fn decode(source: &SessionId, fork: &SessionId, value: &[u8]) -> Result<PendingFork, Fault> {
    let fault = |what: &dyn std::fmt::Display| {
        Family::Fork.fault(format_args!("fork {:?} of {:?}: {what}", fork.as_str(), source.as_str()))
    };
    let record = proto::PendingForkRecord::decode(value).map_err(|error| fault(&error))?;
    check_version(record.version).map_err(|error| fault(&error))?;
    let seed: [u8; 16] = record.seed.as_ref().try_into().map_err(|_| fault(&"a seed that has not 16 bytes"))?;
    Ok(PendingFork {
        source: source.clone(),
        fork: fork.clone(),
        entry_id: record.entry_id.into(),
        title: record.title,
        stamp: Stamp { at_ms: record.at_ms, seed: u128::from_be_bytes(seed) },
        copied: record.copied,
        messages: record.messages,
        moved_at: record.moved_at,
    })
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;
    use proptest::prelude::*;

    fn pending() -> PendingFork {
        PendingFork {
            source: "s".into(),
            fork: "f".into(),
            entry_id: "e".into(),
            title: Some("T".to_owned()),
            stamp: Stamp { at_ms: 5, seed: 6 },
            copied: 7,
            messages: 3,
            moved_at: 9,
        }
    }

    #[test]
    fn the_bytes_of_a_fork_stay_as_they_are() {
        assert_eq!(hex(&key(&"s".into(), &"f".into())), "51730001660001");
        let value = "08011201651a0154200a2a1000000000000000000000000000000006300738034012";
        assert_eq!(hex(&encode(&pending())), value);
    }

    proptest! {
        #[test]
        fn every_fork_reads_back_as_written(
            entry in any::<String>(), title in any::<Option<String>>(), at_ms in any::<i64>(), seed in any::<u128>(),
            copied in any::<u64>(), moved_at in any::<i64>(),
        ) {
            let pending = PendingFork {
                entry_id: entry.into(), title, stamp: Stamp { at_ms, seed }, copied, moved_at, ..pending()
            };
            prop_assert_eq!(decode(&pending.source, &pending.fork, &encode(&pending)).unwrap(), pending);
        }

        #[test]
        fn any_bytes_decode_or_fault_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&"s".into(), &"f".into(), &bytes);
        }
    }
}
