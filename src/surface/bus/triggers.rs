//! Owns: bindings: of this node's events to functions of workers, and of workers' trigger types, which are passed on to
//! whoever serves the type. Also the delivery of events to workers.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::Bus;
use super::inbound::{RegisterTrigger, RegisterType};
use super::outbound::{self, Call, ErrorBody, Frame};
use super::registry::{TooMuch, Trigger, TriggerType};
use super::worker::Worker;
use crate::events::bindings::{Binding, BindingKey};
use crate::events::deliver::{AttachPoint, Delivery, Feed};
use crate::surface::subscription::Subscription;

/// Fires when a worker comes or goes, as on an engine.
const WORKERS_AVAILABLE: &str = "engine::workers-available";

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
            let bound = self.bind_own(worker, &asked.id, &trigger)?;
            let error = bound.err().map(|why| ErrorBody::new("trigger_registration_failed", why).print());
            worker.send(outbound::trigger_result(&asked.id, &asked.trigger_type, &asked.function_id, error.as_deref()));
            return Ok(());
        }
        self.feed.read(|feed| self.note_trigger(feed, &asked.id, trigger.clone()))?;
        match self.read_registry(|registry| registry.type_owner(&asked.trigger_type)) {
            Some(owner) => owner.send(print_trigger(&asked.id, &trigger)),
            None => tracing::debug!(trigger_type = %asked.trigger_type, "a binding waits for its trigger type"),
        }
        Ok(())
    }

    /// Binds one of this node's events. The inner error is for the subscriber to read.
    fn bind_own(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        id: &str,
        trigger: &Trigger,
    ) -> Result<Result<(), String>, TooMuch> {
        let bound = self.feed.read(|feed| {
            let binding = match self.read_own_binding(feed, worker, id, trigger) {
                Ok(binding) => binding,
                Err(why) => return Ok(Err(why)),
            };
            // In the registry first: once the feed has it, an event may already be on its way.
            self.note_trigger(feed, id, trigger.clone())?;
            Ok(feed.bind(binding))
        })?;
        if bound.is_err() {
            self.change_registry(|registry| registry.unregister_trigger(id, worker.number));
        }
        Ok(bound)
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
        // A position the client named must be kept; one we remember for it is a courtesy, as far as the ring reaches.
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
    /// Calls the bound function, whoever serves it now. Its queue decides what happens when it is slow.
    fn deliver(&self, delivery: Delivery<'_>) {
        let function_id = &delivery.binding.function_id;
        let owner =
            self.read_registry(|registry| registry.function(function_id).map(|function| function.owner.clone()));
        let Some(owner) = owner else {
            tracing::debug!(%function_id, "an event found no function to call");
            return;
        };
        let call = Call {
            invocation_id: None,
            function_id,
            data: delivery.data,
            metadata: Some(&delivery.sidecar),
            traceparent: None,
            baggage: None,
            namespace: None,
        };
        owner.send(call.print());
    }
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
