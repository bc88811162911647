//! Owns: session ids that differ only in case, on file systems that ignore case. Two sessions must not share one file.

use std::collections::BTreeMap;
use std::path::Path;

use super::file_name::Unstorable;
use crate::machine::ids::SessionId;

pub struct LetterCase {
    /// The session of each lower-cased id. `None` where the file system distinguishes case.
    taken: Option<BTreeMap<String, SessionId>>,
}

impl LetterCase {
    /// `LOCK` exists already. If `lock` exists too, the file system ignores case.
    pub fn probe(dir: &Path) -> LetterCase {
        LetterCase { taken: dir.join("lock").exists().then(BTreeMap::new) }
    }

    pub fn add(&mut self, session_id: &SessionId) {
        if let Some(taken) = &mut self.taken {
            taken.insert(session_id.as_str().to_ascii_lowercase(), session_id.clone());
        }
    }

    pub fn remove(&mut self, session_id: &SessionId) {
        if let Some(taken) = &mut self.taken {
            taken.remove(&session_id.as_str().to_ascii_lowercase());
        }
    }

    pub fn conflict(&self, session_id: &SessionId) -> Option<Unstorable> {
        let other = self.taken.as_ref()?.get(&session_id.as_str().to_ascii_lowercase())?;
        (other != session_id).then(|| Unstorable::DiffersInCase { other: other.clone() })
    }
}

#[cfg(test)]
#[test]
fn ids_that_differ_in_case_only_are_refused_where_files_would_meet() {
    let mut letter_case = LetterCase { taken: Some(BTreeMap::new()) };
    letter_case.add(&"Chat".into());
    assert!(letter_case.conflict(&"chat".into()).is_some());
    assert!(letter_case.conflict(&"Chat".into()).is_none());
    letter_case.remove(&"Chat".into());
    assert!(letter_case.conflict(&"chat".into()).is_none());
}
