//! Owns: recording the history of a run, and the same as a timeline for people.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use session_manager::machine::{Command, Stamped};
use session_manager::storage::log::record::{Entry, LogId, Payload};

use crate::determinism;
use crate::history::{
    Applied, Delivery, DiskSpeed, Fault, GatewayFrame, History, Life, LifeEvent, Moment, Operation, Outcome, Place,
    Sample, Subscription,
};
use crate::tenant::Tenant;

/// A line of the timeline.
#[derive(Debug, Clone)]
pub struct Line {
    /// The order of the last moment before it.
    pub order: u64,
    pub text: String,
}

/// An event as a subscriber reads it.
pub struct Received {
    pub place: Place,
    pub seq: u64,
    /// The events of the session that were left out before it: the first and the last sequence number.
    pub skipped: Option<(u64, u64)>,
    pub kind: String,
    pub session_id: String,
    pub payload: Value,
}

/// A call as a client makes it.
pub struct Made<'a> {
    pub client: usize,
    pub tenant: Tenant,
    pub node: u64,
    pub function: &'static str,
    pub request: &'a Value,
    /// The first call with this request, if this one repeats it.
    pub repeats: Option<usize>,
}

/// Shared by all clients, nodes and subscribers of a run.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    history: History,
    order: u64,
    /// One line per recorded event.
    timeline: Vec<Line>,
}

impl Recorded {
    fn moment(&mut self) -> Moment {
        self.order += 1;
        Moment { order: self.order, at_ms: determinism::now().as_millis() as u64 }
    }

    fn say(&mut self, who: &str, words: &str) {
        let at_ms = determinism::now().as_millis();
        self.timeline.push(Line { order: self.order, text: format!("{at_ms:>6} ms  {who:<12} {words}") });
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line to the timeline only.
    pub fn say(&self, who: &str, words: &str) {
        self.lock().say(who, words);
    }

    pub fn called(&self, made: &Made<'_>) -> usize {
        let Made { client, tenant, node, function, request, repeats } = *made;
        let mut recorded = self.lock();
        let (id, called) = (recorded.history.operations.len(), recorded.moment());
        let again = repeats.map(|first| format!(" (retry of #{first})")).unwrap_or_default();
        let as_owner = tenant.owner().map(|owner| format!(" as {owner}")).unwrap_or_default();
        let words = format!("#{id}{again}{as_owner} → node {node} {function} {request}");
        recorded.say(&format!("client {client}"), &words);
        recorded.history.operations.push(Operation {
            id,
            client,
            scope: tenant.scope(),
            node,
            function,
            request: request.clone(),
            repeats,
            called,
            returned: None,
            outcome: Outcome::Unknown("the run ended before the answer".to_owned()),
        });
        id
    }

    pub fn returned(&self, id: usize, outcome: &Outcome) {
        let mut recorded = self.lock();
        let returned = recorded.moment();
        let words = match outcome {
            Outcome::Answered(answer) => format!("#{id} ← {answer}"),
            Outcome::Refused { code, message } => format!("#{id} ← refused, {code}: {message}"),
            Outcome::Unavailable(why) => format!("#{id} ← not executed: {why}"),
            Outcome::Unknown(why) => format!("#{id} ← unknown: {why}"),
        };
        let client = recorded.history.operations[id].client;
        recorded.say(&format!("client {client}"), &words);
        let operation = &mut recorded.history.operations[id];
        operation.returned = Some(returned);
        operation.outcome = outcome.clone();
    }

    pub fn bound(&self, subscriber: usize, node: u64, tenant: Tenant, after: Option<Place>) -> usize {
        let mut recorded = self.lock();
        let (id, bound) = (recorded.history.subscriptions.len(), recorded.moment());
        recorded.say(&format!("listener {subscriber}"), &format!("bound ~{id} on node {node} after {after:?}"));
        recorded.history.subscriptions.push(Subscription {
            id,
            subscriber,
            node,
            scope: tenant.scope(),
            after,
            bound,
            ended: None,
        });
        id
    }

    pub fn unbound(&self, subscription: usize, why: &str) {
        let mut recorded = self.lock();
        let ended = recorded.moment();
        let subscriber = recorded.history.subscriptions[subscription].subscriber;
        recorded.say(&format!("listener {subscriber}"), &format!("~{subscription} ended: {why}"));
        recorded.history.subscriptions[subscription].ended = Some(ended);
    }

    pub fn heard(&self, subscription: usize, received: Received) {
        let Received { place, seq, skipped, kind, session_id, payload } = received;
        let mut recorded = self.lock();
        let heard = recorded.moment();
        let subscriber = recorded.history.subscriptions[subscription].subscriber;
        let left_out = skipped.map(|(first, last)| format!(" (left out: {first} to {last})")).unwrap_or_default();
        let words = format!(
            "~{subscription} {}.{} {kind} {session_id:?} seq {seq}{left_out} {payload}",
            place.index, place.ordinal
        );
        recorded.say(&format!("listener {subscriber}"), &words);
        recorded.history.deliveries.push(Delivery {
            subscription,
            heard,
            kind,
            session_id,
            seq,
            skipped,
            place,
            payload,
        });
    }

    /// What a client of the gateway heard, now.
    pub fn gateway(&self, heard: GatewayFrame) {
        let mut recorded = self.lock();
        let at = recorded.moment();
        recorded.say(&format!("front-end {}", heard.client), &format!("node {} {}", heard.node, heard.frame));
        recorded.history.gateway.push(GatewayFrame { at, ..heard });
    }

    pub fn applied(&self, node: u64, boot: u32, entries: Vec<Entry>) {
        let mut recorded = self.lock();
        for entry in entries {
            let noticed = recorded.moment();
            let what = match &entry.payload {
                Payload::Blank => "a leader's first entry".to_owned(),
                Payload::Command(order) => describe(order.stamped()),
                Payload::Membership(membership) => format!("voters {:?}", membership.configs),
            };
            recorded.say(&format!("node {node}"), &format!("applied {}: {what}", entry.id));
            recorded.history.applied.push(Applied { node, boot, noticed, entry });
        }
    }

    pub fn sample(&self, node: u64, boot: u32, applied: LogId, state_hash: u128, contents: Option<u128>) {
        let mut recorded = self.lock();
        let at = recorded.moment();
        let held = contents.map(|contents| format!(", which holds {contents:032x}")).unwrap_or_default();
        recorded.say(&format!("node {node}"), &format!("state {state_hash:032x} at {applied}{held}"));
        recorded.history.samples.push(Sample { node, boot, at, applied, state_hash, contents });
    }

    pub fn fault(&self, kind: &'static str, words: String) {
        let mut recorded = self.lock();
        let at = recorded.moment();
        recorded.say("nemesis", &format!("{kind}: {words}"));
        recorded.history.faults.push(Fault { at, kind, words });
    }

    pub fn life(&self, node: u64, boot: u32, what: LifeEvent) {
        let mut recorded = self.lock();
        let at = recorded.moment();
        recorded.say(&format!("node {node}"), &format!("boot {boot}: {what:?}"));
        recorded.history.lives.push(Life { at, node, boot, what });
    }

    /// A sync of this node takes so long from now on; 0 for the usual speed.
    pub fn disk_speed(&self, node: u64, sync_ms: u64) {
        let mut recorded = self.lock();
        let at = recorded.moment();
        recorded.history.disk_speeds.push(DiskSpeed { at, node, sync_ms });
    }

    /// The cluster is up and faults begin.
    pub fn up(&self, keeps_leader: bool) {
        let mut recorded = self.lock();
        let moment = recorded.moment();
        (recorded.history.up, recorded.history.keeps_leader) = (Some(moment), keeps_leader);
    }

    pub fn healed(&self) {
        let mut recorded = self.lock();
        recorded.say("nemesis", "all faults are mended");
        let moment = recorded.moment();
        recorded.history.healed = Some(moment);
    }

    pub fn rested(&self, voters: BTreeSet<u64>, bridge: u64) {
        let mut recorded = self.lock();
        recorded.say("run", &format!("clients have stopped; the final state of {voters:?} is read"));
        (recorded.history.voters, recorded.history.bridge) = (voters, Some(bridge));
        let moment = recorded.moment();
        recorded.history.rested = Some(moment);
    }

    /// The finished run. Calls without an answer keep an unknown outcome.
    pub fn finish(&self) -> (Vec<Line>, History) {
        let mut recorded = self.lock();
        let end = recorded.moment();
        let mut history = std::mem::take(&mut recorded.history);
        for operation in &mut history.operations {
            operation.returned.get_or_insert(end);
        }
        (std::mem::take(&mut recorded.timeline), history)
    }
}

/// A short description of a command.
fn describe(stamped: &Stamped) -> String {
    let verb = match &stamped.command {
        Command::Create(_) => "create",
        Command::Ensure(_) => "ensure",
        Command::SetMeta(_) => "set-meta",
        Command::SetStatus(_) => "set-status",
        Command::Delete(_) => "delete",
        Command::Append(_) => "append",
        Command::AppendMany(_) => "append-many",
        Command::UpdateMessage(_) => "update-message",
        Command::Fork(_) => "fork",
        Command::SetActiveLeaf(_) => "set-active-leaf",
        Command::Import(_) => "import",
        Command::Store(_) => "store",
        Command::Feed(_) => "feed",
        Command::Long(_) => "long-work",
        Command::Beside(command) => command.name(),
    };
    let session = stamped.command.session_id().map(|session_id| format!(" {:?}", session_id.as_str()));
    let again = if stamped.is_retry { ", retry" } else { "" };
    let scope = stamped.scope.as_ref().map(|scope| format!(", within {}", scope.text())).unwrap_or_default();
    format!("{verb}{} (request {:032x}{again}{scope})", session.unwrap_or_default(), stamped.request_id.0)
}
