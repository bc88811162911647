//! Owns: bindings: of this node's events to functions of clients, and of clients' trigger types, which are forwarded to
//! the client that serves the type. Also the delivery of events to clients.
//! Never: what a binding may ask for (`subscription`), which events match (`events`).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Bus;
use super::client::Client;
use super::inbound::{RegisterTrigger, RegisterType, owned};
use super::outbound::{self, InvokeFrame};
use super::registry::{Registry, TooManyRegistrations, Trigger, TriggerType};
use crate::access::Action;
use crate::events::bindings::{Binding, BindingKey};
use crate::events::delivery::{AttachPoint, Delivery, Handed};
use crate::events::feed::Feed;
use crate::surface::errors::CallError;
use crate::surface::socket::Text;
use crate::surface::subscription::{BindError, Subscription};

/// The config and the metadata of a binding are parsed, and the parsed form takes many times the memory of the text.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Fires when a client connects or disconnects, as on an engine.
const WORKERS_AVAILABLE: &str = "engine::workers-available";

impl Bus {
    pub(super) fn register_trigger(
        self: &Arc<Self>,
        client: &Arc<Client>,
        asked: &RegisterTrigger<'_>,
    ) -> Result<(), TooManyRegistrations> {
        let text = |raw: Option<&RawValue>| raw.map(|raw| Arc::from(raw.get()));
        let trigger = Trigger {
            subscriber: client.clone(),
            trigger_type: asked.trigger_type.as_ref().into(),
            function_id: asked.function_id.as_ref().into(),
            config: text(asked.config).unwrap_or_else(|| "null".into()),
            metadata: text(asked.metadata),
            namespace: text(asked.namespace),
            forwarded_id: asked.id.as_ref().into(),
        };
        let action = self.action_of_type(&asked.trigger_type);
        let refused = (!client.identity.may(action)).then(|| CallError::forbidden(&client.identity, action).message());
        if let Some(why) = refused {
            let error = CallError::Binding(BindError::Forbidden(why)).print_for_bus();
            let (trigger_type, function_id) = (&trigger.trigger_type, &trigger.function_id);
            client.send(outbound::trigger_result(&asked.id, trigger_type, function_id, Some(&error)));
            return Ok(());
        }
        if self.reserves(&asked.trigger_type) {
            return OwnBinding { bus: self.clone(), client: client.clone(), id: asked.id.as_ref().into(), trigger }
                .register();
        }
        let forwarded_id =
            self.change_registry(&client.realm, |registry| registry.register_trigger(&asked.id, trigger.clone()))?;
        match self.read_registry(&client.realm, |registry| registry.type_owner(&asked.trigger_type)) {
            Some(owner) => owner.send(print_trigger(&Trigger { forwarded_id, ..trigger })),
            None => tracing::debug!(trigger_type = %asked.trigger_type, "a binding waits for its trigger type"),
        }
        Ok(())
    }

    /// What a client needs to bind a trigger type.
    fn action_of_type(&self, trigger_type: &str) -> Action {
        match self.reserves(trigger_type) {
            true if trigger_type.starts_with("session::store::") => Action::RawStore,
            true => Action::Events,
            false => Action::Workers,
        }
    }

    pub(super) fn unregister_trigger(&self, client: &Client, id: &str) {
        let removed = self.change_registry(&client.realm, |registry| registry.unregister_trigger(id, client.number));
        let Some(trigger) = removed else { return };
        self.feed.read(|feed| feed.unbind(&BindingKey { owner: client.number, id: id.into() }));
        self.forward_removal(&trigger);
    }

    /// Tells the owner of a trigger type that a binding ended.
    pub(super) fn forward_removal(&self, trigger: &Trigger) {
        let realm = &trigger.subscriber.realm;
        if let Some(owner) = self.read_registry(realm, |registry| registry.type_owner(&trigger.trigger_type)) {
            owner.send(outbound::unregister_trigger(&trigger.forwarded_id, &trigger.trigger_type));
        }
    }

    /// Fires `engine::workers-available`: a client connected or disconnected.
    pub(super) fn announce_client(&self, event: &str, client: &Client) {
        let bound = self.read_registry(&client.realm, |registry| {
            let with_owner = registry.triggers_of_type(WORKERS_AVAILABLE).filter_map(|(_, trigger)| {
                let owner = registry.function(&trigger.function_id)?.owner.clone();
                Some((owner, trigger.clone()))
            });
            with_owner.collect::<Vec<_>>()
        });
        let data = serde_json::json!({ "event": event, "worker_id": client.id }).to_string();
        for (owner, trigger) in bound {
            owner.send(InvokeFrame::void(&trigger.function_id, &data, trigger.metadata.as_deref()).print());
        }
    }

    /// A client offers a trigger type: it receives every existing binding of the type.
    pub(super) fn register_type(
        &self,
        client: &Arc<Client>,
        asked: &RegisterType<'_>,
    ) -> Result<(), TooManyRegistrations> {
        if self.reserves(&asked.id) {
            tracing::warn!(trigger_type = %asked.id, client = client.id, "refused: this node serves the trigger type");
            return Ok(());
        }
        let other_owner = self.read_registry(&client.realm, |registry| {
            registry.type_owner(&asked.id).is_some_and(|owner| !owner.identity.is_same_caller(&client.identity))
        });
        if other_owner || !client.identity.may(Action::Workers) {
            tracing::warn!(trigger_type = %asked.id, client = client.id, "refused: another caller serves the trigger type");
            return Ok(());
        }
        let found = TriggerType {
            owner: client.clone(),
            description: owned(asked.description),
            trigger_request_format: owned(asked.trigger_request_format),
            call_request_format: owned(asked.call_request_format),
        };
        for trigger in self.change_registry(&client.realm, |registry| registry.register_type(&asked.id, found))? {
            client.send(print_trigger(&trigger));
        }
        Ok(())
    }

    /// The owner of a type answered a binding: forward the answer to the subscriber.
    pub(super) fn forward_trigger_result(&self, owner: &Client, id: &str, error: Option<&RawValue>) {
        let found = self.read_registry(&owner.realm, |registry| {
            let (id, trigger) = registry.forwarded(id)?;
            let serves = registry.type_owner(&trigger.trigger_type)?.number == owner.number;
            serves.then(|| (id.clone(), trigger.clone()))
        });
        if let Some((id, trigger)) = found {
            let error = error.map(RawValue::get);
            let frame = outbound::trigger_result(&id, &trigger.trigger_type, &trigger.function_id, error);
            trigger.subscriber.send(frame);
        }
    }
}

/// A binding of one of this node's events that a client registers.
struct OwnBinding {
    bus: Arc<Bus>,
    client: Arc<Client>,
    id: Arc<str>,
    trigger: Trigger,
}

impl OwnBinding {
    /// Adds the binding to the feed, and answers the client.
    fn register(self) -> Result<(), TooManyRegistrations> {
        let ahead = self.bus.feed.read(|feed| {
            let binding = match self.read(feed) {
                Ok(binding) => binding,
                Err(error) => {
                    self.answer(Err(error));
                    return Ok(None);
                }
            };
            // Registry first: as soon as the binding is in the feed, an event may be delivered.
            let realm = &self.client.realm;
            self.bus.change_registry(realm, |registry| registry.register_trigger(&self.id, self.trigger.clone()))?;
            match binding.after.filter(|after| feed.ahead(*after).is_some()) {
                None => {
                    self.bind(feed, binding);
                    Ok(None)
                }
                Some(after) => Ok(Some((feed.clone(), binding, after))),
            }
        })?;
        if let Some((feed, binding, after)) = ahead {
            tokio::spawn(async move {
                // The cluster may have reached the position although this node has not. Other clients are served
                // meanwhile.
                let caught_up = feed.catch_up(after).await.map_err(BindError::Resume);
                self.register_late(&feed, binding, caught_up);
            });
        }
        Ok(())
    }

    fn register_late(&self, feed: &Arc<Feed>, binding: Binding, caught_up: Result<(), BindError>) {
        let is_registered = |registry: &Registry| registry.trigger(self.client.number, &self.id).is_some();
        if !self.bus.read_registry(&self.client.realm, is_registered) {
            return;
        }
        self.bus.feed.read(|current| match caught_up {
            Ok(()) if Arc::ptr_eq(current, feed) => self.bind(feed, binding),
            Ok(()) => self.refuse(BindError::DataReplaced),
            Err(error) => self.refuse(error),
        });
        // If the client left meanwhile, its bindings were removed before this one was added.
        if !self.bus.read_registry(&self.client.realm, is_registered) {
            self.bus.feed.read(|feed| feed.unbind(&self.key()));
        }
    }

    fn bind(&self, feed: &Feed, binding: Binding) {
        let after = binding.after;
        match feed.bind(binding) {
            Ok(()) => {
                if let Some(after) = after {
                    self.client.restart_after(after);
                }
                self.answer(Ok(()));
            }
            Err(error) => self.refuse(BindError::Resume(error)),
        }
    }

    fn refuse(&self, error: BindError) {
        self.bus
            .change_registry(&self.client.realm, |registry| registry.unregister_trigger(&self.id, self.client.number));
        self.answer(Err(error));
    }

    fn answer(&self, bound: Result<(), BindError>) {
        let error = bound.err().map(|error| CallError::Binding(error).print_for_bus());
        let Trigger { trigger_type, function_id, .. } = &self.trigger;
        self.client.send(outbound::trigger_result(&self.id, trigger_type, function_id, error.as_deref()));
    }

    fn read(&self, feed: &Feed) -> Result<Binding, BindError> {
        let Trigger { trigger_type, function_id, config, metadata, .. } = &self.trigger;
        for (field, text) in [("config", Some(config)), ("metadata", metadata.as_ref())] {
            let bytes = text.map_or(0, |text| text.len());
            if bytes > TEXT_BYTES_MAX {
                return Err(BindError::TooLong { field, bytes, max: TEXT_BYTES_MAX });
            }
        }
        let config: Value = serde_json::from_str(config).map_err(|error| BindError::Config(error.to_string()))?;
        let metadata = metadata.as_deref().map(serde_json::from_str::<Value>).transpose();
        let metadata = metadata.map_err(|error| BindError::Metadata(error.to_string()))?;
        let asked = Subscription::read(feed, trigger_type, function_id, &config, metadata)?;
        // A position that the client names must be available. One remembered from its lost socket is used if it still
        // is.
        let remembered = self.client.resume_binding(&self.id).filter(|position| feed.reaches(*position));
        Ok(Binding {
            key: self.key(),
            function_id: function_id.clone(),
            filter: asked.filter.within(self.client.identity.scope.clone()),
            sidecar_fields: asked.sidecar_fields,
            after: asked.after.max(remembered),
            to: Arc::new(RealmPoint { bus: self.bus.clone(), realm: self.client.realm.clone() }),
        })
    }

    fn key(&self) -> BindingKey {
        BindingKey { owner: self.client.number, id: self.id.clone() }
    }
}

/// Delivers to the clients of one realm, so that no client of another can pose as the function of a binding.
struct RealmPoint {
    bus: Arc<Bus>,
    realm: Arc<str>,
}

impl AttachPoint for RealmPoint {
    /// Calls the bound function of the client that serves it now.
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        let function_id = &delivery.binding.function_id;
        let Some(server) = self.bus.server_of(&self.realm, function_id) else {
            tracing::debug!(%function_id, "no client serves the function of a binding; the event is dropped");
            return Handed::Taken;
        };
        let frame = || {
            let traceparent = delivery.trace.map(|trace| format!("\"{}\"", trace.traceparent()));
            let (sidecar, traceparent) = (delivery.sidecar(), traceparent.as_deref());
            InvokeFrame { traceparent, ..InvokeFrame::void(function_id, delivery.data, Some(&sidecar)) }.print()
        };
        // An event delivered to another client proves nothing about what the subscriber received.
        let is_own = server.number == delivery.binding.key.owner;
        match server.offer_event(frame, is_own.then_some(delivery.committed.position)) {
            Ok(()) => Handed::Taken,
            Err(_) => Handed::Full,
        }
    }

    fn room(&self, binding: &Binding) -> BoxFuture<'static, ()> {
        let outbox = self.bus.server_of(&self.realm, &binding.function_id).and_then(|server| server.outbox());
        async move {
            if let Some(outbox) = outbox {
                outbox.room_for_events().await;
            }
        }
        .boxed()
    }
}

fn print_trigger(trigger: &Trigger) -> Text {
    outbound::register_trigger(
        &trigger.forwarded_id,
        &trigger.trigger_type,
        &trigger.function_id,
        &trigger.config,
        trigger.metadata.as_deref(),
        trigger.namespace.as_deref(),
    )
}
