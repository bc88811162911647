//! Owns: the record of a session. Its value does not repeat the session id, which the key holds.

use bytes::Bytes;
use prost::Message as _;

use super::family::{Family, VERSION, check_version};
use super::key;
use crate::machine::ids::SessionId;
use crate::machine::refusal::Fault;
use crate::machine::session::SessionMeta;
use crate::proto::store as proto;
use crate::storage::proto_types::{object_from_text, object_to_text, status_from_proto, status_to_proto};

pub fn key(session_id: &SessionId) -> Vec<u8> {
    key::of_session(Family::Meta, session_id)
}

pub fn encode(meta: &SessionMeta) -> Bytes {
    to_proto(meta).encode_to_vec().into()
}

pub fn decode(session_id: &SessionId, value: &[u8]) -> Result<SessionMeta, Fault> {
    let record = proto::SessionMetaRecord::decode(value).map_err(|error| fault(session_id, error))?;
    from_proto(session_id, record)
}

pub(super) fn to_proto(meta: &SessionMeta) -> proto::SessionMetaRecord {
    proto::SessionMetaRecord {
        version: VERSION,
        title: meta.title.clone(),
        description: meta.description.clone(),
        status: status_to_proto(meta.status) as i32,
        status_reason: meta.status_reason.clone(),
        message_count: meta.message_count,
        metadata: meta.metadata.as_ref().map(object_to_text),
        forked_from: meta.forked_from.as_ref().map(|id| id.as_str().to_owned()),
        created_at: meta.created_at,
        updated_at: meta.updated_at,
    }
}

pub(super) fn from_proto(session_id: &SessionId, record: proto::SessionMetaRecord) -> Result<SessionMeta, Fault> {
    check_version(record.version).map_err(|error| fault(session_id, error))?;
    let status = status_from_proto(record.status);
    let metadata = object_from_text(record.metadata.as_deref());
    Ok(SessionMeta {
        session_id: session_id.clone(),
        status: status.ok_or_else(|| fault(session_id, format_args!("status {}", record.status)))?,
        title: record.title,
        description: record.description,
        status_reason: record.status_reason,
        message_count: record.message_count,
        metadata: metadata.map_err(|error| fault(session_id, format_args!("metadata: {error}")))?,
        forked_from: record.forked_from.map(SessionId::from),
        created_at: record.created_at,
        updated_at: record.updated_at,
    })
}

fn fault(session_id: &SessionId, what: impl std::fmt::Display) -> Fault {
    Family::Meta.fault(format_args!("session {:?}: {what}", session_id.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::*;
    use crate::machine::session::SessionStatus;
    use proptest::prelude::*;
    use serde_json::json;

    fn meta() -> SessionMeta {
        SessionMeta {
            session_id: "s".into(),
            title: "T".into(),
            description: "".into(),
            status: SessionStatus::Error,
            status_reason: Some("r".into()),
            message_count: 3,
            metadata: json!({"a": 1}).as_object().cloned(),
            forked_from: Some("p".into()),
            created_at: 5,
            updated_at: -1,
        }
    }

    #[test]
    fn the_bytes_of_a_session_record_stay_as_they_are() {
        assert_eq!(hex(&key(&"s\0é".into())), "107300ffc3a90001");
        assert_eq!(hex(&encode(&meta())), "080112015420042a017230033a077b2261223a317d420170480a5001");
    }

    #[test]
    fn damage_is_a_fault_that_names_the_family() {
        let cut = &encode(&meta())[..5];
        assert!(decode(&"s".into(), cut).unwrap_err().0.contains("damaged meta record: session \"s\""));
    }

    #[test]
    fn a_newer_layout_is_refused_not_misread() {
        let newer = proto::SessionMetaRecord { version: 2, status: 1, ..Default::default() };
        let fault = decode(&"s".into(), &newer.encode_to_vec()).unwrap_err();
        assert!(fault.0.contains("layout 2"), "{fault}");
    }

    proptest! {
        #[test]
        fn every_session_record_reads_back_as_written(
            id in any::<String>(), title in any::<String>(), reason in any::<Option<String>>(), count in any::<u64>(),
            key in any::<String>(), number in any::<i64>(), created_at in any::<i64>(), updated_at in any::<i64>(),
        ) {
            let metadata = json!({ key: { "deep": [number, null, "x"] } });
            let meta = SessionMeta {
                session_id: id.into(), title, status_reason: reason, message_count: count, created_at, updated_at,
                metadata: metadata.as_object().cloned(), ..meta()
            };
            prop_assert_eq!(decode(&meta.session_id, &encode(&meta)).unwrap(), meta);
        }

        #[test]
        fn any_bytes_decode_or_fault_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&"s".into(), &bytes);
        }
    }
}
