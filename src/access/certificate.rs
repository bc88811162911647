//! Owns: what a certificate of the cluster's authority says: the node or the client it was made for, and until when.
//! Never: whether it is genuine. The TLS handshake decides that.

use std::fmt;
use std::sync::Arc;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::identity::{Identity, Proof};
use super::role::Role;

/// The scheme of the URI that names the subject of a certificate.
const SCHEME: &str = "session-manager://";

/// Who a certificate was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub cluster: String,
    pub who: Who,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    Node(u64),
    /// A node whose id the cluster gives.
    AnyNode,
    /// An operator's tool or a bridge.
    Client {
        name: String,
        role: Role,
    },
}

impl Subject {
    pub fn node(cluster: &str, id: u64) -> Subject {
        Subject { cluster: cluster.to_owned(), who: Who::Node(id) }
    }

    /// Reads the URI of a certificate.
    pub fn parse(uri: &str) -> Option<Subject> {
        let mut parts = uri.strip_prefix(SCHEME)?.split('/');
        let cluster = parts.next().filter(|cluster| !cluster.is_empty())?.to_owned();
        let who = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
            ("node", None, None, None) => Who::AnyNode,
            ("node", Some(id), None, None) => Who::Node(id.parse().ok().filter(|id| *id > 0)?),
            ("client", Some(name), Some(role), None) if !name.is_empty() => {
                Who::Client { name: name.to_owned(), role: Role::named(role)? }
            }
            _other => return None,
        };
        Some(Subject { cluster, who })
    }
}

/// The URI that stands in the certificate.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = &self.cluster;
        match &self.who {
            Who::Node(id) => write!(f, "{SCHEME}{cluster}/node/{id}"),
            Who::AnyNode => write!(f, "{SCHEME}{cluster}/node"),
            Who::Client { name, role } => write!(f, "{SCHEME}{cluster}/client/{name}/{role}"),
        }
    }
}

/// What is read from a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// `None` for a certificate of another authority, such as that of a public web server.
    pub subject: Option<Subject>,
    /// The common name, for people.
    pub common_name: String,
    pub is_authority: bool,
    pub not_after_ms: i64,
}

impl Certificate {
    /// Reads a certificate in DER. `None` if it is none.
    pub fn read(der: &[u8]) -> Option<Certificate> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let names = certificate.subject_alternative_name().ok().flatten();
        let uris = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _other => None,
        });
        let common_name = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok()).next();
        Some(Certificate {
            subject: uris.filter_map(Subject::parse).next(),
            common_name: common_name.unwrap_or_default().to_owned(),
            is_authority: certificate.is_ca(),
            not_after_ms: certificate.validity().not_after.timestamp().saturating_mul(1000),
        })
    }

    /// The identity of a client at the port for clients. A node is no client there.
    pub fn identity(&self) -> Option<Arc<Identity>> {
        match &self.subject.as_ref()?.who {
            Who::Client { name, role } => Some(Arc::new(Identity::new(name, *role, Proof::Until(self.not_after_ms)))),
            Who::Node(_) | Who::AnyNode => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_reads_back_and_nothing_else_is_one() {
        let client = Who::Client { name: "ops".to_owned(), role: Role::Admin };
        let any = Subject { cluster: "prod".to_owned(), who: Who::AnyNode };
        for subject in [Subject::node("prod", 7), any, Subject { cluster: "prod".to_owned(), who: client }] {
            assert_eq!(Subject::parse(&subject.to_string()), Some(subject));
        }
        for wrong in [
            "",
            "https://prod/node/1",
            "session-manager:///node/1",
            "session-manager://prod/node/",
            "session-manager://prod/node/0",
            "session-manager://prod/node/x",
            "session-manager://prod/node/1/2",
            "session-manager://prod/client/ops",
            "session-manager://prod/client/ops/root",
            "session-manager://prod/client//admin",
        ] {
            assert_eq!(Subject::parse(wrong), None, "{wrong}");
        }
    }
}
