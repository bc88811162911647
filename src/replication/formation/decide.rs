//! Owns: the next step of a node without a cluster, as a pure function of what it remembers and whom it met.
//!
//! A cluster exists when every one of its first members has promised, on disk, to found it. A node holds one promise at
//! a time. So two clusters can only come of twice as many nodes as one needs. A promise is given up in two steps: first
//! the node freezes it, then, in a later round of meetings, it must find that no other member can complete it either.
//! A node that meets a member of a cluster founds nothing: it joins.

use std::collections::BTreeSet;

use super::record::{Founding, Promise, Record, Who};

/// A node that answered in this round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    pub who: Who,
    pub state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It belongs to no cluster yet.
    Forming { promised: Option<Promise>, voided: Vec<String> },
    /// It belongs to this cluster.
    Member { cluster_id: String },
    /// It runs a release that knows nothing of forming.
    Silent,
}

/// What one round of meetings showed. The record must be the one the round began with.
#[derive(Debug, Clone)]
pub struct Round<'a> {
    pub own: &'a Record,
    pub address: &'a str,
    /// How many nodes found a cluster; `None` for a node that only joins.
    pub expect: Option<usize>,
    pub met: &'a [Met],
    /// Addresses at which nobody answered.
    pub unanswered: usize,
    /// The same nodes answered in the rounds before.
    pub settled: bool,
    /// The id of a founding, if this node proposes one.
    pub fresh_id: &'a str,
}

/// The next step. Each changes the record at most once, and a new round follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The cluster of the promised founding exists.
    Adopt,
    /// Ask the members of this cluster to take this node in.
    Join {
        cluster_id: String,
    },
    Promise(Founding),
    /// The promised founding cannot be completed.
    Freeze,
    /// No member of the promised founding can complete it: the node is free.
    Void,
    Wait(Waiting),
}

/// Why a node waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// Nodes that have not promised yet, or do not answer.
    ForPromises(Vec<String>),
    ForNodes {
        found: usize,
        expect: usize,
    },
    /// The node with the first name proposes.
    ForProposal(String),
    ForCluster,
    Settling,
    TwoClusters(Vec<String>),
    SameName(Who),
    TooManyNodes {
        found: usize,
        expect: usize,
    },
    MostUnanswered {
        found: usize,
        unanswered: usize,
    },
    OlderRelease(String),
}

pub fn decide(round: &Round<'_>) -> Step {
    let clusters = round.met.iter().filter_map(|met| match &met.state {
        State::Member { cluster_id } => Some(cluster_id.as_str()),
        State::Forming { .. } | State::Silent => None,
    });
    let clusters: BTreeSet<&str> = clusters.collect();
    match (&round.own.promised, clusters.first()) {
        _ if clusters.len() > 1 => Step::Wait(Waiting::TwoClusters(clusters.iter().map(ToString::to_string).collect())),
        (Some(promise), Some(cluster)) if promise.founding.id == **cluster => Step::Adopt,
        (Some(promise), _) => keep(round, promise),
        (None, Some(cluster)) => Step::Join { cluster_id: (*cluster).to_owned() },
        (None, None) => begin(round),
    }
}

/// What the other members of a founding think of it.
enum Word {
    Promised,
    /// Not now, and not by what this node showed it until now.
    Not,
    /// Its data directory is gone, and with it what it may have decided.
    Replaced,
    Unknown,
}

fn word(round: &Round<'_>, founding: &Founding, member: &Who) -> Word {
    let same = round.met.iter().find(|met| met.who.instance == member.instance);
    match same.map(|met| &met.state) {
        Some(State::Forming { promised: Some(promise), .. }) if promise.founding.id == founding.id => {
            if promise.frozen { Word::Not } else { Word::Promised }
        }
        Some(State::Forming { .. } | State::Member { .. }) => Word::Not,
        Some(State::Silent) => Word::Unknown,
        None if round.met.iter().any(|met| met.who.name == member.name) => Word::Replaced,
        None => Word::Unknown,
    }
}

/// A member that will not promise this founding as things are: it promised another or has given this one up.
fn is_lost_for(round: &Round<'_>, founding: &Founding, member: &Who) -> bool {
    let Some(met) = round.met.iter().find(|met| met.who.instance == member.instance) else {
        return round.met.iter().any(|met| met.who.name == member.name);
    };
    match &met.state {
        State::Forming { promised, voided } => {
            let other = promised.as_ref().is_some_and(|promise| promise.frozen || promise.founding.id != founding.id);
            other || voided.contains(&founding.id)
        }
        State::Member { .. } => true,
        State::Silent => false,
    }
}

/// A node that has promised.
fn keep(round: &Round<'_>, promise: &Promise) -> Step {
    let founding = &promise.founding;
    let others = || founding.members.iter().filter(|member| member.instance != round.own.instance);
    let words: Vec<(&Who, Word)> = others().map(|member| (member, word(round, founding, member))).collect();
    let missing = |is_missing: fn(&Word) -> bool| -> Vec<String> {
        words.iter().filter(|(_, word)| is_missing(word)).map(|(member, _)| member.name.clone()).collect()
    };
    if promise.frozen {
        let replaced = words.iter().filter(|(_, word)| matches!(word, Word::Replaced)).count();
        let open = missing(|word| matches!(word, Word::Promised | Word::Unknown));
        // The directories that are gone must not have been able to lead a cluster by themselves.
        return match open.is_empty() && replaced < founding.majority() {
            true => Step::Void,
            false => Step::Wait(Waiting::ForPromises(open)),
        };
    }
    if others().any(|member| is_lost_for(round, founding, member)) {
        return Step::Freeze;
    }
    let missing = missing(|word| !matches!(word, Word::Promised));
    if missing.is_empty() { Step::Adopt } else { Step::Wait(Waiting::ForPromises(missing)) }
}

/// A node that has promised nothing, and met no cluster.
fn begin(round: &Round<'_>) -> Step {
    let own =
        Who { name: round.own.name.clone(), instance: round.own.instance.clone(), address: round.address.to_owned() };
    // 1. Somebody counts on this node.
    let promises = round.met.iter().filter_map(|met| match &met.state {
        State::Forming { promised, .. } => promised.as_ref(),
        State::Member { .. } | State::Silent => None,
    });
    let promises: Vec<&Promise> = promises.collect();
    let counts_on_us = |promise: &&&Promise| {
        let founding = &promise.founding;
        !promise.frozen && founding.includes(&own.instance) && !round.own.voided.contains(&founding.id)
    };
    let wanted = promises.iter().filter(counts_on_us).min_by_key(|promise| &promise.founding.id);
    if let Some(promise) = wanted {
        return Step::Promise(promise.founding.clone());
    }
    // 2. Something is under way without it, or cannot be seen through.
    if let Some(met) = round.met.iter().find(|met| met.state == State::Silent) {
        return Step::Wait(Waiting::OlderRelease(met.who.address.clone()));
    }
    let Some(expect) = round.expect else { return Step::Wait(Waiting::ForCluster) };
    if let Some(promise) = promises.first() {
        let names = promise.founding.members.iter().map(|member| member.name.clone()).collect();
        return Step::Wait(Waiting::ForPromises(names));
    }
    // 3. Propose, if this node is the first by name.
    let mut nodes: Vec<Who> = round.met.iter().map(|met| met.who.clone()).chain([own.clone()]).collect();
    nodes.sort();
    let twins = nodes.windows(2).find(|pair| pair[0].name == pair[1].name);
    if let Some(pair) = twins {
        let twin = if pair[0] == own { &pair[1] } else { &pair[0] };
        return Step::Wait(Waiting::SameName(twin.clone()));
    }
    let found = nodes.len();
    if found < expect {
        return Step::Wait(Waiting::ForNodes { found, expect });
    }
    if found >= 2 * expect && expect > 1 {
        return Step::Wait(Waiting::TooManyNodes { found, expect });
    }
    if found <= round.unanswered {
        return Step::Wait(Waiting::MostUnanswered { found, unanswered: round.unanswered });
    }
    if nodes[0] != own {
        return Step::Wait(Waiting::ForProposal(nodes[0].name.clone()));
    }
    if !round.settled {
        return Step::Wait(Waiting::Settling);
    }
    nodes.truncate(expect);
    Step::Promise(Founding { id: round.fresh_id.to_owned(), members: nodes })
}

/// Carries a step out on the record. Steps that need others change nothing.
pub fn apply(record: &mut Record, step: &Step) {
    match step {
        Step::Adopt => record.decided = true,
        Step::Promise(founding) => {
            record.promised = Some(Promise { founding: founding.clone(), frozen: false });
        }
        Step::Freeze => {
            if let Some(promise) = &mut record.promised {
                promise.frozen = true;
            }
        }
        Step::Void => {
            if let Some(promise) = record.promised.take() {
                record.voided.push(promise.founding.id);
            }
        }
        Step::Join { .. } | Step::Wait(_) => {}
    }
}

#[cfg(test)]
#[path = "decide_test.rs"]
mod tests;
