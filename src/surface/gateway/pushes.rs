//! Owns: what a driver tells all connections of a tenant: runs of automations and deliveries to an inbox.
//! Never: the numbered events of a session's stream.
//!
//! One task per node reads the events of all streams once, whatever the number of connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::connection::Connection;
use super::follow::Streamed;
use super::person::{DEV_TENANT, TENANT};
use super::{Gateway, audience};
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
        self.begun.call_once(|| self.begin());
    }

    /// Starts the tasks of the node.
    fn begin(self: &Arc<Gateway>) {
        let all = Filter::of_stream(Kinds::of([EventKind::StreamEvent]), None, None, Object::new());
        let streams = self.subscribe(all).and_then(|all| Ok((all, self.subscribe(audience::filter())?)));
        let (events, counts) = match streams {
            Ok(streams) => streams,
            Err(error) => return tracing::error!(%error, "pushes to tenants are not delivered"),
        };
        let (gateway, closing, followers) = (Arc::downgrade(self), self.closing.clone(), self.audience.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = push_all(gateway.clone(), events) => {}
                () = audience::listen(followers, counts) => {}
                () = audience::tell(gateway) => {}
                () = closing.cancelled() => {}
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
            let Some(speaker) = connection.speaker().await else { continue };
            // A client that does not read misses it, as one that is not connected does.
            if speaker.person.sees(metadata, speaker.role) && !connection.outbox.is_full_of_events() {
                connection.send_text(text.clone());
            }
        }
    }
}
