//! Owns: sessions as the gateway shows them: which a person sees, their records, and the messages that change them.
//! Never: turns.

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors::GatewayError;
use super::person::{Person, TENANT};
use super::{Gateway, Reads};
use crate::machine::apply::beside::Beside;
use crate::machine::gateway::{GatewayCommand, GatewayQuery, MemberRole};
use crate::machine::ids::SessionId;
use crate::machine::json::Object;
use crate::machine::query::beside::BesideQuery;

/// The metadata keys of a session that was made here.
pub const AGENT_TYPE: &str = "agentType";
const ARCHIVED: &str = "archived";
/// Sessions of one page that the gateway asks for.
const PAGE: usize = 200;
/// A list has at most so many sessions. It says so when there are more.
const LISTED_MAX: usize = 5000;
/// Sessions of other tenants that a list looks at before it ends. Only in dev mode, where no scope leaves them out.
const LOOKED_AT_MAX: usize = 20_000;

/// A user and the role that he has now.
#[derive(Debug, Clone)]
pub struct Speaker {
    pub person: Arc<Person>,
    pub role: MemberRole,
}

impl Gateway {
    /// The record of a session that the speaker sees.
    pub(super) async fn session(&self, speaker: &Speaker, id: &str, reads: Reads) -> Result<Value, GatewayError> {
        let found = self.call(&speaker.person.caller, "session::get", json!({ "session_id": id }), reads).await;
        let meta = match found {
            Ok(mut found) => found["meta"].take(),
            // An id that no session can have.
            Err(GatewayError::InvalidMessage(_)) => Value::Null,
            Err(error) => return Err(error),
        };
        match meta.is_object() && speaker.person.sees(meta["metadata"].as_object(), speaker.role) {
            true => Ok(meta),
            false => Err(GatewayError::SessionNotFound),
        }
    }

    pub(super) async fn list_sessions(&self, speaker: &Speaker, archived_too: bool) -> Result<Value, GatewayError> {
        let person = &speaker.person;
        let metadata = if person.is_dev { json!({}) } else { json!({ TENANT: &*person.tenant }) };
        let (mut sessions, mut cursor, mut looked_at) = (Vec::new(), Value::Null, 0);
        loop {
            let ask = json!({ "metadata": metadata, "limit": PAGE, "cursor": cursor });
            let mut page = self.call(&person.caller, "session::list", ask, Reads::Fresh).await?;
            let Value::Array(mut metas) = page["sessions"].take() else { return Err(GatewayError::Internal) };
            looked_at += metas.len();
            metas.retain(|meta| {
                let is_seen = person.sees(meta["metadata"].as_object(), speaker.role);
                is_seen && (archived_too || meta["metadata"][ARCHIVED] != true)
            });
            sessions.extend(self.records(&metas, person).await?);
            cursor = page["next_cursor"].take();
            if cursor.is_null() || sessions.len() >= LISTED_MAX || looked_at >= LOOKED_AT_MAX {
                break;
            }
        }
        let mut list = json!({ "type": "session_list", "sessions": sessions });
        if !cursor.is_null() {
            list["truncated"] = Value::from(true);
        }
        Ok(list)
    }

    /// The records of sessions, with what their agents are doing.
    async fn records(&self, metas: &[Value], person: &Person) -> Result<Vec<Value>, GatewayError> {
        let ids = metas.iter().filter_map(|meta| meta["session_id"].as_str()).map(SessionId::from).collect();
        let states: Value = self.ask(None, BesideQuery::Gateway(GatewayQuery::States(ids)), Reads::Local).await?;
        Ok(metas.iter().enumerate().map(|(at, meta)| record(meta, &states[at], person)).collect())
    }

    pub(super) async fn record_of(&self, meta: &Value, person: &Person) -> Result<Value, GatewayError> {
        let mut records = self.records(std::slice::from_ref(meta), person).await?;
        records.pop().ok_or(GatewayError::Internal)
    }

    pub(super) async fn create_session(
        &self,
        speaker: &Speaker,
        id: &str,
        agent_type: &str,
        name: Option<&str>,
    ) -> Result<Value, GatewayError> {
        let person = &speaker.person;
        let mut metadata = person.scope().map_or_else(Object::new, |scope| scope.fields().clone());
        metadata.insert(TENANT.to_owned(), Value::from(&*person.tenant));
        metadata.insert(AGENT_TYPE.to_owned(), Value::from(agent_type));
        metadata.insert(ARCHIVED.to_owned(), Value::from(false));
        let body = json!({ "session_id": id, "title": name.unwrap_or_default(), "metadata": metadata });
        let made = self.call(&person.caller, "session::ensure", body, Reads::Fresh).await?;
        Ok(json!({ "type": "session_created", "session": record(&made["meta"], &Value::Null, person) }))
    }

    /// Answered by `session_updated`, which all connections of the tenant get.
    pub(super) async fn rename_session(&self, speaker: &Speaker, id: &str, name: &str) -> Result<(), GatewayError> {
        let body = json!({ "session_id": id, "title": name });
        self.call(&speaker.person.caller, "session::set-meta", body, Reads::Fresh).await?;
        Ok(())
    }

    pub(super) async fn set_archived(
        &self,
        speaker: &Speaker,
        id: &str,
        archived: bool,
    ) -> Result<Value, GatewayError> {
        let command = GatewayCommand::Archive { session_id: id.into(), archived };
        let set = self.change(speaker.person.scope(), Beside::Gateway(command)).await?;
        let kind = if archived { "session_archived" } else { "session_unarchived" };
        Ok(json!({ "type": kind, "session": self.record_of(&set["meta"], &speaker.person).await? }))
    }

    /// Answered by `session_deleted`, which all connections of the tenant get.
    pub(super) async fn delete_session(&self, speaker: &Speaker, id: &str) -> Result<(), GatewayError> {
        self.call(&speaker.person.caller, "session::delete", json!({ "session_id": id }), Reads::Fresh).await?;
        Ok(())
    }
}

/// The record of a session as clients of the gateway know it. `stream` has the state of its agent, if it had one.
pub fn record(meta: &Value, stream: &Value, person: &Person) -> Value {
    let metadata = &meta["metadata"];
    let name = meta["title"].as_str().filter(|title| !title.is_empty());
    let status = || state_of(meta["status"].as_str().unwrap_or_default());
    json!({
        "id": meta["session_id"],
        "tenantId": metadata[TENANT].as_str().unwrap_or(&person.tenant),
        "name": name,
        "agentType": metadata[AGENT_TYPE].as_str().unwrap_or_default(),
        "status": stream["state"].as_str().unwrap_or_else(status),
        "archived": metadata[ARCHIVED] == true,
        "createdAt": meta["created_at"],
        "updatedAt": meta["updated_at"],
        "lastActivityAt": stream["lastActivityAt"],
    })
}

/// The state of a session that had no turn.
fn state_of(status: &str) -> &'static str {
    match status {
        "working" => "running",
        "error" => "error",
        _idle_or_done => "inactive",
    }
}
