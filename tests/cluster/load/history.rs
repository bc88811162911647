//! Owns: what the clients of a load recorded, and the laws that can be checked as soon as an answer arrives.
//! Never: calls to a node.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One bug breaks a law many times. The first violations are enough to find it.
const BROKEN_MAX: usize = 50;

/// What is known of a write that its client does not retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It must be stored exactly once.
    Acknowledged,
    /// It may be stored once or not at all.
    Unknown,
    /// It must not be stored.
    NotExecuted,
}

/// The highest value that was acknowledged or read so far. Every later read must return at least this value.
#[derive(Debug, Default)]
pub struct Floor(AtomicU64);

impl Floor {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::SeqCst);
    }
}

/// A message that several clients update, each naming the revision it replaces.
#[derive(Debug)]
pub struct Counter {
    pub session_id: String,
    pub entry_id: String,
    pub floor: Floor,
    /// The text of each revision, as acknowledgements and reads reported it.
    texts: Mutex<BTreeMap<u64, String>>,
    /// Updates with an unknown outcome, by the revision they would have made.
    unknown: Mutex<BTreeMap<u64, Vec<String>>>,
}

impl Counter {
    pub fn new(session_id: String, entry_id: String) -> Counter {
        let (texts, unknown) = (Mutex::default(), Mutex::default());
        Counter { session_id, entry_id, floor: Floor::default(), texts, unknown }
    }

    /// Two texts for one revision mean that two leaders each accepted a write for it.
    pub fn record(&self, revision: u64, text: &str) -> Result<(), String> {
        let mut texts = held(&self.texts);
        let known = texts.entry(revision).or_insert_with(|| text.to_owned());
        if known == text {
            return Ok(());
        }
        let id = &self.session_id;
        Err(format!("counter {id}: revision {revision} was {known:?} for one client and {text:?} for another"))
    }

    pub fn may_have_made(&self, revision: u64, text: &str) {
        held(&self.unknown).entry(revision).or_default().push(text.to_owned());
    }

    /// Every revision up to the last comes from an update that a client sent.
    pub fn dense_up_to(&self, last: u64) -> Result<(), String> {
        let (texts, unknown) = (held(&self.texts), held(&self.unknown));
        let id = &self.session_id;
        if let Some((beyond, text)) = texts.range(last + 1..).next() {
            return Err(format!("counter {id} ends at revision {last}, but {beyond} was acknowledged with {text:?}"));
        }
        match (1..=last).find(|revision| !texts.contains_key(revision) && !unknown.contains_key(revision)) {
            Some(unsent) => Err(format!("counter {id}: no client wrote revision {unsent}")),
            None => Ok(()),
        }
    }
}

/// A write with a unique text, or a session with a unique tag.
#[derive(Debug, Clone)]
pub struct Write {
    pub client: usize,
    pub text: String,
    pub fate: Fate,
}

/// Counts of calls by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub writes: u64,
    pub reads: u64,
    /// `session/storage`, or no node listened.
    pub unavailable: u64,
    pub unknown: u64,
}

#[derive(Default)]
struct Recorded {
    /// By session, in the order of their answers.
    appends: BTreeMap<String, Vec<Write>>,
    creates: Vec<Write>,
    /// Times of acknowledged writes since the load began, ascending.
    acknowledged: Vec<Duration>,
    broken: Vec<String>,
    /// Why calls failed, and how often. Digits are replaced by `#`, so that equal reasons count together.
    failures: BTreeMap<String, u64>,
    tally: Tally,
}

impl Recorded {
    fn failed(&mut self, why: &str) {
        let words: String = why.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
        if self.failures.len() < BROKEN_MAX || self.failures.contains_key(&words) {
            *self.failures.entry(words).or_default() += 1;
        }
    }
}

/// Everything that the clients of one load recorded.
pub struct History {
    begun: Instant,
    recorded: Mutex<Recorded>,
    pub counters: Vec<Counter>,
    /// The name of the load. Its sessions carry it in their ids and metadata.
    pub name: String,
}

impl History {
    pub fn new(name: String, counters: Vec<Counter>) -> History {
        History { begun: Instant::now(), recorded: Mutex::default(), counters, name }
    }

    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    pub fn append(&self, session_id: &str, write: Write) {
        held(&self.recorded).appends.entry(session_id.to_owned()).or_default().push(write);
    }

    pub fn create(&self, write: Write) {
        held(&self.recorded).creates.push(write);
    }

    pub fn acknowledged(&self) {
        let mut recorded = held(&self.recorded);
        recorded.tally.writes += 1;
        // Taken under the lock, so that the times ascend.
        recorded.acknowledged.push(self.begun.elapsed());
    }

    pub fn read(&self) {
        held(&self.recorded).tally.reads += 1;
    }

    pub fn unavailable(&self, why: &str) {
        let mut recorded = held(&self.recorded);
        recorded.tally.unavailable += 1;
        recorded.failed(why);
    }

    pub fn unknown(&self, why: &str) {
        let mut recorded = held(&self.recorded);
        recorded.tally.unknown += 1;
        recorded.failed(why);
    }

    /// The reasons of failed calls, one per line, each with its count.
    pub fn failures(&self) -> String {
        held(&self.recorded).failures.iter().map(|(why, times)| format!("\n  {times} × {why}")).collect()
    }

    pub fn broken(&self, law: String) {
        let mut recorded = held(&self.recorded);
        if recorded.broken.len() < BROKEN_MAX {
            recorded.broken.push(law);
        }
    }

    /// Records the violation, if there is one.
    pub fn check(&self, law: Result<(), String>) {
        if let Err(why) = law {
            self.broken(why);
        }
    }

    pub fn laws_broken(&self) -> Vec<String> {
        held(&self.recorded).broken.clone()
    }

    pub fn tally(&self) -> Tally {
        held(&self.recorded).tally
    }

    pub fn appends(&self) -> BTreeMap<String, Vec<Write>> {
        held(&self.recorded).appends.clone()
    }

    pub fn creates(&self) -> Vec<Write> {
        held(&self.recorded).creates.clone()
    }

    /// The longest silence between two acknowledged writes that touches the time from `from` to `to`.
    pub fn longest_silence(&self, from: Duration, to: Duration) -> Duration {
        let recorded = held(&self.recorded);
        let times = &recorded.acknowledged;
        let first = times.partition_point(|time| *time < from);
        let mut before = first.checked_sub(1).and_then(|at| times.get(at)).copied().unwrap_or(from);
        let mut longest = Duration::ZERO;
        for time in &times[first..] {
            longest = longest.max(*time - before);
            before = *time;
            if *time >= to {
                return longest;
            }
        }
        longest.max(to.saturating_sub(before))
    }
}

/// What a panicked client recorded is still complete.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_revision_has_one_text_and_every_revision_an_author() {
        let counter = Counter::new("s".to_owned(), "e".to_owned());
        counter.record(1, "a").unwrap();
        counter.record(1, "a").unwrap();
        assert!(counter.record(1, "b").unwrap_err().contains("revision 1"));
        counter.may_have_made(2, "c");
        counter.dense_up_to(2).unwrap();
        assert!(counter.dense_up_to(3).unwrap_err().contains("no client wrote revision 3"));
        assert!(counter.dense_up_to(0).unwrap_err().contains("1 was acknowledged"));
    }

    #[test]
    fn a_silence_counts_from_the_write_before_it() {
        let history = History::new("t".to_owned(), Vec::new());
        held(&history.recorded).acknowledged = [1, 2, 7, 8].map(Duration::from_secs).to_vec();
        let silence = |from, to| history.longest_silence(Duration::from_secs(from), Duration::from_secs(to)).as_secs();
        assert_eq!(silence(3, 7), 5);
        assert_eq!(silence(0, 2), 1);
        assert_eq!(silence(8, 20), 12);
    }
}
