//! Owns: who speaks to whom. Every call between nodes names both sides, and one that is meant for someone else is
//! refused with both names in the reason.

use std::sync::Arc;

use tonic::Status;

use super::identity::DataDir;
use crate::proto::peer::Hop;
use crate::storage::log::record::Peer;

/// The version of the peer protocol this build speaks.
const PROTOCOL: u32 = 1;

/// This node, as it introduces itself.
pub struct Me {
    pub node: u64,
    pub group: u32,
    pub data_dir: Arc<DataDir>,
}

impl Me {
    /// A call from this node to a member.
    pub fn hop(&self, to_node: u64, to: &Peer) -> Hop {
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
    pub fn accept(&self, hop: Option<&Hop>) -> Result<(), Status> {
        let hop = self.recognise(hop)?;
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

    /// Accepts an invitation: it is meant for this node, and may come from a cluster it does not know yet.
    pub fn invited(&self, hop: Option<&Hop>) -> Result<String, Status> {
        let hop = self.recognise(hop)?;
        self.data_dir.join(&hop.cluster_id).map_err(wrong)?;
        Ok(self.data_dir.identity().instance)
    }

    /// What does not depend on the cluster.
    fn recognise<'a>(&self, hop: Option<&'a Hop>) -> Result<&'a Hop, Status> {
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

fn wrong(why: String) -> Status {
    Status::failed_precondition(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::identity::Purpose;
    use crate::storage::disk::{Disk, RealDisk};

    fn me(dir: &tempfile::TempDir, purpose: Purpose) -> Me {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let data_dir = Arc::new(DataDir::open(&disk, dir.path(), 7, purpose).unwrap());
        Me { node: 7, group: 0, data_dir }
    }

    fn refused(me: &Me, change: impl FnOnce(&mut Hop)) -> String {
        let mut hop = me.hop(7, &Peer { instance: me.data_dir.identity().instance, ..Peer::default() });
        change(&mut hop);
        let status = me.accept(Some(&hop)).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        status.message().to_owned()
    }

    #[test]
    fn a_call_for_someone_else_is_refused_with_both_names() {
        let dir = tempfile::tempdir().unwrap();
        let me = me(&dir, Purpose::Found);
        me.accept(Some(&me.hop(7, &Peer::default()))).unwrap();
        assert!(refused(&me, |hop| hop.cluster_id = "other".into()).contains("calls from cluster other, but node 7"));
        assert!(refused(&me, |hop| hop.protocol = 9).contains("peer protocol 9, node 7 speaks 1"));
        assert!(refused(&me, |hop| hop.group = 3).contains("group 3"));
        assert!(refused(&me, |hop| hop.to_node = 8).contains("for node 8, but node 7"));
        assert!(refused(&me, |hop| hop.to_instance = "old".into()).contains("node 7 has lost its disk"));
        assert_eq!(me.accept(None).unwrap_err().code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn a_node_without_a_cluster_takes_part_only_after_an_invitation() {
        let dir = tempfile::tempdir().unwrap();
        let me = me(&dir, Purpose::Join);
        assert!(refused(&me, |hop| hop.cluster_id = "c".into()).contains("waits to be invited"));
        let mut hop = me.hop(7, &Peer::default());
        hop.cluster_id = "c".to_owned();
        let instance = me.invited(Some(&hop)).unwrap();
        assert_eq!(instance, me.data_dir.identity().instance);
        me.accept(Some(&hop)).unwrap();
        hop.cluster_id = "d".to_owned();
        assert!(me.invited(Some(&hop)).unwrap_err().message().contains("belongs to cluster c"));
    }
}
