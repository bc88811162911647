//! Owns: which function results of a path answer which tool uses, and whose words count where the two differ.
//!
//! Export shows an answer twice: as a step of its own, and as the `result` of the tool use that it answers. Import
//! keeps one of them. Normally both say the same. They differ when somebody edited one of them, or when another producer
//! wrote two different things; the lossless copies tell which it was. Texts are compared by hash, so that no answer is
//! held while the rest of its document is read.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::import::entry_of;
use super::step::{self, ANSWERS_WITHIN, APPEND, EVENT, FUNCTION_RESULT};

/// What becomes of the result that a tool use shows, if function results answer the use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A function result says the same, or said it before it was edited: the use needs no words of its own.
    Told,
    /// The use was edited and the function result was not: that step gets the words of the use.
    Replaces(u32),
    /// They differ, and nothing tells which of them was edited: both keep their words.
    Kept,
    /// The use shows no result although a function result answers it, which export would show.
    Hidden,
}

/// What the steps of a path say about calls and answers, by the index of the step.
#[derive(Debug, Default)]
pub struct Answers {
    /// Turns of the user and of the assistant. An answer belongs to a call that no such turn separates from it.
    speakers: BTreeSet<u32>,
    turns: BTreeMap<u32, Uses>,
    results: BTreeMap<u32, Given>,
}

/// The tool uses of a turn.
#[derive(Debug)]
struct Uses {
    /// The turn has the lossless copy of an entry that no import made: its results were taken from function results.
    is_native: bool,
    uses: Vec<(String, Option<Words>)>,
}

/// An answer that has a step of its own.
#[derive(Debug)]
struct Given {
    call: String,
    words: Words,
    /// What the lossless copy says.
    copy: Option<Words>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    /// An answer with nothing beyond its text and whether it is an error.
    Plain(u64),
    /// A result with fields that a function result does not have.
    Beyond,
}

impl Words {
    fn of(result: &Value) -> Words {
        let fields = result.as_object().filter(|fields| fields.len() == 2);
        let field = |key: &str| fields.and_then(|fields| fields.get(key));
        match (field("content").and_then(Value::as_str), field("is_error").and_then(Value::as_bool)) {
            (Some(content), Some(is_error)) => Words::plain(content, is_error),
            (_, _) => Words::Beyond,
        }
    }

    fn plain(content: &str, is_error: bool) -> Words {
        Words::Plain(xxh3_64(content.as_bytes()) ^ u64::from(is_error))
    }
}

impl Answers {
    /// Keeps what a step, which was checked, says.
    pub fn note(&mut self, index: u32, step: &Value) {
        let Some(structural) = step::structural(step) else { return };
        let field = |key: &str| structural.get(key).and_then(Value::as_str);
        match field("type") {
            Some(APPEND) => {
                if matches!(field("role"), Some("user" | "assistant")) {
                    self.speakers.insert(index);
                }
                let uses = structural.get("tool_uses").and_then(Value::as_array).into_iter().flatten();
                let uses: Vec<(String, Option<Words>)> = uses
                    .map(|used| (used["id"].as_str().unwrap_or_default().to_owned(), used.get("result").map(Words::of)))
                    .collect();
                if !uses.is_empty() {
                    self.turns.insert(index, Uses { is_native: is_native(step), uses });
                }
            }
            Some(EVENT) if field("entry_type") == Some(FUNCTION_RESULT) => {
                let is_error = structural.get("is_error").and_then(Value::as_bool);
                if let (Some(call), Some(content), Some(is_error)) =
                    (field("function_call_id"), field("content"), is_error)
                {
                    let copy = step::extras(step).and_then(|extras| entry_of(extras.get("entry")?));
                    let copy = copy.as_ref().and_then(step::answer).map(|(_, answer)| Words::of(&answer));
                    let given = Given { call: call.to_owned(), words: Words::plain(content, is_error), copy };
                    self.results.insert(index, given);
                }
            }
            Some(_) | None => {}
        }
    }

    /// The verdict on each tool use that has function results that answer it. `sequence` has parents before their
    /// children; `parents` are the first ones, without a cycle.
    pub fn verdicts(
        &self,
        sequence: impl Iterator<Item = u32>,
        parents: &[Option<u32>],
        head: Option<u32>,
    ) -> BTreeMap<u32, Vec<Option<Verdict>>> {
        let mut on_path = vec![false; parents.len()];
        let mut here = head;
        while let Some(step) = here {
            on_path[step as usize] = true;
            here = parents[step as usize];
        }
        let mut answering: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for result in sequence.filter(|step| self.results.contains_key(step)) {
            for turn in self.asked_by(result, parents) {
                answering.entry(turn).or_default().push(result);
            }
        }
        let judged = answering.iter().map(|(turn, results)| {
            let verdicts = self.judge(*turn, results, &on_path);
            (*turn, verdicts)
        });
        judged.collect()
    }

    /// The turns with the call that a function result answers: up to the one that spoke last, as export looks for them.
    fn asked_by(&self, result: u32, parents: &[Option<u32>]) -> Vec<u32> {
        let mut turns = Vec::new();
        let mut above = parents[result as usize];
        for _ in 0..ANSWERS_WITHIN {
            let Some(step) = above else { break };
            let call = self.results.get(&result).map(|given| &given.call);
            let asks = |turn: &Uses| turn.uses.iter().any(|(id, _)| Some(id) == call);
            if self.turns.get(&step).is_some_and(asks) {
                turns.push(step);
            }
            if self.speakers.contains(&step) {
                break;
            }
            above = parents[step as usize];
        }
        turns
    }

    fn judge(&self, turn: u32, results: &[u32], on_path: &[bool]) -> Vec<Option<Verdict>> {
        let Some(Uses { is_native, uses }) = self.turns.get(&turn) else { return Vec::new() };
        let given = |result: &u32| self.results.get(result).map(|given| (*result, given));
        let results: Vec<(u32, &Given)> = results.iter().filter_map(given).collect();
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut verdicts = Vec::with_capacity(uses.len());
        for (call, shown) in uses {
            let nth = seen.entry(call).or_default();
            let answers = || results.iter().filter(|(_, given)| given.call == *call);
            // The one that export shows for this use.
            let own = match on_path[turn as usize] {
                true => answers().filter(|(result, _)| on_path[*result as usize]).nth(*nth),
                false => None,
            };
            *nth += 1;
            verdicts.push(match shown {
                Some(shown) if answers().next().is_some() => {
                    let was_told = answers().any(|(_, given)| given.words == *shown || given.copy == Some(*shown));
                    Some(match own {
                        Some((_, own)) if own.words == *shown => Verdict::Told,
                        Some(_) | None if *is_native && was_told => Verdict::Told,
                        Some((result, own)) if *is_native && *shown != Words::Beyond && own.copy == Some(own.words) => {
                            Verdict::Replaces(*result)
                        }
                        Some(_) | None => Verdict::Kept,
                    })
                }
                None if own.is_some() => Some(Verdict::Hidden),
                Some(_) | None => None,
            });
        }
        verdicts
    }
}

/// Whether a step has the lossless copy of an entry that was not made from a foreign step.
fn is_native(step: &Value) -> bool {
    match step::extras(step).and_then(|extras| extras.get("entry")) {
        Some(Value::Object(entry)) => !entry.get("origin").is_some_and(|origin| origin["toolpath"].is_object()),
        Some(copy @ Value::String(_)) => entry_of(copy).is_some_and(|entry| step::foreign(&entry).is_none()),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) | None => false,
    }
}
