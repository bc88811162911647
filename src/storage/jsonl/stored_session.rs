//! Owns: one session as a file of the fs format, for programs that move sessions: read whole, written as a stream.
//! Never: skips a line that cannot be read. A session that is moved must not lose an entry silently.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use super::file_name;
use super::intent::Intents;
use super::session_file::{Content, Line};
use crate::machine::entry::Entry;
use crate::machine::ids::{EntryId, SessionId};
use crate::machine::json::Json;
use crate::machine::session::SessionMeta;
use crate::storage::files::DirLock;

/// A session as its file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSession {
    pub meta: SessionMeta,
    pub leaf: Option<EntryId>,
    /// Each after its parent.
    pub entries: Vec<Entry>,
}

/// Why a file is no session.
#[derive(Debug)]
pub enum NoSession {
    Disk(io::Error),
    /// The name is not an encoded session id.
    Name,
    Line {
        number: u64,
        why: String,
    },
    /// The session has no record: it was never created, or was deleted.
    NoMeta,
}

impl fmt::Display for NoSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSession::Disk(error) => write!(f, "{error}"),
            NoSession::Name => f.write_str("its name is not an encoded session id with the ending .jsonl"),
            NoSession::Line { number, why } => write!(f, "line {number} cannot be read: {why}"),
            NoSession::NoMeta => f.write_str("it has no meta record: it is not a session"),
        }
    }
}

impl std::error::Error for NoSession {}

/// The session id in the name of a file.
pub fn session_of(file: &Path) -> Option<SessionId> {
    file_name::parse(file.file_name()?.to_str()?)
}

/// The name of a session's file.
pub fn name_of(session_id: &SessionId) -> Result<String, file_name::Unstorable> {
    file_name::print(session_id)
}

/// Keeps a node from using a directory meanwhile, if it is one of the fs adapter, and settles what a killed one left.
pub fn claim(dir: &Path) -> io::Result<Option<DirLock>> {
    if !dir.join("LOCK").exists() {
        return Ok(None);
    }
    let lock = DirLock::acquire(dir)?;
    Intents::settle(dir)?;
    Ok(Some(lock))
}

/// Reads a session. A last line without a newline was never acknowledged, so it does not count.
pub fn read(file: &Path) -> Result<StoredSession, NoSession> {
    let session_id = session_of(file).ok_or(NoSession::Name)?;
    let mut bad = None;
    let content = Content::read_with(file, |number, torn, error| {
        if !torn && bad.is_none() {
            bad = Some(NoSession::Line { number, why: error.to_string() });
        }
    });
    let content = content.map_err(NoSession::Disk)?;
    if let Some(bad) = bad {
        return Err(bad);
    }
    let (entries, leaf) = (content.parents_first(), content.surviving_leaf());
    let message_count = entries.iter().filter(|entry| entry.is_message()).count() as u64;
    let meta = content.meta().cloned().ok_or(NoSession::NoMeta)?;
    Ok(StoredSession { meta: SessionMeta { session_id, message_count, ..meta }, leaf, entries })
}

/// Writes the file of a session: entries, leaf, meta, as the fs adapter writes a session that was rewritten.
pub struct SessionWriter<W> {
    out: W,
}

impl<W: Write> SessionWriter<W> {
    pub fn new(out: W) -> SessionWriter<W> {
        SessionWriter { out }
    }

    pub fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        self.line(&Line::Entry { entry })
    }

    pub fn finish(mut self, leaf: Option<&EntryId>, meta: &SessionMeta) -> io::Result<W> {
        if let Some(entry_id) = leaf {
            self.line(&Line::Leaf { entry_id })?;
        }
        self.line(&Line::Meta { meta })?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        self.out.write_all(Json::print(line).text().as_bytes())?;
        self.out.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const META: &str = r#"{"type":"meta","meta":{"session_id":"s","title":"T","description":"","status":"idle","message_count":9,"created_at":1,"updated_at":2}}"#;

    fn entry(id: &str, parent: Option<&str>) -> String {
        let parent = parent.map_or(String::new(), |parent| format!(r#","parent_id":"{parent}""#));
        format!(
            r#"{{"type":"entry","entry":{{"kind":"message","id":"{id}"{parent},"timestamp":1,"revision":0,"message":{{"timestamp":1,"role":"user","content":[{{"type":"text","text":"{id}"}}]}}}}}}"#
        )
    }

    fn read_text(text: &str) -> Result<StoredSession, NoSession> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s.jsonl");
        fs::write(&file, text).unwrap();
        read(&file)
    }

    #[test]
    fn a_session_is_read_with_its_last_records_and_each_entry_after_its_parent() {
        let leaf = |id: &str| format!(r#"{{"type":"leaf","entry_id":"{id}"}}"#);
        let lines = [entry("b", Some("a")), META.to_owned(), entry("a", None), leaf("a"), leaf("b")];
        let session = read_text(&(lines.join("\n") + "\n" + r#"{"type":"ent"#)).unwrap();
        assert_eq!(session.entries.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(session.leaf, Some(EntryId::from("b")));
        assert_eq!((session.meta.title.as_str(), session.meta.message_count), ("T", 2));

        let mut writer = SessionWriter::new(Vec::new());
        session.entries.iter().for_each(|entry| writer.entry(entry).unwrap());
        let written = String::from_utf8(writer.finish(session.leaf.as_ref(), &session.meta).unwrap()).unwrap();
        assert_eq!(read_text(&written).unwrap(), session);
        let own = r#"{"timestamp":1,"role":"user","content":[{"type":"text","text":"a"}]}"#;
        assert!(written.contains(own), "a message keeps the order of its fields: {written}");
    }

    #[test]
    fn a_file_that_is_no_session_is_refused_by_its_line() {
        let bad = read_text(&format!("{META}\nnonsense\n{}\n", entry("a", None))).unwrap_err().to_string();
        assert!(bad.starts_with("line 2 cannot be read"), "{bad}");
        assert!(matches!(read_text(&entry("a", None)), Err(NoSession::NoMeta)));
        assert!(matches!(read(Path::new("a b.jsonl")), Err(NoSession::Name)));
        assert!(matches!(read(Path::new("absent.jsonl")), Err(NoSession::Disk(_))));
    }
}
