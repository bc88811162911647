//! Owns: what the leader does to the membership by itself, for members that joined by themselves: promote learners that
//! have caught up, keep the number of voters odd, replace a voter whose successor is there, and remove members that are
//! gone for long, if the operator wants that.
//! Never: touch a member that an operator added by hand, which has no name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use tokio::time::Instant;
use tracing::{info, warn};

use super::membership::{HEARD_RECENTLY, MembershipChanges, PROMOTE_LAG_MAX, heard, lag};

const EVERY: Duration = Duration::from_millis(500);
/// More voters make every write slower and protect hardly better. Further members stay learners.
const VOTERS_MAX: usize = 7;

/// A member, as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    pub node: u64,
    /// Empty for a member that was added by hand.
    pub name: String,
    pub voter: bool,
    /// It answered lately.
    pub healthy: bool,
    pub caught_up: bool,
    /// It has not answered for so long that it may be removed.
    pub gone: bool,
}

/// A change of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// These are the voters from now on. The others stay learners.
    Voters(BTreeSet<u64>),
    /// This learner is removed.
    Remove(u64),
}

/// The next step; `None` if everything is as it should be.
pub fn plan(seats: &[Seat]) -> Option<Step> {
    let voters: BTreeSet<u64> = seats.iter().filter(|seat| seat.voter).map(|seat| seat.node).collect();
    let named = || seats.iter().filter(|seat| !seat.name.is_empty());
    let ready = || named().filter(|seat| !seat.voter && seat.healthy && seat.caught_up);
    // 1. A learner that is gone, or whose successor votes, is removed.
    let succeeded =
        |old: &Seat| named().any(|new| new.name == old.name && new.node > old.node && new.voter && new.healthy);
    let learner = named().find(|seat| !seat.voter && !seat.healthy && (seat.gone || succeeded(seat)));
    if let Some(learner) = learner {
        return Some(Step::Remove(learner.node));
    }
    let quorum_of = |set: &BTreeSet<u64>| {
        let healthy = seats.iter().filter(|seat| set.contains(&seat.node) && seat.healthy).count();
        healthy > set.len() / 2
    };
    let lawful =
        |next: BTreeSet<u64>| (next != voters && quorum_of(&voters) && quorum_of(&next)).then_some(Step::Voters(next));
    let with = |gone: &[u64], come: &[u64]| -> BTreeSet<u64> {
        voters.iter().copied().filter(|node| !gone.contains(node)).chain(come.iter().copied()).collect()
    };
    // 2. A successor takes the place of the voter whose name it has; any spare that of a voter that is gone.
    for old in named().filter(|seat| seat.voter && !seat.healthy) {
        let successor = ready().find(|new| new.name == old.name);
        let spare = || ready().next().filter(|_| old.gone);
        if let Some(new) = successor.or_else(spare) {
            return lawful(with(&[old.node], &[new.node]));
        }
    }
    // 3. Voters that are gone leave in pairs, so that their number stays odd.
    let gone: Vec<u64> =
        named().filter(|seat| seat.voter && seat.gone && !seat.healthy).map(|seat| seat.node).collect();
    let leaving = if voters.len().is_multiple_of(2) { gone.len().min(1) } else { gone.len() / 2 * 2 };
    if leaving > 0 {
        return lawful(with(&gone[..leaving], &[]));
    }
    // 4. Learners that have caught up become voters, in pairs.
    let is_successor = |seat: &Seat| named().any(|old| old.voter && old.name == seat.name);
    let spare: Vec<u64> = ready().filter(|seat| !is_successor(seat)).map(|seat| seat.node).collect();
    let room = VOTERS_MAX.saturating_sub(voters.len()).min(spare.len());
    let odd = if room % 2 == 1 { room } else { room.saturating_sub(1) };
    let coming = if voters.len().is_multiple_of(2) { odd } else { room / 2 * 2 };
    if coming > 0 { lawful(with(&[], &spare[..coming])) } else { None }
}

/// The members that do not answer, and since when this leader knows that.
#[derive(Default)]
struct Silences(BTreeMap<u64, Instant>);

impl Silences {
    fn seats(&mut self, changes: &MembershipChanges, reap_after: Option<Duration>) -> Vec<Seat> {
        let metrics = changes.metrics();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let mut seats = Vec::new();
        for (node, peer) in membership.nodes() {
            let healthy = *node == metrics.id || heard(&metrics, *node).is_some_and(|ago| ago <= HEARD_RECENTLY);
            if healthy {
                self.0.remove(node);
            }
            let silent =
                if healthy { Duration::ZERO } else { self.0.entry(*node).or_insert_with(Instant::now).elapsed() };
            seats.push(Seat {
                node: *node,
                name: peer.name.clone(),
                voter: voters.contains(node),
                healthy,
                caught_up: lag(&metrics, *node).is_some_and(|lag| lag <= PROMOTE_LAG_MAX),
                gone: reap_after.is_some_and(|after| silent >= after),
            });
        }
        self.0.retain(|node, _| membership.get_node(node).is_some());
        seats
    }
}

/// Looks after the membership for as long as this node is a member. Acts while it leads.
pub async fn run(changes: Arc<MembershipChanges>, reap_after: Option<Duration>) {
    let mut silences = Silences::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let metrics = changes.metrics();
        let settled = metrics.membership_config.membership().get_joint_config().len() == 1;
        if !metrics.state.is_leader() {
            silences.0.clear();
            continue;
        }
        let Some(step) = plan(&silences.seats(&changes, reap_after)).filter(|_| settled) else { continue };
        info!(?step, "changing the membership");
        let done = match step.clone() {
            Step::Voters(voters) => changes.change(ChangeMembers::ReplaceAllVoters(voters), true).await,
            Step::Remove(node) => changes.change(ChangeMembers::RemoveNodes(BTreeSet::from([node])), false).await,
        };
        if let Err(status) = done {
            warn!(?step, why = status.message(), "the membership was not changed; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Seat = Seat { node: 0, name: String::new(), voter: true, healthy: true, caught_up: true, gone: false };

    fn voter(node: u64) -> Seat {
        Seat { node, name: format!("n{node}"), ..UP }
    }

    fn learner(node: u64) -> Seat {
        Seat { voter: false, ..voter(node) }
    }

    fn down(seat: Seat) -> Seat {
        Seat { healthy: false, caught_up: false, ..seat }
    }

    fn gone(seat: Seat) -> Seat {
        Seat { gone: true, ..down(seat) }
    }

    fn voters(nodes: &[u64]) -> Option<Step> {
        Some(Step::Voters(nodes.iter().copied().collect()))
    }

    #[test]
    fn learners_become_voters_in_pairs_when_they_have_caught_up() {
        let three = [voter(1), voter(2), voter(3)];
        let and = |more: &[Seat]| plan(&[&three[..], more].concat());
        assert_eq!(and(&[]), None);
        assert_eq!(and(&[learner(4)]), None);
        assert_eq!(and(&[learner(4), Seat { caught_up: false, ..learner(5) }]), None);
        assert_eq!(and(&[learner(4), learner(5)]), voters(&[1, 2, 3, 4, 5]));
        assert_eq!(and(&[learner(4), learner(5), learner(6)]), voters(&[1, 2, 3, 4, 5]));
        assert_eq!(plan(&[voter(1), learner(2)]), None);
        assert_eq!(plan(&[voter(1), learner(2), learner(3)]), voters(&[1, 2, 3]));
        assert_eq!(plan(&[voter(1), voter(2), learner(3)]), voters(&[1, 2, 3]));
        assert_eq!(plan(&[voter(1), voter(2), learner(3), learner(4)]), voters(&[1, 2, 3]));
    }

    #[test]
    fn a_successor_takes_the_place_of_a_voter_that_lost_its_disk() {
        let successor = Seat { name: "n3".to_owned(), ..learner(4) };
        assert_eq!(plan(&[voter(1), voter(2), down(voter(3)), successor.clone()]), voters(&[1, 2, 4]));
        assert_eq!(plan(&[voter(1), voter(2), voter(3), successor.clone()]), None, "while the old one answers");
        let late = Seat { caught_up: false, ..successor.clone() };
        assert_eq!(plan(&[voter(1), voter(2), down(voter(3)), late]), None);
        let votes = Seat { voter: true, ..successor };
        assert_eq!(plan(&[voter(1), voter(2), down(learner(3)), votes]), Some(Step::Remove(3)));
        assert_eq!(
            plan(&[voter(1), down(voter(2)), down(voter(3)), Seat { name: "n3".to_owned(), ..learner(4) }]),
            None
        );
    }

    #[test]
    fn members_that_are_gone_leave_as_long_as_a_quorum_stays() {
        assert_eq!(plan(&[voter(1), voter(2), gone(voter(3))]), None, "two voters protect no better than two of three");
        assert_eq!(plan(&[voter(1), voter(2), gone(voter(3)), learner(4)]), voters(&[1, 2, 4]));
        assert_eq!(plan(&[voter(1), voter(2), voter(3), gone(learner(4))]), Some(Step::Remove(4)));
        let five = [voter(1), voter(2), voter(3), gone(voter(4)), gone(voter(5))];
        assert_eq!(plan(&five), voters(&[1, 2, 3]));
        let lost = [voter(1), voter(2), gone(voter(3)), gone(voter(4)), gone(voter(5))];
        assert_eq!(plan(&lost), None, "no quorum can agree");
    }

    #[test]
    fn members_without_a_name_are_the_operators() {
        let by_hand = |seat: Seat| Seat { name: String::new(), ..seat };
        assert_eq!(plan(&[voter(1), by_hand(learner(2)), by_hand(learner(3))]), None);
        assert_eq!(plan(&[voter(1), voter(2), by_hand(gone(voter(3))), by_hand(gone(learner(4)))]), None);
    }
}
