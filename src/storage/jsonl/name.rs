//! Owns: the name of a session's file. Ids are any Unicode text and must never become a path: every byte outside
//! `[A-Za-z0-9._-]` is written `%XX`, and the suffix keeps `.` and `..` from being special.

use crate::machine::ids::SessionId;

const SUFFIX: &str = ".jsonl";

/// What the common file systems allow in one name.
const NAME_BYTES_MAX: usize = 255;

/// The file name of a session, or why it cannot have one.
pub fn print(session_id: &SessionId) -> Result<String, String> {
    let mut name = String::new();
    for byte in session_id.as_str().bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    name.push_str(SUFFIX);
    if name.len() > NAME_BYTES_MAX {
        return Err(format!(
            "session_id is too long for the fs adapter: its file name has {} bytes, at most {NAME_BYTES_MAX} are \
             possible; use a shorter session_id",
            name.len()
        ));
    }
    Ok(name)
}

/// The session a file belongs to; `None` when the name is not one `print` gives.
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
    // One session, one file: a second spelling of the same id would be a second truth.
    (print(&session_id).as_deref() == Ok(name)).then_some(session_id)
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
        let why = print(&"x".repeat(250).into()).unwrap_err();
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
