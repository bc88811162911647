//! Owns: the replay: the pure machine applies the committed log to an empty state. Every node must have the same
//! states. The other oracles compare with it. Never: checks of what clients saw.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use session_manager::machine::apply::beside::Beside;
use session_manager::machine::apply::fork::ForkSession;
use session_manager::machine::apply::long::LongWork;
use session_manager::machine::apply::store::StoreWrite;
use session_manager::machine::apply::update_message::{NewContent, UpdateMessage};
use session_manager::machine::change::{Change, SessionChange};
use session_manager::machine::entry::Body;
use session_manager::machine::event::Event;
use session_manager::machine::ids::{RequestId, SessionId};
use session_manager::machine::json::Json;
use session_manager::machine::long::PendingFork;
use session_manager::machine::model::ModelCommand;
use session_manager::machine::model::access::AgentAccess;
use session_manager::machine::model::profile::Terms;
use session_manager::machine::refusal::{Fault, Refusal};
use session_manager::machine::scope::Scope;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::turn::TurnCommand;
use session_manager::machine::turn::due::Due;
use session_manager::machine::view::View;
use session_manager::machine::{self, Answer, Command, Outcome, Query, Stamped};
use session_manager::replication::chain;
use session_manager::requests::{Decision, Done, Function, Limits, find};
use session_manager::storage::log::command::Order;
use session_manager::storage::log::record::Payload;
use session_manager::storage::state::kv::{Changed, Kv, Visit, scan_map};
use session_manager::storage::state::{Encoded, Records, entry, key, write};
use xxhash_rust::xxh3::xxh3_128;

use crate::history::{History, Operation};

/// The limits of every node in a run.
pub const LIMITS: Limits = Limits { default_list_limit: 50, max_list_limit: 500, model: TERMS };

/// The numbers of the session model. All its times but the longest fall into the seconds that a run has.
pub const TERMS: Terms = Terms {
    checkpoint_turns: 2,
    checkpoint_passive: 3,
    idle_ms: 1_000,
    inactive_ms: 3_000,
    group_owner_always: true,
    access: AgentAccess::Public,
};

/// A state: ordered pairs. The search for an order of calls compares and copies states very often, so pairs are shared,
/// and states are compared by the sum of the hashes of their pairs.
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

/// What one pair adds to the sum of a state. The length of the key comes first, so no two pairs hash the same bytes.
fn weight(key: &[u8], value: &[u8]) -> u128 {
    // One short buffer is much faster than a streaming hash, which begins with several hundred bytes.
    let length = (key.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(length.len() + key.len() + value.len());
    [&length, key, value].into_iter().for_each(|part| bytes.extend_from_slice(part));
    xxh3_128(&bytes)
}

/// Adds a pair to the sum of a state. The order of the pairs makes no difference.
pub fn add(sum: u128, key: &[u8], value: &[u8]) -> u128 {
    sum.wrapping_add(weight(key, value))
}

impl Kv for State {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<(), Fault> {
        scan_map(&self.pairs, from, to, visit)
    }
}

impl State {
    /// The sum over its pairs, as `add` computes it.
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
                    self.sum = add(self.sum, key, value);
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
        let changed = write(self, &Encoded::new(&outcome.changes))?;
        self.merge(&changed);
        Ok(outcome)
    }

    /// Applies an entry of the log, whose events the state keeps. Returns the changed keys too.
    pub fn commit(&mut self, index: u64, stamped: &Stamped) -> Result<(Outcome, Changed), Fault> {
        let mut outcome = machine::apply(&self.view(), stamped)?;
        machine::feed_record::record_events(index, &mut outcome);
        let changed = write(self, &Encoded::new(&outcome.changes))?;
        self.merge(&changed);
        Ok((outcome, changed))
    }

    pub fn ask(&self, question: &Query) -> Result<Result<machine::Found, Refusal>, Fault> {
        machine::query(&self.view(), question)
    }
}

/// One command of the log and its outcome.
pub struct Step {
    pub index: u64,
    /// With the effective time, which is never behind the clock of the state.
    pub stamp: Stamp,
    /// For a fork that took several commands: the stamp of the first.
    pub began: Option<Stamp>,
    /// The session whose deleted entries this command frees, or whose turn it is about.
    pub freed: Option<SessionId>,
    /// The due time that it fires.
    pub fired: Option<Due>,
    pub request_id: RequestId,
    pub is_retry: bool,
    /// The scope of its caller.
    pub scope: Option<Arc<Scope>>,
    /// With its whole content. `None` for commands that no client sent: a patch that did not fit, and commands of the
    /// feed.
    pub command: Option<Command>,
    pub answer: Result<Answer, Refusal>,
    pub events: Vec<Event>,
    /// The changed keys.
    pub changed: Changed,
    /// Whether it took effect.
    pub effective: bool,
}

impl Step {
    /// The session of the command: the one it names, or the one it created.
    pub fn session_id(&self) -> Option<&SessionId> {
        match &self.answer {
            Ok(Answer::Created { meta }) => Some(&meta.session_id),
            Ok(_) | Err(_) => self.freed.as_ref().or(self.command.as_ref().and_then(Command::session_id)),
        }
    }

    /// The session that a fork created.
    pub fn forked(&self) -> Option<&SessionId> {
        match &self.answer {
            Ok(Answer::Forked { meta }) => Some(&meta.session_id),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Identifies a command and the scope of its caller, without its stamp: equal requests of equal callers have equal keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandKey(Bytes);

impl CommandKey {
    pub fn of(command: &Command, scope: Option<&Arc<Scope>>) -> CommandKey {
        let stamp = Stamp { at_ms: 0, seed: 0 };
        let (scope, command) = (scope.cloned(), command.clone());
        let stamped = Stamped { stamp, request_id: RequestId::NONE, is_retry: false, scope, command };
        CommandKey(Order::new(stamped).encoded().clone())
    }
}

/// The log, applied.
pub struct Replay {
    /// The commands, in log order.
    pub steps: Vec<Step>,
    /// After each entry of the log: the state hash, and the sum over the state.
    pub states: BTreeMap<u64, (u128, u128)>,
    pub state: State,
    /// By command, the steps that took effect, in log order.
    pub effects: BTreeMap<CommandKey, Vec<usize>>,
    /// The requests of the operations, parsed once for all oracles.
    asked: Vec<(Asked, &'static Function)>,
}

impl Replay {
    /// Errors: a gap in the log, or an entry that the machine cannot apply.
    pub fn of(history: &History) -> Result<Replay, String> {
        let (mut steps, mut states, mut state) = (Vec::new(), BTreeMap::new(), State::default());
        let mut effects: BTreeMap<CommandKey, Vec<usize>> = BTreeMap::new();
        let (mut hash, mut next) = (0, None);
        for (index, entry) in history.log() {
            if next.is_some_and(|next| next != index) || (next.is_none() && index != 0) {
                return Err(format!("the committed log has no entry {}", next.unwrap_or(0)));
            }
            next = Some(index + 1);
            let mut changes = Vec::new();
            if let Payload::Command(order) = &entry.payload {
                let step = execute(&mut state, index, order.stamped(), &mut changes)
                    .map_err(|fault| format!("entry {index} cannot be applied: {fault}"))?;
                if step.effective
                    && let Some(command) = &step.command
                {
                    effects.entry(CommandKey::of(command, step.scope.as_ref())).or_default().push(steps.len());
                }
                steps.push(step);
            }
            hash = chain::link(hash, index, &Encoded::new(&changes));
            states.insert(index, (hash, state.contents()));
        }
        let asked = history.operations.iter().map(asked).collect();
        Ok(Replay { steps, states, state, effects, asked })
    }

    /// The request of an operation of this run.
    pub fn asked(&self, operation: &Operation) -> (&Asked, &'static Function) {
        let (asked, function) = &self.asked[operation.id];
        (asked, function)
    }
}

fn execute(state: &mut State, index: u64, stamped: &Stamped, changes: &mut Vec<Change>) -> Result<Step, Fault> {
    let at_ms = stamped.stamp.at_ms.max(state.view().clock_ms()?);
    let command = in_full(state, &stamped.command)?;
    let began = begun_fork(state, &stamped.command)?.map(|pending| pending.stamp);
    let (outcome, mut changed) = state.commit(index, stamped)?;
    // Only the last command of a fork is what its client asked for: the others show nothing.
    let shows = matches!(outcome.answer, Ok(Answer::Forked { .. }));
    let is_part = matches!(stamped.command, Command::Long(LongWork::ContinueFork { .. })) && !shows;
    let command = command.filter(|_| !is_part);
    // What the earlier commands of a fork copied shows with the last one.
    if let (Some(_), Ok(Answer::Forked { meta })) = (&began, &outcome.answer) {
        let prefix = entry::prefix(&meta.session_id);
        state.scan(&prefix, key::after(&prefix).as_deref(), &mut |key, value| {
            changed.insert(key.to_vec(), Some(value.clone()));
            ControlFlow::Continue(())
        })?;
    }
    let freed = match &stamped.command {
        Command::Long(LongWork::Free { leftover, .. }) => Some(leftover.session_id.clone()),
        Command::Long(LongWork::FreeRecords { leftover, .. }) => Some(leftover.session_id.clone()),
        // A driver names the turn only.
        Command::Beside(_) => outcome.events.first().map(|event| event.session_id.clone()),
        _other => None,
    };
    let fired = match &stamped.command {
        Command::Beside(Beside::Turn(TurnCommand::Fire(due)) | Beside::Model(ModelCommand::Due(due))) => {
            Some(due.clone())
        }
        _other => None,
    };
    let effective = outcome.answer.is_ok() && outcome.has_effect();
    *changes = outcome.changes;
    Ok(Step {
        index,
        stamp: Stamp { at_ms, ..stamped.stamp },
        began,
        freed,
        fired,
        request_id: stamped.request_id,
        is_retry: stamped.is_retry,
        scope: stamped.scope.clone(),
        command,
        answer: outcome.answer,
        events: outcome.events,
        changed,
        effective,
    })
}

/// The fork that a command continues.
fn begun_fork(state: &State, command: &Command) -> Result<Option<PendingFork>, Fault> {
    let Command::Long(LongWork::ContinueFork { source, fork, .. }) = command else { return Ok(None) };
    Ok(state.view().forks_of(source)?.into_iter().find(|pending| pending.fork == *fork))
}

/// The command whose work this is, at its visible moment.
fn asked_for(state: &State, work: &LongWork) -> Result<Option<Command>, Fault> {
    Ok(match work {
        LongWork::Delete(delete) => Some(Command::Delete(delete.clone())),
        LongWork::DeleteEntries(session_id) => {
            Some(Command::Store(StoreWrite::Session(session_id.clone(), SessionChange::DeleteEntries)))
        }
        LongWork::Import(import) => Some(Command::Import((**import).clone())),
        LongWork::ContinueFork { .. } => {
            let pending = begun_fork(state, &Command::Long(work.clone()))?;
            let asked = |pending: PendingFork| {
                let PendingFork { source, entry_id, title, .. } = pending;
                Command::Fork(ForkSession { session_id: source, entry_id, title })
            };
            pending.map(asked)
        }
        LongWork::BeginFork(_) | LongWork::GiveUpFork { .. } | LongWork::Free { .. } | LongWork::FreeRecords { .. } => {
            None
        }
    })
}

/// The command as its client sent it: the log may hold a patch in place of the whole content, or a part of the work.
fn in_full(state: &State, command: &Command) -> Result<Option<Command>, Fault> {
    let update = match command {
        Command::Feed(_) => return Ok(None),
        Command::Beside(Beside::Model(ModelCommand::Due(_))) => return Ok(None),
        Command::Beside(Beside::Model(_)) => return Ok(Some(command.clone())),
        Command::Beside(command) if command.is_internal() => return Ok(None),
        Command::Long(work) => return asked_for(state, work),
        Command::UpdateMessage(update) => update,
        whole => return Ok(Some(whole.clone())),
    };
    let NewContent::Patch(patch) = &update.content else { return Ok(Some(command.clone())) };
    let entry = state.view().entry(&update.session_id, &update.entry_id)?;
    let base = entry.filter(|entry| entry.revision == patch.base_revision).and_then(|entry| match entry.body {
        Body::Message(message) => message.content(),
        Body::Custom { .. } => None,
    });
    let text = base.and_then(|base| patch.onto(base.text()));
    let whole = |text: String| UpdateMessage { content: NewContent::Full(Json::adopt(&text)), ..update.clone() };
    Ok(text.map(|text| Command::UpdateMessage(whole(text))))
}

/// A request as the product parses it.
pub enum Asked {
    Mutation(Command),
    Question(Query),
    /// Refused without looking at the state, because of the request or the caller.
    Malformed,
    /// About the node, not about the state.
    Operational,
}

/// The question of a caller with a scope is asked within the scope. A command has its scope beside it.
pub fn asked(operation: &Operation) -> (Asked, &'static Function) {
    let function = find(operation.function, true).expect("the workload calls existing functions");
    if operation.is_forbidden() {
        return (Asked::Malformed, function);
    }
    let within = |query: Query| match &operation.scope {
        Some(scope) => Query::Within { scope: scope.clone(), query: Box::new(query) },
        None => query,
    };
    let asked = match (function.decide)(&operation.request.to_string(), &LIMITS) {
        Ok(Decision::Propose(command) | Decision::ProposeOnce { command, .. }) => Asked::Mutation(command),
        Ok(Decision::Ask(question)) => Asked::Question(within(question)),
        Ok(Decision::ConfigStatus | Decision::ReloadConfig | Decision::Introduce { .. }) => Asked::Operational,
        Err(_) => Asked::Malformed,
    };
    (asked, function)
}

/// The response as a client reads it.
pub fn response(function: &Function, done: Done) -> Value {
    let printed = (function.respond)(done).unwrap_or_default();
    serde_json::from_str(&printed.into_text()).unwrap_or(Value::Null)
}
