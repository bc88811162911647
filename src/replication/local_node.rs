//! Owns: how this node names itself and the other side in every call between nodes, and the check of incoming calls. A
//! call that is meant for another node or cluster is refused, and the reason names both sides.

use std::sync::Arc;

use tonic::Status;

use super::identity::DataDir;
use crate::proto::peer::Hop;
use crate::storage::log::record::Peer;

/// The version of the peer protocol this build speaks.
const PROTOCOL: u32 = 2;

/// This node, as it appears in calls to its peers.
pub struct LocalNode {
    pub node: u64,
    pub group: u32,
    pub data_dir: Arc<DataDir>,
}

impl LocalNode {
    /// The header of a call from this node to a member.
    pub fn hop_to(&self, to_node: u64, to: &Peer) -> Hop {
        let identity = self.data_dir.identity();
        Hop {
            protocol: PROTOCOL,
            cluster_id: identity.cluster_id,
            group: self.group,
            from_node: self.node,
            to_node,
            from_instance: identity.instance,
            to_instance: to.instance.clone(),
        }
    }

    /// Accepts a call that is meant for this node in its cluster.
    pub fn check(&self, hop: Option<&Hop>) -> Result<(), Status> {
        let hop = self.check_without_cluster(hop)?;
        let identity = self.data_dir.identity();
        if identity.cluster_id.is_empty() && !hop.to_instance.is_empty() && hop.to_instance != identity.instance {
            return Err(wrong(lost_disk(self.node)));
        }
        if identity.cluster_id.is_empty() {
            let (node, theirs) = (self.node, &hop.cluster_id);
            return Err(wrong(format!("node {node} waits to be invited and is no member of cluster {theirs} yet")));
        }
        if hop.cluster_id != identity.cluster_id {
            return Err(wrong(format!(
                "node {} calls from cluster {}, but node {} belongs to cluster {}",
                hop.from_node, hop.cluster_id, self.node, identity.cluster_id
            )));
        }
        if !hop.to_instance.is_empty() && hop.to_instance != identity.instance {
            return Err(wrong(lost_disk(self.node)));
        }
        Ok(())
    }

    /// Accepts an invitation to a cluster and joins it, durably. Returns the instance id of this node.
    pub fn accept_invitation(&self, hop: Option<&Hop>) -> Result<String, Status> {
        let hop = self.check_without_cluster(hop)?;
        self.data_dir.join(&hop.cluster_id).map_err(wrong)?;
        Ok(self.data_dir.identity().instance)
    }

    /// The checks that do not depend on the cluster.
    fn check_without_cluster<'a>(&self, hop: Option<&'a Hop>) -> Result<&'a Hop, Status> {
        let hop = hop.ok_or_else(|| Status::invalid_argument("hop: missing; every peer call begins with one"))?;
        if hop.protocol != PROTOCOL {
            let theirs = hop.protocol;
            return Err(wrong(format!(
                "node {} speaks peer protocol {theirs}, node {} speaks {PROTOCOL}: run the same version on both",
                hop.from_node, self.node
            )));
        }
        if hop.group != self.group {
            return Err(wrong(format!(
                "the call is for group {}, node {} serves {}",
                hop.group, self.node, self.group
            )));
        }
        if hop.to_node != self.node {
            let (meant, here) = (hop.to_node, self.node);
            return Err(wrong(format!("the call is for node {meant}, but node {here} listens here: check addresses")));
        }
        Ok(hop)
    }
}

pub fn lost_disk(node: u64) -> String {
    format!("node {node} has lost its disk: remove it and add it under a new id")
}

fn wrong(why: impl std::fmt::Display) -> Status {
    Status::failed_precondition(why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::identity::Purpose;
    use crate::storage::disk::{Disk, RealDisk};

    fn local(dir: &tempfile::TempDir, purpose: Purpose) -> LocalNode {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let data_dir = Arc::new(DataDir::open(&disk, dir.path(), 7, purpose).unwrap());
        LocalNode { node: 7, group: 0, data_dir }
    }

    fn refused(local: &LocalNode, change: impl FnOnce(&mut Hop)) -> String {
        let mut hop = local.hop_to(7, &Peer { instance: local.data_dir.identity().instance, ..Peer::default() });
        change(&mut hop);
        let status = local.check(Some(&hop)).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        status.message().to_owned()
    }

    #[test]
    fn a_call_for_another_node_is_refused_with_both_names() {
        let dir = tempfile::tempdir().unwrap();
        let local = local(&dir, Purpose::Found);
        local.check(Some(&local.hop_to(7, &Peer::default()))).unwrap();
        let other_cluster = refused(&local, |hop| hop.cluster_id = "other".into());
        assert!(other_cluster.contains("calls from cluster other, but node 7"));
        assert!(refused(&local, |hop| hop.protocol = 9).contains("peer protocol 9, node 7 speaks 2"));
        assert!(refused(&local, |hop| hop.group = 3).contains("group 3"));
        assert!(refused(&local, |hop| hop.to_node = 8).contains("for node 8, but node 7"));
        assert!(refused(&local, |hop| hop.to_instance = "old".into()).contains("node 7 has lost its disk"));
        assert_eq!(local.check(None).unwrap_err().code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn a_node_without_a_cluster_takes_part_only_after_an_invitation() {
        let dir = tempfile::tempdir().unwrap();
        let local = local(&dir, Purpose::Join);
        assert!(refused(&local, |hop| hop.cluster_id = "c".into()).contains("waits to be invited"));
        let mut hop = local.hop_to(7, &Peer::default());
        hop.cluster_id = "c".to_owned();
        let instance = local.accept_invitation(Some(&hop)).unwrap();
        assert_eq!(instance, local.data_dir.identity().instance);
        local.check(Some(&hop)).unwrap();
        hop.cluster_id = "d".to_owned();
        assert!(local.accept_invitation(Some(&hop)).unwrap_err().message().contains("belongs to cluster c"));
    }
}
