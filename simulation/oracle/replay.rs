//! Owns: the committed log carried out once more by the pure machine, from nothing: what every node must have come to.
//! The other oracles compare with it. Never: judge what clients saw.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use serde_json::Value;
use session_manager::machine::apply::update_message::{NewContent, UpdateMessage};
use session_manager::machine::entry::Body;
use session_manager::machine::event::Event;
use session_manager::machine::ids::{RequestId, SessionId};
use session_manager::machine::json::Json;
use session_manager::machine::refusal::{Fault, Refusal};
use session_manager::machine::stamp::Stamp;
use session_manager::machine::view::{Change, View};
use session_manager::machine::{self, Answer, Command, Outcome, Query, Stamped};
use session_manager::replication::chain;
use session_manager::requests::{Decision, Done, Function, Limits, find};
use session_manager::storage::kv::{Changed, Kv, Visit};
use session_manager::storage::log::command::Order;
use session_manager::storage::log::record::Payload;
use session_manager::storage::view::{Records, write};
use xxhash_rust::xxh3::Xxh3;

use crate::history::{History, Operation};

/// The limits every node of a run has.
pub const LIMITS: Limits = Limits { default_list_limit: 50, max_list_limit: 500 };

/// A state: ordered pairs, comparable as a whole. The search for an order of calls compares and copies states all the time,
/// so pairs are shared, and a state is known by the sum of the hashes of its pairs.
#[derive(Debug, Clone, Default)]
pub struct State {
    pairs: BTreeMap<Bytes, Bytes>,
    sum: u128,
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.sum == other.sum && self.pairs.len() == other.pairs.len()
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.sum.hash(hasher);
    }
}

/// What one pair adds to the sum of a state. The length of the key stands first: no two pairs spell the same bytes.
fn weight(key: &[u8], value: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(value);
    hash.digest128()
}

/// What the pairs of a whole state add up to. Order does not matter.
pub fn sum(pairs: impl Iterator<Item = (Vec<u8>, Bytes)>) -> u128 {
    pairs.fold(0, |sum: u128, (key, value)| sum.wrapping_add(weight(&key, &value)))
}

impl Kv for State {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault> {
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
        for (key, value) in self.pairs.range::<[u8], _>((Bound::Included(from), upper)) {
            if visit(key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

impl State {
    /// What its pairs add up to, as `sum` counts.
    pub fn contents(&self) -> u128 {
        self.sum
    }

    pub fn view(&self) -> Records<'_, State> {
        Records::new(self)
    }

    pub fn merge(&mut self, changed: &Changed) {
        for (key, value) in changed {
            let before = match value {
                Some(value) => {
                    self.sum = self.sum.wrapping_add(weight(key, value));
                    self.pairs.insert(Bytes::copy_from_slice(key), value.clone())
                }
                None => self.pairs.remove(key.as_slice()),
            };
            if let Some(before) = before {
                self.sum = self.sum.wrapping_sub(weight(key, &before));
            }
        }
    }

    pub fn apply(&mut self, stamped: &Stamped) -> Result<Outcome, Fault> {
        let outcome = machine::apply(&self.view(), stamped)?;
        let changed = write(self, &outcome.changes)?;
        self.merge(&changed);
        Ok(outcome)
    }

    /// The same as an entry of the log, whose events the state keeps; and what its keys became.
    pub fn commit(&mut self, index: u64, stamped: &Stamped) -> Result<(Outcome, Changed), Fault> {
        let mut outcome = machine::apply(&self.view(), stamped)?;
        machine::feed::record(index, &mut outcome);
        let changed = write(self, &outcome.changes)?;
        self.merge(&changed);
        Ok((outcome, changed))
    }

    pub fn ask(&self, question: &Query) -> Result<Result<machine::Found, Refusal>, Fault> {
        machine::query(&self.view(), question)
    }
}

/// One command of the log and what it brought about.
pub struct Step {
    pub index: u64,
    /// With the time that counted: never behind the clock of the state.
    pub stamp: Stamp,
    pub request_id: RequestId,
    pub repeated: bool,
    /// With its whole content; `None` for what no client asked for in these words: a patch that did not fit, and what
    /// nodes order of the feed themselves.
    pub command: Option<Command>,
    pub answer: Result<Answer, Refusal>,
    pub events: Vec<Event>,
    /// What the keys of the state became.
    pub changed: Changed,
    /// Whether anything came of it.
    pub effective: bool,
}

impl Step {
    /// The session a command was about: the one it named, or the one it made.
    pub fn session_id(&self) -> Option<&SessionId> {
        match &self.answer {
            Ok(Answer::Created { meta }) => Some(&meta.session_id),
            Ok(_) | Err(_) => self.command.as_ref()?.session_id(),
        }
    }

    /// The session that a fork made.
    pub fn forked(&self) -> Option<&SessionId> {
        match &self.answer {
            Ok(Answer::Forked { meta }) => Some(&meta.session_id),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Names a command whoever asked for it: equal requests have equal deeds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deed(Bytes);

impl Deed {
    pub fn of(command: &Command) -> Deed {
        let stamp = Stamp { at_ms: 0, seed: 0 };
        let request_id = RequestId::UNREPEATED;
        Deed(Order::new(Stamped { stamp, request_id, repeated: false, command: command.clone() }).encoded().clone())
    }
}

/// The log, carried out.
pub struct Replay {
    /// The commands, in log order.
    pub steps: Vec<Step>,
    /// The state hash after each entry of the log, and the sum of what the state holds then.
    pub states: BTreeMap<u64, (u128, u128)>,
    pub state: State,
    /// By deed, the steps that had an effect, in log order.
    pub effects: BTreeMap<Deed, Vec<usize>>,
}

impl Replay {
    /// Errors: a gap in the log, or an entry the machine cannot carry out.
    pub fn of(history: &History) -> Result<Replay, String> {
        let (mut steps, mut states, mut state) = (Vec::new(), BTreeMap::new(), State::default());
        let mut effects: BTreeMap<Deed, Vec<usize>> = BTreeMap::new();
        let (mut hash, mut scratch, mut next) = (0, Vec::new(), None);
        for (index, entry) in history.log() {
            if next.is_some_and(|next| next != index) || (next.is_none() && index != 0) {
                return Err(format!("the committed log has no entry {}", next.unwrap_or(0)));
            }
            next = Some(index + 1);
            let mut changes = Vec::new();
            if let Payload::Command(order) = &entry.payload {
                let step = carry_out(&mut state, index, order.stamped(), &mut changes)
                    .map_err(|fault| format!("entry {index} cannot be applied: {fault}"))?;
                if step.effective
                    && let Some(command) = &step.command
                {
                    effects.entry(Deed::of(command)).or_default().push(steps.len());
                }
                steps.push(step);
            }
            hash = chain::link(hash, index, &changes, &mut scratch);
            states.insert(index, (hash, state.contents()));
        }
        Ok(Replay { steps, states, state, effects })
    }
}

fn carry_out(state: &mut State, index: u64, stamped: &Stamped, changes: &mut Vec<Change>) -> Result<Step, Fault> {
    let at_ms = stamped.stamp.at_ms.max(state.view().clock_ms()?);
    let command = in_full(state, &stamped.command)?;
    let (outcome, changed) = state.commit(index, stamped)?;
    let effective = outcome.answer.is_ok() && outcome.has_effect();
    *changes = outcome.changes;
    Ok(Step {
        index,
        stamp: Stamp { at_ms, ..stamped.stamp },
        request_id: stamped.request_id,
        repeated: stamped.repeated,
        command,
        answer: outcome.answer,
        events: outcome.events,
        changed,
        effective,
    })
}

/// The command as its caller spelled it: an update may travel as what changes against the state.
fn in_full(state: &State, command: &Command) -> Result<Option<Command>, Fault> {
    let update = match command {
        Command::Feed(_) => return Ok(None),
        Command::UpdateMessage(update) => update,
        Command::Create(_)
        | Command::Ensure(_)
        | Command::SetMeta(_)
        | Command::SetStatus(_)
        | Command::Delete(_)
        | Command::Append(_)
        | Command::AppendMany(_)
        | Command::Fork(_)
        | Command::SetActiveLeaf(_)
        | Command::Store(_) => return Ok(Some(command.clone())),
    };
    let NewContent::Patch(patch) = &update.content else { return Ok(Some(command.clone())) };
    let entry = state.view().entry(&update.session_id, &update.entry_id)?;
    let base = entry.filter(|entry| entry.revision == patch.base_revision).and_then(|entry| match entry.body {
        Body::Message(message) => message.content_text(),
        Body::Custom { .. } => None,
    });
    let text = base.and_then(|base| patch.onto(&base));
    let whole = |text: String| UpdateMessage { content: NewContent::Full(Json::adopt(&text)), ..update.clone() };
    Ok(text.map(|text| Command::UpdateMessage(whole(text))))
}

/// What a client asked for, as the product reads it.
pub enum Asked {
    Mutation(Command),
    Question(Query),
    /// Refused before anybody looks at the state.
    Malformed,
    /// About the node, not about the state.
    Operational,
}

pub fn asked(operation: &Operation) -> (Asked, &'static Function) {
    let function = find(operation.function, true).expect("the workload calls functions there are");
    let asked = match (function.decide)(&operation.request.to_string(), &LIMITS) {
        Ok(Decision::Propose(command) | Decision::ProposeOnce { command, .. }) => Asked::Mutation(command),
        Ok(Decision::Ask(question)) => Asked::Question(question),
        Ok(Decision::ConfigStatus | Decision::ReloadConfig | Decision::Introduce { .. }) => Asked::Operational,
        Err(_) => Asked::Malformed,
    };
    (asked, function)
}

/// The response as a client reads it.
pub fn response(function: &Function, done: Done) -> Value {
    let printed = (function.respond)(done).unwrap_or_default();
    serde_json::from_str(&printed).unwrap_or(Value::Null)
}
