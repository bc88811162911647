//! Owns: the protobuf form of values that both the log and the state store: status, role, event kind, feed places and
//! JSON objects. A number that this build does not know decodes to `None`.

use crate::machine::event::EventKind;
use crate::machine::ids::FeedPlace;
use crate::machine::json::{Json, Object};
use crate::machine::message::Role;
use crate::machine::session::SessionStatus;
use crate::proto::store as proto;

pub fn status_to_proto(status: SessionStatus) -> proto::SessionStatus {
    match status {
        SessionStatus::Idle => proto::SessionStatus::Idle,
        SessionStatus::Working => proto::SessionStatus::Working,
        SessionStatus::Done => proto::SessionStatus::Done,
        SessionStatus::Error => proto::SessionStatus::Error,
    }
}

pub fn status_from_proto(status: i32) -> Option<SessionStatus> {
    match proto::SessionStatus::try_from(status).ok()? {
        proto::SessionStatus::Unspecified => None,
        proto::SessionStatus::Idle => Some(SessionStatus::Idle),
        proto::SessionStatus::Working => Some(SessionStatus::Working),
        proto::SessionStatus::Done => Some(SessionStatus::Done),
        proto::SessionStatus::Error => Some(SessionStatus::Error),
    }
}

pub fn role_to_proto(role: Role) -> proto::Role {
    match role {
        Role::User => proto::Role::User,
        Role::Assistant => proto::Role::Assistant,
        Role::FunctionResult => proto::Role::FunctionResult,
        Role::Custom => proto::Role::Custom,
    }
}

pub fn role_from_proto(role: i32) -> Option<Role> {
    match proto::Role::try_from(role).ok()? {
        proto::Role::Unspecified => None,
        proto::Role::User => Some(Role::User),
        proto::Role::Assistant => Some(Role::Assistant),
        proto::Role::FunctionResult => Some(Role::FunctionResult),
        proto::Role::Custom => Some(Role::Custom),
    }
}

pub fn kind_to_proto(kind: EventKind) -> proto::EventKind {
    match kind {
        EventKind::Created => proto::EventKind::Created,
        EventKind::MessageAdded => proto::EventKind::MessageAdded,
        EventKind::MessageUpdated => proto::EventKind::MessageUpdated,
        EventKind::StatusChanged => proto::EventKind::StatusChanged,
        EventKind::MetaUpdated => proto::EventKind::MetaUpdated,
        EventKind::Deleted => proto::EventKind::Deleted,
        EventKind::TurnRequested => proto::EventKind::TurnRequested,
        EventKind::TurnCommand => proto::EventKind::TurnCommand,
        EventKind::CheckpointRequested => proto::EventKind::CheckpointRequested,
        EventKind::StreamEvent => proto::EventKind::StreamEvent,
        EventKind::ProfileEvent => proto::EventKind::ProfileEvent,
    }
}

pub fn kind_from_proto(kind: i32) -> Option<EventKind> {
    match proto::EventKind::try_from(kind).ok()? {
        proto::EventKind::Unspecified => None,
        proto::EventKind::Created => Some(EventKind::Created),
        proto::EventKind::MessageAdded => Some(EventKind::MessageAdded),
        proto::EventKind::MessageUpdated => Some(EventKind::MessageUpdated),
        proto::EventKind::StatusChanged => Some(EventKind::StatusChanged),
        proto::EventKind::MetaUpdated => Some(EventKind::MetaUpdated),
        proto::EventKind::Deleted => Some(EventKind::Deleted),
        proto::EventKind::TurnRequested => Some(EventKind::TurnRequested),
        proto::EventKind::TurnCommand => Some(EventKind::TurnCommand),
        proto::EventKind::CheckpointRequested => Some(EventKind::CheckpointRequested),
        proto::EventKind::StreamEvent => Some(EventKind::StreamEvent),
        proto::EventKind::ProfileEvent => Some(EventKind::ProfileEvent),
    }
}

pub fn place_to_proto(place: FeedPlace) -> proto::FeedPlace {
    proto::FeedPlace { index: place.index, ordinal: place.ordinal }
}

pub fn place_from_proto(place: proto::FeedPlace) -> FeedPlace {
    FeedPlace { index: place.index, ordinal: place.ordinal }
}

pub fn object_to_text(object: &Object) -> String {
    Json::print(object).text().to_owned()
}

pub fn object_from_text(text: Option<&str>) -> Result<Option<Object>, serde_json::Error> {
    text.map(serde_json::from_str).transpose()
}
