//! Owns: bindings: of this node's events to functions of workers, and of workers' trigger types, which are passed on to
//! whoever serves the type. Also the delivery of events to workers.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Bus;
use super::inbound::{RegisterTrigger, RegisterType};
use super::outbound::{self, Call, ErrorBody, Frame};
use super::registry::{Registry, TooMuch, Trigger, TriggerType};
use super::worker::Worker;
use crate::events::bindings::{Binding, BindingKey};
use crate::events::deliver::{AttachPoint, Delivery, Feed, Handed};
use crate::surface::subscription::Subscription;

/// Fires when a worker comes or goes, as on an engine.
const WORKERS_AVAILABLE: &str = "engine::workers-available";

const SWAPPED: &str = "`metadata.session-manager.after`: the data was swapped while the position was looked up; its \
                       events are another history's";

impl Bus {
    pub(super) fn register_trigger(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        asked: &RegisterTrigger<'_>,
    ) -> Result<(), TooMuch> {
        let text = |raw: Option<&RawValue>| raw.map(|raw| Arc::from(raw.get()));
        let trigger = Trigger {
            subscriber: worker.clone(),
            trigger_type: asked.trigger_type.as_ref().into(),
            function_id: asked.function_id.as_ref().into(),
            config: text(asked.config).unwrap_or_else(|| "null".into()),
            metadata: text(asked.metadata),
            namespace: text(asked.namespace),
        };
        if self.reserves(&asked.trigger_type) {
            return self.register_own(worker, &asked.id, trigger);
        }
        self.feed.read(|feed| self.note_trigger(feed, &asked.id, trigger.clone()))?;
        match self.read_registry(|registry| registry.type_owner(&asked.trigger_type)) {
            Some(owner) => owner.send(print_trigger(&asked.id, &trigger)),
            None => tracing::debug!(trigger_type = %asked.trigger_type, "a binding waits for its trigger type"),
        }
        Ok(())
    }

    /// Binds one of this node's events, and tells the subscriber.
    fn register_own(self: &Arc<Self>, worker: &Arc<Worker>, id: &str, trigger: Trigger) -> Result<(), TooMuch> {
        let ahead = self.feed.read(|feed| {
            let binding = match self.read_own_binding(feed, worker, id, &trigger) {
                Ok(binding) => binding,
                Err(why) => {
                    tell(worker, id, &trigger, Err(why));
                    return Ok(None);
                }
            };
            // In the registry first: once the feed has it, an event may already be on its way.
            self.note_trigger(feed, id, trigger.clone())?;
            match binding.after.filter(|after| feed.ahead(*after).is_some()) {
                None => {
                    self.bind_own(feed, worker, id, &trigger, binding);
                    Ok(None)
                }
                Some(after) => Ok(Some((feed.clone(), binding, after))),
            }
        })?;
        // Another node may know of the position: this one asks before it says no. Others are served meanwhile.
        if let Some((feed, binding, after)) = ahead {
            let (bus, worker, id) = (self.clone(), worker.clone(), id.to_owned());
            tokio::spawn(async move {
                let asked = feed.catch_up(after).await;
                let wanted = |registry: &Registry| {
                    registry.trigger(&id).is_some_and(|found| found.subscriber.number == worker.number)
                };
                if !bus.read_registry(wanted) {
                    return;
                }
                bus.feed.read(|current| match asked {
                    Ok(()) if Arc::ptr_eq(current, &feed) => bus.bind_own(&feed, &worker, &id, &trigger, binding),
                    Ok(()) => bus.refuse_own(&worker, &id, &trigger, SWAPPED.to_owned()),
                    Err(why) => bus.refuse_own(&worker, &id, &trigger, why),
                });
                // The client may have left meanwhile, and nobody else would clear this away.
                if !bus.read_registry(wanted) {
                    bus.feed.read(|feed| feed.unbind(&BindingKey { owner: worker.number, id: id.as_str().into() }));
                }
            });
        }
        Ok(())
    }

    fn bind_own(&self, feed: &Feed, worker: &Worker, id: &str, trigger: &Trigger, binding: Binding) {
        let after = binding.after;
        match feed.bind(binding) {
            Ok(()) => {
                if let Some(after) = after {
                    worker.begins_again(after);
                }
                tell(worker, id, trigger, Ok(()));
            }
            Err(why) => self.refuse_own(worker, id, trigger, why),
        }
    }

    fn refuse_own(&self, worker: &Worker, id: &str, trigger: &Trigger, why: String) {
        self.change_registry(|registry| registry.unregister_trigger(id, worker.number));
        tell(worker, id, trigger, Err(why));
    }

    fn read_own_binding(
        self: &Arc<Self>,
        feed: &Feed,
        worker: &Arc<Worker>,
        id: &str,
        trigger: &Trigger,
    ) -> Result<Binding, String> {
        let config: Value =
            serde_json::from_str(&trigger.config).map_err(|error| format!("config cannot be read: {error}"))?;
        let metadata = trigger.metadata.as_deref().map(serde_json::from_str::<Value>).transpose();
        let metadata = metadata.map_err(|error| format!("`metadata` cannot be read: {error}"))?;
        let asked = Subscription::read(feed, &trigger.trigger_type, &trigger.function_id, &config, metadata)?;
        // A position the client named must be kept; one we remember for it is a courtesy, as far as the feed reaches.
        let remembered = worker.resume_binding(id).filter(|position| feed.reaches(*position));
        Ok(Binding {
            key: BindingKey { owner: worker.number, id: id.into() },
            function_id: trigger.function_id.clone(),
            filter: asked.filter,
            sidecar_fields: asked.sidecar_fields,
            after: asked.after.max(remembered),
            to: self.clone(),
        })
    }

    /// Who serves a function now.
    fn server_of(&self, function_id: &str) -> Option<Arc<Worker>> {
        self.read_registry(|registry| registry.function(function_id).map(|function| function.owner.clone()))
    }

    /// Records a binding. One of the same id ends, whoever registered it: ids are unique, so it is the same client.
    fn note_trigger(&self, feed: &Feed, id: &str, trigger: Trigger) -> Result<(), TooMuch> {
        let subscriber = trigger.subscriber.number;
        let replaced = self.change_registry(|registry| registry.register_trigger(id, trigger))?;
        if let Some(old) = replaced
            && old.subscriber.number != subscriber
        {
            feed.unbind(&BindingKey { owner: old.subscriber.number, id: id.into() });
        }
        Ok(())
    }

    pub(super) fn unregister_trigger(&self, worker: &Worker, id: &str) {
        let removed = self.change_registry(|registry| registry.unregister_trigger(id, worker.number));
        let Some(trigger) = removed else { return };
        self.feed.read(|feed| feed.unbind(&BindingKey { owner: worker.number, id: id.into() }));
        self.tell_type_owner_of_removal(id, &trigger);
    }

    pub(super) fn tell_type_owner_of_removal(&self, id: &str, trigger: &Trigger) {
        if let Some(owner) = self.read_registry(|registry| registry.type_owner(&trigger.trigger_type)) {
            owner.send(outbound::unregister_trigger(id, &trigger.trigger_type));
        }
    }

    /// Tells whoever bound `engine::workers-available` that a worker came or went.
    pub(super) fn tell_of_worker(&self, event: &str, worker_id: &str) {
        let told = self.read_registry(|registry| {
            let bound = registry.triggers().filter(|(_, trigger)| &*trigger.trigger_type == WORKERS_AVAILABLE);
            let with_owner = bound.filter_map(|(_, trigger)| {
                let owner = registry.function(&trigger.function_id)?.owner.clone();
                Some((owner, trigger.clone()))
            });
            with_owner.collect::<Vec<_>>()
        });
        let data = serde_json::json!({ "event": event, "worker_id": worker_id }).to_string();
        for (owner, trigger) in told {
            let call = Call {
                invocation_id: None,
                function_id: &trigger.function_id,
                data: &data,
                metadata: trigger.metadata.as_deref(),
                traceparent: None,
                baggage: None,
                namespace: None,
            };
            owner.send(call.print());
        }
    }

    /// A worker offers a trigger type: it gets every binding that waits for it.
    pub(super) fn register_type(&self, worker: &Arc<Worker>, asked: &RegisterType<'_>) -> Result<(), TooMuch> {
        if self.reserves(&asked.id) {
            tracing::warn!(trigger_type = %asked.id, worker = worker.id, "refused: this node serves the trigger type");
            return Ok(());
        }
        let text = |raw: Option<&RawValue>| raw.map(|raw| raw.get().to_owned());
        let found = TriggerType {
            owner: worker.clone(),
            description: text(asked.description),
            trigger_request_format: text(asked.trigger_request_format),
            call_request_format: text(asked.call_request_format),
        };
        for (id, trigger) in self.change_registry(|registry| registry.register_type(&asked.id, found))? {
            worker.send(print_trigger(&id, &trigger));
        }
        Ok(())
    }

    /// The owner of a type answered a binding: its subscriber hears it.
    pub(super) fn pass_on_trigger_result(&self, owner: &Worker, id: &str, error: Option<&RawValue>) {
        let trigger = self.read_registry(|registry| {
            let trigger = registry.trigger(id)?;
            let serves = registry.type_owner(&trigger.trigger_type)?.number == owner.number;
            serves.then(|| trigger.clone())
        });
        if let Some(trigger) = trigger {
            let error = error.map(RawValue::get);
            let frame = outbound::trigger_result(id, &trigger.trigger_type, &trigger.function_id, error);
            trigger.subscriber.send(frame);
        }
    }
}

impl AttachPoint for Bus {
    /// Calls the bound function, whoever serves it now.
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        let function_id = &delivery.binding.function_id;
        let Some(owner) = self.server_of(function_id) else {
            tracing::debug!(%function_id, "an event found no function to call");
            return Handed::Taken;
        };
        let call = || {
            let sidecar = delivery.sidecar();
            let call = Call {
                invocation_id: None,
                function_id,
                data: delivery.data,
                metadata: Some(&sidecar),
                traceparent: None,
                baggage: None,
                namespace: None,
            };
            call.print()
        };
        // What another client is told on its behalf says nothing of how far a subscriber has come.
        let own = owner.number == delivery.binding.key.owner;
        match owner.offer_event(call, own.then_some(delivery.committed.position)) {
            Ok(()) => Handed::Taken,
            Err(_) => Handed::Full,
        }
    }

    fn room(&self, binding: &Binding) -> BoxFuture<'static, ()> {
        let outbox = self.server_of(&binding.function_id).and_then(|owner| owner.outbox());
        async move {
            if let Some(outbox) = outbox {
                outbox.room_for_events().await;
            }
        }
        .boxed()
    }
}

/// Answers a registration.
fn tell(worker: &Worker, id: &str, trigger: &Trigger, bound: Result<(), String>) {
    let error = bound.err().map(|why| ErrorBody::new("trigger_registration_failed", why).print());
    worker.send(outbound::trigger_result(id, &trigger.trigger_type, &trigger.function_id, error.as_deref()));
}

fn print_trigger(id: &str, trigger: &Trigger) -> Frame {
    outbound::register_trigger(
        id,
        &trigger.trigger_type,
        &trigger.function_id,
        &trigger.config,
        trigger.metadata.as_deref(),
        trigger.namespace.as_deref(),
    )
}
