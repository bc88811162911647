//! Owns: whether a directory may become, or already is, the data directory of an adapter. Nothing is created here.
//!
//! Someone who mistypes a path, or the adapter, must not find new files among old ones of another kind.

use std::io;
use std::path::Path;

use crate::config::AdapterConfig;
use crate::storage::disk::Disk;

/// Written by the raft adapter into its directory, first of all.
const IDENTITY: &str = "identity";

/// What may lie in a directory that is not ours yet: traces of a start that was killed at once.
const TRACES: [&str; 2] = ["LOCK", "identity.new"];

/// Why the directory cannot be used, if so.
pub fn check(disk: &dyn Disk, adapter: &AdapterConfig) -> Result<(), String> {
    let Some(data_dir) = adapter.data_dir() else { return Ok(()) };
    let names = names_in(disk, data_dir).map_err(|error| error.to_string())?;
    let is_raft = names.iter().any(|name| name == IDENTITY);
    match adapter {
        AdapterConfig::Fs(_) if is_raft => {
            Err("it holds the data of the raft adapter: use --adapter raft, or another directory".to_owned())
        }
        AdapterConfig::Raft(_) if !is_raft => match names.iter().find(|name| !TRACES.contains(&name.as_str())) {
            Some(name) if name.ends_with(".jsonl") => {
                Err(format!("it holds {name}, data of the fs adapter: use --adapter fs, or another directory"))
            }
            Some(name) => Err(format!("it holds {name} and no data of ours: choose an empty or a new directory")),
            None => Ok(()),
        },
        AdapterConfig::Raft(_) | AdapterConfig::Fs(_) | AdapterConfig::Bridge(_) => Ok(()),
    }
}

/// The names in a directory, sorted; none when it does not exist.
fn names_in(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    let mut names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed?,
    };
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DataDir;
    use crate::storage::disk::RealDisk;

    fn check_with(names: &[&str], adapter: fn(DataDir) -> AdapterConfig) -> Result<(), String> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in names {
            std::fs::write(dir.path().join(name), "").expect("a written file");
        }
        check(&RealDisk, &adapter(DataDir { data_dir: dir.path().to_owned() }))
    }

    #[test]
    fn an_adapter_takes_an_empty_directory_or_its_own() {
        for adapter in [AdapterConfig::Raft, AdapterConfig::Fs] {
            assert_eq!(check_with(&[], adapter), Ok(()));
            assert_eq!(check(&RealDisk, &adapter(DataDir { data_dir: "/no/such/directory".into() })), Ok(()));
        }
        assert_eq!(check_with(&["LOCK", "identity.new"], AdapterConfig::Raft), Ok(()));
        assert_eq!(check_with(&["identity", "log"], AdapterConfig::Raft), Ok(()));
        assert_eq!(check_with(&["LOCK", "chat.jsonl", "notes.txt"], AdapterConfig::Fs), Ok(()));
    }

    #[test]
    fn a_directory_of_another_kind_is_refused_by_what_it_holds() {
        assert!(check_with(&["chat.jsonl"], AdapterConfig::Raft).unwrap_err().contains("--adapter fs"));
        assert!(check_with(&["identity", "log"], AdapterConfig::Fs).unwrap_err().contains("--adapter raft"));
        assert!(check_with(&["holiday.jpg"], AdapterConfig::Raft).unwrap_err().contains("holiday.jpg"));
    }
}
