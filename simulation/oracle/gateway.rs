//! The law of the gateway: whichever nodes a front-end follows a session at, every number reaches it once and in order,
//! as the event that the log gave the number to, or inside a gap; a gap hides nothing that is kept; no node knows less
//! than another one delivered; the text so far is exact; and a driver's batch has the numbers that it was told.

use std::collections::BTreeMap;

use serde_json::Value;
use session_manager::machine::Command;
use session_manager::machine::apply::beside::Beside;
use session_manager::machine::event::EventKind;
use session_manager::machine::turn::TurnCommand;
use session_manager::machine::turn::events::{Class, EventName};

use super::Findings;
use super::replay::{Replay, Step};
use crate::history::{GatewayFrame, History, Moment};

/// The tenant of the front-ends and of their driver.
const TENANT: &str = "sim";

/// Whether clients of the gateway, or a node for them, asked for a step. Their calls are not recorded as operations.
pub fn asked_for(step: &Step) -> bool {
    let of_driver = |driver_id: &str| driver_id.strip_prefix(TENANT).is_some_and(|rest| rest.starts_with(':'));
    let of_tenant = || step.scope.as_ref().is_some_and(|scope| scope.fields().get("tenantId").is_some());
    match &step.command {
        Some(Command::Beside(Beside::Turn(TurnCommand::Attach(attach)))) => of_driver(&attach.driver_id),
        Some(Command::Beside(Beside::Turn(TurnCommand::Detach { driver_id, .. }))) => of_driver(driver_id),
        _other => of_tenant(),
    }
}

/// The streams as the log made them, by session and number.
struct Streams(BTreeMap<String, Vec<Value>>);

impl Streams {
    fn of(replay: &Replay) -> Streams {
        let mut streams: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for event in replay.steps.iter().flat_map(|step| &step.events) {
            let session_id = event.session_id.as_str().to_owned();
            if event.kind() == EventKind::StreamEvent {
                let mut payload = event.payload().value();
                if payload["seq"].is_u64() {
                    // The oracle `turns` checks that they are dense.
                    streams.entry(session_id).or_default().push(payload["event"].take());
                }
            }
        }
        Streams(streams)
    }

    fn event(&self, session: &str, seq: u64) -> Option<&Value> {
        self.0.get(session)?.get(usize::try_from(seq).ok()?.checked_sub(1)?)
    }

    fn head(&self, session: &str) -> u64 {
        self.0.get(session).map_or(0, |events| events.len() as u64)
    }
}

fn is_kept(event: &Value) -> bool {
    let class = event["type"].as_str().and_then(EventName::find).map(|name| name.class);
    class == Some(Class::Kept)
}

/// One front-end in one session.
#[derive(Default)]
struct Follower {
    at: u64,
    /// The node, and when it was asked to join there; `None` when the connection is lost.
    joined: Option<(u64, Moment)>,
    /// The join is answered: events count from here on.
    answered: bool,
    /// The highest number that the replay brought, until it is complete.
    replayed: Option<u64>,
}

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("gateway");
    let streams = Streams::of(replay);
    let mut followers: BTreeMap<(usize, String), Follower> = BTreeMap::new();
    // By session: the highest number that any front-end has heard, and when it first did.
    let mut delivered: BTreeMap<String, Vec<(Moment, u64)>> = BTreeMap::new();
    for heard in &history.gateway {
        let GatewayFrame { client, frame, .. } = heard;
        let session = frame["sessionId"].as_str().unwrap_or_default().to_owned();
        match frame["type"].as_str().unwrap_or_default() {
            "(lost)" => {
                for ((id, _), follower) in &mut followers {
                    if id == client {
                        follower.joined = None;
                    }
                }
            }
            "emitted" => check_batch(heard, &streams, &mut findings),
            // An error names no session.
            "error" => {}
            _frame => {
                let follower = followers.entry((*client, session.clone())).or_default();
                follow(follower, heard, &session, &streams, &delivered, &mut findings);
                let reached = delivered.entry(session).or_default();
                if reached.last().is_none_or(|(_, seq)| *seq < follower.at) {
                    reached.push((heard.at, follower.at));
                }
            }
        }
    }
    check_ends(history, &streams, &followers, &mut findings);
    findings
}

fn follow(
    follower: &mut Follower,
    heard: &GatewayFrame,
    session: &str,
    streams: &Streams,
    delivered: &BTreeMap<String, Vec<(Moment, u64)>>,
    findings: &mut Findings,
) {
    let GatewayFrame { client, node, at, frame } = heard;
    let who = || format!("front-end {client} on node {node} in {session:?}");
    let number = |field: &str| frame[field].as_u64().unwrap_or(u64::MAX);
    match frame["type"].as_str().unwrap_or_default() {
        "join_session" => {
            findings.check(number("afterSeq") == follower.at, Some(*at), || {
                format!("{} resumes after {}, but knows {}", who(), frame["afterSeq"], follower.at)
            });
            (follower.joined, follower.answered, follower.replayed) = (Some((*node, *at)), false, None);
        }
        "state_snapshot" => {
            follower.answered = true;
            let head = number("headSeq");
            let asked = follower.joined.map_or(*at, |(_, asked)| asked);
            let before = delivered.get(session).into_iter().flatten().filter(|(when, _)| *when < asked);
            let known = before.map(|(_, seq)| *seq).max().unwrap_or(0);
            findings.check(head >= known && head <= streams.head(session), Some(*at), || {
                let last = streams.head(session);
                format!("{} was told the head {head}, but {known} was delivered before, and the last is {last}", who())
            });
            check_text(heard, session, streams, findings);
        }
        "gap" => {
            let (from, to) = (number("fromSeq"), number("toSeq"));
            findings.check(from == follower.at && to > from && to <= streams.head(session), Some(*at), || {
                format!("{} was told {frame} at {}, the last number is {}", who(), follower.at, streams.head(session))
            });
            let hidden = (from.saturating_add(1)..=to.min(streams.head(session)))
                .find(|seq| streams.event(session, *seq).is_some_and(is_kept));
            findings
                .check(hidden.is_none(), Some(*at), || format!("{} was told {frame}, but {hidden:?} is kept", who()));
            follower.at = to.min(streams.head(session));
        }
        "replay_complete" => {
            let last = follower.replayed.take();
            findings.check(
                number("lastSeq") <= follower.at && last.is_none_or(|last| last == number("lastSeq")),
                Some(*at),
                || format!("{} was told {frame} after {last:?}, at {}", who(), follower.at),
            );
        }
        _event => {
            let seq = number("seq");
            findings.check(follower.answered && seq == follower.at + 1, Some(*at), || {
                format!("{} got {seq} after {}", who(), follower.at)
            });
            let made = streams.event(session, seq);
            findings
                .check(made == Some(frame), Some(*at), || format!("{} got {frame}, but the log has {made:?}", who()));
            follower.at = seq.min(streams.head(session));
            if is_kept(frame) {
                follower.replayed = Some(seq);
            }
        }
    }
}

/// The text so far is what the deltas of the turn said up to the number that the snapshot names.
fn check_text(heard: &GatewayFrame, session: &str, streams: &Streams, findings: &mut Findings) {
    let turn = &heard.frame["currentTurn"];
    let Some(upto) = turn["asOfSeq"].as_u64() else { return };
    let of_turn = |event: &&Value| event["turnId"] == turn["turnId"] && event["type"] == "text_delta";
    let events = streams.0.get(session).into_iter().flatten().take(usize::try_from(upto).unwrap_or(usize::MAX));
    let said: String = events.filter(of_turn).filter_map(|event| event["text"].as_str()).collect();
    findings.check(turn["textSoFar"] == said.as_str(), Some(heard.at), || {
        format!("node {} says {turn}, but the deltas up to {upto} say {said:?}", heard.node)
    });
}

fn check_batch(heard: &GatewayFrame, streams: &Streams, findings: &mut Findings) {
    let frame = &heard.frame;
    let (turn_id, seqs) = (&frame["turn_id"], frame["seqs"].as_array().into_iter().flatten());
    for (event, seq) in frame["events"].as_array().into_iter().flatten().zip(seqs) {
        let Some(seq) = seq.as_u64() else { continue };
        let made = streams.0.keys().filter_map(|session| streams.event(session, seq));
        let same = |made: &Value| {
            let told = event.as_object().into_iter().flatten();
            made["turnId"] == *turn_id && told.into_iter().all(|(field, value)| made[field] == *value)
        };
        findings.check(made.clone().any(same), Some(heard.at), || {
            format!("the driver was told {seq} for {event} of {turn_id}, the log has {:?}", made.collect::<Vec<_>>())
        });
    }
}

/// Who follows a voter at the end knows everything.
fn check_ends(
    history: &History,
    streams: &Streams,
    followers: &BTreeMap<(usize, String), Follower>,
    findings: &mut Findings,
) {
    let Some(rested) = history.rested else { return };
    for ((client, session), follower) in followers {
        let Some((node, asked)) = follower.joined else { continue };
        let last = streams.head(session);
        let lived = asked < rested && history.voters.contains(&node) && follower.answered;
        findings.check(!lived || follower.at == last, None, || {
            format!(
                "front-end {client} followed {session:?} on node {node} to the end and knows {}, not {last}",
                follower.at
            )
        });
    }
}
