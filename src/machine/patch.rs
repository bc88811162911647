//! Owns: the difference between two texts, for replies that grow while they stream.
//!
//! A client sends the whole content with every update, but usually only a few bytes near the end have changed. The
//! leader proposes only those bytes, and every replica rebuilds the text from its own copy.
//! Never: applies a patch to another base than the one it was made for.

use xxhash_rust::xxh3::xxh3_64;

/// About how many bytes the fields of a patch take in the log.
const PATCH_OVERHEAD_BYTES: usize = 32;

/// The new text, expressed as the base text with its middle replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// The revision whose text is the base.
    pub base_revision: u64,
    /// The hash of the base text. The revision alone is not enough: it starts again if an entry is deleted and
    /// recreated.
    pub base_hash: u64,
    /// Bytes kept from the start of the base.
    pub head: u64,
    /// Bytes kept from the end of the base.
    pub tail: u64,
    /// The new bytes between head and tail.
    pub middle: Vec<u8>,
}

impl Patch {
    /// The patch from `base` to `text`; `None` if it would not be smaller than the text.
    pub fn between(base_revision: u64, base: &str, text: &str) -> Option<Patch> {
        let (old, new) = (base.as_bytes(), text.as_bytes());
        let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let (old_rest, new_rest) = (&old[head..], &new[head..]);
        let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a == b).count();
        let middle = &new_rest[..new_rest.len() - tail];
        if middle.len() + PATCH_OVERHEAD_BYTES >= new.len() {
            return None;
        }
        Some(Patch {
            base_revision,
            base_hash: xxh3_64(old),
            head: head as u64,
            tail: tail as u64,
            middle: middle.to_vec(),
        })
    }

    /// Applies the patch to `base`; `None` if it was made for another base.
    pub fn onto(&self, base: &str) -> Option<String> {
        let old = base.as_bytes();
        if xxh3_64(old) != self.base_hash {
            return None;
        }
        let (head, tail) = (usize::try_from(self.head).ok()?, usize::try_from(self.tail).ok()?);
        let kept = head.checked_add(tail).filter(|kept| *kept <= old.len())?;
        let mut text = Vec::with_capacity(kept + self.middle.len());
        text.extend_from_slice(&old[..head]);
        text.extend_from_slice(&self.middle);
        text.extend_from_slice(&old[old.len() - tail..]);
        String::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_growing_text_costs_what_it_grew() {
        let base = format!("[{{\"text\":\"{}\"}}]", "word ".repeat(1000));
        let text = format!("[{{\"text\":\"{}more\"}}]", "word ".repeat(1000));
        let patch = Patch::between(3, &base, &text).unwrap();
        assert_eq!(patch.middle, b"more");
        assert_eq!(patch.onto(&base).as_deref(), Some(text.as_str()));
    }

    #[test]
    fn a_patch_fits_no_other_base() {
        let patch = Patch::between(0, &"a".repeat(100), &"a".repeat(101)).unwrap();
        assert_eq!(patch.onto(&"a".repeat(99)), None);
        assert_eq!(patch.onto(""), None);
    }

    #[test]
    fn a_short_or_wholly_new_text_is_not_patched() {
        assert_eq!(Patch::between(0, "[]", "[1]"), None);
        assert_eq!(Patch::between(0, &"a".repeat(100), &"b".repeat(100)), None);
    }

    proptest! {
        #[test]
        fn a_patch_gives_back_the_text_whatever_the_bytes(
            head in "[aé🦀]{0,40}", a in "[aé🦀]{0,3}", b in "[aé🦀]{0,3}", tail in "[aé🦀]{0,40}",
        ) {
            let (base, text) = (format!("{head}{a}{tail}"), format!("{head}{b}{tail}"));
            if let Some(patch) = Patch::between(1, &base, &text) {
                prop_assert_eq!(patch.onto(&base), Some(text));
            }
        }

        #[test]
        fn a_forged_patch_never_panics(head: u64, tail: u64, middle: Vec<u8>, base in ".{0,20}") {
            let base_hash = xxh3_64(base.as_bytes());
            let _ = Patch { base_revision: 0, base_hash, head, tail, middle }.onto(&base);
        }
    }
}
