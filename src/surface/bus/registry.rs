//! Owns: what the connected workers registered: functions, trigger types, bindings; and how much one may register.
//! Never: frames, sockets, delivery. Plain data behind one lock of the bus.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::worker::Worker;

/// What one worker may register, so that no client fills the memory of the node.
const ENTRIES_MAX: usize = 16 << 10;
const BYTES_MAX: usize = 32 << 20;

/// A function of a connected worker. Optional texts are JSON.
pub struct Function {
    pub owner: Arc<Worker>,
    pub description: Option<String>,
    pub request_format: Option<String>,
    pub response_format: Option<String>,
    pub metadata: Option<String>,
}

/// A trigger type of a connected worker.
pub struct TriggerType {
    pub owner: Arc<Worker>,
    pub description: Option<String>,
    pub trigger_request_format: Option<String>,
    pub call_request_format: Option<String>,
}

/// A binding. Those of our own types are also in the feed; those of missing types wait here.
#[derive(Clone)]
pub struct Trigger {
    pub subscriber: Arc<Worker>,
    pub trigger_type: Arc<str>,
    pub function_id: Arc<str>,
    pub config: Arc<str>,
    pub metadata: Option<Arc<str>>,
    pub namespace: Option<Arc<str>>,
}

/// A worker registered more than it may.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMuch;

/// Why a function was not registered.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another worker owns the id.
    OwnedBy(String),
    TooMuch,
}

#[derive(Default)]
pub struct Registry {
    workers: BTreeMap<u64, Arc<Worker>>,
    functions: BTreeMap<Arc<str>, Function>,
    types: BTreeMap<Arc<str>, TriggerType>,
    triggers: BTreeMap<Arc<str>, Trigger>,
    usage: HashMap<u64, Usage>,
}

#[derive(Default)]
struct Usage {
    entries: usize,
    bytes: usize,
}

impl Registry {
    pub fn add_worker(&mut self, worker: Arc<Worker>) {
        self.workers.insert(worker.number, worker);
    }

    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.values()
    }

    pub fn worker_by_id(&self, id: &str) -> Option<Arc<Worker>> {
        self.workers.values().find(|worker| worker.id == id).cloned()
    }

    pub fn functions(&self) -> impl Iterator<Item = (&Arc<str>, &Function)> {
        self.functions.iter()
    }

    pub fn function(&self, id: &str) -> Option<&Function> {
        self.functions.get(id)
    }

    pub fn types(&self) -> impl Iterator<Item = (&Arc<str>, &TriggerType)> {
        self.types.iter()
    }

    pub fn triggers(&self) -> impl Iterator<Item = (&Arc<str>, &Trigger)> {
        self.triggers.iter()
    }

    pub fn trigger(&self, id: &str) -> Option<&Trigger> {
        self.triggers.get(id)
    }

    pub fn type_owner(&self, id: &str) -> Option<Arc<Worker>> {
        self.types.get(id).map(|found| found.owner.clone())
    }

    /// The first worker to register an id owns it; the owner may register it again, with other words.
    pub fn register_function(&mut self, id: &str, function: Function) -> Result<(), Refused> {
        if let Some(current) = self.functions.get(id)
            && current.owner.number != function.owner.number
        {
            return Err(Refused::OwnedBy(current.owner.id.clone()));
        }
        self.unregister_function(id, function.owner.number);
        self.charge(function.owner.number, function.cost(id)).map_err(|TooMuch| Refused::TooMuch)?;
        self.functions.insert(id.into(), function);
        Ok(())
    }

    pub fn unregister_function(&mut self, id: &str, owner: u64) {
        if self.functions.get(id).is_some_and(|function| function.owner.number == owner)
            && let Some(function) = self.functions.remove(id)
        {
            self.refund(owner, function.cost(id));
        }
    }

    /// The last worker to register a trigger type serves it. Returns the bindings it is to serve.
    pub fn register_type(&mut self, id: &str, found: TriggerType) -> Result<Vec<(Arc<str>, Trigger)>, TooMuch> {
        if let Some(old) = self.types.remove(id) {
            self.refund(old.owner.number, old.cost(id));
        }
        self.charge(found.owner.number, found.cost(id))?;
        self.types.insert(id.into(), found);
        let of_type = self.triggers.iter().filter(|(_, trigger)| *trigger.trigger_type == *id);
        Ok(of_type.map(|(id, trigger)| (id.clone(), trigger.clone())).collect())
    }

    pub fn unregister_type(&mut self, id: &str, owner: u64) {
        if self.types.get(id).is_some_and(|found| found.owner.number == owner)
            && let Some(found) = self.types.remove(id)
        {
            self.refund(owner, found.cost(id));
        }
    }

    /// Adds a binding; one under the same id is replaced and returned.
    pub fn register_trigger(&mut self, id: &str, trigger: Trigger) -> Result<Option<Trigger>, TooMuch> {
        let old = self.triggers.remove(id);
        if let Some(old) = &old {
            self.refund(old.subscriber.number, old.cost(id));
        }
        self.charge(trigger.subscriber.number, trigger.cost(id))?;
        self.triggers.insert(id.into(), trigger);
        Ok(old)
    }

    pub fn unregister_trigger(&mut self, id: &str, subscriber: u64) -> Option<Trigger> {
        if self.triggers.get(id)?.subscriber.number != subscriber {
            return None;
        }
        let trigger = self.triggers.remove(id)?;
        self.refund(subscriber, trigger.cost(id));
        Some(trigger)
    }

    /// Removes a worker that is gone with all it registered. Returns its bindings, whose types' owners must be told.
    pub fn remove_worker(&mut self, number: u64) -> Vec<(Arc<str>, Trigger)> {
        self.workers.remove(&number);
        self.usage.remove(&number);
        self.functions.retain(|_, function| function.owner.number != number);
        self.types.retain(|_, found| found.owner.number != number);
        self.triggers.extract_if(.., |_, trigger| trigger.subscriber.number == number).collect()
    }

    /// Gives all that one worker registered to another, which took over its identity.
    pub fn change_owner(&mut self, from: u64, to: &Arc<Worker>) {
        self.workers.remove(&from);
        for function in self.functions.values_mut().filter(|function| function.owner.number == from) {
            function.owner = to.clone();
        }
        for found in self.types.values_mut().filter(|found| found.owner.number == from) {
            found.owner = to.clone();
        }
        for trigger in self.triggers.values_mut().filter(|trigger| trigger.subscriber.number == from) {
            trigger.subscriber = to.clone();
        }
        if let Some(moved) = self.usage.remove(&from) {
            let usage = self.usage.entry(to.number).or_default();
            usage.entries += moved.entries;
            usage.bytes += moved.bytes;
        }
    }

    fn charge(&mut self, owner: u64, bytes: usize) -> Result<(), TooMuch> {
        let usage = self.usage.entry(owner).or_default();
        if usage.entries >= ENTRIES_MAX || usage.bytes + bytes > BYTES_MAX {
            return Err(TooMuch);
        }
        usage.entries += 1;
        usage.bytes += bytes;
        Ok(())
    }

    fn refund(&mut self, owner: u64, bytes: usize) {
        if let Some(usage) = self.usage.get_mut(&owner) {
            usage.entries = usage.entries.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(bytes);
        }
    }
}

/// What a registration holds in memory besides its texts.
const FIXED_BYTES: usize = 256;

fn texts(id: &str, optional: [&Option<String>; 4]) -> usize {
    FIXED_BYTES + id.len() + optional.into_iter().flatten().map(String::len).sum::<usize>()
}

impl Function {
    fn cost(&self, id: &str) -> usize {
        texts(id, [&self.description, &self.request_format, &self.response_format, &self.metadata])
    }
}

impl TriggerType {
    fn cost(&self, id: &str) -> usize {
        texts(id, [&self.description, &self.trigger_request_format, &self.call_request_format, &None])
    }
}

impl Trigger {
    fn cost(&self, id: &str) -> usize {
        let metadata = self.metadata.as_ref().map_or(0, |metadata| metadata.len());
        FIXED_BYTES + id.len() + self.config.len() + self.function_id.len() + self.trigger_type.len() + 2 * metadata
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::super::outbox::{Outbox, OutboxLimits};
    use super::*;

    fn worker(number: u64) -> Arc<Worker> {
        let outbox = Outbox::new(OutboxLimits::default(), Arc::new(AtomicUsize::new(0)));
        Arc::new(Worker::new(number, None, 8, Arc::new(outbox), 0))
    }

    fn function(owner: &Arc<Worker>, metadata: Option<String>) -> Function {
        let owner = owner.clone();
        Function { owner, description: None, request_format: None, response_format: None, metadata }
    }

    fn trigger(subscriber: &Arc<Worker>) -> Trigger {
        Trigger {
            subscriber: subscriber.clone(),
            trigger_type: "cron".into(),
            function_id: "f".into(),
            config: "{}".into(),
            metadata: None,
            namespace: None,
        }
    }

    #[test]
    fn the_first_to_register_a_function_keeps_it_until_it_leaves() {
        let (mut registry, one, two) = (Registry::default(), worker(1), worker(2));
        registry.register_function("f", function(&one, None)).unwrap();
        registry.register_function("f", function(&one, None)).unwrap();
        let refused = registry.register_function("f", function(&two, None));
        assert_eq!(refused, Err(Refused::OwnedBy(one.id.clone())));
        registry.unregister_function("f", 2);
        assert!(registry.function("f").is_some());
        registry.remove_worker(1);
        registry.register_function("f", function(&two, None)).unwrap();
    }

    #[test]
    fn bindings_wait_for_their_type_and_go_to_its_latest_owner() {
        let (mut registry, one, two) = (Registry::default(), worker(1), worker(2));
        registry.register_trigger("b", trigger(&one)).unwrap();
        let new_type = |owner: &Arc<Worker>| TriggerType {
            owner: owner.clone(),
            description: None,
            trigger_request_format: None,
            call_request_format: None,
        };
        assert_eq!(registry.register_type("cron", new_type(&one)).unwrap().len(), 1);
        assert_eq!(registry.register_type("cron", new_type(&two)).unwrap().len(), 1);
        registry.unregister_type("cron", 1);
        assert_eq!(registry.type_owner("cron").unwrap().number, 2);
        assert_eq!(registry.remove_worker(1).len(), 1);
        assert!(registry.trigger("b").is_none());
    }

    #[test]
    fn a_successor_inherits_every_registration_and_its_cost() {
        let (mut registry, one, two) = (Registry::default(), worker(1), worker(2));
        registry.add_worker(one.clone());
        registry.register_function("f", function(&one, None)).unwrap();
        registry.register_trigger("b", trigger(&one)).unwrap();
        registry.change_owner(1, &two);
        assert_eq!(registry.function("f").unwrap().owner.number, 2);
        assert!(registry.remove_worker(1).is_empty());
        registry.register_function("f", function(&two, None)).unwrap();
        assert!(registry.unregister_trigger("b", 2).is_some());
        assert_eq!(registry.usage[&2].entries, 1);
    }

    #[test]
    fn one_worker_cannot_register_without_end() {
        let (mut registry, one) = (Registry::default(), worker(1));
        let large = || function(&one, Some("x".repeat(BYTES_MAX / 2)));
        registry.register_function("a", large()).unwrap();
        assert_eq!(registry.register_function("b", large()), Err(Refused::TooMuch));
        registry.register_function("a", large()).unwrap();
    }
}
