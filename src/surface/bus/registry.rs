//! Owns: what connected clients registered: functions, trigger types, bindings; and how much one client may register.
//! Plain data behind one lock of the bus.
//! Never: frames, sockets, delivery.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use super::client::Client;
use crate::machine::json::values_below;

/// What one client may register, so that no client fills the memory of the node.
const ENTRIES_MAX: usize = 16 << 10;
const BYTES_MAX: usize = 8 << 20;
/// What all clients may register together. Past it, a client may still register its fair share, so that some clients
/// cannot keep others from working.
const TOTAL_BYTES_MAX: usize = 128 << 20;
const FAIR_BYTES: usize = 64 << 10;

/// A function of a connected client. Optional texts are JSON.
pub struct Function {
    pub owner: Arc<Client>,
    pub description: Option<String>,
    pub request_format: Option<String>,
    pub response_format: Option<String>,
    pub metadata: Option<String>,
}

/// A trigger type of a connected client.
pub struct TriggerType {
    pub owner: Arc<Client>,
    pub description: Option<String>,
    pub trigger_request_format: Option<String>,
    pub call_request_format: Option<String>,
}

/// A binding. Bindings of this node's own types are also in the feed. Bindings of a missing type wait here for it.
#[derive(Clone)]
pub struct Trigger {
    pub subscriber: Arc<Client>,
    pub trigger_type: Arc<str>,
    pub function_id: Arc<str>,
    pub config: Arc<str>,
    pub metadata: Option<Arc<str>>,
    pub namespace: Option<Arc<str>>,
    /// The id under which the owner of the trigger type knows this binding. Two clients may use the same id for theirs;
    /// the owner sees different ones.
    pub forwarded_id: Arc<str>,
}

/// A client registered more than it may.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyRegistrations;

/// Why a function was not registered.
#[derive(Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Another client owns the name. Holds the id of that client.
    OwnedBy(String),
    TooMany,
}

#[derive(Default)]
pub struct Registry {
    clients: BTreeMap<u64, Arc<Client>>,
    functions: BTreeMap<Arc<str>, Function>,
    types: BTreeMap<Arc<str>, TriggerType>,
    /// By client and id: a binding belongs to the client that registered it.
    triggers: BTreeMap<(u64, Arc<str>), Trigger>,
    /// The keys of `triggers` by forwarded id.
    forwarded: HashMap<Arc<str>, (u64, Arc<str>)>,
    /// The keys of `triggers` by type: every client that comes or leaves asks for those of one type.
    by_type: BTreeMap<Arc<str>, BTreeSet<(u64, Arc<str>)>>,
    usage: HashMap<u64, Usage>,
    total_bytes: usize,
}

/// What one client registered, besides its bindings. A client leaves in time proportional to what it registered.
#[derive(Default)]
struct Usage {
    entries: usize,
    bytes: usize,
    functions: BTreeSet<Arc<str>>,
    types: BTreeSet<Arc<str>>,
}

impl Registry {
    pub fn add_client(&mut self, client: Arc<Client>) {
        self.clients.insert(client.number, client);
    }

    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.functions.is_empty() && self.types.is_empty() && self.triggers.is_empty()
    }

    pub fn clients(&self) -> impl Iterator<Item = &Arc<Client>> {
        self.clients.values()
    }

    pub fn client_by_id(&self, id: &str) -> Option<Arc<Client>> {
        self.clients.values().find(|client| client.id == id).cloned()
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
        self.triggers.iter().map(|((_, id), trigger)| (id, trigger))
    }

    /// The bindings of one type, whatever else is bound.
    pub fn triggers_of_type(&self, id: &str) -> impl Iterator<Item = (&Arc<str>, &Trigger)> {
        let keys = self.by_type.get(id).into_iter().flatten();
        keys.filter_map(|key| Some((&key.1, self.triggers.get(key)?)))
    }

    pub fn trigger(&self, subscriber: u64, id: &str) -> Option<&Trigger> {
        self.triggers.get(&(subscriber, id.into()))
    }

    /// The binding that the owner of its type knows by this id, with its own id.
    pub fn forwarded(&self, id: &str) -> Option<(&Arc<str>, &Trigger)> {
        let (key, trigger) = self.triggers.get_key_value(self.forwarded.get(id)?)?;
        Some((&key.1, trigger))
    }

    pub fn type_owner(&self, id: &str) -> Option<Arc<Client>> {
        self.types.get(id).map(|found| found.owner.clone())
    }

    /// The first client to register an id owns it. The owner may register it again with another description.
    pub fn register_function(&mut self, id: &str, function: Function) -> Result<(), RegisterError> {
        if let Some(current) = self.functions.get(id)
            && current.owner.number != function.owner.number
        {
            return Err(RegisterError::OwnedBy(current.owner.id.clone()));
        }
        self.unregister_function(id, function.owner.number);
        self.charge(function.owner.number, function.cost(id)).map_err(|TooManyRegistrations| RegisterError::TooMany)?;
        let id: Arc<str> = id.into();
        self.usage.entry(function.owner.number).or_default().functions.insert(id.clone());
        self.functions.insert(id, function);
        Ok(())
    }

    pub fn unregister_function(&mut self, id: &str, owner: u64) {
        if self.functions.get(id).is_some_and(|function| function.owner.number == owner)
            && let Some(function) = self.functions.remove(id)
        {
            self.refund(owner, function.cost(id));
            self.usage.entry(owner).or_default().functions.remove(id);
        }
    }

    /// The last client to register a trigger type serves it. Returns the existing bindings of the type.
    pub fn register_type(&mut self, id: &str, found: TriggerType) -> Result<Vec<Trigger>, TooManyRegistrations> {
        if let Some(owner) = self.type_owner(id) {
            self.unregister_type(id, owner.number);
        }
        self.charge(found.owner.number, found.cost(id))?;
        self.usage.entry(found.owner.number).or_default().types.insert(id.into());
        self.types.insert(id.into(), found);
        Ok(self.triggers_of_type(id).map(|(_, trigger)| trigger.clone()).collect())
    }

    pub fn unregister_type(&mut self, id: &str, owner: u64) {
        if self.types.get(id).is_some_and(|found| found.owner.number == owner)
            && let Some(found) = self.types.remove(id)
        {
            self.refund(owner, found.cost(id));
            self.usage.entry(owner).or_default().types.remove(id);
        }
    }

    /// Adds a binding. One of the same client with the same id is replaced. Returns the id for the owner of its type.
    pub fn register_trigger(&mut self, id: &str, mut trigger: Trigger) -> Result<Arc<str>, TooManyRegistrations> {
        let subscriber = trigger.subscriber.number;
        self.unregister_trigger(id, subscriber);
        self.charge(subscriber, trigger.cost(id))?;
        let id: Arc<str> = id.into();
        // No client can guess the other form and so take the id of another client's binding.
        let is_taken = self.forwarded.contains_key(&id);
        let forwarded_id = if is_taken { format!("{id}#{}", Uuid::new_v4()).into() } else { id.clone() };
        trigger.forwarded_id = forwarded_id;
        Ok(self.insert_trigger(id, trigger))
    }

    fn insert_trigger(&mut self, id: Arc<str>, trigger: Trigger) -> Arc<str> {
        let (key, forwarded_id) = ((trigger.subscriber.number, id), trigger.forwarded_id.clone());
        self.forwarded.insert(forwarded_id.clone(), key.clone());
        self.by_type.entry(trigger.trigger_type.clone()).or_default().insert(key.clone());
        self.triggers.insert(key, trigger);
        forwarded_id
    }

    pub fn unregister_trigger(&mut self, id: &str, subscriber: u64) -> Option<Trigger> {
        let key = (subscriber, id.into());
        let trigger = self.triggers.remove(&key)?;
        self.unlist(&key, &trigger);
        self.refund(subscriber, trigger.cost(id));
        Some(trigger)
    }

    fn unlist(&mut self, key: &(u64, Arc<str>), trigger: &Trigger) {
        self.forwarded.remove(&trigger.forwarded_id);
        if let Some(keys) = self.by_type.get_mut(&trigger.trigger_type) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_type.remove(&trigger.trigger_type);
            }
        }
    }

    /// Takes out all bindings of a client.
    fn take_triggers(&mut self, subscriber: u64) -> Vec<(Arc<str>, Trigger)> {
        let (first, next) = ((subscriber, Arc::from("")), (subscriber + 1, Arc::from("")));
        let taken: Vec<_> = self.triggers.extract_if(first..next, |_, _| true).collect();
        for (key, trigger) in &taken {
            self.unlist(key, trigger);
        }
        taken.into_iter().map(|((_, id), trigger)| (id, trigger)).collect()
    }

    /// Removes a client that leaves, and what it serves. Its bindings stay until they are removed in parts.
    pub fn remove_client(&mut self, number: u64) {
        self.clients.remove(&number);
        let Some(usage) = self.usage.get_mut(&number) else { return };
        let (functions, types) = (std::mem::take(&mut usage.functions), std::mem::take(&mut usage.types));
        for id in &functions {
            self.unregister_function(id, number);
        }
        for id in &types {
            self.unregister_type(id, number);
        }
        self.forget_usage(number);
    }

    /// Takes out at most so many bindings of a client that leaves. Their removal must be forwarded to the type owners.
    pub fn take_some_triggers(&mut self, subscriber: u64, most: usize) -> Vec<(Arc<str>, Trigger)> {
        let (first, next) = ((subscriber, Arc::from("")), (subscriber + 1, Arc::from("")));
        let ids: Vec<Arc<str>> = self.triggers.range(first..next).take(most).map(|((_, id), _)| id.clone()).collect();
        let taken = ids.into_iter().filter_map(|id| Some((id.clone(), self.unregister_trigger(&id, subscriber)?)));
        let taken = taken.collect();
        self.forget_usage(subscriber);
        taken
    }

    /// Forgets what a client has registered once that is nothing.
    fn forget_usage(&mut self, number: u64) {
        if self.usage.get(&number).is_some_and(|usage| usage.entries == 0) && !self.clients.contains_key(&number) {
            self.usage.remove(&number);
        }
    }

    /// Moves all registrations of one client to another that took over its identity.
    pub fn change_owner(&mut self, from: u64, to: &Arc<Client>) {
        self.clients.remove(&from);
        for (id, mut trigger) in self.take_triggers(from) {
            self.unregister_trigger(&id, to.number);
            trigger.subscriber = to.clone();
            self.insert_trigger(id, trigger);
        }
        if let Some(moved) = self.usage.remove(&from) {
            for id in &moved.functions {
                self.functions.get_mut(id).into_iter().for_each(|function| function.owner = to.clone());
            }
            for id in &moved.types {
                self.types.get_mut(id).into_iter().for_each(|found| found.owner = to.clone());
            }
            let usage = self.usage.entry(to.number).or_default();
            usage.entries += moved.entries;
            usage.bytes += moved.bytes;
            usage.functions.extend(moved.functions);
            usage.types.extend(moved.types);
        }
    }

    fn charge(&mut self, owner: u64, bytes: usize) -> Result<(), TooManyRegistrations> {
        let usage = self.usage.entry(owner).or_default();
        let bytes_max = if self.total_bytes + bytes > TOTAL_BYTES_MAX { FAIR_BYTES } else { BYTES_MAX };
        if usage.entries >= ENTRIES_MAX || usage.bytes + bytes > bytes_max {
            return Err(TooManyRegistrations);
        }
        usage.entries += 1;
        usage.bytes += bytes;
        self.total_bytes += bytes;
        Ok(())
    }

    fn refund(&mut self, owner: u64, bytes: usize) {
        if let Some(usage) = self.usage.get_mut(&owner) {
            usage.entries = usage.entries.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(bytes);
            self.total_bytes = self.total_bytes.saturating_sub(bytes);
        }
    }
}

/// The memory cost of a registration besides its texts.
const FIXED_BYTES: usize = 256;

/// The filter of a binding is kept parsed, and each of its values takes about this much then.
const PARSED_VALUE_BYTES: usize = 600;

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
        let optional = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        // The feed keeps the metadata too, and the id is the key of two maps.
        FIXED_BYTES
            + 2 * id.len()
            + self.config.len()
            + PARSED_VALUE_BYTES * values_below(&self.config)
            + self.function_id.len()
            + self.trigger_type.len()
            + 2 * optional(&self.metadata)
            + optional(&self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::surface::socket::outbox::{Outbox, OutboxLimits};

    fn client(number: u64) -> Arc<Client> {
        let outbox = Outbox::new(OutboxLimits::default(), Arc::new(AtomicUsize::new(0)));
        Arc::new(Client::new(number, None, crate::access::Identity::open(), 8, Arc::new(outbox), 0))
    }

    fn function(owner: &Arc<Client>, metadata: Option<String>) -> Function {
        let owner = owner.clone();
        Function { owner, description: None, request_format: None, response_format: None, metadata }
    }

    fn trigger(subscriber: &Arc<Client>) -> Trigger {
        Trigger {
            subscriber: subscriber.clone(),
            trigger_type: "cron".into(),
            function_id: "f".into(),
            config: "{}".into(),
            metadata: None,
            namespace: None,
            forwarded_id: "".into(),
        }
    }

    fn leaves(registry: &mut Registry, number: u64) -> Vec<(Arc<str>, Trigger)> {
        registry.remove_client(number);
        registry.take_some_triggers(number, usize::MAX)
    }

    #[test]
    fn a_client_that_leaves_in_parts_is_gone_at_once_and_forgotten_at_the_end() {
        let (mut registry, one, two) = (Registry::default(), client(1), client(2));
        registry.add_client(one.clone());
        registry.register_function("f", function(&one, None)).unwrap();
        for id in 0..10 {
            registry.register_trigger(&id.to_string(), trigger(&one)).unwrap();
        }
        registry.register_trigger("2", trigger(&two)).unwrap();
        registry.remove_client(1);
        assert!(registry.function("f").is_none() && registry.client_by_id(&one.id).is_none());
        let parts = [4, 4, 4, 4].map(|most| registry.take_some_triggers(1, most).len());
        assert_eq!(parts, [4, 4, 2, 0]);
        assert!(!registry.usage.contains_key(&1), "nothing of it is left");
        assert_eq!((registry.triggers().count(), registry.usage.len()), (1, 1));
        leaves(&mut registry, 2);
        assert_eq!((registry.total_bytes, registry.is_empty()), (0, true));
    }

    #[test]
    fn the_first_to_register_a_function_keeps_it_until_it_leaves() {
        let (mut registry, one, two) = (Registry::default(), client(1), client(2));
        registry.register_function("f", function(&one, None)).unwrap();
        registry.register_function("f", function(&one, None)).unwrap();
        let refused = registry.register_function("f", function(&two, None));
        assert_eq!(refused, Err(RegisterError::OwnedBy(one.id.clone())));
        registry.unregister_function("f", 2);
        assert!(registry.function("f").is_some());
        registry.remove_client(1);
        registry.register_function("f", function(&two, None)).unwrap();
    }

    #[test]
    fn bindings_wait_for_their_type_and_go_to_its_latest_owner() {
        let (mut registry, one, two) = (Registry::default(), client(1), client(2));
        registry.register_trigger("b", trigger(&one)).unwrap();
        let new_type = |owner: &Arc<Client>| TriggerType {
            owner: owner.clone(),
            description: None,
            trigger_request_format: None,
            call_request_format: None,
        };
        assert_eq!(registry.register_type("cron", new_type(&one)).unwrap().len(), 1);
        assert_eq!(registry.register_type("cron", new_type(&two)).unwrap().len(), 1);
        registry.unregister_type("cron", 1);
        assert_eq!(registry.type_owner("cron").unwrap().number, 2);
        assert_eq!(leaves(&mut registry, 1).len(), 1);
        assert!(registry.trigger(1, "b").is_none());
    }

    #[test]
    fn two_clients_may_use_the_same_id_for_their_bindings() {
        let (mut registry, one, two) = (Registry::default(), client(1), client(2));
        let first = registry.register_trigger("b", trigger(&one)).unwrap();
        let second = registry.register_trigger("b", trigger(&two)).unwrap();
        assert_eq!(&*first, "b");
        assert_ne!(first, second);
        assert_eq!(registry.forwarded(&second).unwrap().1.subscriber.number, 2);
        assert!(registry.unregister_trigger("b", 2).is_some());
        assert_eq!(registry.forwarded("b").unwrap().1.subscriber.number, 1);
        assert_eq!(leaves(&mut registry, 1).len(), 1);
        assert!(registry.forwarded("b").is_none() && registry.total_bytes == 0);
    }

    #[test]
    fn all_clients_together_cannot_register_without_end() {
        let mut registry = Registry::default();
        let clients: Vec<_> = (1..100).map(client).collect();
        for one in &clients {
            let large = function(one, Some("x".repeat(BYTES_MAX / 2)));
            let _ = registry.register_function(&one.number.to_string(), large);
        }
        assert!(registry.total_bytes <= TOTAL_BYTES_MAX);
        let small = function(&clients[98], Some("x".repeat(FAIR_BYTES / 2)));
        registry.register_function("small", small).expect("a fair share is always there");
    }

    #[test]
    fn a_successor_inherits_every_registration_and_its_cost() {
        let (mut registry, one, two) = (Registry::default(), client(1), client(2));
        registry.add_client(one.clone());
        registry.register_function("f", function(&one, None)).unwrap();
        registry.register_trigger("b", trigger(&one)).unwrap();
        registry.change_owner(1, &two);
        assert_eq!(registry.function("f").unwrap().owner.number, 2);
        assert!(leaves(&mut registry, 1).is_empty());
        registry.register_function("f", function(&two, None)).unwrap();
        assert!(registry.unregister_trigger("b", 2).is_some());
        assert_eq!(registry.usage[&2].entries, 1);
    }

    #[test]
    fn many_clients_with_many_functions_leave_without_a_look_at_those_of_others() {
        let mut registry = Registry::default();
        let clients: Vec<_> = (1..=4_000).map(client).collect();
        for one in &clients {
            for nth in 0..50 {
                registry.register_function(&format!("{}::{nth}", one.number), function(one, None)).unwrap();
            }
        }
        // One pass over all functions for each client would take minutes here.
        for one in &clients {
            leaves(&mut registry, one.number);
        }
        assert!(registry.is_empty() && registry.usage.is_empty() && registry.total_bytes == 0);
    }

    #[test]
    fn the_bindings_of_a_type_are_found_without_a_look_at_the_others() {
        let mut registry = Registry::default();
        let clients: Vec<_> = (1..=50).map(client).collect();
        for one in &clients {
            for nth in 0..1_000 {
                registry.register_trigger(&format!("b{nth}"), trigger(one)).unwrap();
            }
        }
        let watcher = client(51);
        let rare = Trigger { trigger_type: "rare".into(), ..trigger(&watcher) };
        registry.register_trigger("w", rare.clone()).unwrap();
        // One pass over all bindings for each of these would take minutes here.
        for _ in 0..200_000 {
            assert_eq!(registry.triggers_of_type("rare").count(), 1);
        }
        registry.register_trigger("w", trigger(&watcher)).unwrap();
        assert_eq!(registry.triggers_of_type("rare").count(), 0, "it was replaced by one of another type");
        registry.register_trigger("w", rare).unwrap();
        registry.change_owner(51, &clients[0]);
        assert_eq!(registry.triggers_of_type("rare").count(), 1, "it moved with its client");
        clients.iter().for_each(|one| drop(leaves(&mut registry, one.number)));
        assert!(registry.is_empty() && registry.by_type.is_empty() && registry.forwarded.is_empty());
    }

    #[test]
    fn a_filter_costs_what_it_takes_when_it_is_parsed() {
        let (mut registry, one) = (Registry::default(), client(1));
        let objects = format!(r#"{{"metadata":{{"k":[{}0]}}}}"#, r#"{"":{}},"#.repeat(8_000));
        assert!(objects.len() < 66_000);
        let large = |config: &str| Trigger { config: config.into(), ..trigger(&one) };
        assert_eq!(registry.register_trigger("b", large(&objects)), Err(TooManyRegistrations));
        registry.register_trigger("b", large(r#"{"metadata":{"owner":"u_1"}}"#)).unwrap();
    }

    #[test]
    fn one_worker_cannot_register_without_end() {
        let (mut registry, one) = (Registry::default(), client(1));
        let large = || function(&one, Some("x".repeat(BYTES_MAX / 2)));
        registry.register_function("a", large()).unwrap();
        assert_eq!(registry.register_function("b", large()), Err(RegisterError::TooMany));
        registry.register_function("a", large()).unwrap();
    }
}
