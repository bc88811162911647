//! Owns: the token that this program presents where it is a client itself: commands, benchmarks, a bridge.
//! Never: a token from an argument. Everybody on this machine can read arguments.

use std::fmt;
use std::path::{Path, PathBuf};

/// The variable with the token of our own clients. The SDKs read the second one.
const VARIABLES: [&str; 2] = ["SESSION_MANAGER_TOKEN", "III_TOKEN"];

/// Why there is no token. Never quotes what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnTokenError {
    Unreadable { path: PathBuf, why: String },
    NotAToken { place: String },
}

impl fmt::Display for OwnTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnTokenError::Unreadable { path, why } => {
                write!(f, "{}: {why}; give a file that holds the token and nothing else", path.display())
            }
            OwnTokenError::NotAToken { place } => {
                write!(f, "{place}: this is no token; give the token and nothing else")
            }
        }
    }
}

impl std::error::Error for OwnTokenError {}

/// Reads the token from the file, or else from the environment. A file is read at every connect, so it may change.
pub fn read(file: Option<&Path>) -> Result<Option<String>, OwnTokenError> {
    if let Some(path) = file {
        let unreadable =
            |error: std::io::Error| OwnTokenError::Unreadable { path: path.to_owned(), why: error.to_string() };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        return checked(&text, || path.display().to_string()).map(Some);
    }
    let given =
        |name: &&'static str| std::env::var(name).ok().filter(|token| !token.is_empty()).map(|token| (*name, token));
    let Some((name, token)) = VARIABLES.iter().find_map(given) else { return Ok(None) };
    checked(&token, || name.to_owned()).map(Some)
}

/// Only characters that a header may have.
fn checked(text: &str, place: impl Fn() -> String) -> Result<String, OwnTokenError> {
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(OwnTokenError::NotAToken { place: place() });
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_one_token_and_an_error_does_not_quote_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, " secret\n").unwrap();
        assert_eq!(read(Some(&path)).unwrap().as_deref(), Some("secret"));
        for wrong in ["", "\n", "secret other", "secret\nother", "größe-secret"] {
            std::fs::write(&path, wrong).unwrap();
            let error = read(Some(&path)).unwrap_err().to_string();
            assert!(error.contains("this is no token") && !error.contains("secret"), "{error}");
        }
        assert!(read(Some(&dir.path().join("none"))).unwrap_err().to_string().contains("none"));
    }
}
