//! Owns: opaque tokens: making one, and the hash that is stored instead of it.
//! Never: a token in a log or an error.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// What every token starts with, so that people and secret scanners recognise one.
const PREFIX: &str = "smt_";
/// Far more than anybody can guess.
const RANDOM_BYTES: usize = 32;
/// How the token file spells a hash.
const HASH_PREFIX: &str = "sha256:";

/// The SHA-256 of a token. A token is 256 random bits, so its hash needs neither salt nor slowness.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub fn of(token: &str) -> TokenHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        TokenHash(hash)
    }

    /// Reads `sha256:` and 64 hex digits.
    pub fn parse(text: &str) -> Option<TokenHash> {
        let hex = text.strip_prefix(HASH_PREFIX).filter(|hex| hex.len() == 64 && hex.is_ascii())?;
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(TokenHash(hash))
    }

    /// Compares in a time that does not depend on where two hashes differ.
    pub fn is(&self, other: &TokenHash) -> bool {
        self.0.iter().zip(other.0).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The start is enough to tell tokens apart in a log.
impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HASH_PREFIX}{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

/// A new random token. `None` if the system has no randomness.
pub fn make() -> Option<String> {
    let mut random = [0; RANDOM_BYTES];
    SystemRandom::new().fill(&mut random).ok()?;
    Some(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_reads_back_and_tells_tokens_apart() {
        let (one, two) = (make().unwrap(), make().unwrap());
        assert!(one.starts_with(PREFIX) && one.len() == PREFIX.len() + 43 && one != two);
        let hash = TokenHash::of(&one);
        let read = TokenHash::parse(&hash.to_string()).unwrap();
        assert!(read.is(&hash) && !read.is(&TokenHash::of(&two)));
        for wrong in ["", "sha256:", "sha256:zz", &hash.to_string()[1..], &format!("sha256:{}", "ß".repeat(32))] {
            assert_eq!(TokenHash::parse(wrong), None, "{wrong}");
        }
        assert!(!format!("{hash:?}").contains(&hash.to_string()[20..]));
    }
}
