//! Owns: the bytes of an answer: kept in the state for the retries of its proposal, and sent back to the node that
//! forwarded it. One codec pair. Damage is a `Fault`, never a panic.

use bytes::Bytes;
use prost::Message as _;

use super::keys::Family;
use super::records::{meta_record, parse_status, print_status, read_meta_record};
use crate::machine::Answer;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::proto::store as proto;
use crate::proto::store::answer_record::Answer as Spelled;
use crate::proto::store::refusal_record::Why;

/// The layout this build writes, and the newest it reads.
const VERSION: u32 = 1;

pub fn print(answer: &Result<Answer, Refusal>) -> Bytes {
    let spelled = match answer {
        Ok(answer) => spell(answer),
        Err(refusal) => Spelled::Refused(proto::RefusalRecord { why: Some(spell_refusal(refusal)) }),
    };
    proto::AnswerRecord { version: VERSION, answer: Some(spelled) }.encode_to_vec().into()
}

pub fn parse(value: &[u8]) -> Result<Result<Answer, Refusal>, Fault> {
    let fault = |what: String| Family::Answer.fault(what);
    let record = proto::AnswerRecord::decode(value).map_err(|error| fault(error.to_string()))?;
    if record.version > VERSION {
        return Err(fault(format!("version {} is newer than this build", record.version)));
    }
    match record.answer {
        Some(Spelled::Refused(refused)) => understand_refusal(refused).map(Err),
        Some(answer) => understand(answer).map(Ok),
        None => Err(fault("no answer".to_owned())),
    }
}

fn spell(answer: &Answer) -> Spelled {
    match answer {
        Answer::Created { meta } => Spelled::Created(session(meta, true)),
        Answer::Ensured { meta, created } => Spelled::Ensured(session(meta, *created)),
        Answer::MetaSet { meta } => Spelled::MetaSet(session(meta, false)),
        Answer::StatusSet { status, previous } => Spelled::StatusSet(proto::StatusPair {
            status: print_status(*status) as i32,
            previous: print_status(*previous) as i32,
        }),
        Answer::Deleted { deleted } => Spelled::Deleted(*deleted),
        Answer::Appended { entry_id, parent_id, timestamp } => Spelled::Appended(proto::EntryRef {
            entry_id: entry_id.to_string(),
            parent_id: parent_id.as_ref().map(EntryId::to_string),
            timestamp: *timestamp,
        }),
        Answer::AppendedMany { entry_ids } => {
            Spelled::AppendedMany(proto::EntryIds { ids: entry_ids.iter().map(EntryId::to_string).collect() })
        }
        Answer::Updated { updated, revision } => {
            Spelled::Updated(proto::Update { updated: *updated, revision: *revision })
        }
        Answer::Forked { meta } => Spelled::Forked(session(meta, true)),
        Answer::LeafSet { entry_id } => Spelled::LeafSet(entry_id.to_string()),
        Answer::Stored => Spelled::Stored(proto::Nothing {}),
        Answer::Published { published } => Spelled::Published(*published),
        Answer::BaseMoved => Spelled::BaseMoved(proto::Nothing {}),
        Answer::Forgotten => Spelled::Forgotten(proto::Nothing {}),
    }
}

fn understand(spelled: Spelled) -> Result<Answer, Fault> {
    Ok(match spelled {
        Spelled::Created(session) => Answer::Created { meta: meta(session)? },
        Spelled::Ensured(session) => Answer::Ensured { created: session.created, meta: meta(session)? },
        Spelled::MetaSet(session) => Answer::MetaSet { meta: meta(session)? },
        Spelled::StatusSet(pair) => {
            let unknown = || Family::Answer.fault("a status this build does not know");
            let status = parse_status(pair.status()).ok_or_else(unknown)?;
            let previous = parse_status(pair.previous()).ok_or_else(unknown)?;
            Answer::StatusSet { status, previous }
        }
        Spelled::Deleted(deleted) => Answer::Deleted { deleted },
        Spelled::Appended(entry) => Answer::Appended {
            entry_id: entry.entry_id.into(),
            parent_id: entry.parent_id.map(EntryId::from),
            timestamp: entry.timestamp,
        },
        Spelled::AppendedMany(many) => {
            Answer::AppendedMany { entry_ids: many.ids.into_iter().map(EntryId::from).collect() }
        }
        Spelled::Updated(update) => Answer::Updated { updated: update.updated, revision: update.revision },
        Spelled::Forked(session) => Answer::Forked { meta: meta(session)? },
        Spelled::LeafSet(entry_id) => Answer::LeafSet { entry_id: entry_id.into() },
        Spelled::Stored(_) => Answer::Stored,
        Spelled::Published(published) => Answer::Published { published },
        Spelled::BaseMoved(_) => Answer::BaseMoved,
        Spelled::Forgotten(_) => Answer::Forgotten,
        Spelled::Refused(_) => return Err(Family::Answer.fault("a refusal inside an answer")),
    })
}

fn session(meta: &SessionMeta, created: bool) -> proto::Session {
    proto::Session { session_id: meta.session_id.to_string(), meta: Some(meta_record(meta)), created }
}

fn meta(session: proto::Session) -> Result<SessionMeta, Fault> {
    let record = session.meta.ok_or_else(|| Family::Answer.fault("a session without its record"))?;
    read_meta_record(&SessionId::from(session.session_id), record)
}

fn spell_refusal(refusal: &Refusal) -> Why {
    let entry_of = |session_id: &SessionId, entry_id: &EntryId| proto::EntryOfSession {
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

fn understand_refusal(record: proto::RefusalRecord) -> Result<Refusal, Fault> {
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
            Ok(Answer::LeafSet { entry_id: "e".into() }),
            Ok(Answer::Stored),
            Ok(Answer::Published { published: 2 }),
            Ok(Answer::BaseMoved),
            Ok(Answer::Forgotten),
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
            assert_eq!(parse(&print(&answer)).unwrap(), answer);
        }
    }

    #[test]
    fn damaged_bytes_are_a_fault() {
        for bytes in [&b""[..], b"\xff", b"\x08\x02\x60\x01", b"\x08\x01"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
