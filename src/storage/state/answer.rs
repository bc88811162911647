//! Owns: the recorded answers. The state keeps the answer to a proposal for its retries; the same bytes are sent to
//! the node that forwarded the proposal. Damage is a `Fault`, never a panic.

use bytes::Bytes;
use prost::Message as _;

use super::family::{Family, VERSION};
use super::meta;
use crate::machine::Answer;
use crate::machine::apply::import::Imported;
use crate::machine::ids::{EntryId, RequestId, SessionId};
use crate::machine::json::Json;
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::proto::store as proto;
use crate::proto::store::answer_record::Answer as Record;
use crate::proto::store::refusal_record::Why;
use crate::storage::proto_types::{status_from_proto, status_to_proto};

pub fn key(request_id: RequestId) -> Vec<u8> {
    let mut key = vec![Family::Answer as u8];
    key.extend(request_id.0.to_be_bytes());
    key
}

/// The range of the answers to proposals that were issued before `issued_ms`.
pub fn keys_before(issued_ms: i64) -> (Vec<u8>, Vec<u8>) {
    (vec![Family::Answer as u8], key(RequestId::new(issued_ms, 0)))
}

pub fn encode(answer: &Result<Answer, Refusal>) -> Bytes {
    to_record(answer).encode_to_vec().into()
}

pub(super) fn to_record(answer: &Result<Answer, Refusal>) -> proto::AnswerRecord {
    let record = match answer {
        Ok(answer) => to_proto(answer),
        Err(refusal) => Record::Refused(proto::RefusalRecord { why: Some(refusal_to_proto(refusal)) }),
    };
    proto::AnswerRecord { version: VERSION, answer: Some(record) }
}

pub fn decode(value: &[u8]) -> Result<Result<Answer, Refusal>, Fault> {
    let fault = |what: String| Family::Answer.fault(what);
    let record = proto::AnswerRecord::decode(value).map_err(|error| fault(error.to_string()))?;
    if record.version > VERSION {
        return Err(fault(format!("version {} is newer than this build", record.version)));
    }
    match record.answer {
        Some(Record::Refused(refused)) => refusal_from_proto(refused).map(Err),
        Some(answer) => from_proto(answer).map(Ok),
        None => Err(fault("no answer".to_owned())),
    }
}

fn to_proto(answer: &Answer) -> Record {
    match answer {
        Answer::Created { meta } => Record::Created(session(meta, true)),
        Answer::Ensured { meta, created } => Record::Ensured(session(meta, *created)),
        Answer::MetaSet { meta } => Record::MetaSet(session(meta, false)),
        Answer::StatusSet { status, previous } => Record::StatusSet(proto::StatusPair {
            status: status_to_proto(*status) as i32,
            previous: status_to_proto(*previous) as i32,
        }),
        Answer::Deleted { deleted } => Record::Deleted(*deleted),
        Answer::Appended { entry_id, parent_id, timestamp } => Record::Appended(proto::AppendedEntry {
            entry_id: entry_id.to_string(),
            parent_id: parent_id.as_ref().map(EntryId::to_string),
            timestamp: *timestamp,
        }),
        Answer::AppendedMany { entry_ids } => {
            Record::AppendedMany(proto::EntryIds { ids: entry_ids.iter().map(EntryId::to_string).collect() })
        }
        Answer::Updated { updated, revision } => {
            Record::Updated(proto::Update { updated: *updated, revision: *revision })
        }
        Answer::Forked { meta } => Record::Forked(session(meta, true)),
        Answer::ForkBegun { source, fork } => {
            Record::ForkBegun(proto::ForkRef { source: source.to_string(), fork: fork.to_string() })
        }
        Answer::LeafSet { entry_id } => Record::LeafSet(entry_id.to_string()),
        Answer::Stored => Record::Stored(proto::Nothing {}),
        Answer::Published { published } => Record::Published(*published),
        Answer::Imported { added, imported } => {
            let outcome = match imported {
                Imported::Staged => proto::ImportOutcome::Staged,
                Imported::Finished => proto::ImportOutcome::Finished,
                Imported::Unchanged => proto::ImportOutcome::Unchanged,
                Imported::Skipped => proto::ImportOutcome::Skipped,
            };
            Record::Imported(proto::ImportedBatch { added: *added, outcome: outcome as i32 })
        }
        Answer::Value(value) => Record::Value(value.text().to_owned()),
        Answer::BaseMoved => Record::BaseMoved(proto::Nothing {}),
        Answer::Forgotten => Record::Forgotten(proto::Nothing {}),
    }
}

fn from_proto(record: Record) -> Result<Answer, Fault> {
    Ok(match record {
        Record::Created(session) => Answer::Created { meta: session_meta(session)? },
        Record::Ensured(session) => Answer::Ensured { created: session.created, meta: session_meta(session)? },
        Record::MetaSet(session) => Answer::MetaSet { meta: session_meta(session)? },
        Record::StatusSet(pair) => {
            let unknown = || Family::Answer.fault("a status that this build does not know");
            let status = status_from_proto(pair.status).ok_or_else(unknown)?;
            let previous = status_from_proto(pair.previous).ok_or_else(unknown)?;
            Answer::StatusSet { status, previous }
        }
        Record::Deleted(deleted) => Answer::Deleted { deleted },
        Record::Appended(entry) => Answer::Appended {
            entry_id: entry.entry_id.into(),
            parent_id: entry.parent_id.map(EntryId::from),
            timestamp: entry.timestamp,
        },
        Record::AppendedMany(many) => {
            Answer::AppendedMany { entry_ids: many.ids.into_iter().map(EntryId::from).collect() }
        }
        Record::Updated(update) => Answer::Updated { updated: update.updated, revision: update.revision },
        Record::Forked(session) => Answer::Forked { meta: session_meta(session)? },
        Record::ForkBegun(begun) => Answer::ForkBegun { source: begun.source.into(), fork: begun.fork.into() },
        Record::LeafSet(entry_id) => Answer::LeafSet { entry_id: entry_id.into() },
        Record::Stored(_) => Answer::Stored,
        Record::Published(published) => Answer::Published { published },
        Record::Imported(batch) => {
            let imported = match batch.outcome() {
                proto::ImportOutcome::Staged => Imported::Staged,
                proto::ImportOutcome::Finished => Imported::Finished,
                proto::ImportOutcome::Unchanged => Imported::Unchanged,
                proto::ImportOutcome::Skipped => Imported::Skipped,
                proto::ImportOutcome::Unspecified => {
                    return Err(Family::Answer.fault("an outcome of an import that this build does not know"));
                }
            };
            Answer::Imported { added: batch.added, imported }
        }
        Record::Value(text) => Answer::Value(Json::adopt(&text)),
        Record::BaseMoved(_) => Answer::BaseMoved,
        Record::Forgotten(_) => Answer::Forgotten,
        Record::Refused(_) => return Err(Family::Answer.fault("a refusal inside an answer")),
    })
}

fn session(meta: &SessionMeta, created: bool) -> proto::Session {
    proto::Session { session_id: meta.session_id.to_string(), meta: Some(meta::to_proto(meta)), created }
}

fn session_meta(session: proto::Session) -> Result<SessionMeta, Fault> {
    let record = session.meta.ok_or_else(|| Family::Answer.fault("a session without its record"))?;
    meta::from_proto(&SessionId::from(session.session_id), record)
}

fn refusal_to_proto(refusal: &Refusal) -> Why {
    let entry_of = |session_id: &SessionId, entry_id: &EntryId| proto::EntryRef {
        session_id: session_id.to_string(),
        entry_id: entry_id.to_string(),
    };
    match refusal {
        Refusal::SessionUnknown(id) => Why::SessionUnknown(id.to_string()),
        Refusal::EntryUnknown { session_id, entry_id } => Why::EntryUnknown(entry_of(session_id, entry_id)),
        Refusal::ParentUnknown { session_id, parent_id } => Why::ParentUnknown(entry_of(session_id, parent_id)),
        Refusal::NotAMessage(id) => Why::NotAMessage(id.to_string()),
        Refusal::DetailsNotSupported(id) => Why::DetailsNotSupported(id.to_string()),
        Refusal::EmptyBatch => Why::EmptyBatch(proto::Nothing {}),
        Refusal::CursorInvalid(words) => Why::CursorInvalid(words.clone()),
        Refusal::RequestInvalid(words) => Why::RequestInvalid(words.clone()),
    }
}

fn refusal_from_proto(record: proto::RefusalRecord) -> Result<Refusal, Fault> {
    Ok(match record.why.ok_or_else(|| Family::Answer.fault("a refusal without a reason"))? {
        Why::SessionUnknown(id) => Refusal::SessionUnknown(id.into()),
        Why::EntryUnknown(of) => {
            Refusal::EntryUnknown { session_id: of.session_id.into(), entry_id: of.entry_id.into() }
        }
        Why::ParentUnknown(of) => {
            Refusal::ParentUnknown { session_id: of.session_id.into(), parent_id: of.entry_id.into() }
        }
        Why::NotAMessage(id) => Refusal::NotAMessage(id.into()),
        Why::DetailsNotSupported(id) => Refusal::DetailsNotSupported(id.into()),
        Why::EmptyBatch(_) => Refusal::EmptyBatch,
        Why::CursorInvalid(words) => Refusal::CursorInvalid(words),
        Why::RequestInvalid(words) => Refusal::RequestInvalid(words),
    })
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;
    use crate::machine::session::SessionStatus;
    use serde_json::json;

    fn meta() -> SessionMeta {
        SessionMeta {
            session_id: "s \u{1F980}".into(),
            title: "t".to_owned(),
            description: "d".to_owned(),
            status: SessionStatus::Error,
            status_reason: Some("why".to_owned()),
            message_count: 3,
            metadata: json!({"owner": [1, null]}).as_object().cloned(),
            forked_from: Some("f".into()),
            created_at: 1,
            updated_at: 2,
        }
    }

    #[test]
    fn the_bytes_of_an_answer_stay_as_they_are() {
        assert_eq!(hex(&key(RequestId::new(1, 2))), "3000000000000100000000000000000002");
        let appended = Answer::Appended { entry_id: "e".into(), parent_id: Some("p".into()), timestamp: 5 };
        assert_eq!(hex(&encode(&Ok(appended))), "08013a080a0165120170180a");
        assert_eq!(hex(&encode(&Err(Refusal::SessionUnknown("s".into())))), "0801f201030a0173");
    }

    #[test]
    fn every_answer_and_refusal_reads_back_as_written() {
        let (session_id, entry_id) = (SessionId::from("s"), EntryId::from("e"));
        let answers = [
            Ok(Answer::Created { meta: meta() }),
            Ok(Answer::Ensured { meta: meta(), created: true }),
            Ok(Answer::MetaSet { meta: meta() }),
            Ok(Answer::StatusSet { status: SessionStatus::Done, previous: SessionStatus::Idle }),
            Ok(Answer::Deleted { deleted: true }),
            Ok(Answer::Appended { entry_id: "e".into(), parent_id: None, timestamp: -1 }),
            Ok(Answer::AppendedMany { entry_ids: vec!["a".into(), "b".into()] }),
            Ok(Answer::Updated { updated: true, revision: 7 }),
            Ok(Answer::Forked { meta: meta() }),
            Ok(Answer::ForkBegun { source: "s".into(), fork: "f".into() }),
            Ok(Answer::LeafSet { entry_id: "e".into() }),
            Ok(Answer::Stored),
            Ok(Answer::Published { published: 2 }),
            Ok(Answer::BaseMoved),
            Ok(Answer::Forgotten),
            Ok(Answer::Value(Json::adopt("{\"claimed\":true}"))),
            Err(Refusal::SessionUnknown(session_id.clone())),
            Err(Refusal::EntryUnknown { session_id: session_id.clone(), entry_id: entry_id.clone() }),
            Err(Refusal::ParentUnknown { session_id, parent_id: entry_id.clone() }),
            Err(Refusal::NotAMessage(entry_id.clone())),
            Err(Refusal::DetailsNotSupported(entry_id)),
            Err(Refusal::EmptyBatch),
            Err(Refusal::CursorInvalid("c".to_owned())),
            Err(Refusal::RequestInvalid("r".to_owned())),
        ];
        for answer in answers {
            assert_eq!(decode(&encode(&answer)).unwrap(), answer);
        }
    }

    #[test]
    fn damaged_bytes_are_a_fault() {
        for bytes in [&b""[..], b"\xff", b"\x08\x02\x60\x01", b"\x08\x01"] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
