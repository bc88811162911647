//! Owns: the values of the state's key families, one codec pair each. Damage is a `Fault` that names the family.
//! Never: keys (`keys.rs`). What a key says already (session id, entry id) is not repeated in its value.

use bytes::Bytes;
use prost::Message as _;

use super::keys::Family;
use crate::machine::entry::{Body, Entry, Place};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::message::{Message, Role};
use crate::machine::refusal::Fault;
use crate::machine::session::{SessionMeta, SessionStatus};
use crate::proto::store as proto;

/// The layout this build writes, and the newest it reads.
const VERSION: u32 = 1;

pub fn print_meta(meta: &SessionMeta) -> Bytes {
    meta_record(meta).encode_to_vec().into()
}

pub fn meta_record(meta: &SessionMeta) -> proto::SessionMetaRecord {
    proto::SessionMetaRecord {
        version: VERSION,
        title: meta.title.clone(),
        description: meta.description.clone(),
        status: print_status(meta.status) as i32,
        status_reason: meta.status_reason.clone(),
        message_count: meta.message_count,
        metadata: meta.metadata.as_ref().map(|metadata| Json::print(metadata).text().to_owned()),
        forked_from: meta.forked_from.as_ref().map(|id| id.as_str().to_owned()),
        created_at: meta.created_at,
        updated_at: meta.updated_at,
    }
}

pub fn parse_meta(session_id: &SessionId, value: &[u8]) -> Result<SessionMeta, Fault> {
    let fault = |what: String| Family::Meta.fault(format_args!("session {:?}: {what}", session_id.as_str()));
    let record = proto::SessionMetaRecord::decode(value).map_err(|error| fault(error.to_string()))?;
    read_meta_record(session_id, record)
}

pub fn read_meta_record(session_id: &SessionId, record: proto::SessionMetaRecord) -> Result<SessionMeta, Fault> {
    let fault = |what: String| Family::Meta.fault(format_args!("session {:?}: {what}", session_id.as_str()));
    check_version(record.version).map_err(fault)?;
    let metadata = record.metadata.as_deref().map(serde_json::from_str).transpose();
    Ok(SessionMeta {
        session_id: session_id.clone(),
        status: parse_status(record.status()).ok_or_else(|| fault(format!("status {}", record.status)))?,
        title: record.title,
        description: record.description,
        status_reason: record.status_reason,
        message_count: record.message_count,
        metadata: metadata.map_err(|error| fault(format!("metadata: {error}")))?,
        forked_from: record.forked_from.map(SessionId::from),
        created_at: record.created_at,
        updated_at: record.updated_at,
    })
}

pub fn print_entry(entry: &Entry) -> Bytes {
    let body = match &entry.body {
        Body::Message(message) => proto::entry_record::Body::Message(proto::MessageBody {
            role: print_role(message.role) as i32,
            json: message.body.text().to_owned(),
        }),
        Body::Custom { custom_type, data } => proto::entry_record::Body::Custom(proto::CustomBody {
            custom_type: custom_type.clone(),
            data: data.text().to_owned(),
        }),
    };
    let place = entry.place.as_ref().map(|place| proto::Place {
        depth: place.depth,
        jump: place.jump.as_str().to_owned(),
        jump_depth: place.jump_depth,
    });
    let record = proto::EntryRecord {
        version: VERSION,
        parent_id: entry.parent_id.as_ref().map(|id| id.as_str().to_owned()),
        timestamp: entry.timestamp,
        revision: entry.revision,
        origin: entry.origin.as_ref().map(|origin| origin.text().to_owned()),
        body: Some(body),
        place,
    };
    record.encode_to_vec().into()
}

pub fn parse_entry(session_id: &SessionId, entry_id: &EntryId, value: &[u8]) -> Result<Entry, Fault> {
    let fault = |what: String| {
        Family::Entry.fault(format_args!("entry {:?} of session {:?}: {what}", entry_id.as_str(), session_id.as_str()))
    };
    let record = proto::EntryRecord::decode(value).map_err(|error| fault(error.to_string()))?;
    check_version(record.version).map_err(fault)?;
    let body = match record.body {
        Some(proto::entry_record::Body::Message(message)) => Body::Message(Message {
            role: parse_role(message.role()).ok_or_else(|| fault(format!("role {}", message.role)))?,
            body: Json::adopt(&message.json),
        }),
        Some(proto::entry_record::Body::Custom(custom)) => {
            Body::Custom { custom_type: custom.custom_type, data: Json::adopt(&custom.data) }
        }
        None => return Err(fault("no body".to_owned())),
    };
    let place = record.place.map(|place| Place {
        depth: place.depth,
        jump: EntryId::from(place.jump),
        jump_depth: place.jump_depth,
    });
    Ok(Entry {
        id: entry_id.clone(),
        parent_id: record.parent_id.map(EntryId::from),
        timestamp: record.timestamp,
        revision: record.revision,
        origin: record.origin.as_deref().map(Json::adopt),
        body,
        place,
    })
}

pub fn print_leaf(entry_id: &EntryId) -> Bytes {
    Bytes::copy_from_slice(entry_id.as_str().as_bytes())
}

pub fn parse_leaf(session_id: &SessionId, value: &[u8]) -> Result<EntryId, Fault> {
    let fault = |error| Family::Leaf.fault(format_args!("session {:?}: {error}", session_id.as_str()));
    std::str::from_utf8(value).map(EntryId::from).map_err(fault)
}

pub fn print_seq(seq: u64) -> Bytes {
    Bytes::copy_from_slice(&seq.to_be_bytes())
}

pub fn parse_seq(session_id: &SessionId, value: &[u8]) -> Result<u64, Fault> {
    let fault = |_| Family::Seq.fault(format_args!("session {:?}: {} bytes, not 8", session_id.as_str(), value.len()));
    value.try_into().map(u64::from_be_bytes).map_err(fault)
}

pub fn print_clock(at_ms: i64) -> Bytes {
    Bytes::copy_from_slice(&at_ms.to_be_bytes())
}

pub fn parse_clock(value: &[u8]) -> Result<i64, Fault> {
    let fault = |_| Family::Clock.fault(format_args!("{} bytes, not 8", value.len()));
    value.try_into().map(i64::from_be_bytes).map_err(fault)
}

fn check_version(version: u32) -> Result<(), String> {
    match version {
        VERSION => Ok(()),
        other => Err(format!("layout {other}; this build reads {VERSION}")),
    }
}

pub fn print_status(status: SessionStatus) -> proto::SessionStatus {
    match status {
        SessionStatus::Idle => proto::SessionStatus::Idle,
        SessionStatus::Working => proto::SessionStatus::Working,
        SessionStatus::Done => proto::SessionStatus::Done,
        SessionStatus::Error => proto::SessionStatus::Error,
    }
}

pub fn parse_status(status: proto::SessionStatus) -> Option<SessionStatus> {
    match status {
        proto::SessionStatus::Unspecified => None,
        proto::SessionStatus::Idle => Some(SessionStatus::Idle),
        proto::SessionStatus::Working => Some(SessionStatus::Working),
        proto::SessionStatus::Done => Some(SessionStatus::Done),
        proto::SessionStatus::Error => Some(SessionStatus::Error),
    }
}

pub fn print_role(role: Role) -> proto::Role {
    match role {
        Role::User => proto::Role::User,
        Role::Assistant => proto::Role::Assistant,
        Role::FunctionResult => proto::Role::FunctionResult,
        Role::Custom => proto::Role::Custom,
    }
}

pub fn parse_role(role: proto::Role) -> Option<Role> {
    match role {
        proto::Role::Unspecified => None,
        proto::Role::User => Some(Role::User),
        proto::Role::Assistant => Some(Role::Assistant),
        proto::Role::FunctionResult => Some(Role::FunctionResult),
        proto::Role::Custom => Some(Role::Custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

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

    fn entry() -> Entry {
        Entry {
            id: "e".into(),
            parent_id: Some("p".into()),
            timestamp: 7,
            revision: 2,
            origin: Some(Json::adopt("{}")),
            body: Body::Message(Message { role: Role::User, body: Json::adopt("{\"x\":1}") }),
            place: Some(Place { depth: 1, jump: "p".into(), jump_depth: 0 }),
        }
    }

    #[test]
    fn the_bytes_of_records_stay_as_they_are() {
        assert_eq!(hex(&print_meta(&meta())), "080112015420042a017230033a077b2261223a317d420170480a5001");
        assert_eq!(hex(&print_entry(&entry())), "0801120170180e20022a027b7d320b080112077b2278223a317d42050801120170");
        assert_eq!(hex(&print_leaf(&"é".into())), "c3a9");
        assert_eq!(hex(&print_seq(258)), "0000000000000102");
        assert_eq!(hex(&print_clock(-2)), "fffffffffffffffe");
    }

    #[test]
    fn damage_is_a_fault_that_names_the_family() {
        let id = SessionId::from("s");
        let cut = &print_meta(&meta())[..5];
        assert!(parse_meta(&id, cut).unwrap_err().0.contains("damaged meta record: session \"s\""));
        assert!(parse_entry(&id, &"e".into(), b"\xff").unwrap_err().0.contains("damaged entry record"));
        assert!(parse_entry(&id, &"e".into(), &[8, 1]).unwrap_err().0.contains("no body"));
        assert!(parse_leaf(&id, b"\xff").unwrap_err().0.contains("damaged leaf record"));
        assert!(parse_seq(&id, b"1").unwrap_err().0.contains("damaged seq record"));
        assert!(parse_clock(b"").unwrap_err().0.contains("damaged clock record"));
    }

    #[test]
    fn a_newer_layout_is_refused_not_misread() {
        let newer = proto::SessionMetaRecord { version: 2, status: 1, ..Default::default() };
        let fault = parse_meta(&"s".into(), &newer.encode_to_vec()).unwrap_err();
        assert!(fault.0.contains("layout 2"), "{fault}");
    }

    proptest! {
        #[test]
        fn every_meta_reads_back_as_written(
            id in any::<String>(), title in any::<String>(), reason in any::<Option<String>>(), count in any::<u64>(),
            key in any::<String>(), number in any::<i64>(), created_at in any::<i64>(), updated_at in any::<i64>(),
        ) {
            let metadata = json!({ key: { "deep": [number, null, "x"] } });
            let meta = SessionMeta {
                session_id: id.into(), title, status_reason: reason, message_count: count, created_at, updated_at,
                metadata: metadata.as_object().cloned(), ..meta()
            };
            prop_assert_eq!(parse_meta(&meta.session_id, &print_meta(&meta)).unwrap(), meta);
        }

        #[test]
        fn every_entry_reads_back_as_written(
            id in any::<String>(), parent in any::<Option<String>>(), timestamp in any::<i64>(), revision in any::<u64>(),
            custom in any::<Option<String>>(), depth in any::<Option<u64>>(),
        ) {
            let body = match custom {
                Some(custom_type) => Body::Custom { custom_type, data: Json::adopt("[1]") },
                None => entry().body,
            };
            let entry = Entry {
                id: id.into(), parent_id: parent.map(EntryId::from), timestamp, revision, body, origin: None,
                place: depth.map(|depth| Place { depth, jump: "j".into(), jump_depth: 0 }),
            };
            prop_assert_eq!(parse_entry(&"s".into(), &entry.id, &print_entry(&entry)).unwrap(), entry);
        }

        #[test]
        fn any_bytes_parse_or_fault_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse_meta(&"s".into(), &bytes);
            let _ = parse_entry(&"s".into(), &"e".into(), &bytes);
        }
    }
}
