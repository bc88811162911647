//! Owns: the picture of a whole cluster: every member is asked for itself, and those that do not answer are shown too.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use super::admin::{Admin, AdminError};
use crate::proto::admin::{Health, Member, Role, StatusResponse};

/// What is known of one node.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    pub node: u64,
    pub address: String,
    pub voter: bool,
    /// What the leader knows of it.
    pub lag: Option<u64>,
    pub heard_ms: Option<u64>,
    /// What it says of itself, or why it says nothing.
    pub own: Result<StatusResponse, AdminError>,
}

/// Every member as it is now, as far as each one answers.
#[derive(Debug, Clone)]
pub struct Survey {
    pub cluster_id: String,
    /// The leader that most nodes name; 0 for none.
    pub leader: u64,
    pub nodes: Vec<NodeStatus>,
}

impl Survey {
    /// Asks one node who the members are, then every member for itself.
    pub async fn take(peer: &str, cluster_id: &str, call_max: Duration) -> Result<Survey, AdminError> {
        let asked = Admin::connect(peer, cluster_id, call_max).await?.status().await?;
        let others = asked.members.iter().filter(|member| member.node != asked.node);
        let answers = join_all(others.map(|member| async {
            let status = async { Admin::connect(&member.address, cluster_id, call_max).await?.status().await };
            (member.node, status.await)
        }));
        let mut answers: BTreeMap<u64, Result<StatusResponse, AdminError>> = answers.await.into_iter().collect();
        answers.insert(asked.node, Ok(asked.clone()));
        Ok(Survey::of(&asked, answers))
    }

    fn of(asked: &StatusResponse, mut answers: BTreeMap<u64, Result<StatusResponse, AdminError>>) -> Survey {
        let leader = most_named(answers.values().flatten());
        // The leader knows the members best, and it alone knows how far behind they are.
        let best = match answers.get(&leader) {
            Some(Ok(leading)) => leading.clone(),
            Some(Err(_)) | None => asked.clone(),
        };
        let mut members = best.members;
        if !members.iter().any(|member| member.node == asked.node) {
            members.push(Member { node: asked.node, address: asked.address.clone(), ..Member::default() });
        }
        let nodes = members.into_iter().map(|member| {
            let unasked = || {
                let (peer, why) = (member.address.clone(), "became a member a moment ago".to_owned());
                Err(AdminError::Unreachable { peer, why })
            };
            NodeStatus {
                own: answers.remove(&member.node).unwrap_or_else(unasked),
                node: member.node,
                address: member.address,
                voter: member.voter,
                lag: member.lag,
                heard_ms: member.heard_ms,
            }
        });
        Survey { cluster_id: asked.cluster_id.clone(), leader, nodes: nodes.collect() }
    }

    /// Every member answers and is well.
    pub fn is_healthy(&self) -> bool {
        self.leader != 0 && self.nodes.iter().all(NodeStatus::is_healthy)
    }

    pub fn json(&self) -> Value {
        let leader = (self.leader != 0).then_some(self.leader);
        let nodes: Vec<Value> = self.nodes.iter().map(NodeStatus::json).collect();
        json!({ "cluster_id": self.cluster_id, "leader": leader, "healthy": self.is_healthy(), "nodes": nodes })
    }

    /// A table for people: one row per member, columns as wide as what is in them.
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
        text
    }
}

impl NodeStatus {
    fn is_healthy(&self) -> bool {
        self.own.as_ref().is_ok_and(|own| own.health() == Health::Ok)
    }

    fn role(&self) -> &'static str {
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

    fn health(&self) -> String {
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
        if own.health_reason.is_empty() { word.to_owned() } else { format!("{word}: {}", own.health_reason) }
    }

    fn row(&self) -> [String; 10] {
        let own = self.own.as_ref().ok();
        let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let leader = own.map(|own| own.leader).filter(|leader| *leader != 0);
        [
            self.node.to_string(),
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
            "error": self.own.as_ref().err().map(AdminError::to_string),
        })
    }
}

/// A node cut off from the others may name an old leader; the majority does not.
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
            Member { node, address: format!("127.0.0.1:{node}"), voter: true, lag: *lag, heard_ms: None }
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
    fn lag_comes_from_the_leader_whoever_was_asked() {
        let survey = survey();
        assert_eq!(survey.leader, 1);
        assert_eq!(survey.nodes.iter().map(|node| node.lag).collect::<Vec<_>>(), [Some(0), Some(7), Some(900)]);
    }

    #[test]
    fn a_member_that_does_not_answer_is_a_row_and_makes_the_cluster_unwell() {
        let survey = survey();
        let table = survey.table();
        assert_eq!(table.lines().count(), 5, "{table}");
        assert!(table.lines().last().unwrap().contains("does not answer"), "{table}");
        assert!(!survey.is_healthy());
        assert_eq!(survey.json()["nodes"][2]["applied"], Value::Null);
    }
}
