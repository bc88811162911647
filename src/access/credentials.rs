//! Owns: the check of credentials that every door makes, and reading the credentials again when their file changes.
//! Never: a wire. A door says what was presented and spells the refusal.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::identity::{Identity, Proof};
use super::jwt::{Jwt, JwtConfig, JwtError};
use super::logins::FailedLogins;
use super::token::TokenHash;
use super::token_file::{Lookup, TokenFileError, Tokens};

/// The longest token: a JWT with many claims has some KiB.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often a live connection asks whether its credentials still hold.
const RECHECK_EVERY: Duration = Duration::from_secs(10);

/// Where the credentials of a node come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    pub token_file: Option<PathBuf>,
    pub jwt: Option<JwtConfig>,
    /// Client certificates of the cluster's authority. The TLS handshake checks them.
    pub certificates: bool,
}

/// What a caller presents at a door.
#[derive(Debug, Clone, Copy)]
pub struct Presented<'a> {
    pub token: Option<&'a str>,
    /// The identity in a client certificate that the TLS handshake verified.
    pub certificate: Option<&'a Arc<Identity>>,
    pub from: IpAddr,
}

/// Why a caller is refused. The texts do not help to guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginError {
    Missing,
    Wrong,
    Expired,
    TooLong,
    /// This address presented wrong credentials too often.
    TooMany,
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoginError::Missing => f.write_str(
                "this node needs credentials: send the header `Authorization: Bearer <token>` (SDKs read III_TOKEN)",
            ),
            LoginError::Wrong => f.write_str("the credentials are not known to this node"),
            LoginError::Expired => f.write_str("the credentials have expired"),
            LoginError::TooLong => write!(f, "the token is longer than {TOKEN_BYTES_MAX} bytes"),
            LoginError::TooMany => f.write_str("too many wrong credentials from this address; wait a minute"),
        }
    }
}

impl std::error::Error for LoginError {}

/// Why credentials cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceError {
    TokenFile { path: PathBuf, error: TokenFileError },
    Jwt(JwtError),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::TokenFile { path, error } => write!(f, "token_file {}: {error}", path.display()),
            SourceError::Jwt(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SourceError {}

/// The credentials of a node.
pub struct Credentials {
    known: RwLock<Arc<Known>>,
    /// Counts the changes of `known`.
    changed: watch::Sender<u64>,
    logins: FailedLogins,
}

#[derive(Default)]
struct Known {
    sources: Sources,
    tokens: Option<Tokens>,
    jwt: Option<Jwt>,
}

impl Credentials {
    /// Lets everybody in, as a node without configuration does.
    pub fn open() -> Arc<Credentials> {
        Arc::new(Credentials {
            known: RwLock::default(),
            changed: watch::Sender::new(0),
            logins: FailedLogins::default(),
        })
    }

    pub fn load(sources: Sources) -> Result<Arc<Credentials>, SourceError> {
        let credentials = Credentials::open();
        credentials.change(sources)?;
        Ok(credentials)
    }

    /// Reads the credentials from these sources. If one cannot be read, nothing changes.
    pub fn change(&self, sources: Sources) -> Result<(), SourceError> {
        let tokens = sources.token_file.as_deref().map(load_tokens).transpose()?;
        let jwt = sources.jwt.as_ref().map(Jwt::load).transpose().map_err(SourceError::Jwt)?;
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Known { sources, tokens, jwt });
        self.changed.send_modify(|changes| *changes += 1);
        Ok(())
    }

    fn known(&self) -> Arc<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a caller needs credentials.
    pub fn are_needed(&self) -> bool {
        self.known().needs_credentials()
    }

    /// Checks what a caller presents.
    pub fn check(&self, presented: Presented<'_>) -> Result<Arc<Identity>, LoginError> {
        let known = self.known();
        let Some(token) = presented.token else {
            return match presented.certificate {
                Some(identity) => Ok(identity.clone()),
                None if !known.needs_credentials() => Ok(Identity::open()),
                None => Err(LoginError::Missing),
            };
        };
        // Without credentials to compare with, a token that a client sends anyway means nothing.
        if !known.needs_credentials() {
            return Ok(Identity::open());
        }
        known.check(token, now_ms()).map_err(|error| match self.logins.count(presented.from, now_ms()) {
            true => LoginError::TooMany,
            false => error,
        })
    }

    /// Whether an identity that was checked before still holds.
    pub fn hold(&self, identity: &Identity) -> bool {
        match &identity.proof {
            // Credentials may have been configured since.
            Proof::Nothing => !self.are_needed(),
            Proof::Token(hash) => match &self.known().tokens {
                Some(tokens) => match tokens.find(hash, now_ms()) {
                    Lookup::Valid(now) => now.is_same_caller(identity),
                    Lookup::Unknown | Lookup::Expired => false,
                },
                None => false,
            },
            Proof::Until(end_ms) => now_ms() < *end_ms,
            Proof::Configured => true,
        }
    }

    /// Resolves when an identity no longer holds: its token was removed or has expired.
    pub async fn lapsed(&self, identity: &Identity) {
        let mut changed = self.changed.subscribe();
        while self.hold(identity) {
            match identity.proof {
                Proof::Nothing | Proof::Configured => {
                    // Only a change of the sources can matter. The sender lives as long as `self`.
                    let _ = changed.changed().await;
                }
                Proof::Token(_) | Proof::Until(_) => {
                    let _ = tokio::time::timeout(RECHECK_EVERY, changed.changed()).await;
                }
            }
        }
    }

    /// Reads the files again whenever they change, for as long as the node runs. A file that cannot be read leaves the
    /// credentials as they are.
    pub async fn follow_files(&self) {
        let mut seen = FileStamps::of(&self.known().sources.files());
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let sources = self.known().sources.clone();
            let now = FileStamps::of(&sources.files());
            if now == seen {
                continue;
            }
            seen = now;
            match self.change(sources) {
                Ok(()) => tracing::info!("the credentials were read again"),
                Err(error) => tracing::warn!(%error, "the credentials cannot be read; the previous ones stay in use"),
            }
        }
    }
}

impl Known {
    fn needs_credentials(&self) -> bool {
        self.tokens.is_some() || self.jwt.is_some() || self.sources.certificates
    }

    fn check(&self, token: &str, now_ms: i64) -> Result<Arc<Identity>, LoginError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(LoginError::TooLong);
        }
        match self.tokens.as_ref().map(|tokens| tokens.find(&TokenHash::of(token), now_ms)) {
            Some(Lookup::Valid(identity)) => Ok(identity),
            Some(Lookup::Expired) => Err(LoginError::Expired),
            Some(Lookup::Unknown) | None => match &self.jwt {
                Some(jwt) => jwt.check(token),
                None => Err(LoginError::Wrong),
            },
        }
    }
}

fn load_tokens(path: &Path) -> Result<Tokens, SourceError> {
    Tokens::load(path).map_err(|error| SourceError::TokenFile { path: path.to_owned(), error })
}

/// What shows that a file was replaced or written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileStamps(Vec<Option<(SystemTime, u64)>>);

impl FileStamps {
    pub fn of(files: &[PathBuf]) -> FileStamps {
        let stamp = |path: &PathBuf| {
            let file = std::fs::metadata(path).ok()?;
            Some((file.modified().ok()?, file.len()))
        };
        FileStamps(files.iter().map(stamp).collect())
    }
}

impl Sources {
    fn files(&self) -> Vec<PathBuf> {
        let jwt = self.jwt.iter().flat_map(|jwt| [&jwt.jwks_file, &jwt.key_file]).flatten();
        self.token_file.iter().chain(jwt).cloned().collect()
    }
}

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::role::Role;

    fn line(token: &str, role: Role) -> String {
        format!("{{\"name\": \"{token}\", \"role\": \"{role}\", \"hash\": \"{}\"}}\n", TokenHash::of(token))
    }

    fn present(token: Option<&str>) -> Presented<'_> {
        Presented { token, certificate: None, from: IpAddr::from([127, 0, 0, 1]) }
    }

    #[test]
    fn without_credentials_everybody_is_let_in_and_with_them_nobody_else() {
        let open = Credentials::open();
        assert_eq!(open.check(present(None)), Ok(Identity::open()));
        assert_eq!(open.check(present(Some("any"))), Ok(Identity::open()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, line("one", Role::Reader)).unwrap();
        let closed = Credentials::load(Sources { token_file: Some(path), ..Sources::default() }).unwrap();
        assert_eq!(closed.check(present(None)), Err(LoginError::Missing));
        assert_eq!(closed.check(present(Some("two"))), Err(LoginError::Wrong));
        assert_eq!(closed.check(present(Some(&"x".repeat(1 << 20)))), Err(LoginError::TooLong));
        assert_eq!(closed.check(present(Some("one"))).unwrap().role, Role::Reader);
    }

    #[test]
    fn where_certificates_are_credentials_nobody_is_let_in_without_one() {
        let closed = Credentials::load(Sources { certificates: true, ..Sources::default() }).unwrap();
        assert_eq!(closed.check(present(None)), Err(LoginError::Missing));
        assert_eq!(closed.check(present(Some("any"))), Err(LoginError::Wrong));
        let ops = Arc::new(Identity::new("ops", Role::Admin, Proof::Until(i64::MAX)));
        let with = Presented { certificate: Some(&ops), ..present(None) };
        assert_eq!(closed.check(with), Ok(ops.clone()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_token_ends_what_it_opened_and_a_broken_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, line("one", Role::App) + &line("two", Role::App)).unwrap();
        let credentials = Credentials::load(Sources { token_file: Some(path.clone()), ..Sources::default() }).unwrap();
        let one = credentials.check(present(Some("one"))).unwrap();
        let two = credentials.check(present(Some("two"))).unwrap();
        let following = tokio::spawn({
            let credentials = credentials.clone();
            async move { credentials.follow_files().await }
        });
        std::fs::write(&path, "broken").unwrap();
        tokio::time::sleep(LOOK_EVERY * 2).await;
        assert!(credentials.hold(&one) && credentials.hold(&two));
        std::fs::write(&path, line("two", Role::App)).unwrap();
        credentials.lapsed(&one).await;
        assert!(!credentials.hold(&one) && credentials.hold(&two));
        following.abort();
    }

    #[test]
    fn wrong_tokens_are_limited_and_right_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, line("one", Role::App)).unwrap();
        let credentials = Credentials::load(Sources { token_file: Some(path), ..Sources::default() }).unwrap();
        for n in 0..10_000 {
            credentials.check(present(Some(&n.to_string()))).unwrap_err();
        }
        assert_eq!(credentials.check(present(Some("x"))), Err(LoginError::TooMany));
        assert!(credentials.check(present(Some("one"))).is_ok());
    }
}
