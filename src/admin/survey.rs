//! Owns: the status of a whole cluster. Every member is asked for its own; members that do not answer are listed too.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::access::credentials::now_ms;
use crate::access::tls::OperatorTls;
use crate::admin::{Admin, AdminError};
use crate::machine::toolpath::time;
use crate::proto::admin::{Certificate, Health, Member, Role, StatusResponse};

const DAY_MS: i64 = 86_400_000;
/// A certificate that ends sooner is a warning.
const SOON_DAYS: i64 = 30;

/// The status of one node.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    pub node: u64,
    /// The name that people know it by; empty for a node that was added by hand.
    pub name: String,
    pub address: String,
    pub voter: bool,
    /// Entries that the leader still has to send to it. Known to the leader only.
    pub lag: Option<u64>,
    /// Milliseconds since its last message to the leader. Known to the leader only.
    pub heard_ms: Option<u64>,
    /// Its own answer, or why there is none.
    pub own: Result<StatusResponse, AdminError>,
}

/// The status of every member.
#[derive(Debug, Clone)]
pub struct Survey {
    pub cluster_id: String,
    /// The leader according to most nodes; 0 for none.
    pub leader: u64,
    pub nodes: Vec<NodeStatus>,
}

impl Survey {
    /// Asks one node for the members, then every member for its own status.
    pub async fn take(
        tls: Option<&OperatorTls>,
        peer: &str,
        cluster_id: &str,
        call_max: Duration,
    ) -> Result<Survey, AdminError> {
        let asked = Admin::connect_over(tls, peer, cluster_id, call_max).await?.status().await?;
        let others = asked.members.iter().filter(|member| member.node != asked.node);
        let answers = join_all(others.map(|member| async {
            let status =
                async { Admin::connect_over(tls, &member.address, cluster_id, call_max).await?.status().await };
            (member.node, status.await)
        }));
        let mut answers: BTreeMap<u64, Result<StatusResponse, AdminError>> = answers.await.into_iter().collect();
        answers.insert(asked.node, Ok(asked.clone()));
        Ok(Survey::of(&asked, answers))
    }

    pub fn of(asked: &StatusResponse, mut answers: BTreeMap<u64, Result<StatusResponse, AdminError>>) -> Survey {
        let leader = most_named(answers.values().flatten());
        // Only the leader knows the current members for certain, and how far they lag.
        let best = match answers.get(&leader) {
            Some(Ok(leading)) => leading.clone(),
            Some(Err(_)) | None => asked.clone(),
        };
        let mut members = best.members;
        if !members.iter().any(|member| member.node == asked.node) {
            members.push(Member { node: asked.node, address: asked.address.clone(), ..Member::default() });
        }
        let nodes = members.into_iter().map(|member| {
            let not_asked = || {
                let (peer, why) = (member.address.clone(), "it became a member after the question".to_owned());
                Err(AdminError::Unreachable { peer, why })
            };
            NodeStatus {
                own: answers.remove(&member.node).unwrap_or_else(not_asked),
                node: member.node,
                name: member.name,
                address: member.address,
                voter: member.voter,
                lag: member.lag,
                heard_ms: member.heard_ms,
            }
        });
        Survey { cluster_id: asked.cluster_id.clone(), leader, nodes: nodes.collect() }
    }

    /// Every member answers and is healthy.
    pub fn is_healthy(&self) -> bool {
        self.leader != 0 && self.nodes.iter().all(NodeStatus::is_healthy)
    }

    pub fn json(&self) -> Value {
        let leader = (self.leader != 0).then_some(self.leader);
        let nodes: Vec<Value> = self.nodes.iter().map(NodeStatus::json).collect();
        json!({ "cluster_id": self.cluster_id, "leader": leader, "healthy": self.is_healthy(), "nodes": nodes })
    }

    /// One line for each thing that the operator should know and that does not fit into the table: the URLs for
    /// clients, certificates, and open ports.
    fn notes(&self, now_ms: i64) -> Vec<String> {
        let mut notes = Vec::new();
        for (node, own) in self.nodes.iter().filter_map(|node| Some((node.node, node.own.as_ref().ok()?))) {
            if !own.client_url.is_empty() {
                notes.push(format!("node {node}: clients connect to {}", own.client_url));
            }
            for Certificate { port, not_after_ms } in &own.certificates {
                let days = (not_after_ms - now_ms).div_euclid(DAY_MS);
                let until = time::print(*not_after_ms);
                let warning = if days < SOON_DAYS { "WARNING: " } else { "" };
                let left = if days < 0 { "expired".to_owned() } else { format!("{days} days left") };
                notes.push(format!("node {node}: {warning}the certificate for {port} is valid until {until} ({left})"));
            }
            notes.extend(own.warnings.iter().map(|warning| format!("node {node}: WARNING: {warning}")));
        }
        notes
    }

    /// A table with one row per member; each column is as wide as its widest cell.
    pub fn table(&self) -> String {
        let head = ["node", "address", "role", "term", "last log", "applied", "lag", "leader", "health", "state hash"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.nodes.iter().map(NodeStatus::row));
        let mut widths = [0; 10];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = format!("cluster {}\n", or_dash(&self.cluster_id));
        for row in rows {
            let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        self.notes(now_ms()).iter().for_each(|note| text.push_str(&format!("{note}\n")));
        text
    }
}

impl NodeStatus {
    fn is_healthy(&self) -> bool {
        self.own.as_ref().is_ok_and(|own| own.health() == Health::Ok)
    }

    pub fn role(&self) -> &'static str {
        match self.own.as_ref().map(StatusResponse::role) {
            Ok(Role::Leader) => "leader",
            Ok(Role::Follower) => "follower",
            Ok(Role::Candidate) => "candidate",
            Ok(Role::Learner) => "learner",
            Ok(Role::Waiting) => "waiting",
            Ok(Role::Stopped) => "stopped",
            Ok(Role::Unspecified) | Err(_) => "-",
        }
    }

    pub fn health(&self) -> String {
        let own = match &self.own {
            Ok(own) => own,
            Err(AdminError::Unreachable { .. }) => return "unreachable".to_owned(),
            Err(AdminError::Late { .. }) => return "does not answer".to_owned(),
            Err(error) => return error.to_string(),
        };
        let word = match own.health() {
            Health::Ok => "ok",
            Health::NoLeader => "no leader",
            Health::Failed => "failed",
            Health::Waiting => "waiting to be added",
            Health::Unspecified => "unknown",
        };
        match own.health_reason.as_str() {
            "" if slow_disk(own) => format!(
                "{word}, but the disk is slow: a sync takes {} ms, and the configured election times need at most {} ms",
                own.sync_us / 1000,
                own.sync_us_max / 1000
            ),
            "" => word.to_owned(),
            why => format!("{word}: {why}"),
        }
    }

    fn row(&self) -> [String; 10] {
        let own = self.own.as_ref().ok();
        let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let leader = own.map(|own| own.leader).filter(|leader| *leader != 0);
        [
            format!("{} {}", self.node, self.name).trim_end().to_owned(),
            or_dash(&self.address).to_owned(),
            self.role().to_owned(),
            number(own.map(|own| own.term)),
            number(own.and_then(|own| own.last_log)),
            number(own.and_then(|own| own.applied)),
            number(self.lag),
            number(leader),
            self.health(),
            or_dash(own.map_or("", |own| &own.state_hash)).to_owned(),
        ]
    }

    fn json(&self) -> Value {
        let own = self.own.as_ref().ok();
        json!({
            "node": self.node,
            "name": Some(&self.name).filter(|name| !name.is_empty()),
            "address": self.address,
            "role": self.role(),
            "voter": self.voter,
            "term": own.map(|own| own.term),
            "last_log": own.and_then(|own| own.last_log),
            "applied": own.and_then(|own| own.applied),
            "lag": self.lag,
            "heard_ms": self.heard_ms,
            "leader": own.map(|own| own.leader).filter(|leader| *leader != 0),
            "health": self.health(),
            "healthy": self.is_healthy(),
            "state_hash": own.map(|own| &own.state_hash),
            "snapshot": own.and_then(|own| own.snapshot),
            "version": own.map(|own| &own.version),
            "level": own.map(|own| own.level).filter(|level| *level > 0),
            "knows_level": own.map(|own| own.knows_level).filter(|level| *level > 0),
            "sync_ms": own.map(|own| own.sync_us as f64 / 1000.0),
            "slow_disk": own.map(slow_disk),
            "client_url": own.map(|own| &own.client_url).filter(|url| !url.is_empty()),
            "memory_bytes": own.map(|own| own.memory_bytes).filter(|bytes| *bytes > 0),
            "disk_free_bytes": own.map(|own| own.disk_free_bytes).filter(|bytes| *bytes > 0),
            "disk_size_bytes": own.map(|own| own.disk_size_bytes).filter(|bytes| *bytes > 0),
            "warnings": own.map(|own| &own.warnings),
            "certificates": own.map(certificates),
            "error": self.own.as_ref().err().map(AdminError::to_string),
        })
    }
}

fn certificates(own: &StatusResponse) -> Vec<Value> {
    let certificates = own.certificates.iter();
    certificates.map(|one| json!({ "port": one.port, "not_after": time::print(one.not_after_ms) })).collect()
}

/// Whether the disk of a node is too slow for its election times. A node of an earlier version does not say.
fn slow_disk(own: &StatusResponse) -> bool {
    own.sync_us_max > 0 && own.sync_us > own.sync_us_max
}

/// The leader that most nodes name. A partitioned node may still name an old leader.
fn most_named<'a>(statuses: impl Iterator<Item = &'a StatusResponse>) -> u64 {
    let mut named: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for status in statuses.filter(|status| status.leader != 0) {
        let (times, term) = named.entry(status.leader).or_default();
        *times += 1;
        *term = status.term.max(*term);
    }
    named.into_iter().max_by_key(|(_, weight)| *weight).map_or(0, |(leader, _)| leader)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(node: u64, role: Role, lags: &[Option<u64>]) -> StatusResponse {
        let member = |(at, lag): (usize, &Option<u64>)| {
            let node = at as u64 + 1;
            Member { node, address: format!("127.0.0.1:{node}"), voter: true, lag: *lag, ..Member::default() }
        };
        let members = lags.iter().enumerate().map(member).collect();
        let (cluster_id, state_hash) = ("c".to_owned(), "ab".repeat(16));
        let (role, health) = (role.into(), Health::Ok.into());
        StatusResponse { cluster_id, node, role, term: 4, leader: 1, members, health, state_hash, ..Default::default() }
    }

    fn survey() -> Survey {
        let leading = status(1, Role::Leader, &[Some(0), Some(7), Some(900)]);
        let following = status(2, Role::Follower, &[None, None, None]);
        let late = AdminError::Late { peer: "127.0.0.1:3".to_owned(), call_max: Duration::from_secs(1) };
        Survey::of(&following, BTreeMap::from([(1, Ok(leading)), (2, Ok(following.clone())), (3, Err(late))]))
    }

    #[test]
    fn lag_comes_from_the_leader_even_if_a_follower_was_asked() {
        let survey = survey();
        assert_eq!(survey.leader, 1);
        assert_eq!(survey.nodes.iter().map(|node| node.lag).collect::<Vec<_>>(), [Some(0), Some(7), Some(900)]);
    }

    #[test]
    fn a_disk_that_is_too_slow_for_the_election_times_shows_and_is_no_failure() {
        let slow = StatusResponse { sync_us: 120_000, sync_us_max: 15_000, ..status(1, Role::Leader, &[Some(0)]) };
        let survey = Survey::of(&slow, BTreeMap::from([(1, Ok(slow.clone()))]));
        assert!(survey.is_healthy());
        assert!(survey.table().contains("ok, but the disk is slow: a sync takes 120 ms"), "{}", survey.table());
        assert_eq!(survey.json()["nodes"][0]["slow_disk"], true);
        let quick = StatusResponse { sync_us: 300, ..slow };
        let survey = Survey::of(&quick, BTreeMap::from([(1, Ok(quick.clone()))]));
        assert!(!survey.table().contains("slow"), "{}", survey.table());
    }

    #[test]
    fn certificates_and_open_ports_are_shown_and_warned_of() {
        let certificate = |days: i64| Certificate { port: "peers".to_owned(), not_after_ms: days * DAY_MS };
        let status = StatusResponse {
            client_url: "wss://a:1".to_owned(),
            warnings: vec!["insecure_no_tls: x".to_owned()],
            certificates: vec![certificate(300), certificate(29), certificate(-1)],
            ..status(1, Role::Leader, &[Some(0)])
        };
        let survey = Survey::of(&status, BTreeMap::from([(1, Ok(status.clone()))]));
        let notes = survey.notes(0);
        assert_eq!(notes[0], "node 1: clients connect to wss://a:1");
        assert!(notes[1].ends_with("(300 days left)") && !notes[1].contains("WARNING"), "{notes:?}");
        assert!(notes[2].contains("WARNING") && notes[2].ends_with("(29 days left)"), "{notes:?}");
        assert!(notes[3].ends_with("(expired)"), "{notes:?}");
        assert_eq!(notes[4], "node 1: WARNING: insecure_no_tls: x");
        assert_eq!(survey.json()["nodes"][0]["certificates"][0]["not_after"], "1970-10-28T00:00:00.000Z");
        assert!(survey.table().contains("clients connect to wss://a:1"));
    }

    #[test]
    fn a_member_that_does_not_answer_is_a_row_and_makes_the_cluster_unhealthy() {
        let survey = survey();
        let table = survey.table();
        assert_eq!(table.lines().count(), 5, "{table}");
        assert!(table.lines().last().unwrap().contains("does not answer"), "{table}");
        assert!(!survey.is_healthy());
        assert_eq!(survey.json()["nodes"][2]["applied"], Value::Null);
    }
}
