//! Owns: who is at the other end of a connection to the peer port, by its certificate, and what that one may call.
//! Never: whether a certificate is genuine. The TLS handshake decided that.

use std::sync::Arc;

use tonic::{Request, Status};

use crate::access::Action;
use crate::access::certificate::{Subject, Who};
use crate::proto::peer::Hop;

/// The other end of a connection.
#[derive(Debug, Clone, Default)]
pub struct Sender {
    /// `None` without TLS: the port is reachable from this machine only, or its operator wants it open.
    secured: Option<Secured>,
    /// A caller of another door of this process, which has checked that caller.
    local: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
struct Secured {
    /// The cluster in the certificate of this node.
    cluster: Arc<str>,
    subject: Option<Subject>,
}

impl Sender {
    pub fn secured(cluster: Arc<str>, subject: Option<Subject>) -> Sender {
        Sender { secured: Some(Secured { cluster, subject }), local: None }
    }

    /// An operator that another door of this process let in.
    pub fn local(name: &str) -> Sender {
        Sender { secured: None, local: Some(name.into()) }
    }

    /// The other end of the connection that a call came over.
    pub fn of<T>(request: &Request<T>) -> Sender {
        request.extensions().get::<Sender>().cloned().unwrap_or_default()
    }

    /// A call between nodes must come from the node that it names.
    pub fn check_peer(&self, hop: Option<&Hop>) -> Result<(), Status> {
        let Some(secured) = &self.secured else { return Ok(()) };
        match secured.of_cluster()? {
            Who::Node(node) => match hop {
                Some(hop) if hop.from_node != *node => Err(Status::permission_denied(format!(
                    "the call names node {}, but the certificate is for node {node}",
                    hop.from_node
                ))),
                Some(_) | None => Ok(()),
            },
            Who::AnyNode => Ok(()),
            Who::Client { name, .. } => {
                Err(Status::permission_denied(format!("the certificate is for the client {name:?}, not for a node")))
            }
        }
    }

    /// A call of an operator. Nodes forward such calls to the leader.
    pub fn check_operator(&self) -> Result<(), Status> {
        let Some(secured) = &self.secured else { return Ok(()) };
        match secured.of_cluster()? {
            Who::Node(_) | Who::AnyNode => Ok(()),
            Who::Client { role, .. } if role.may(Action::Administer) => Ok(()),
            Who::Client { name, role } => Err(Status::permission_denied(format!(
                "the certificate is for {name:?} with the role {role}, which may not use {}",
                Action::Administer.covers()
            ))),
        }
    }

    /// Who it is, for the log.
    pub fn name(&self) -> String {
        if let Some(name) = &self.local {
            return name.to_string();
        }
        let subject = self.secured.as_ref().and_then(|secured| secured.subject.as_ref());
        subject.map_or_else(|| "unauthenticated".to_owned(), ToString::to_string)
    }
}

impl Secured {
    fn of_cluster(&self) -> Result<&Who, Status> {
        let denied = |why: String| Err(Status::permission_denied(why));
        match &self.subject {
            None => denied("the certificate names neither a node nor a client of a cluster".to_owned()),
            Some(Subject { cluster, .. }) if **cluster != *self.cluster => {
                denied(format!("the certificate is for cluster {cluster:?}, this is {:?}", self.cluster))
            }
            Some(Subject { who, .. }) => Ok(who),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    fn sender(cluster: &str, who: Who) -> Sender {
        Sender::secured("prod".into(), Some(Subject { cluster: cluster.to_owned(), who }))
    }

    fn client(role: Role) -> Who {
        Who::Client { name: "ops".to_owned(), role }
    }

    #[test]
    fn a_certificate_is_refused_by_name() {
        let hop = Hop { from_node: 2, ..Hop::default() };
        let peer = |sender: Sender| sender.check_peer(Some(&hop)).map_err(|status| status.message().to_owned());
        assert_eq!(peer(sender("prod", Who::Node(2))), Ok(()));
        assert_eq!(peer(sender("prod", Who::AnyNode)), Ok(()));
        assert!(peer(sender("test", Who::AnyNode)).is_err());
        assert_eq!(peer(Sender::default()), Ok(()));
        assert!(
            peer(sender("prod", Who::Node(3))).unwrap_err().contains("names node 2, but the certificate is for node 3")
        );
        assert!(peer(sender("test", Who::Node(2))).unwrap_err().contains("for cluster \"test\", this is \"prod\""));
        assert!(peer(sender("prod", client(Role::Admin))).unwrap_err().contains("for the client \"ops\""));
        assert!(peer(Sender::secured("prod".into(), None)).is_err());
        assert!(sender("prod", client(Role::Admin)).check_operator().is_ok());
        assert!(sender("prod", client(Role::App)).check_operator().is_err());
        assert!(sender("test", client(Role::Admin)).check_operator().is_err());
        assert!(sender("prod", Who::Node(1)).check_operator().is_ok());
    }
}
