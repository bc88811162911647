//! What a driver emits: batches of events, numbered per turn. One command does all of a batch, or none of it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::claim;
use super::events::{EventName, Fields, get, text};
use super::finish::{self, End};
use super::record::{Batch, Block, OpenRequest, State, ToolInFlight, Turn, TurnError, TurnState, UsageSoFar};
use super::work::Work;
use super::{reply, session_of, unknown_turn};
use crate::machine::command::Outcome;
use crate::machine::entry::Body;
use crate::machine::ids::EntryId;
use crate::machine::json::{Json, List};
use crate::machine::message::{AgentMessage, ContentBlock, Message, StopReason};
use crate::machine::refusal::{Failure, Refusal};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// Events in one batch.
pub const EVENTS_MAX: usize = 256;
/// Batches whose numbers a turn remembers. A driver repeats the last one only.
const BATCHES_MAX: usize = 8;
/// Requests to people that a session may have open at a time.
const REQUESTS_MAX: usize = 64;
/// Tool calls in flight that a turn remembers, and how much of the arguments of each.
const TOOLS_MAX: usize = 64;
const ARGS_BYTES_MAX: usize = 64 << 10;
/// The longest word about a sandbox that a snapshot repeats. Every batch writes it again.
const SANDBOX_BYTES_MAX: usize = 1024;

/// One batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Emit {
    pub turn_id: String,
    pub driver_id: String,
    /// Counts the batches of the turn from 1.
    pub n: u64,
    /// Checked by name and shape, in the gateway's spelling, each with its `type`.
    pub events: Vec<Fields>,
}

pub fn apply(view: &dyn View, stamp: &Stamp, command: &Emit) -> Result<Outcome, Failure> {
    let session_id = session_of(view, &command.turn_id)?;
    let mut work = Work::open(view, stamp, &session_id)?;
    let answer = emit(&mut work, command)?;
    work.finish(&answer)
}

fn invalid(why: String) -> Failure {
    Refusal::RequestInvalid(why).into()
}

fn emit(work: &mut Work<'_>, command: &Emit) -> Result<Value, Failure> {
    let turn_id = &command.turn_id;
    let turn = work.read_turn(turn_id)?.ok_or_else(|| unknown_turn(turn_id))?;
    if turn.driver_id.as_deref() != Some(&*command.driver_id) {
        return Err(invalid(format!("driver_id: {:?} has not claimed turn {turn_id:?}", command.driver_id)));
    }
    if command.n < turn.next_n {
        let known = turn.batches.iter().find(|batch| batch.n == command.n);
        let seqs = known.map(|batch| batch.seqs.clone()).unwrap_or_default();
        // The answer of the first time, whatever came since.
        return Ok(answer(command.n + 1, &seqs, &turn));
    }
    if command.n > turn.next_n {
        return Err(invalid(format!("n: {} leaves a gap, the next batch of this turn is {}", command.n, turn.next_n)));
    }
    if command.events.len() > EVENTS_MAX {
        return Err(invalid(format!("events: at most {EVENTS_MAX} in one batch")));
    }
    begin_batch(work, turn_id)?;
    let mut seqs = Vec::with_capacity(command.events.len());
    for (rank, event) in command.events.iter().enumerate() {
        let seq = one(work, turn_id, event).map_err(|failure| at_event(failure, rank))?;
        seqs.push(seq);
    }
    let Some(turn) = work.turn(turn_id)? else { return Err(unknown_turn(turn_id).into()) };
    turn.next_n = command.n + 1;
    turn.batches.push(Batch { n: command.n, seqs: seqs.clone() });
    if turn.batches.len() > BATCHES_MAX {
        turn.batches.remove(0);
    }
    let answer = answer(command.n + 1, &seqs, turn);
    Ok(answer)
}

fn answer(next_n: u64, seqs: &[Option<u64>], turn: &Turn) -> Value {
    json!({ "next_n": next_n, "seqs": seqs, "state": turn.state, "lease_until": turn.lease_until })
}

fn at_event(failure: Failure, rank: usize) -> Failure {
    match failure {
        Failure::Refused(Refusal::RequestInvalid(why)) => invalid(format!("events[{rank}]: {why}")),
        other => other,
    }
}

fn begin_batch(work: &mut Work<'_>, turn_id: &str) -> Result<(), Failure> {
    let now = work.now();
    if let Some(turn) = work.turn(turn_id)?.filter(|turn| !turn.state.is_over()) {
        claim::renew(turn, now);
        if turn.state == TurnState::Claimed {
            turn.state = TurnState::Running;
        }
    }
    work.stream.last_activity_at = Some(now);
    Ok(())
}

/// Takes one event. Returns its number, or the number it got when it came first.
fn one(work: &mut Work<'_>, turn_id: &str, event: &Fields) -> Result<Option<u64>, Failure> {
    let name: String = text(event, "type");
    let known = EventName::find(&name).filter(|known| known.is_a_drivers());
    let known = known.ok_or_else(|| invalid(format!("type: a driver does not emit {name:?}")))?;
    known.check(event).map_err(|why| invalid(why.to_string()))?;
    let turn = work.read_turn(turn_id)?.ok_or_else(|| unknown_turn(turn_id))?;
    if let Some(seq) = mark_of(&name, event).map(|mark| work.marked(turn_id, &mark)).transpose()?.flatten() {
        return Ok(Some(seq));
    }
    // In the words of the session model an error comes before the end of a turn, and has ended it.
    if turn.state == TurnState::Failed && name == "turn_complete" {
        return Ok(None);
    }
    if turn.state.is_over() && !name.starts_with("usage_") {
        return Err(invalid(format!("turn {turn_id:?} is {}: it accepts only usage events", turn.state.name())));
    }
    let fields = event.clone();
    match &*name {
        "turn_complete" => {
            let final_text = text(event, "finalText");
            return finish::finish(work, turn_id, End::Done { final_text, fields });
        }
        "turn_error" => {
            let error = TurnError { code: text(event, "code"), message: text(event, "message") };
            return finish::finish(work, turn_id, End::Failed { error, fields });
        }
        "session_state" => return session_state(work, &text(event, "state"), event),
        _other => {}
    }
    let mut turn = turn;
    transcript(work, &mut turn, &name, event)?;
    work.put_turn(turn);
    let seq = work.publish_stream(&name, Some(turn_id), fields);
    if let (Some(seq), Some(mark)) = (seq, mark_of(&name, event)) {
        work.mark(turn_id, &mark, seq);
    }
    requests(work, turn_id, &name, event)?;
    sandbox(work, &name, event);
    Ok(seq)
}

/// Remembers where the agent works, for those who join later.
fn sandbox(work: &mut Work<'_>, name: &str, event: &Fields) {
    let status = match name {
        "sandbox_init" => "initializing",
        "sandbox_provisioning" => "provisioning",
        "sandbox_ready" => "ready",
        "sandbox_removed" => {
            work.stream.sandbox = None;
            return;
        }
        _other => return,
    };
    let is_short = |value: &&Json| value.text() != "null" && value.text().len() <= SANDBOX_BYTES_MAX;
    let before = work.stream.sandbox.take().unwrap_or_default();
    let mut now: Fields = ["provider", "phase", "message"]
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), event.get(field).filter(is_short)?.clone())))
        .collect();
    if let (None, Some(provider)) = (now.get("provider"), before.get("provider")) {
        now.insert("provider".to_owned(), provider.clone());
    }
    now.insert("status".to_owned(), Json::print(&status));
    work.stream.sandbox = Some(now);
}

/// The name under which an event counts once in its turn.
fn mark_of(name: &str, event: &Fields) -> Option<String> {
    let of = |field: &str| Some(format!("{name}:{}", text(event, field)));
    match name {
        "turn_started" | "turn_complete" | "turn_error" => Some(name.to_owned()),
        "tool_call" | "tool_result" | "tool_error" => of("toolCallId"),
        "question_requested" | "permission_requested" | "approval_resolved" => of("requestId"),
        "ui.spec_complete" => of("uiId"),
        _other if is_github_request(name) => of("requestId"),
        _other => None,
    }
}

fn is_github_request(name: &str) -> bool {
    name.starts_with("github.") && name.ends_with("_request")
}

/// A driver may only take its session out of service, or say that it is ready.
fn session_state(work: &mut Work<'_>, name: &str, event: &Fields) -> Result<Option<u64>, Failure> {
    let reason: Option<String> = get(event, "reason");
    match State::parse(name) {
        Some(state @ (State::Deactivating | State::Inactive | State::Ready)) => {
            if state == work.stream.state {
                return Ok(None);
            }
            work.become_state(state, reason.as_deref())?;
            Ok(Some(work.stream.head_seq))
        }
        Some(State::Activating | State::Running | State::Waiting | State::Error) | None => {
            Err(invalid(format!("state: a driver sets deactivating, inactive or ready, not {name:?}")))
        }
    }
}

/// What an event does to the transcript and to the turn.
fn transcript(work: &mut Work<'_>, turn: &mut Turn, name: &str, event: &Fields) -> Result<(), Failure> {
    match name {
        "text_delta" | "message.delta" => {
            let growing = turn.delta_name.get_or_insert_with(|| name.to_owned());
            if growing == name {
                reply::grow(work, turn, Block::Text, &text(event, "text"))?;
            }
        }
        "thinking_progress" => reply::grow(work, turn, Block::Thinking, &text(event, "text"))?,
        "message.complete" => {
            read_usage(turn, event);
            reply::complete(work, turn, &text(event, "text"))?;
            reply::close(work, turn, StopReason::End, None)?;
        }
        "usage_update" => read_usage(turn, event),
        "tool_call_start" => tool(turn, &text(event, "toolCallId"), &text(event, "toolName")),
        "tool_call_delta" => {
            let (id, delta) = (text(event, "toolCallId"), text(event, "delta"));
            if let Some(tool) = turn.tools.iter_mut().find(|tool| tool.tool_call_id == id)
                && tool.args_so_far.len() + delta.len() <= ARGS_BYTES_MAX
            {
                tool.args_so_far.push_str(&delta);
            }
        }
        "tool_call" => tool_call(work, turn, event)?,
        "tool_result" => {
            let is_error = text(event, "status") != "success";
            tool_result(work, turn, event, &text(event, "output"), is_error)?;
        }
        "tool_error" => tool_result(work, turn, event, &text(event, "error"), true)?,
        "ui.spec_complete" => {
            let entry_id = EntryId::from(format!("{}.ui.{}", turn.turn_id, text(event, "uiId")));
            let message = Message::new(AgentMessage::Custom {
                custom_type: "ui.spec".to_owned(),
                content: List::of(&[]),
                display: None,
                details: event.get("spec").cloned(),
                timestamp: work.now(),
            });
            work.append(entry_id, reply::origin(turn), Body::Message(message))?;
        }
        _other => {}
    }
    Ok(())
}

fn read_usage(turn: &mut Turn, event: &Fields) {
    let known = turn.usage.take().unwrap_or_default();
    turn.usage = Some(UsageSoFar {
        model: get(event, "model").or(known.model),
        provider: get(event, "provider").or(known.provider),
        input: get(event, "inputTokens").or(known.input),
        output: get(event, "outputTokens").or(known.output),
        cache_read: get(event, "cachedTokens").or(known.cache_read),
        cost_micro_dollars: get(event, "costMicroDollars").or(known.cost_micro_dollars),
    });
}

fn tool(turn: &mut Turn, tool_call_id: &str, tool_name: &str) {
    let is_known = turn.tools.iter().any(|tool| tool.tool_call_id == tool_call_id);
    if !is_known && turn.tools.len() < TOOLS_MAX {
        turn.tools.push(ToolInFlight {
            tool_call_id: tool_call_id.to_owned(),
            tool_name: tool_name.to_owned(),
            args_so_far: String::new(),
            called: false,
        });
    }
}

fn tool_call(work: &mut Work<'_>, turn: &mut Turn, event: &Fields) -> Result<(), Failure> {
    let (id, name) = (text(event, "toolCallId"), text(event, "toolName"));
    let args = event.get("args").cloned().unwrap_or_default();
    reply::close(work, turn, StopReason::FunctionCall, None)?;
    tool(turn, &id, &name);
    if let Some(tool) = turn.tools.iter_mut().find(|tool| tool.tool_call_id == id) {
        tool.called = true;
        tool.tool_name.clone_from(&name);
        tool.args_so_far = args.text().chars().take(ARGS_BYTES_MAX / 4).collect();
    }
    let block = ContentBlock::FunctionCall { id: id.clone(), function_id: name, arguments: args };
    let content = Json::print(&[block]);
    let message = reply::assistant(turn, content.text(), StopReason::FunctionCall, None, work.now());
    let entry_id = EntryId::from(format!("{}.c.{id}", turn.turn_id));
    work.append(entry_id, reply::origin(turn), Body::Message(message))?;
    Ok(())
}

fn tool_result(
    work: &mut Work<'_>,
    turn: &mut Turn,
    event: &Fields,
    output: &str,
    is_error: bool,
) -> Result<(), Failure> {
    let id = text(event, "toolCallId");
    let called = turn.tools.iter().position(|tool| tool.tool_call_id == id).map(|at| turn.tools.remove(at));
    let function_id = called.map(|tool| tool.tool_name).or_else(|| get(event, "toolName"));
    let message = Message::new(AgentMessage::FunctionResult {
        function_call_id: id.clone(),
        function_id: function_id.unwrap_or_else(|| "unknown".to_owned()),
        content: List::of(&[ContentBlock::Text { text: output.to_owned() }]),
        details: event.get("details").cloned().unwrap_or_default(),
        is_error,
        timestamp: work.now(),
    });
    let entry_id = EntryId::from(format!("{}.r.{id}", turn.turn_id));
    work.append(entry_id, reply::origin(turn), Body::Message(message))?;
    Ok(())
}

/// Events that ask a person something, and the driver's word that it is settled.
fn requests(work: &mut Work<'_>, turn_id: &str, name: &str, event: &Fields) -> Result<(), Failure> {
    if matches!(name, "question_requested" | "permission_requested") || is_github_request(name) {
        let request_id = text(event, "requestId");
        if request_id.is_empty() {
            return Err(invalid(format!("{name}: the field \"requestId\" is missing: give a string")));
        }
        if work.stream.requests.len() >= REQUESTS_MAX {
            return Err(invalid(format!("{name}: {REQUESTS_MAX} requests of this session are open already")));
        }
        let asked_at = work.now();
        let (turn_id, event) = (turn_id.to_owned(), Json::print(event));
        work.stream.requests.push(OpenRequest { request_id, turn_id: turn_id.clone(), event, asked_at });
        if let Some(turn) = work.turn(&turn_id)? {
            turn.state = TurnState::Waiting;
            turn.lease_until = None;
        }
        return work.become_state(State::Waiting, None);
    }
    if name == "approval_resolved" {
        let request_id = text(event, "requestId");
        work.stream.requests.retain(|request| request.request_id != request_id);
        if work.stream.requests.is_empty() {
            return claim::go_on(work, turn_id);
        }
    }
    Ok(())
}
