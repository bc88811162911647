//! The law of linearizability: there is an order in which the pure machine, executing the calls of one session one by
//! one, gives the same answers, with each call between its start and its answer. A call with an unknown outcome may be
//! executed at any time after its start, or never.
//!
//! Time and randomness of a mutation come from the log, because the leader chose them. The order does not: porcupine
//! searches for it, session by session.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use porcupine_rs::{CheckResult, Model, Operation as Placed, check_operations_timeout};
use serde_json::Value;
use session_manager::machine::apply::fork::ForkSession;
use session_manager::machine::apply::long::LongWork;
use session_manager::machine::change::{Change, WorkChange};
use session_manager::machine::ids::{RequestId, SessionId};
use session_manager::machine::long::{PendingFork, Steps};
use session_manager::machine::refusal::Fault;
use session_manager::machine::scope::Scope;
use session_manager::machine::stamp::Stamp;
use session_manager::machine::{Answer, Command, Outcome as Decided, Query, Stamped};
use session_manager::requests::{Done, Function};
use session_manager::storage::state::{Encoded, write};

use super::Findings;
use super::fresh::{answers, session_of};
use super::groups::{Group, Groups};
use super::replay::{Asked, Replay, State, response};
use crate::history::{History, Moment, Operation, Outcome};

/// A longer search is given up without a result. Other oracles check the same calls.
const SEARCH_MAX: Duration = Duration::from_secs(20);
/// How long to look for the first answer that cannot be explained. After that a later one is named.
const EXPLAIN_MAX: Duration = Duration::from_secs(10);

/// Without a stamp there is no entry in the log, and a command without an effect does not depend on its stamp.
const UNUSED_STAMP: Stamp = Stamp { at_ms: 0, seed: 1 };

/// The answer that a client got.
#[derive(Clone)]
enum Told {
    Answer(Value),
    Refusal(String),
    /// The outcome is unknown: any answer of the machine fits.
    Nothing,
}

/// One call of the model.
#[derive(Clone)]
struct Call {
    /// Its index among the operations, for messages.
    id: usize,
    act: Act,
    told: Told,
}

/// The stamp of a command, and that of its first command if it took several.
type Stamps = (Stamp, Option<Stamp>);

#[derive(Clone)]
enum Act {
    Mutate {
        function: &'static Function,
        command: Arc<Command>,
        scope: Option<Arc<Scope>>,
        /// Equal commands cannot be distinguished: the first one that takes effect uses the first stamp.
        group: usize,
        stamps: Arc<[Stamps]>,
    },
    Ask {
        function: &'static Function,
        question: Arc<Query>,
    },
    /// The session is created as a copy of another one.
    Forked(Arc<State>),
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.id)
    }
}

/// The session, and how many stamps of each group are used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    state: Arc<State>,
    taken: Arc<BTreeMap<usize, usize>>,
}

impl Hash for Session {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state.hash(hasher);
        self.taken.hash(hasher);
    }
}

#[derive(Clone)]
struct Machine;

impl Model for Machine {
    type State = Session;
    type Op = Call;
    type Metadata = ();

    fn init() -> Session {
        Session { state: Arc::default(), taken: Arc::default() }
    }

    fn step(session: &Session, call: &Call) -> (bool, Session) {
        match &call.act {
            Act::Mutate { function, command, scope, group, stamps } => {
                let unstamped = Stamped {
                    stamp: UNUSED_STAMP,
                    request_id: RequestId::NONE,
                    is_retry: false,
                    scope: scope.clone(),
                    command: Command::clone(command),
                };
                mutate(session, &call.told, function, unstamped, *group, stamps)
            }
            Act::Ask { function, question } => {
                let seen = match &call.told {
                    Told::Answer(answer) => Ok(answer),
                    Told::Refusal(code) => Err(code.as_str()),
                    Told::Nothing => return (true, session.clone()),
                };
                (answers(&session.state, question, function, seen), session.clone())
            }
            Act::Forked(state) => {
                (*session.state == State::default(), Session { state: state.clone(), taken: session.taken.clone() })
            }
        }
    }
}

fn mutate(
    session: &Session,
    told: &Told,
    function: &'static Function,
    unstamped: Stamped,
    group: usize,
    stamps: &[Stamps],
) -> (bool, Session) {
    let refused = (false, session.clone());
    let taken = session.taken.get(&group).copied().unwrap_or(0);
    let stamp = stamps.get(taken);
    let stamped = Stamped { stamp: stamp.map_or(UNUSED_STAMP, |(stamp, _)| *stamp), ..unstamped };
    let mut state = State::clone(&session.state);
    let applied = match (&stamped.command, stamp) {
        (Command::Fork(fork), Some((_, Some(began)))) => in_steps(&mut state, fork, *began, &stamped),
        (_, _) => state.apply(&stamped),
    };
    let Ok(outcome) = applied else { return refused };
    let effective = outcome.answer.is_ok() && outcome.has_effect();
    let fits = match (told, &outcome.answer) {
        (Told::Nothing, _) => true,
        (Told::Answer(answer), Ok(given)) => response(function, Done::Answered(given.clone())) == *answer,
        (Told::Refusal(code), Err(refusal)) => refusal.code() == code,
        (Told::Answer(_), Err(_)) | (Told::Refusal(_), Ok(_)) => false,
    };
    match (effective, stamp, told) {
        // It is not in the log, so it was not executed. Its outcome is unknown, so that fits.
        (true, None, Told::Nothing) => (true, session.clone()),
        (true, None, Told::Answer(_) | Told::Refusal(_)) => refused,
        (false, _, _) => (fits, session.clone()),
        (true, Some(_), _) => {
            let mut counts = BTreeMap::clone(&session.taken);
            counts.insert(group, taken + 1);
            (fits, Session { state: Arc::new(state), taken: Arc::new(counts) })
        }
    }
}

/// Forks in several commands: the id of the session comes from the first, its time from the last.
fn in_steps(state: &mut State, fork: &ForkSession, began: Stamp, last: &Stamped) -> Result<Decided, Fault> {
    let pending = PendingFork {
        source: fork.session_id.clone(),
        fork: began.session_id(),
        entry_id: fork.entry_id.clone(),
        title: fork.title.clone(),
        stamp: began,
        copied: 0,
        messages: 0,
        moved_at: began.at_ms,
    };
    let (source, fork, records) = (pending.source.clone(), pending.fork.clone(), Steps::RECORDS_MAX);
    let begun = write(state, &Encoded::new(&[Change::Work(WorkChange::PutFork(pending))]))?;
    state.merge(&begun);
    let command = Command::Long(LongWork::ContinueFork { source, fork, records });
    loop {
        let outcome = state.apply(&Stamped { command: command.clone(), ..last.clone() })?;
        if !matches!(outcome.answer, Ok(Answer::ForkBegun { .. })) {
            return Ok(outcome);
        }
    }
}

pub fn check(history: &History, replay: &Replay, groups: &Groups<'_>) -> Findings {
    let mut findings = Findings::of("linear");
    for (session_id, calls) in sessions(history, replay, groups) {
        if check_operations_timeout(&calls, SEARCH_MAX) == CheckResult::Illegal {
            let (operation, shown) = first_unexplained(history, &calls);
            findings.add(
                operation.returned,
                format!(
                    "session {:?}: no order of its {} calls explains #{} {} {} → {:?}; before it: {shown}",
                    session_id.as_str(),
                    calls.len(),
                    operation.id,
                    operation.function,
                    operation.request,
                    operation.outcome,
                ),
            );
            // The same bug shows in every session, and each search can take long.
            break;
        }
    }
    findings
}

/// The calls about each session, with the time in which each must have happened.
fn sessions(history: &History, replay: &Replay, groups: &Groups<'_>) -> BTreeMap<SessionId, Vec<Placed<Machine>>> {
    let mut sessions: BTreeMap<SessionId, Vec<Placed<Machine>>> = BTreeMap::new();
    let noticed = first_noticed(history);
    for (number, group) in groups.groups.values().enumerate() {
        // Turns have laws of their own: a driver names no session, and its commands also change records of the cluster.
        if matches!(group.command, Command::Beside(_)) {
            continue;
        }
        for (session_id, call) in calls_of(number, group, replay, &noticed) {
            sessions.entry(session_id).or_default().push(call);
        }
    }
    for operation in &history.operations {
        let (Asked::Question(question), function) = replay.asked(operation) else { continue };
        let Some(session_id) = session_of(question).cloned() else { continue };
        let told = match &operation.outcome {
            Outcome::Answered(answer) => Told::Answer(answer.clone()),
            Outcome::Refused { code, .. } => Told::Refusal(code.clone()),
            Outcome::Unavailable(_) | Outcome::Unknown(_) => continue,
        };
        let act = Act::Ask { function, question: Arc::new(question.clone()) };
        sessions.entry(session_id).or_default().push(placed(operation, act, told, None));
    }
    sessions
}

/// When each entry was first seen as applied. It was executed before that.
fn first_noticed(history: &History) -> BTreeMap<u64, Moment> {
    let mut noticed = BTreeMap::new();
    for applied in &history.applied {
        noticed.entry(applied.entry.index()).or_insert(applied.noticed);
    }
    noticed
}

fn calls_of(
    number: usize,
    group: &Group,
    replay: &Replay,
    noticed: &BTreeMap<u64, Moment>,
) -> Vec<(SessionId, Placed<Machine>)> {
    let steps: Vec<_> = group.effects.iter().map(|step| &replay.steps[*step]).collect();
    // A create names no session; the log shows which one it created.
    let named = group.command.session_id().or_else(|| steps.first().and_then(|step| step.session_id()));
    let Some(session_id) = named else { return Vec::new() };
    let stamps: Arc<[Stamps]> = steps.iter().map(|step| (step.stamp, step.began)).collect();
    let command = Arc::new(group.command.clone());
    let alone = group.possible().count() == 1 && steps.len() == 1;
    let mut calls = Vec::new();
    for operation in &group.operations {
        let (_, function) = replay.asked(operation);
        let told = match &operation.outcome {
            Outcome::Answered(answer) => Told::Answer(answer.clone()),
            Outcome::Refused { code, .. } => Told::Refusal(code.clone()),
            // It is not in the log, so it was not executed.
            Outcome::Unknown(_) if steps.is_empty() => continue,
            Outcome::Unknown(_) => Told::Nothing,
            Outcome::Unavailable(_) => continue,
        };
        let happened = steps.first().filter(|_| alone).and_then(|step| noticed.get(&step.index)).copied();
        let (command, scope, stamps) = (command.clone(), group.scope.clone(), stamps.clone());
        let act = Act::Mutate { function, command, scope, group: number, stamps };
        calls.push((session_id.clone(), placed(operation, act, told, happened)));
    }
    for step in &steps {
        let Some(forked) = step.forked() else { continue };
        let mut state = State::default();
        state.merge(&step.changed);
        let told = |operation: &&Operation| match &operation.outcome {
            Outcome::Answered(answer) => answer["session_id"].as_str() == Some(forked.as_str()),
            Outcome::Unknown(_) | Outcome::Refused { .. } | Outcome::Unavailable(_) => false,
        };
        let unknown = |operation: &&Operation| matches!(operation.outcome, Outcome::Unknown(_));
        let asker = group.possible().find(told).or_else(|| group.possible().find(unknown));
        let Some(asker) = asker else { continue };
        let happened = noticed.get(&step.index).copied();
        calls.push((forked.clone(), placed(asker, Act::Forked(Arc::new(state)), Told::Nothing, happened)));
    }
    calls
}

/// `happened`: when a call with an unknown outcome was seen as executed.
fn placed(operation: &Operation, act: Act, told: Told, happened: Option<Moment>) -> Placed<Machine> {
    let returned = match &operation.outcome {
        Outcome::Answered(_) | Outcome::Refused { .. } => operation.returned,
        Outcome::Unavailable(_) | Outcome::Unknown(_) => happened.filter(|happened| *happened > operation.called),
    };
    Placed {
        client_id: u32::try_from(operation.client).ok(),
        call_time: operation.called.order as i64,
        return_time: returned.map_or(i64::MAX, |returned| returned.order as i64),
        op: Call { id: operation.id, act, told },
        metadata: None,
    }
}

/// The first answer that no order explains, and the calls before it.
fn first_unexplained<'a>(history: &'a History, calls: &[Placed<Machine>]) -> (&'a Operation, String) {
    let mut ends: Vec<i64> = calls.iter().map(|call| call.return_time).filter(|end| *end < i64::MAX).collect();
    ends.sort_unstable();
    // Answers that cannot be explained at some moment cannot be explained later either, so a binary search finds the
    // first.
    let until = Instant::now() + EXPLAIN_MAX;
    let explained = |end: i64| {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        check_operations_timeout(&told_by(calls, end), left) != CheckResult::Illegal
    };
    let first = ends.partition_point(|end| explained(*end)).min(ends.len().saturating_sub(1));
    let end = ends.get(first).copied().unwrap_or(i64::MAX);
    let ended = calls.iter().find(|call| call.return_time == end).unwrap_or(&calls[0]);
    let mut before: Vec<&Placed<Machine>> = calls.iter().filter(|call| call.call_time < end).collect();
    before.sort_by_key(|call| call.call_time);
    let from = before.len().saturating_sub(12);
    (&history.operations[ended.op.id], format!("{:?}", before[from..].iter().map(|call| &call.op).collect::<Vec<_>>()))
}

/// The history as known at some moment: calls that end later have an unknown outcome.
fn told_by(calls: &[Placed<Machine>], end: i64) -> Vec<Placed<Machine>> {
    let begun = calls.iter().filter(|call| call.call_time < end);
    let known = begun.map(|call| match call.return_time <= end {
        true => call.clone(),
        false => Placed { return_time: i64::MAX, op: Call { told: Told::Nothing, ..call.op.clone() }, ..call.clone() },
    });
    known.collect()
}
