//! Owns: the keys of the state. One ordered keyspace, one family byte first, so that families never mix in a scan.
//! Never: values (`records.rs`), nor which keys a change writes (`view.rs`).
//!
//! ```text
//! 01                              mark     how far the log is applied
//! 02                              clock    the latest stamp
//! 03                              edge     what the feed holds
//! 10 session                      meta
//! 11 session                      leaf
//! 12 session                      seq
//! 13 session entry                entry    all entries of a session are neighbours, in the order of their ids
//! 20 facet order time session     list     a forward scan gives the order, ties by session id
//! 30 request                      answer   kept for the retries of a proposal
//! 40 index ordinal                feed     one line per event, in the order of the log
//! 41 session                      tomb     where the feed keeps the last deletion of a session
//! 42 attach                       cursor   how far an attach point has delivered
//! ```
//!
//! Ids are any Unicode text: a zero byte inside is written `00 FF` and the end is `00 01`, so the order of keys is
//! the order of ids and no id is a prefix of another.

use xxhash_rust::xxh3::Xxh3;

use crate::machine::ids::{EntryId, FeedPlace, RequestId, SessionId};
use crate::machine::json::canonical;
use crate::machine::refusal::Fault;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::machine::view::{Facet, ListOrder, ListPoint};

/// What a key is about. The numbers are on disk: never change one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Mark = 0x01,
    Clock = 0x02,
    Edge = 0x03,
    Meta = 0x10,
    Leaf = 0x11,
    Seq = 0x12,
    Entry = 0x13,
    List = 0x20,
    Answer = 0x30,
    Feed = 0x40,
    Tomb = 0x41,
    Cursor = 0x42,
}

impl Family {
    pub const ALL: [Family; 12] = [
        Family::Mark,
        Family::Clock,
        Family::Edge,
        Family::Meta,
        Family::Leaf,
        Family::Seq,
        Family::Entry,
        Family::List,
        Family::Answer,
        Family::Feed,
        Family::Tomb,
        Family::Cursor,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Family::Mark => "mark",
            Family::Clock => "clock",
            Family::Edge => "feed edge",
            Family::Meta => "meta",
            Family::Leaf => "leaf",
            Family::Seq => "seq",
            Family::Entry => "entry",
            Family::List => "list",
            Family::Answer => "answer",
            Family::Feed => "feed",
            Family::Tomb => "tomb",
            Family::Cursor => "cursor",
        }
    }

    /// A damaged key or value of this family.
    pub fn fault(self, what: impl std::fmt::Display) -> Fault {
        Fault(format!("damaged {} record: {what}", self.name()))
    }
}

/// One key, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    Mark,
    Clock,
    Edge,
    Meta(SessionId),
    Leaf(SessionId),
    Seq(SessionId),
    Entry(SessionId, EntryId),
    List(FacetKey, ListOrder, ListPoint),
    Answer(RequestId),
    Feed(FeedPlace),
    Tomb(SessionId),
    Cursor(String),
}

/// A facet as a key spells it: values of metadata as hashes, so that a key stays short whatever the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FacetKey {
    All,
    Status(SessionStatus),
    Metadata(u128),
}

impl FacetKey {
    pub fn of(facet: &Facet) -> FacetKey {
        match facet {
            Facet::All => FacetKey::All,
            Facet::Status(status) => FacetKey::Status(*status),
            Facet::Metadata { key, value } => FacetKey::metadata(key, value),
        }
    }

    /// Every facet a session is listed under.
    pub fn of_meta(meta: &SessionMeta) -> Vec<FacetKey> {
        let metadata = meta.metadata.iter().flatten();
        let mut facets: Vec<FacetKey> =
            metadata.map(|(key, value)| FacetKey::metadata(key, &canonical(value))).collect();
        facets.extend([FacetKey::All, FacetKey::Status(meta.status)]);
        facets
    }

    fn metadata(key: &str, value: &str) -> FacetKey {
        let mut hash = Xxh3::new();
        // The length keeps ("a", "bc") apart from ("ab", "c").
        hash.update(&(key.len() as u64).to_be_bytes());
        hash.update(key.as_bytes());
        hash.update(value.as_bytes());
        FacetKey::Metadata(hash.digest128())
    }
}

pub fn mark() -> Vec<u8> {
    vec![Family::Mark as u8]
}

pub fn clock() -> Vec<u8> {
    vec![Family::Clock as u8]
}

pub fn edge() -> Vec<u8> {
    vec![Family::Edge as u8]
}

pub fn meta(session_id: &SessionId) -> Vec<u8> {
    of_session(Family::Meta, session_id)
}

pub fn leaf(session_id: &SessionId) -> Vec<u8> {
    of_session(Family::Leaf, session_id)
}

pub fn seq(session_id: &SessionId) -> Vec<u8> {
    of_session(Family::Seq, session_id)
}

pub fn entry(session_id: &SessionId, entry_id: &EntryId) -> Vec<u8> {
    let (session_id, entry_id) = (session_id.as_str(), entry_id.as_str());
    let mut key = Vec::with_capacity(session_id.len() + entry_id.len() + 5);
    key.push(Family::Entry as u8);
    put_text(&mut key, session_id);
    put_text(&mut key, entry_id);
    key
}

/// The prefix of every entry of a session.
pub fn entries(session_id: &SessionId) -> Vec<u8> {
    of_session(Family::Entry, session_id)
}

/// Whether a key is a place in an ordered index.
pub fn is_list(key: &[u8]) -> bool {
    key.first() == Some(&(Family::List as u8))
}

/// Whether a key is that of an entry.
pub fn is_entry(key: &[u8]) -> bool {
    key.first() == Some(&(Family::Entry as u8))
}

/// The prefix that a key shares with its whole run, where it is of a family whose runs grow at their end: the entries of a
/// session, the remembered answers, the lines of the feed. `None` for any other key, and for one without a whole prefix.
pub fn run_of(key: &[u8]) -> Option<&[u8]> {
    match key.first() {
        Some(&family) if family == Family::Answer as u8 || family == Family::Feed as u8 => Some(&key[..1]),
        Some(&family) if family == Family::Entry as u8 => {
            // A zero byte inside an id is followed by another byte than the end is.
            let end = key.windows(2).position(|pair| pair == [0, END])?;
            Some(&key[..end + 2])
        }
        Some(_) | None => None,
    }
}

/// The prefix of one ordered index.
pub fn lists(facet: FacetKey, order: ListOrder) -> Vec<u8> {
    let mut key = vec![Family::List as u8];
    match facet {
        FacetKey::All => key.push(0),
        FacetKey::Status(status) => key.extend([1, status_byte(status)]),
        FacetKey::Metadata(hash) => {
            key.push(2);
            key.extend(hash.to_be_bytes());
        }
    }
    key.push(order_byte(order));
    key
}

pub fn list(facet: FacetKey, order: ListOrder, point: &ListPoint) -> Vec<u8> {
    let mut key = lists(facet, order);
    key.reserve(point.session_id.as_str().len() + 10);
    key.extend(time_bytes(order, point.time));
    put_text(&mut key, point.session_id.as_str());
    key
}

pub fn answer(request_id: RequestId) -> Vec<u8> {
    let mut key = vec![Family::Answer as u8];
    key.extend(request_id.0.to_be_bytes());
    key
}

/// The range of answers to proposals born before `born_ms`.
pub fn answers_before(born_ms: i64) -> (Vec<u8>, Vec<u8>) {
    (vec![Family::Answer as u8], answer(RequestId::new(born_ms, 0)))
}

pub fn feed(place: FeedPlace) -> Vec<u8> {
    let mut key = Vec::with_capacity(13);
    key.push(Family::Feed as u8);
    key.extend(place.index.to_be_bytes());
    key.extend(place.ordinal.to_be_bytes());
    key
}

/// The range of lines after a place, to the end of the feed.
pub fn feed_after(after: Option<FeedPlace>) -> (Vec<u8>, Vec<u8>) {
    let from = after.map_or_else(
        || vec![Family::Feed as u8],
        |place| {
            // No key lies between a key and the same with a zero byte behind it.
            let mut key = feed(place);
            key.push(0);
            key
        },
    );
    (from, vec![Family::Feed as u8 + 1])
}

pub fn tomb(session_id: &SessionId) -> Vec<u8> {
    of_session(Family::Tomb, session_id)
}

pub fn cursor(attach: &str) -> Vec<u8> {
    let mut key = vec![Family::Cursor as u8];
    put_text(&mut key, attach);
    key
}

/// Every cursor whose name starts so.
pub fn cursors(starting: &str) -> Vec<u8> {
    let mut prefix = cursor(starting);
    prefix.truncate(prefix.len() - 2); // the end of a text: a zero and END
    prefix
}

/// The first key after everything that starts with `prefix`; `None` when nothing can follow.
pub fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

impl Key {
    pub fn print(&self) -> Vec<u8> {
        match self {
            Key::Mark => mark(),
            Key::Clock => clock(),
            Key::Edge => edge(),
            Key::Meta(session_id) => meta(session_id),
            Key::Leaf(session_id) => leaf(session_id),
            Key::Seq(session_id) => seq(session_id),
            Key::Entry(session_id, entry_id) => entry(session_id, entry_id),
            Key::List(facet, order, point) => list(*facet, *order, point),
            Key::Answer(request_id) => answer(*request_id),
            Key::Feed(place) => feed(*place),
            Key::Tomb(session_id) => tomb(session_id),
            Key::Cursor(attach) => cursor(attach),
        }
    }

    pub fn parse(key: &[u8]) -> Result<Key, Fault> {
        let mut rest = Rest { family: Family::Mark, bytes: key };
        let byte = rest.byte()?;
        let family = Family::ALL.into_iter().find(|family| *family as u8 == byte);
        rest.family = family.ok_or_else(|| Fault(format!("no key family {byte:#04x}: {}", hex(key))))?;
        let parsed = match rest.family {
            Family::Mark => Key::Mark,
            Family::Clock => Key::Clock,
            Family::Edge => Key::Edge,
            Family::Meta => Key::Meta(rest.text()?.into()),
            Family::Leaf => Key::Leaf(rest.text()?.into()),
            Family::Seq => Key::Seq(rest.text()?.into()),
            Family::Entry => Key::Entry(rest.text()?.into(), rest.text()?.into()),
            Family::List => rest.list()?,
            Family::Answer => Key::Answer(RequestId(u128::from_be_bytes(rest.array()?))),
            Family::Feed => Key::Feed(FeedPlace {
                index: u64::from_be_bytes(rest.array()?),
                ordinal: u32::from_be_bytes(rest.array()?),
            }),
            Family::Tomb => Key::Tomb(rest.text()?.into()),
            Family::Cursor => Key::Cursor(rest.text()?),
        };
        if !rest.bytes.is_empty() {
            return Err(rest.fault());
        }
        Ok(parsed)
    }
}

fn of_session(family: Family, session_id: &SessionId) -> Vec<u8> {
    let mut key = Vec::with_capacity(session_id.as_str().len() + 3);
    key.push(family as u8);
    put_text(&mut key, session_id.as_str());
    key
}

const ESCAPED_ZERO: u8 = 0xFF;
const END: u8 = 0x01;

fn put_text(key: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        key.extend_from_slice(&rest[..=zero]);
        key.push(ESCAPED_ZERO);
        rest = &rest[zero + 1..];
    }
    key.extend_from_slice(rest);
    key.extend([0, END]);
}

/// Big-endian with the sign flipped sorts like the number; inverted it sorts the other way round.
fn time_bytes(order: ListOrder, time: i64) -> [u8; 8] {
    let ascending = (time as u64) ^ (1 << 63);
    match order {
        ListOrder::CreatedAsc => ascending.to_be_bytes(),
        ListOrder::CreatedDesc | ListOrder::UpdatedDesc => (!ascending).to_be_bytes(),
    }
}

fn time_from(order: ListOrder, bytes: [u8; 8]) -> i64 {
    let stored = u64::from_be_bytes(bytes);
    let ascending = match order {
        ListOrder::CreatedAsc => stored,
        ListOrder::CreatedDesc | ListOrder::UpdatedDesc => !stored,
    };
    (ascending ^ (1 << 63)) as i64
}

const ORDERS: [ListOrder; 3] = [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc];

fn order_byte(order: ListOrder) -> u8 {
    match order {
        ListOrder::CreatedAsc => 1,
        ListOrder::CreatedDesc => 2,
        ListOrder::UpdatedDesc => 3,
    }
}

const STATUSES: [SessionStatus; 4] =
    [SessionStatus::Idle, SessionStatus::Working, SessionStatus::Done, SessionStatus::Error];

fn status_byte(status: SessionStatus) -> u8 {
    match status {
        SessionStatus::Idle => 1,
        SessionStatus::Working => 2,
        SessionStatus::Done => 3,
        SessionStatus::Error => 4,
    }
}

/// The part of a key that is not parsed yet.
struct Rest<'a> {
    family: Family,
    bytes: &'a [u8],
}

impl Rest<'_> {
    fn fault(&self) -> Fault {
        self.family.fault(format_args!("malformed key, at {}", hex(self.bytes)))
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| self.fault())?;
        let taken = *taken;
        self.bytes = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<String, Fault> {
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

    fn list(&mut self) -> Result<Key, Fault> {
        let facet = match self.byte()? {
            0 => FacetKey::All,
            1 => {
                let byte = self.byte()?;
                let status = STATUSES.into_iter().find(|status| status_byte(*status) == byte);
                FacetKey::Status(status.ok_or_else(|| self.fault())?)
            }
            2 => FacetKey::Metadata(u128::from_be_bytes(self.array()?)),
            _other => return Err(self.fault()),
        };
        let byte = self.byte()?;
        let order = ORDERS.into_iter().find(|order| order_byte(*order) == byte).ok_or_else(|| self.fault())?;
        let time = time_from(order, self.array()?);
        let session_id = SessionId::from(self.text()?);
        Ok(Key::List(facet, order, ListPoint { time, session_id }))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(time: i64, id: &str) -> ListPoint {
        ListPoint { time, session_id: id.into() }
    }

    #[test]
    fn the_bytes_of_every_family_stay_as_they_are() {
        let golden = [
            (Key::Mark, "01"),
            (Key::Clock, "02"),
            (Key::Edge, "03"),
            (Key::Feed(FeedPlace { index: 258, ordinal: 3 }), "40000000000000010200000003"),
            (Key::Tomb("s".into()), "41730001"),
            (Key::Cursor("engine".into()), "42656e67696e650001"),
            (Key::Meta("s\0é".into()), "107300ffc3a90001"),
            (Key::Leaf("".into()), "110001"),
            (Key::Seq("s".into()), "12730001"),
            (Key::Entry("s".into(), "e".into()), "13730001650001"),
            (Key::List(FacetKey::All, ListOrder::CreatedAsc, point(1, "s")), "2000018000000000000001730001"),
            (Key::Answer(RequestId::new(1, 2)), "3000000000000100000000000000000002"),
            (
                Key::List(FacetKey::Status(SessionStatus::Done), ListOrder::UpdatedDesc, point(1, "s")),
                "200103037ffffffffffffffe730001",
            ),
            (
                Key::List(FacetKey::metadata("team", "\"red\""), ListOrder::CreatedDesc, point(-1, "s")),
                "2002a1826c354dd25ee744775ccf82b579f5028000000000000000730001",
            ),
        ];
        for (key, bytes) in golden {
            assert_eq!(hex(&key.print()), bytes, "{key:?}");
        }
    }

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

    fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[a\0\u{1}\u{ff}]{0,4}"]
    }

    fn any_order() -> impl Strategy<Value = ListOrder> {
        proptest::sample::select(ORDERS.to_vec())
    }

    fn any_facet() -> impl Strategy<Value = FacetKey> {
        prop_oneof![
            Just(FacetKey::All),
            proptest::sample::select(STATUSES.to_vec()).prop_map(FacetKey::Status),
            any::<u128>().prop_map(FacetKey::Metadata),
        ]
    }

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            Just(Key::Mark),
            Just(Key::Clock),
            Just(Key::Edge),
            (any::<u64>(), any::<u32>()).prop_map(|(index, ordinal)| Key::Feed(FeedPlace { index, ordinal })),
            any_text().prop_map(|s| Key::Tomb(s.into())),
            any_text().prop_map(Key::Cursor),
            any_text().prop_map(|s| Key::Meta(s.into())),
            any_text().prop_map(|s| Key::Leaf(s.into())),
            any_text().prop_map(|s| Key::Seq(s.into())),
            (any_text(), any_text()).prop_map(|(s, e)| Key::Entry(s.into(), e.into())),
            any::<u128>().prop_map(|id| Key::Answer(RequestId(id))),
            (any_facet(), any_order(), any::<i64>(), any_text()).prop_map(|(f, o, t, s)| Key::List(f, o, point(t, &s))),
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
        fn keys_of_ids_sort_like_ids(a in any_text(), b in any_text(), s in any_text()) {
            let (x, y) = (SessionId::from(a.as_str()), SessionId::from(b.as_str()));
            prop_assert_eq!(meta(&x).cmp(&meta(&y)), x.cmp(&y));
            let (x, y, s) = (EntryId::from(a), EntryId::from(b), SessionId::from(s));
            prop_assert_eq!(entry(&s, &x).cmp(&entry(&s, &y)), x.cmp(&y));
        }

        #[test]
        fn entries_of_one_session_are_under_its_prefix_and_no_others(a in any_text(), b in any_text(), e in any_text()) {
            let (a, b) = (SessionId::from(a), SessionId::from(b));
            let key = entry(&b, &EntryId::from(e));
            prop_assert_eq!(key.starts_with(&entries(&a)), a == b);
        }

        #[test]
        fn list_keys_sort_like_their_order(
            order in any_order(), f in any_facet(), at in any::<i64>(), bt in -3i64..3, a in any_text(), b in any_text(),
        ) {
            for (x, y) in [(point(at, &a), point(bt, &b)), (point(bt, &a), point(bt, &b))] {
                prop_assert_eq!(list(f, order, &x).cmp(&list(f, order, &y)), order.compare(&x, &y));
            }
        }
    }
}
