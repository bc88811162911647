//! Owns: the record of an entry. Its value does not repeat the ids, which the key holds.

use bytes::Bytes;
use prost::Message as _;

use super::family::{Family, VERSION, check_version};
use super::{home, key};
use crate::machine::entry::{Body, Entry, Place};
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::long::Home;
use crate::machine::message::Message;
use crate::machine::refusal::Fault;
use crate::proto::store as proto;
use crate::storage::proto_types::{role_from_proto, role_to_proto};

pub fn key(session_id: &SessionId, entry_id: &EntryId) -> Vec<u8> {
    let (session_id, entry_id) = (session_id.as_str(), entry_id.as_str());
    let mut key = Vec::with_capacity(session_id.len() + entry_id.len() + 5);
    key.push(Family::Entry as u8);
    key::put_text(&mut key, session_id);
    key::put_text(&mut key, entry_id);
    key
}

/// The key of an entry whose first part is not the id of its session.
pub(super) fn key_under(mut prefix: Vec<u8>, entry_id: &EntryId) -> Vec<u8> {
    key::put_text(&mut prefix, entry_id.as_str());
    prefix
}

/// The key of an entry of a session whose entries may have another home.
pub fn key_in(session_id: &SessionId, home: Option<Home>, entry_id: &EntryId) -> Vec<u8> {
    match home {
        None => key(session_id, entry_id),
        Some(home) => key_under(home::prefix(home), entry_id),
    }
}

/// The common prefix of all entries of a session.
pub fn prefix(session_id: &SessionId) -> Vec<u8> {
    key::of_session(Family::Entry, session_id)
}

pub fn encode(entry: &Entry) -> Bytes {
    to_proto(entry).encode_to_vec().into()
}

pub(super) fn to_proto(entry: &Entry) -> proto::EntryRecord {
    let body = match &entry.body {
        Body::Message(message) => proto::entry_record::Body::Message(proto::MessageBody {
            role: role_to_proto(message.role) as i32,
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
    proto::EntryRecord {
        version: VERSION,
        parent_id: entry.parent_id.as_ref().map(|id| id.as_str().to_owned()),
        timestamp: entry.timestamp,
        revision: entry.revision,
        origin: entry.origin.as_ref().map(|origin| origin.text().to_owned()),
        body: Some(body),
        place,
    }
}

pub fn decode(session_id: &SessionId, entry_id: &EntryId, value: &[u8]) -> Result<Entry, Fault> {
    let fault = |what: &dyn std::fmt::Display| {
        Family::Entry.fault(format_args!("entry {:?} of session {:?}: {what}", entry_id.as_str(), session_id.as_str()))
    };
    let record = proto::EntryRecord::decode(value).map_err(|error| fault(&error))?;
    check_version(record.version).map_err(|error| fault(&error))?;
    let body = match record.body {
        Some(proto::entry_record::Body::Message(message)) => {
            let role = role_from_proto(message.role);
            Body::Message(Message {
                role: role.ok_or_else(|| fault(&format_args!("role {}", message.role)))?,
                body: Json::adopt(&message.json),
            })
        }
        Some(proto::entry_record::Body::Custom(custom)) => {
            Body::Custom { custom_type: custom.custom_type, data: Json::adopt(&custom.data) }
        }
        None => return Err(fault(&"no body")),
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

#[cfg(test)]
mod tests {
    use super::super::family::hex;
    use super::super::key::any_text;
    use super::*;
    use crate::machine::message::Role;
    use proptest::prelude::*;

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
    fn the_bytes_of_an_entry_stay_as_they_are() {
        assert_eq!(hex(&key(&"s".into(), &"e".into())), "13730001650001");
        assert_eq!(hex(&encode(&entry())), "0801120170180e20022a027b7d320b080112077b2278223a317d42050801120170");
    }

    #[test]
    fn damage_is_a_fault_that_names_the_family() {
        assert!(decode(&"s".into(), &"e".into(), b"\xff").unwrap_err().0.contains("damaged entry record"));
        assert!(decode(&"s".into(), &"e".into(), &[8, 1]).unwrap_err().0.contains("no body"));
    }

    proptest! {
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
            prop_assert_eq!(decode(&"s".into(), &entry.id, &encode(&entry)).unwrap(), entry);
        }

        #[test]
        fn any_bytes_decode_or_fault_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&"s".into(), &"e".into(), &bytes);
        }

        #[test]
        fn keys_sort_like_ids(a in any_text(), b in any_text(), s in any_text()) {
            let (x, y, s) = (EntryId::from(a), EntryId::from(b), SessionId::from(s));
            prop_assert_eq!(key(&s, &x).cmp(&key(&s, &y)), x.cmp(&y));
        }

        #[test]
        fn entries_of_one_session_are_under_its_prefix_and_no_others(a in any_text(), b in any_text(), e in any_text()) {
            let (a, b) = (SessionId::from(a), SessionId::from(b));
            prop_assert_eq!(key(&b, &EntryId::from(e)).starts_with(&prefix(&a)), a == b);
        }
    }
}
