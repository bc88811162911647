//! Owns: what every connection of a tenant learns without joining a session: sessions that changed or are gone.
//! Never: the events of a session's stream.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Reads;
use super::connection::Connection;
use super::errors::GatewayError;
use super::sessions::Speaker;
use crate::events::filter::{Filter, Kinds};
use crate::events::stream::{Item, Stream};
use crate::machine::event::EventKind;
use crate::machine::json::Object;
use crate::surface::socket::Text;
use crate::surface::socket::outbox::Class;

/// Tells the connection about the sessions of its tenant, until it ends.
pub async fn follow(connection: Arc<Connection>, stream: Stream) {
    loop {
        let item = stream.next().await;
        // A client that does not read holds nothing but its place in the feed.
        connection.outbox.room_for_events().await;
        let Some(speaker) = connection.speaker().await else { continue };
        let Item::Event(committed, _) = item else { continue };
        let event = &committed.event;
        if !speaker.person.sees(event.metadata.as_ref(), speaker.role) {
            continue;
        }
        let id = event.session_id.as_str();
        let frame = match event.kind() {
            EventKind::Deleted => {
                connection.leave(id);
                Some(json!({ "type": "session_deleted", "sessionId": id }))
            }
            // The connection that created it has its reply.
            EventKind::Created if connection.forget_created(id) => None,
            _changed => updated(&connection, &speaker, id).await,
        };
        if let Some(frame) = frame {
            connection.outbox.push(Text::from(frame.to_string()), Class::Other);
        }
    }
}

/// The subscription of a connection.
pub fn open(connection: &Connection, speaker: &Speaker) -> Result<Stream, GatewayError> {
    let kinds = [EventKind::Created, EventKind::StatusChanged, EventKind::MetaUpdated, EventKind::Deleted];
    let filter = Filter::of_stream(Kinds::of(kinds), None, None, Object::new());
    connection.gateway.subscribe(filter.within(speaker.person.scope()))
}

/// Its state now, which may be newer than the event. `None` when it is gone.
async fn updated(connection: &Connection, speaker: &Speaker, id: &str) -> Option<Value> {
    let meta = connection.gateway.session(speaker, id, Reads::Local).await.ok()?;
    let session = connection.gateway.record_of(&meta, &speaker.person).await.ok()?;
    Some(json!({ "type": "session_updated", "session": session }))
}
