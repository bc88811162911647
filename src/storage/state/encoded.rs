//! Owns: `Encoded`, the changes of one command, encoded once into one buffer. The state hash is taken over the buffer,
//! and the values that the store keeps are parts of it.
//! Never: where a value is stored.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::{answer, beside, cursor, entry, feed_record, home, leftover, meta, pending_fork};
use crate::machine::change::{AnswerChange, Change, FeedChange, RecordChange, SessionChange, WorkChange};
use crate::machine::ids::{EntryId, SessionId};

/// What the changes of a common command take beside the bodies of its entries. The store keeps the whole buffer as long
/// as one of its values.
const BESIDE_BODIES_BYTES: usize = 768;

/// Changes and the values they write.
pub struct Encoded<'a> {
    changes: &'a [Change],
    bytes: Bytes,
    /// Where the values are in `bytes`, in the order of the changes. Some changes have none, some have several.
    values: Vec<Range<usize>>,
}

impl<'a> Encoded<'a> {
    pub fn new(changes: &'a [Change]) -> Encoded<'a> {
        let bodies = changes.iter().map(|change| sizes(change).body_bytes).sum::<usize>();
        let mut buffer = Buffer { bytes: BytesMut::with_capacity(bodies + BESIDE_BODIES_BYTES), values: Vec::new() };
        for change in changes {
            buffer.print(change);
        }
        Encoded { changes, bytes: buffer.bytes.freeze(), values: buffer.values }
    }

    pub fn changes(&self) -> &'a [Change] {
        self.changes
    }

    /// Every change in order, without ambiguity: its kind, then each field after its length.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Every change with its values: the record of a session, an entry or an answer, or the records of the feed.
    pub fn iter(&self) -> impl Iterator<Item = (&'a Change, Values<'_>)> {
        let mut rest = &self.values[..];
        self.changes.iter().map(move |change| {
            let (own, later) = rest.split_at(sizes(change).values);
            rest = later;
            (change, Values { bytes: &self.bytes, ranges: own })
        })
    }
}

/// The values of one change.
#[derive(Clone, Copy)]
pub struct Values<'e> {
    bytes: &'e Bytes,
    ranges: &'e [Range<usize>],
}

impl Values<'_> {
    pub fn iter(&self) -> impl Iterator<Item = Bytes> {
        self.ranges.iter().map(|range| self.bytes.slice(range.clone()))
    }

    /// The value of a change that has exactly one.
    pub fn one(&self) -> Bytes {
        self.iter().next().unwrap_or_default()
    }
}

/// What a change takes in an encoded buffer.
struct Sizes {
    /// The part that may be large.
    body_bytes: usize,
    values: usize,
}

fn sizes(change: &Change) -> Sizes {
    let (body_bytes, values) = match change {
        Change::Session(_, SessionChange::PutEntry(entry)) => (entry.body.bytes(), 1),
        Change::Session(_, SessionChange::PutMeta(_)) => (0, 1),
        Change::Answer(AnswerChange::Record(..)) => (0, 1),
        Change::Feed(FeedChange::Append { records, .. }) => (0, records.len()),
        Change::Record(RecordChange::Put(_, value)) => (value.text().len(), 1),
        Change::Session(..)
        | Change::Answer(_)
        | Change::Feed(_)
        | Change::Work(_)
        | Change::Record(_)
        | Change::Clock(_) => (0, 0),
    };
    Sizes { body_bytes, values }
}

struct Buffer {
    bytes: BytesMut,
    values: Vec<Range<usize>>,
}

impl Buffer {
    fn print(&mut self, change: &Change) {
        match change {
            Change::Session(id, change) => self.print_session(id, change),
            Change::Clock(at_ms) => {
                self.bytes.put_u8(9);
                self.bytes.put_i64(*at_ms);
            }
            Change::Answer(AnswerChange::Record(request_id, answer)) => {
                self.bytes.put_u8(10);
                self.bytes.put_u128(request_id.0);
                self.value(&answer::to_record(answer));
            }
            Change::Answer(AnswerChange::ExpireBefore(issued_ms)) => {
                self.bytes.put_u8(11);
                self.bytes.put_i64(*issued_ms);
            }
            Change::Feed(FeedChange::SetSeq(id, Some(seq))) => {
                self.kind(7, id);
                self.bytes.put_u64(*seq);
            }
            Change::Feed(FeedChange::SetSeq(id, None)) => self.kind(8, id),
            Change::Feed(FeedChange::Append { index, records }) => {
                // Without gaps the ordinals are not printed, as before there were events that are not kept.
                let has_gaps = (0..).zip(records).any(|(rank, (ordinal, _))| rank != *ordinal);
                self.bytes.put_u8(if has_gaps { 23 } else { 12 });
                self.bytes.put_u64(*index);
                for (ordinal, record) in records {
                    if has_gaps {
                        self.bytes.put_u32(*ordinal);
                    }
                    self.value(&feed_record::to_proto(record));
                }
            }
            Change::Feed(FeedChange::Trim { upto }) => {
                self.bytes.put_u8(13);
                self.bytes.put_u64(upto.index);
                self.bytes.put_u32(upto.ordinal);
            }
            Change::Feed(FeedChange::SetCursor(attach, position)) => {
                self.bytes.put_u8(14);
                self.field(attach.as_bytes());
                self.field(&position.map(cursor::encode).unwrap_or_default());
            }
            Change::Work(WorkChange::Detach { session_id, new_home }) => {
                self.kind(15, session_id);
                self.field(&home::encode(*new_home));
            }
            Change::Work(WorkChange::Free { leftover, records }) => {
                self.bytes.put_u8(16);
                self.field(&leftover::key(leftover));
                self.bytes.put_u32(*records);
            }
            Change::Work(WorkChange::PutFork(pending)) => {
                self.bytes.put_u8(17);
                self.field(&pending_fork::key(&pending.source, &pending.fork));
                self.field(&pending_fork::encode(pending));
            }
            Change::Work(WorkChange::EndFork { source, fork, shown }) => {
                self.bytes.put_u8(18);
                self.field(&pending_fork::key(source, fork));
                self.bytes.put_u8(u8::from(*shown));
            }
            Change::Record(RecordChange::Put(key, value)) => {
                self.bytes.put_u8(19);
                self.field(&beside::key(key, 0));
                self.text_value(value.text());
            }
            Change::Record(RecordChange::Delete(key)) => {
                self.bytes.put_u8(20);
                self.field(&beside::key(key, 0));
            }
            Change::Record(RecordChange::DropSession(session_id)) => self.kind(21, session_id),
            Change::Record(RecordChange::Free { leftover, records }) => {
                self.bytes.put_u8(22);
                self.field(&beside::leftover_key(leftover));
                self.bytes.put_u32(*records);
            }
        }
    }

    fn print_session(&mut self, id: &SessionId, change: &SessionChange) {
        match change {
            SessionChange::PutMeta(meta) => {
                self.kind(1, id);
                self.value(&meta::to_proto(meta));
            }
            SessionChange::DeleteMeta => self.kind(2, id),
            SessionChange::PutEntry(entry) => {
                self.kind(3, id);
                self.name(&entry.id);
                self.value(&entry::to_proto(entry));
            }
            SessionChange::DeleteEntries => self.kind(4, id),
            SessionChange::SetLeaf(entry_id) => {
                self.kind(5, id);
                self.name(entry_id);
            }
            SessionChange::DeleteLeaf => self.kind(6, id),
        }
    }

    /// Prints a record after its length, and notes where it is.
    fn value(&mut self, record: &impl Message) {
        let length = record.encoded_len();
        self.bytes.reserve(8 + length);
        self.bytes.put_u64(length as u64);
        let begin = self.bytes.len();
        // Encoding into a buffer that grows cannot fail.
        let _ = record.encode(&mut self.bytes);
        self.values.push(begin..self.bytes.len());
    }

    /// Prints a text after its length, and notes where it is.
    fn text_value(&mut self, text: &str) {
        self.bytes.reserve(8 + text.len());
        self.bytes.put_u64(text.len() as u64);
        let begin = self.bytes.len();
        self.bytes.put_slice(text.as_bytes());
        self.values.push(begin..self.bytes.len());
    }

    fn kind(&mut self, kind: u8, session_id: &SessionId) {
        self.bytes.put_u8(kind);
        self.field(session_id.as_str().as_bytes());
    }

    fn name(&mut self, entry_id: &EntryId) {
        self.field(entry_id.as_str().as_bytes());
    }

    fn field(&mut self, bytes: &[u8]) {
        self.bytes.put_u64(bytes.len() as u64);
        self.bytes.put_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::beside::{RecordKey, Space};
    use crate::machine::command::Answer;
    use crate::machine::entry::{Body, Entry};
    use crate::machine::feed_record::{Record, Recorded};
    use crate::machine::ids::RequestId;
    use crate::machine::json::Json;
    use crate::machine::session::{SessionMeta, SessionStatus};

    #[test]
    fn every_value_is_what_its_family_encodes() {
        let entry = Entry {
            id: "e".into(),
            parent_id: None,
            timestamp: 7,
            revision: 0,
            origin: None,
            body: Body::Custom { custom_type: "c".to_owned(), data: Json::adopt("[1]") },
            place: None,
        };
        let session = SessionMeta {
            session_id: "s".into(),
            title: "T".into(),
            description: String::new(),
            status: SessionStatus::Idle,
            status_reason: None,
            message_count: 1,
            metadata: None,
            forked_from: None,
            created_at: 1,
            updated_at: 2,
        };
        let record = |seq| Record { session_id: "s".into(), seq, at_ms: 3, what: Recorded::MessageAdded("e".into()) };
        let answer = Ok(Answer::Stored);
        let changes = [
            Change::Clock(3),
            Change::put_entry(&"s".into(), entry.clone()),
            Change::set_leaf(&"s".into(), "e".into()),
            Change::put_meta(session.clone()),
            Change::Answer(AnswerChange::Record(RequestId(9), answer.clone())),
            Change::Feed(FeedChange::Append { index: 4, records: vec![(0, record(1)), (2, record(2))] }),
            Change::put_record(RecordKey::of_cluster(Space::Driver), Json::adopt("[2]")),
        ];
        let encoded = Encoded::new(&changes);
        let values: Vec<Vec<Bytes>> = encoded.iter().map(|(_, values)| values.iter().collect()).collect();
        let expected = [
            vec![],
            vec![entry::encode(&entry)],
            vec![],
            vec![meta::encode(&session)],
            vec![answer::encode(&answer)],
            vec![feed_record::encode(&record(1)), feed_record::encode(&record(2))],
            vec![Bytes::from_static(b"[2]")],
        ];
        assert_eq!(values, expected);
    }
}
