//! Owns: what a driver tells all connections of a tenant: runs of automations and deliveries to an inbox.
//! Never: the numbered events of a session's stream.
//!
//! One task per node reads the events of all streams once, whatever the number of connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::Gateway;
use super::connection::Connection;
use super::follow::Streamed;
use super::person::{DEV_TENANT, TENANT};
use crate::events::filter::{Filter, Kinds};
use crate::events::stream::{Item, Stream};
use crate::machine::event::EventKind;
use crate::machine::json::Object;
use crate::surface::locked;

/// The events that a driver tells a tenant.
const PUSHES: [&str; 4] =
    ["automation_run_started", "automation_run_completed", "automation_run_blocked", "inbox_delivery"];

pub fn is_push(kind: &str) -> bool {
    PUSHES.contains(&kind)
}

/// The connections of each tenant, by their ids.
pub type Tenants = BTreeMap<Arc<str>, BTreeMap<String, Weak<Connection>>>;

impl Gateway {
    /// A connection of a tenant is there. The first one starts the task.
    pub(super) fn listens(self: &Arc<Gateway>, tenant: &Arc<str>, connection: &Arc<Connection>) {
        locked(&self.tenants)
            .entry(tenant.clone())
            .or_default()
            .insert(connection.id.clone(), Arc::downgrade(connection));
        self.pushing.call_once(|| {
            let filter = Filter::of_stream(Kinds::of([EventKind::StreamEvent]), None, None, Object::new());
            match self.subscribe(filter) {
                Ok(stream) => {
                    let (gateway, closing) = (Arc::downgrade(self), self.closing.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = push_all(gateway, stream) => {}
                            () = closing.cancelled() => {}
                        }
                    });
                }
                Err(error) => tracing::error!(%error, "pushes to tenants are not delivered"),
            }
        });
    }

    pub(super) fn stops_listening(&self, tenant: &str, id: &str) {
        let mut tenants = locked(&self.tenants);
        if let Some(connections) = tenants.get_mut(tenant) {
            connections.remove(id);
            if connections.is_empty() {
                tenants.remove(tenant);
            }
        }
    }
}

async fn push_all(gateway: Weak<Gateway>, stream: Stream) {
    loop {
        let item = stream.next().await;
        let Some(gateway) = gateway.upgrade() else { return };
        let Some(Streamed { kind, seq: None, text: Some(text), .. }) = Streamed::of(&item) else { continue };
        let Item::Event(committed, _) = item else { continue };
        if !is_push(&kind) {
            continue;
        }
        let metadata = committed.event.metadata.as_ref();
        let tenant = metadata.and_then(|metadata| metadata.get(TENANT)?.as_str()).unwrap_or(DEV_TENANT);
        let connections: Vec<_> =
            locked(&gateway.tenants).get(tenant).into_iter().flat_map(|all| all.values().cloned()).collect();
        for connection in connections.iter().filter_map(Weak::upgrade) {
            let Some(person) = connection.person() else { continue };
            // A client that does not read misses it, as one that is not connected does.
            if person.sees(metadata, person.role) && !connection.outbox.is_full_of_events() {
                connection.send_text(text.clone());
            }
        }
    }
}
