//! Owns: the URLs of all members for clients. Each member is asked for its own from time to time, so a client or a
//! bridge of one node can be told where else to go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::{Instant, timeout};

use super::network::Peers;
use super::replica::Raft;
use super::self_report::DescribeNode;
use crate::proto::admin::{Call, StatusRequest};
use crate::storage::log::record::Peer;

/// How often a member is asked that has answered before. Its URL rarely changes.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How often the members are compared with those that have answered.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A member and its URL for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientUrl {
    pub node: u64,
    pub url: String,
    pub leads: bool,
}

#[derive(Clone)]
pub struct ClientUrls {
    raft: Raft,
    peers: Peers,
    describe: DescribeNode,
    known: Arc<Mutex<BTreeMap<u64, Known>>>,
}

struct Known {
    url: String,
    asked: Instant,
}

impl ClientUrls {
    pub fn new(raft: Raft, peers: Peers, describe: DescribeNode) -> ClientUrls {
        ClientUrls { raft, peers, describe, known: Arc::default() }
    }

    /// Every member whose URL is known, sorted by node.
    pub fn all(&self) -> Vec<ClientUrl> {
        let own = (self.peers.local.node, (self.describe)().client_url);
        let leader = self.raft.metrics().borrow_watched().current_leader;
        let mut urls: BTreeMap<u64, String> = BTreeMap::from([own]);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        urls.extend(known.iter().map(|(node, known)| (*node, known.url.clone())));
        let urls = urls.into_iter().filter(|(_, url)| !url.is_empty());
        urls.map(|(node, url)| ClientUrl { node, url, leads: leader == Some(node) }).collect()
    }

    /// Asks the other members, for as long as this node is one.
    pub async fn run(self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let others = self.others();
            self.forget_all_but(&others);
            for (node, peer) in others {
                if self.is_due(node)
                    && let Some(url) = self.ask(node, &peer).await
                {
                    let known = Known { url, asked: Instant::now() };
                    self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(node, known);
                }
            }
        }
    }

    fn others(&self) -> BTreeMap<u64, Peer> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.membership().nodes();
        let others = members.filter(|(node, _)| **node != self.peers.local.node);
        others.map(|(node, peer)| (*node, peer.clone())).collect()
    }

    fn forget_all_but(&self, members: &BTreeMap<u64, Peer>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|node, _| members.contains_key(node));
    }

    fn is_due(&self, node: u64) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&node).is_none_or(|known| known.asked.elapsed() >= ASK_EVERY)
    }

    /// `None` if the member does not answer. What it said before stays.
    async fn ask(&self, node: u64, peer: &Peer) -> Option<String> {
        let mut client = self.peers.channels.admin(&peer.address).ok()?;
        let local = &self.peers.local;
        let cluster_id = local.data_dir.identity().cluster_id;
        let call = Call { protocol: 1, cluster_id, group: local.group, node, forwarded: false };
        let answered = timeout(ANSWER_MAX, client.status(StatusRequest { call: Some(call) })).await;
        Some(answered.ok()?.ok()?.into_inner().client_url)
    }
}
