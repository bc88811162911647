//! Owns: asking other nodes who they are, and translating the answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;
use tonic::Code;

use super::super::channels::Channels;
use super::decide::{Met, State};
use super::record::{Founding, Promise, Record, Who};
use crate::access::credentials::now_ms;
use crate::machine::level::FIRST;
use crate::proto::formation as proto;

/// The longest wait for an answer. A node that is slower is met in a later round.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Clocks that differ more than this are worth a line: certificates and the age of events depend on them.
const CLOCK_DIFFERENCE_MAX_MS: i64 = 5 * 60 * 1000;

impl Who {
    pub fn to_proto(&self) -> proto::Who {
        let Who { name, instance, address } = self.clone();
        proto::Who { name, instance, address }
    }

    pub fn from_proto(who: Option<proto::Who>) -> Who {
        let proto::Who { name, instance, address } = who.unwrap_or_default();
        Who { name, instance, address }
    }
}

impl Promise {
    fn to_proto(&self) -> proto::Promise {
        let members = self.founding.members.iter().map(Who::to_proto).collect();
        let founding = proto::Founding { id: self.founding.id.clone(), members };
        proto::Promise { founding: Some(founding), frozen: self.frozen }
    }

    fn from_proto(promise: proto::Promise) -> Promise {
        let founding = promise.founding.unwrap_or_default();
        let members = founding.members.into_iter().map(|member| Who::from_proto(Some(member))).collect();
        Promise { founding: Founding { id: founding.id, members }, frozen: promise.frozen }
    }
}

/// What a node without a cluster says about itself.
pub fn forming_to_proto(record: &Record) -> proto::meet_response::State {
    let promised = record.promised.as_ref().map(Promise::to_proto);
    proto::meet_response::State::Forming(proto::Forming { promised, voided: record.voided.clone() })
}

/// A node that answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub met: Met,
    /// Where it answered. Its own address in `met` may be another.
    pub at: String,
    /// The node id, if it belongs to a cluster.
    pub node: u64,
    /// It knows the caller's data directory as that of a member.
    pub knows_caller: bool,
    /// How far its clock is ahead, if the clocks differ by a lot.
    pub clock_ahead_ms: Option<i64>,
    /// The version of its program, and the newest level of a cluster that it knows.
    pub version: String,
    pub knows_level: u32,
}

/// Meets other nodes in the name of one.
#[derive(Clone)]
pub struct Meeting {
    pub own: Who,
    pub channels: Arc<Channels>,
}

impl Meeting {
    /// Meets everybody at these addresses, except this node itself. Also returns how many did not answer.
    pub async fn all(&self, addresses: &BTreeSet<String>) -> (Vec<Answer>, usize) {
        let answers = join_all(addresses.iter().map(|address| self.one(address))).await;
        let unanswered = answers.iter().filter(|answer| answer.is_none()).count();
        let mut met: Vec<Answer> = answers.into_iter().flatten().collect();
        // The same node may be known under two addresses.
        met.sort_by(|one, other| (&one.met.who.instance, &one.at).cmp(&(&other.met.who.instance, &other.at)));
        met.dedup_by(|one, other| one.met.who.instance == other.met.who.instance && !one.met.who.instance.is_empty());
        met.retain(|answer| answer.met.who.instance != self.own.instance);
        (met, unanswered)
    }

    /// The node at an address; `None` if none answers.
    pub async fn one(&self, address: &str) -> Option<Answer> {
        let mut client = self.channels.formation(address).ok()?;
        let request = proto::MeetRequest { caller: Some(self.own.to_proto()) };
        match timeout(ANSWER_MAX, client.meet(request)).await {
            Ok(Ok(answer)) => Some(read(address, answer.into_inner())),
            // A node of a release before this one.
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                let who = Who { name: String::new(), instance: String::new(), address: address.to_owned() };
                let met = Met { who, state: State::Silent };
                Some(Answer {
                    met,
                    at: address.to_owned(),
                    node: 0,
                    knows_caller: false,
                    clock_ahead_ms: None,
                    version: "0.1".to_owned(),
                    knows_level: FIRST,
                })
            }
            Ok(Err(status)) => {
                tracing::debug!(address, why = status.message(), "a node cannot be met");
                None
            }
            Err(_) => {
                self.channels.forget_calls(address);
                None
            }
        }
    }
}

fn read(address: &str, answer: proto::MeetResponse) -> Answer {
    let ahead = answer.now_ms - now_ms();
    let (state, node, knows_caller) = match answer.state {
        Some(proto::meet_response::State::Forming(forming)) => {
            let promised = forming.promised.map(Promise::from_proto);
            (State::Forming { promised, voided: forming.voided }, 0, false)
        }
        Some(proto::meet_response::State::Belongs(proto::Belongs { cluster_id, node, knows_caller })) => {
            (State::Member { cluster_id }, node, knows_caller)
        }
        None => (State::Silent, 0, false),
    };
    Answer {
        met: Met { who: Who::from_proto(answer.who), state },
        at: address.to_owned(),
        node,
        knows_caller,
        clock_ahead_ms: (ahead.abs() > CLOCK_DIFFERENCE_MAX_MS).then_some(ahead),
        version: answer.version,
        knows_level: answer.knows_level.max(FIRST),
    }
}

/// Says that clocks differ.
pub fn warn_about_clocks(answers: &[Answer]) {
    for answer in answers {
        if let Some(ahead_ms) = answer.clock_ahead_ms {
            let (node, seconds) = (&answer.met.who.name, ahead_ms.abs() / 1000);
            let way = if ahead_ms > 0 { "ahead" } else { "behind" };
            tracing::warn!(node, seconds, "the clock of another node is {way} by this much: set the clocks");
        }
    }
}
