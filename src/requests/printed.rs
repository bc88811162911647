//! Owns: `Printed`, a response as JSON text in parts. The parts of a page are shared with the sections they come from, so
//! a page is not copied on its way to the socket.
//! Never: what a response says.

use bytes::Bytes;

/// A shorter text is copied: a part of its own costs more.
const SHARED_FROM_BYTES: usize = 2 << 10;

/// JSON text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Printed {
    text: String,
    /// Shared texts, each with the text that follows it.
    shared: Vec<(Bytes, String)>,
}

impl Printed {
    pub fn push_str(&mut self, text: &str) {
        self.tail().push_str(text);
    }

    /// Adds a shared text, which must be UTF-8.
    pub fn push_shared(&mut self, text: Bytes) {
        if text.len() >= SHARED_FROM_BYTES {
            self.shared.push((text, String::new()));
        } else {
            self.push_str(&String::from_utf8_lossy(&text));
        }
    }

    /// The text that is written last, to add to it.
    pub fn tail(&mut self) -> &mut String {
        match self.shared.last_mut() {
            Some((_, tail)) => tail,
            None => &mut self.text,
        }
    }

    pub fn len(&self) -> usize {
        self.text.len() + self.shared.iter().map(|(shared, text)| shared.len() + text.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text before the first shared one, and the shared ones, each with the text that follows it.
    pub fn into_parts(self) -> (String, Vec<(Bytes, String)>) {
        (self.text, self.shared)
    }

    /// All of it in one piece.
    pub fn into_text(mut self) -> String {
        let shared = std::mem::take(&mut self.shared);
        self.text.reserve(shared.iter().map(|(shared, text)| shared.len() + text.len()).sum());
        for (shared, text) in shared {
            self.text.push_str(&String::from_utf8_lossy(&shared));
            self.text.push_str(&text);
        }
        self.text
    }
}

impl From<String> for Printed {
    fn from(text: String) -> Printed {
        Printed { text, shared: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_text_in_its_order() {
        let long = "x".repeat(SHARED_FROM_BYTES);
        let mut printed = Printed::from("a".to_owned());
        printed.push_shared("b".into());
        printed.push_shared(long.clone().into());
        printed.push_str("c");
        printed.push_shared(long.clone().into());
        let whole = format!("ab{long}c{long}");
        assert_eq!((printed.len(), printed.is_empty()), (whole.len(), false));
        let (text, shared) = printed.clone().into_parts();
        assert_eq!((text.as_str(), shared.len()), ("ab", 2), "a short text is not shared");
        assert_eq!(printed.into_text(), whole);
    }
}
