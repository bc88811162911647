//! Owns: the text that benchmarks write. It consists of English words, so that it compresses like real messages, and is
//! the same in every run, so that runs can be compared.

const WORDS: [&str; 48] = [
    "the",
    "of",
    "a",
    "to",
    "and",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "with",
    "session",
    "message",
    "answer",
    "model",
    "reads",
    "writes",
    "branch",
    "because",
    "between",
    "every",
    "while",
    "through",
    "another",
    "question",
    "follows",
    "leader",
    "quorum",
    "disk",
    "network",
    "keeps",
    "loses",
    "nothing",
    "after",
    "before",
    "when",
    "machine",
    "which",
    "stops",
    "user",
    "asks",
    "longer",
    "paragraph",
    "about",
    "weather",
    "tomorrow",
    "however",
];

/// More texts than any batch holds, so that no batch contains a text twice.
const POOL: usize = 1024;

/// The length of one message in JSON.
pub const MESSAGE_BYTES: usize = 1024;

/// A pseudo-random generator: the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Words separated by spaces, cut to exactly `bytes`.
pub fn words(seed: u64, bytes: usize) -> String {
    let mut random = SplitMix(seed);
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(WORDS[random.below(WORDS.len())]);
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

/// A user message in the JSON of the API.
pub fn message(text: &str) -> String {
    format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}],"timestamp":1}}"#)
}

/// Messages of `MESSAGE_BYTES` each.
#[derive(Debug)]
pub struct Messages(Vec<String>);

impl Messages {
    pub fn new() -> Messages {
        let overhead = message("").len();
        Messages((0..POOL as u64).map(|seed| message(&words(seed, MESSAGE_BYTES - overhead))).collect())
    }

    pub fn nth(&self, nth: usize) -> &str {
        &self.0[nth % POOL]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_kibibyte_of_json_and_no_two_are_alike() {
        let messages = Messages::new();
        assert_ne!(messages.nth(0), messages.nth(1));
        for nth in 0..POOL {
            assert_eq!(messages.nth(nth).len(), MESSAGE_BYTES);
            assert!(serde_json::from_str::<serde_json::Value>(messages.nth(nth)).is_ok());
        }
    }
}
