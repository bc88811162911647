//! Owns: the name of a session's file. Ids are any Unicode text and must never become a path: every byte outside
//! `[A-Za-z0-9._-]` is written `%XX`, and the suffix makes `.` and `..` ordinary names.

use std::fmt;

use crate::machine::ids::SessionId;

const SUFFIX: &str = ".jsonl";

/// The suffix of a fork that is not a session yet. No session's file ends with it.
const HIDDEN_SUFFIX: &str = ".fork";

/// The limit of common file systems.
const NAME_BYTES_MAX: usize = 255;

/// Why a session cannot have a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unstorable {
    NameTooLong { bytes: usize },
    DiffersInCase { other: SessionId },
}

impl fmt::Display for Unstorable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unstorable::NameTooLong { bytes } => write!(
                f,
                "session_id is too long for the fs adapter: its file name has {bytes} bytes, at most {NAME_BYTES_MAX} \
                 are possible; use a shorter session_id"
            ),
            Unstorable::DiffersInCase { other } => write!(
                f,
                "session_id differs from {:?} only in case, which this file system ignores; use another session_id",
                other.as_str()
            ),
        }
    }
}

impl std::error::Error for Unstorable {}

/// The file name of a session.
pub fn print(session_id: &SessionId) -> Result<String, Unstorable> {
    let mut name = String::new();
    for byte in session_id.as_str().bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    name.push_str(SUFFIX);
    if name.len() > NAME_BYTES_MAX {
        return Err(Unstorable::NameTooLong { bytes: name.len() });
    }
    Ok(name)
}

/// The file name of a fork that is not a session yet.
pub fn print_hidden(session_id: &SessionId) -> Result<String, Unstorable> {
    Ok(format!("{}{HIDDEN_SUFFIX}", print(session_id)?.trim_end_matches(SUFFIX)))
}

pub fn is_hidden(name: &str) -> bool {
    name.ends_with(HIDDEN_SUFFIX)
}

/// The session of a file; `None` if `print` does not produce this name.
pub fn parse(name: &str) -> Option<SessionId> {
    let mut rest = name.strip_suffix(SUFFIX)?.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    let session_id = SessionId::from(String::from_utf8(bytes).ok()?);
    // Another encoding of the same id would be a second file for one session.
    print(&session_id).is_ok_and(|printed| printed == name).then_some(session_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_stay_as_they_are() {
        for (id, name) in [
            ("s_1-a.B", "s_1-a.B.jsonl"),
            ("../escape/chat 42:?", "..%2Fescape%2Fchat%2042%3A%3F.jsonl"),
            (".", "..jsonl"),
            ("..", "...jsonl"),
            ("", ".jsonl"),
            ("é%\0", "%C3%A9%25%00.jsonl"),
        ] {
            assert_eq!(print(&id.into()).unwrap(), name);
            assert_eq!(parse(name).unwrap().as_str(), id);
        }
    }

    #[test]
    fn other_names_are_no_sessions() {
        for name in ["LOCK", "a.json", "a%2.jsonl", "a%zz.jsonl", "a%2f.jsonl", "a%41.jsonl", "%FF.jsonl", "a b.jsonl"]
        {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn an_id_too_long_for_a_file_is_refused_with_the_reason() {
        assert!(print(&"x".repeat(249).into()).is_ok());
        let why = print(&"x".repeat(250).into()).unwrap_err().to_string();
        assert!(why.contains("session_id is too long"), "{why}");
    }

    proptest! {
        #[test]
        fn every_id_comes_back_from_its_name_which_is_no_path(id in ".{0,20}") {
            let name = print(&id.as_str().into()).unwrap();
            prop_assert!(!name.contains(['/', '\\', ':', '\0']));
            prop_assert_eq!(parse(&name), Some(SessionId::from(id)));
        }
    }
}
