//! Who is calling, and what that caller may do.
//!
//! Owns: roles and the role matrix (`role`), identities (`identity`), tokens and their file (`token`, `token_file`),
//! the token of our own clients (`own_token`), JWTs (`jwt`), the check that every door makes (`credentials`), TLS
//! (`tls`), the names in certificates (`certificate`), making and storing them (`authority`, `certificate_dir`), and
//! the audit lines (`audit`). Reads: files with credentials.
//! Never: a wire, a session, or a secret in a log.

pub mod role;
pub mod identity;
pub mod token;
pub mod token_file;
pub mod own_token;
pub mod audit;
pub mod jwt;
pub mod credentials;
pub mod certificate;
pub mod authority;
pub mod certificate_dir;
pub mod tls;
pub mod logins;

pub use credentials::{Credentials, LoginError, Presented};
pub use identity::Identity;
pub use role::{Action, Role};
