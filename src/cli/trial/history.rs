//! Owns: what the clients of a trial were told, and the laws that can be checked the moment they are told it.
//! Never: a call of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A broken law repeats itself; the first ones tell the story.
const BROKEN_MAX: usize = 50;

/// What became of a write that is not repeated by its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Acknowledged: there exactly once.
    Done,
    /// There once or not at all.
    Unknown,
    /// Not there.
    NotDone,
}

/// A value that only grows, with a floor that every later reader must see: what was acknowledged or read before.
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
    /// Which text each revision has, as told by acknowledgements and reads.
    texts: Mutex<BTreeMap<u64, String>>,
    /// Updates with an unknown outcome, by the revision they would have made.
    unknown: Mutex<BTreeMap<u64, Vec<String>>>,
}

impl Counter {
    pub fn new(session_id: String, entry_id: String) -> Counter {
        let (texts, unknown) = (Mutex::default(), Mutex::default());
        Counter { session_id, entry_id, floor: Floor::default(), texts, unknown }
    }

    /// Two texts for one revision mean that two leaders accepted a write in its place.
    pub fn learn(&self, revision: u64, text: &str) -> Result<(), String> {
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

    /// Every revision up to the last was made by an update somebody sent.
    pub fn dense_up_to(&self, last: u64) -> Result<(), String> {
        let (texts, unknown) = (held(&self.texts), held(&self.unknown));
        let id = &self.session_id;
        if let Some((beyond, text)) = texts.range(last + 1..).next() {
            return Err(format!("counter {id} ends at revision {last}, but {beyond} was acknowledged with {text:?}"));
        }
        match (1..=last).find(|revision| !texts.contains_key(revision) && !unknown.contains_key(revision)) {
            Some(nobodys) => Err(format!("counter {id}: nobody wrote its revision {nobodys}")),
            None => Ok(()),
        }
    }
}

/// A write with a text of its own, or a session with a tag of its own.
#[derive(Debug, Clone)]
pub struct Write {
    pub client: usize,
    pub text: String,
    pub fate: Fate,
}

/// How often each thing happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub writes: u64,
    pub reads: u64,
    /// `session/storage`, or nobody listened.
    pub not_done: u64,
    pub unknown: u64,
}

#[derive(Default)]
struct Told {
    /// By session, in the order in which each client learned of them.
    appends: BTreeMap<String, Vec<Write>>,
    creates: Vec<Write>,
    /// Since the beginning of the trial, ascending.
    acknowledged: Vec<Duration>,
    broken: Vec<String>,
    /// Why calls were not done or not known to be done, without the numbers that differ each time, and how often.
    failures: BTreeMap<String, u64>,
    tally: Tally,
}

impl Told {
    fn failed(&mut self, why: &str) {
        let words: String = why.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
        if self.failures.len() < BROKEN_MAX || self.failures.contains_key(&words) {
            *self.failures.entry(words).or_default() += 1;
        }
    }
}

/// Everything a trial was told.
pub struct History {
    begun: Instant,
    told: Mutex<Told>,
    pub counters: Vec<Counter>,
    /// Tells one trial's sessions from another's.
    pub name: String,
}

impl History {
    pub fn new(name: String, counters: Vec<Counter>) -> History {
        History { begun: Instant::now(), told: Mutex::default(), counters, name }
    }

    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    pub fn append(&self, session_id: &str, write: Write) {
        held(&self.told).appends.entry(session_id.to_owned()).or_default().push(write);
    }

    pub fn create(&self, write: Write) {
        held(&self.told).creates.push(write);
    }

    pub fn acknowledged(&self) {
        let mut told = held(&self.told);
        told.tally.writes += 1;
        // Taken under the lock, so that the times ascend.
        told.acknowledged.push(self.begun.elapsed());
    }

    pub fn read(&self) {
        held(&self.told).tally.reads += 1;
    }

    pub fn not_done(&self, why: &str) {
        let mut told = held(&self.told);
        told.tally.not_done += 1;
        told.failed(why);
    }

    pub fn unknown(&self, why: &str) {
        let mut told = held(&self.told);
        told.tally.unknown += 1;
        told.failed(why);
    }

    /// The reasons of failed calls, one per line, with how often each was heard.
    pub fn failures(&self) -> String {
        held(&self.told).failures.iter().map(|(why, times)| format!("\n  {times} × {why}")).collect()
    }

    pub fn broken(&self, law: String) {
        let mut told = held(&self.told);
        if told.broken.len() < BROKEN_MAX {
            told.broken.push(law);
        }
    }

    pub fn check(&self, law: Result<(), String>) {
        if let Err(why) = law {
            self.broken(why);
        }
    }

    pub fn laws_broken(&self) -> Vec<String> {
        held(&self.told).broken.clone()
    }

    pub fn tally(&self) -> Tally {
        held(&self.told).tally
    }

    pub fn appends(&self) -> BTreeMap<String, Vec<Write>> {
        held(&self.told).appends.clone()
    }

    pub fn creates(&self) -> Vec<Write> {
        held(&self.told).creates.clone()
    }

    /// The longest silence between two acknowledged writes that touches the time from `from` to `to`.
    pub fn longest_silence(&self, from: Duration, to: Duration) -> Duration {
        let told = held(&self.told);
        let times = &told.acknowledged;
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

/// A client that panicked has told everything it knew.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_revision_has_one_text_and_every_revision_an_author() {
        let counter = Counter::new("s".to_owned(), "e".to_owned());
        counter.learn(1, "a").unwrap();
        counter.learn(1, "a").unwrap();
        assert!(counter.learn(1, "b").unwrap_err().contains("revision 1"));
        counter.may_have_made(2, "c");
        counter.dense_up_to(2).unwrap();
        assert!(counter.dense_up_to(3).unwrap_err().contains("nobody wrote its revision 3"));
        assert!(counter.dense_up_to(0).unwrap_err().contains("1 was acknowledged"));
    }

    #[test]
    fn a_silence_counts_from_the_write_before_it() {
        let history = History::new("t".to_owned(), Vec::new());
        held(&history.told).acknowledged = [1, 2, 7, 8].map(Duration::from_secs).to_vec();
        let silence = |from, to| history.longest_silence(Duration::from_secs(from), Duration::from_secs(to)).as_secs();
        assert_eq!(silence(3, 7), 5);
        assert_eq!(silence(0, 2), 1);
        assert_eq!(silence(8, 20), 12);
    }
}
