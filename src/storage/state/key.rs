//! Owns: what the keys of all families share: the escaping of ids, prefixes, and parsing a key of any family.
//! Never: values, nor the layout of one family's key.
//!
//! Ids are any Unicode text. Inside a key a zero byte is written `00 FF` and the text ends with `00 01`. So keys sort
//! like ids, and no id is a prefix of another.

use super::family::{Family, hex};
use super::list::{self, FacetKey};
use super::{
    answer, beside, checkpoint, clock, cursor, entry, feed_edge, feed_record, home, leaf, leftover, meta, pending_fork,
    seq, tombstone,
};
use crate::machine::beside::{RecordKey, RecordLeftover};
use crate::machine::ids::{EntryId, FeedPlace, RequestId, SessionId};
use crate::machine::long::{Home, Leftover};
use crate::machine::refusal::Fault;
use crate::machine::view::{ListOrder, ListPoint};

/// A parsed key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    Checkpoint,
    Clock,
    FeedEdge,
    Meta(SessionId),
    Leaf(SessionId),
    Seq(SessionId),
    Entry(SessionId, EntryId),
    /// An entry that is not stored under the id of its session.
    EntryIn(Home, EntryId),
    Home(SessionId),
    List(FacetKey, ListOrder, ListPoint),
    Answer(RequestId),
    Feed(FeedPlace),
    Tombstone(SessionId),
    Cursor(String),
    Leftover(Leftover),
    Fork {
        source: SessionId,
        fork: SessionId,
    },
    /// In this generation.
    SessionRecord(RecordKey, u32),
    RecordGeneration(SessionId),
    RecordLeftover(RecordLeftover),
    ClusterRecord(RecordKey),
}

impl Key {
    pub fn print(&self) -> Vec<u8> {
        match self {
            Key::Checkpoint => checkpoint::key(),
            Key::Clock => clock::key(),
            Key::FeedEdge => feed_edge::key(),
            Key::Meta(session_id) => meta::key(session_id),
            Key::Leaf(session_id) => leaf::key(session_id),
            Key::Seq(session_id) => seq::key(session_id),
            Key::Entry(session_id, entry_id) => entry::key(session_id, entry_id),
            Key::EntryIn(home, entry_id) => entry::key_under(home::prefix(*home), entry_id),
            Key::Home(session_id) => home::key(session_id),
            Key::List(facet, order, point) => list::key(*facet, *order, point),
            Key::Answer(request_id) => answer::key(*request_id),
            Key::Feed(place) => feed_record::key(*place),
            Key::Tombstone(session_id) => tombstone::key(session_id),
            Key::Cursor(attach) => cursor::key(attach),
            Key::Leftover(left) => leftover::key(left),
            Key::Fork { source, fork } => pending_fork::key(source, fork),
            Key::SessionRecord(record, generation) => beside::key(record, *generation),
            Key::RecordGeneration(session_id) => beside::generation_key(session_id),
            Key::RecordLeftover(left) => beside::leftover_key(left),
            Key::ClusterRecord(record) => beside::key(record, 0),
        }
    }

    pub fn parse(key: &[u8]) -> Result<Key, Fault> {
        let mut rest = KeyReader { family: Family::Checkpoint, bytes: key };
        let byte = rest.byte()?;
        let family = Family::ALL.into_iter().find(|family| *family as u8 == byte);
        rest.family = family.ok_or_else(|| Fault(format!("no key family {byte:#04x}: {}", hex(key))))?;
        let parsed = match rest.family {
            Family::Checkpoint => Key::Checkpoint,
            Family::Clock => Key::Clock,
            Family::FeedEdge => Key::FeedEdge,
            Family::Meta => Key::Meta(rest.text()?.into()),
            Family::Leaf => Key::Leaf(rest.text()?.into()),
            Family::Seq => Key::Seq(rest.text()?.into()),
            Family::Entry if rest.bytes.first() == Some(&home::MARK) => {
                rest.byte()?;
                let home = home::parse(&rest.text()?).ok_or_else(|| rest.fault())?;
                Key::EntryIn(home, rest.text()?.into())
            }
            Family::Entry => Key::Entry(rest.text()?.into(), rest.text()?.into()),
            Family::Home => Key::Home(rest.text()?.into()),
            Family::List => list::parse_key(&mut rest)?,
            Family::Answer => Key::Answer(RequestId(u128::from_be_bytes(rest.array()?))),
            Family::Feed => Key::Feed(FeedPlace {
                index: u64::from_be_bytes(rest.array()?),
                ordinal: u32::from_be_bytes(rest.array()?),
            }),
            Family::Tombstone => Key::Tombstone(rest.text()?.into()),
            Family::Cursor => Key::Cursor(rest.text()?),
            Family::Leftover => leftover::parse_key(&mut rest)?,
            Family::Fork => Key::Fork { source: rest.text()?.into(), fork: rest.text()?.into() },
            Family::SessionRecord => beside::parse_session_key(&mut rest)?,
            Family::RecordGeneration => Key::RecordGeneration(rest.text()?.into()),
            Family::RecordLeftover => Key::RecordLeftover(RecordLeftover {
                session_id: rest.text()?.into(),
                generation: u32::from_be_bytes(rest.array()?),
            }),
            Family::ClusterRecord => beside::parse_cluster_key(&mut rest)?,
        };
        if !rest.bytes.is_empty() {
            return Err(rest.fault());
        }
        Ok(parsed)
    }
}

/// The key of a family that has one key per session.
pub(super) fn of_session(family: Family, session_id: &SessionId) -> Vec<u8> {
    let mut key = Vec::with_capacity(session_id.as_str().len() + 3);
    key.push(family as u8);
    put_text(&mut key, session_id.as_str());
    key
}

/// The first key after everything that starts with `prefix`; `None` if nothing can follow.
pub fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The prefix that a key shares with its run, for families whose runs grow at their end: the entries of one session,
/// all recorded answers, all records of the feed. `None` for keys of other families and for a damaged key.
pub fn run_prefix(key: &[u8]) -> Option<&[u8]> {
    if Family::Answer.owns(key) || Family::Feed.owns(key) {
        return Some(&key[..1]);
    }
    if !Family::Entry.owns(key) {
        return None;
    }
    // The first text ends at the first `00 01`: a zero byte inside an id is followed by FF.
    let end = key.windows(2).position(|pair| pair == TEXT_END)?;
    Some(&key[..end + TEXT_END.len()])
}

const ESCAPED_ZERO: u8 = 0xFF;
const END: u8 = 0x01;

/// The bytes after every text in a key.
pub(super) const TEXT_END: [u8; 2] = [0, END];

pub(super) fn put_text(key: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        key.extend_from_slice(&rest[..=zero]);
        key.push(ESCAPED_ZERO);
        rest = &rest[zero + 1..];
    }
    key.extend_from_slice(rest);
    key.extend(TEXT_END);
}

/// The part of a key that is not parsed yet.
pub(super) struct KeyReader<'a> {
    family: Family,
    bytes: &'a [u8],
}

impl KeyReader<'_> {
    pub fn fault(&self) -> Fault {
        self.family.fault(format_args!("malformed key, at {}", hex(self.bytes)))
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn byte(&mut self) -> Result<u8, Fault> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| self.fault())?;
        let taken = *taken;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn text(&mut self) -> Result<String, Fault> {
        let mut text = Vec::new();
        loop {
            match self.byte()? {
                0 => match self.byte()? {
                    END => break,
                    ESCAPED_ZERO => text.push(0),
                    _other => return Err(self.fault()),
                },
                byte => text.push(byte),
            }
        }
        String::from_utf8(text).map_err(|_| self.fault())
    }
}

#[cfg(test)]
pub(super) use tests::{any_list_key, any_text};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::session::SessionStatus;
    use proptest::prelude::*;

    #[test]
    fn a_malformed_key_names_its_family() {
        for (bytes, family) in [(&[0x10, b's'][..], "meta"), (&[0x20, 9], "list"), (&[0x11, 0, 5], "leaf")] {
            let fault = Key::parse(bytes).unwrap_err();
            assert!(fault.0.contains(family), "{fault}");
        }
        assert!(Key::parse(&[0x77]).is_err());
        assert!(Key::parse(&[]).is_err());
    }

    #[test]
    fn nothing_with_the_prefix_lies_at_or_past_its_end() {
        assert_eq!(after(&[1, 2]), Some(vec![1, 3]));
        assert_eq!(after(&[1, 0xFF]), Some(vec![2]));
        assert_eq!(after(&[0xFF, 0xFF]), None);
    }

    pub fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[a\0\u{1}\u{ff}]{0,4}"]
    }

    pub fn any_list_key() -> impl Strategy<Value = Key> {
        use SessionStatus::{Done, Error, Idle, Working};
        let facet = prop_oneof![
            Just(FacetKey::All),
            proptest::sample::select(vec![Idle, Working, Done, Error]).prop_map(FacetKey::Status),
            any::<u128>().prop_map(FacetKey::Metadata),
        ];
        let orders = vec![ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc];
        (facet, proptest::sample::select(orders), any::<i64>(), any_text())
            .prop_map(|(facet, order, time, id)| Key::List(facet, order, ListPoint { time, session_id: id.into() }))
    }

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            Just(Key::Checkpoint),
            Just(Key::Clock),
            Just(Key::FeedEdge),
            (any::<u64>(), any::<u32>()).prop_map(|(index, ordinal)| Key::Feed(FeedPlace { index, ordinal })),
            any_text().prop_map(|s| Key::Tombstone(s.into())),
            any_text().prop_map(Key::Cursor),
            any_text().prop_map(|s| Key::Meta(s.into())),
            any_text().prop_map(|s| Key::Leaf(s.into())),
            any_text().prop_map(|s| Key::Seq(s.into())),
            (any_text(), any_text()).prop_map(|(s, e)| Key::Entry(s.into(), e.into())),
            any::<u128>().prop_map(|id| Key::Answer(RequestId(id))),
            (any::<u128>(), any_text()).prop_map(|(home, e)| Key::EntryIn(Home(home), e.into())),
            any_text().prop_map(|s| Key::Home(s.into())),
            (any_text(), any_text()).prop_map(|(s, f)| Key::Fork { source: s.into(), fork: f.into() }),
            (any_text(), any::<Option<u128>>())
                .prop_map(|(s, home)| { Key::Leftover(Leftover { session_id: s.into(), home: home.map(Home) }) }),
            any_list_key(),
            any_text().prop_map(|s| Key::RecordGeneration(s.into())),
            (any_text(), any::<u32>()).prop_map(|(s, generation)| {
                Key::RecordLeftover(RecordLeftover { session_id: s.into(), generation })
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_key_reads_back_as_written(key in any_key()) {
            prop_assert_eq!(Key::parse(&key.print()).unwrap(), key);
        }

        #[test]
        fn any_bytes_parse_or_fault_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Key::parse(&bytes);
        }

        #[test]
        fn keys_of_sessions_sort_like_ids(a in any_text(), b in any_text()) {
            let (x, y) = (SessionId::from(a), SessionId::from(b));
            prop_assert_eq!(meta::key(&x).cmp(&meta::key(&y)), x.cmp(&y));
        }
    }
}
