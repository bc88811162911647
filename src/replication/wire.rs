//! Owns: the translation of openraft's messages to our protobuf and back. What makes no sense is refused by name.

use std::time::Duration;

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use tonic::Status;

use super::forward::Attempt;
use super::types::{self, LogId, SnapshotMeta, Types, Vote};
use crate::proto::{log, peer};
use crate::storage::answers;
use crate::storage::log::record;

fn invalid(why: impl std::fmt::Display) -> Status {
    Status::invalid_argument(why.to_string())
}

fn spell_log_id(id: &Option<LogId>) -> Option<log::LogId> {
    id.as_ref().map(|id| types::our_log_id(id).spell())
}

/// An index without a next one is refused: everything behind this door counts on from what it is told.
fn log_id(spelled: Option<log::LogId>) -> Result<Option<LogId>, Status> {
    let id = spelled.map(record::LogId::understand);
    match id.filter(|id| id.is_beyond_any_log()) {
        Some(beyond) => Err(invalid(format!("log id {beyond}: no log is that long"))),
        None => Ok(id.map(types::log_id)),
    }
}

pub fn spell_vote(vote: &Vote) -> Option<log::Vote> {
    Some(types::our_vote(vote).spell())
}

pub fn vote(spelled: Option<log::Vote>) -> Result<Vote, Status> {
    let spelled = spelled.ok_or_else(|| invalid("vote: missing"))?;
    Ok(types::vote(record::Vote::understand(spelled)))
}

pub fn spell_vote_request(hop: peer::Hop, request: &VoteRequest<Types>) -> peer::VoteRequest {
    peer::VoteRequest {
        hop: Some(hop),
        vote: spell_vote(&request.vote),
        last_log: spell_log_id(&request.last_log_id),
        leader_transfer: request.leadership_transfer,
    }
}

pub fn vote_request(spelled: peer::VoteRequest) -> Result<VoteRequest<Types>, Status> {
    let mut request = VoteRequest::new(vote(spelled.vote)?, log_id(spelled.last_log)?);
    request.leadership_transfer = spelled.leader_transfer;
    Ok(request)
}

pub fn spell_vote_response(response: &VoteResponse<Types>) -> peer::VoteResponse {
    peer::VoteResponse {
        vote: spell_vote(&response.vote),
        granted: response.vote_granted,
        last_log: spell_log_id(&response.last_log_id),
    }
}

pub fn vote_response(spelled: peer::VoteResponse) -> Result<VoteResponse<Types>, Status> {
    Ok(VoteResponse::new(vote(spelled.vote)?, log_id(spelled.last_log)?, spelled.granted))
}

/// `hop`: for a call of its own, and for the first request of a stream.
pub fn spell_append(hop: Option<peer::Hop>, request: AppendEntriesRequest<Types>) -> peer::AppendRequest {
    peer::AppendRequest {
        hop,
        vote: spell_vote(&request.vote),
        previous: spell_log_id(&request.prev_log_id),
        entries: request.entries.into_iter().map(|entry| types::our_entry(entry).spell()).collect(),
        committed: spell_log_id(&request.leader_commit),
    }
}

/// Reads an append. A gap is refused here: openraft looks for one in debug builds only, and would write it down.
pub fn append(spelled: peer::AppendRequest) -> Result<AppendEntriesRequest<Types>, Status> {
    let previous = log_id(spelled.previous)?;
    let first = previous.map_or(0, |previous| previous.index.saturating_add(1));
    let mut entries = Vec::with_capacity(spelled.entries.len());
    for (place, entry) in (0..).zip(spelled.entries) {
        let next = first.saturating_add(place);
        if entry.index != next {
            return Err(invalid(format!("entries: entry {} stands where entry {next} is next", entry.index)));
        }
        if entry.index == u64::MAX {
            return Err(invalid(format!("entries: entry {next}: no log is that long")));
        }
        let entry = record::Entry::understand(entry).and_then(types::entry);
        entries.push(entry.map_err(|error| invalid(format!("entries: {error}")))?);
    }
    Ok(AppendEntriesRequest {
        vote: vote(spelled.vote)?,
        prev_log_id: previous,
        entries,
        leader_commit: log_id(spelled.committed)?,
    })
}

pub fn spell_appended(response: &AppendEntriesResponse<Types>) -> peer::AppendResponse {
    use peer::append_response::Outcome;
    let outcome = match response {
        AppendEntriesResponse::Success => Outcome::Success(peer::Matched { upto: None }),
        AppendEntriesResponse::PartialSuccess(upto) => Outcome::Partial(peer::Matched { upto: spell_log_id(upto) }),
        AppendEntriesResponse::Conflict => Outcome::Conflict(peer::Conflict {}),
        AppendEntriesResponse::HigherVote(vote) => Outcome::HigherVote(types::our_vote(vote).spell()),
    };
    peer::AppendResponse { outcome: Some(outcome) }
}

pub fn appended(spelled: peer::AppendResponse) -> Result<AppendEntriesResponse<Types>, Status> {
    use peer::append_response::Outcome;
    Ok(match spelled.outcome.ok_or_else(|| invalid("outcome: none this version knows"))? {
        Outcome::Success(_) => AppendEntriesResponse::Success,
        Outcome::Partial(matched) => AppendEntriesResponse::PartialSuccess(log_id(matched.upto)?),
        Outcome::Conflict(_) => AppendEntriesResponse::Conflict,
        Outcome::HigherVote(higher) => AppendEntriesResponse::HigherVote(vote(Some(higher))?),
    })
}

pub fn spell_transfer(hop: peer::Hop, request: &TransferLeaderRequest<Types>) -> peer::TransferLeaderRequest {
    peer::TransferLeaderRequest {
        hop: Some(hop),
        from: spell_vote(request.from_leader()),
        to: *request.to_node_id(),
        last_log: spell_log_id(&request.last_log_id().copied()),
    }
}

pub fn transfer(spelled: peer::TransferLeaderRequest) -> Result<TransferLeaderRequest<Types>, Status> {
    Ok(TransferLeaderRequest::new(vote(spelled.from)?, spelled.to, log_id(spelled.last_log)?))
}

pub fn spell_snapshot_header(
    hop: peer::Hop,
    vote: &Vote,
    meta: &SnapshotMeta,
    length: u64,
    checksum: u128,
) -> peer::SnapshotHeader {
    peer::SnapshotHeader {
        hop: Some(hop),
        vote: spell_vote(vote),
        last_log: spell_log_id(&meta.last_log_id),
        membership_at: spell_log_id(meta.last_membership.log_id()),
        membership: Some(types::our_membership(meta.last_membership.membership()).spell()),
        length,
        checksum: Bytes::copy_from_slice(&checksum.to_be_bytes()),
    }
}

pub fn snapshot_meta(header: &peer::SnapshotHeader) -> Result<SnapshotMeta, Status> {
    let membership = record::Membership::understand(header.membership.clone().unwrap_or_default());
    let membership = membership.and_then(|membership| types::membership(&membership)).map_err(invalid)?;
    let last_membership = types::StoredMembership::new(log_id(header.membership_at)?, membership);
    Ok(SnapshotMeta { last_log_id: log_id(header.last_log)?, last_membership })
}

pub fn checksum(header: &peer::SnapshotHeader) -> Result<u128, Status> {
    let bytes = header.checksum.as_ref().try_into();
    Ok(u128::from_be_bytes(bytes.map_err(|_| invalid("checksum: 16 bytes are expected"))?))
}

pub fn spell_snapshot_response(response: &SnapshotResponse<Types>) -> peer::SnapshotResponse {
    peer::SnapshotResponse { vote: spell_vote(&response.vote) }
}

pub fn snapshot_response(spelled: peer::SnapshotResponse) -> Result<SnapshotResponse<Types>, Status> {
    Ok(SnapshotResponse::new(vote(spelled.vote)?))
}

pub fn spell_forwarded(encoded: Bytes, remaining: Duration) -> peer::Forwarded {
    peer::Forwarded { command: encoded, remaining_ms: remaining.as_millis() as u64 }
}

pub fn spell_forward(hop: peer::Hop, term: u64, mutations: Vec<peer::Forwarded>) -> peer::ForwardRequest {
    peer::ForwardRequest { hop: Some(hop), term, mutations }
}

pub fn spell_attempt(attempt: Attempt) -> peer::ForwardOutcome {
    use peer::forward_outcome::Outcome;
    let outcome = match attempt {
        Attempt::Answered(answer) => Outcome::Answer(answers::print(&answer)),
        Attempt::NotLeader(leader) => Outcome::NotLeader(peer::NotLeader { leader: leader.unwrap_or(0) }),
        Attempt::Unavailable(why) => Outcome::Unavailable(why),
        Attempt::Unknown(why) => Outcome::Unknown(why),
    };
    peer::ForwardOutcome { outcome: Some(outcome) }
}

pub fn attempt(spelled: peer::ForwardOutcome) -> Attempt {
    use peer::forward_outcome::Outcome;
    match spelled.outcome {
        Some(Outcome::Answer(answer)) => match answers::parse(&answer) {
            Ok(answer) => Attempt::Answered(answer),
            Err(fault) => Attempt::Unknown(format!("the leader's answer makes no sense here: {fault}")),
        },
        Some(Outcome::NotLeader(peer::NotLeader { leader })) => Attempt::NotLeader((leader != 0).then_some(leader)),
        Some(Outcome::Unavailable(why)) => Attempt::Unavailable(why),
        Some(Outcome::Unknown(why)) => Attempt::Unknown(why),
        None => Attempt::Unknown("the leader's answer makes no sense to this version".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::EntryPayload;

    fn request(previous: u64, indexes: &[u64]) -> peer::AppendRequest {
        let id = |index| types::log_id(record::LogId { term: 2, leader: 1, index });
        let entry = |index: &u64| types::Entry { log_id: id(*index), payload: EntryPayload::Blank };
        let request = AppendEntriesRequest {
            vote: types::vote(record::Vote { term: 2, node: 1, committed: true }),
            prev_log_id: Some(id(previous)),
            entries: indexes.iter().map(entry).collect(),
            leader_commit: Some(id(previous)),
        };
        spell_append(Some(peer::Hop::default()), request)
    }

    #[test]
    fn entries_that_leave_a_gap_are_refused() {
        assert_eq!(append(request(4, &[5, 6])).unwrap().entries.len(), 2);
        for indexes in [&[6][..], &[5, 7], &[4]] {
            let refused = append(request(4, indexes)).unwrap_err();
            assert!(refused.message().contains("is next"), "{refused:?}");
        }
    }

    #[test]
    fn an_index_that_has_no_next_is_refused() {
        let beyond = Some(log::LogId { term: 2, leader: 1, index: u64::MAX });
        let refused = append(peer::AppendRequest { previous: beyond, ..request(4, &[]) }).unwrap_err();
        assert!(refused.message().contains("no log is that long"), "{refused:?}");
        assert!(append(request(u64::MAX - 1, &[u64::MAX])).is_err());
        assert!(vote_request(peer::VoteRequest { last_log: beyond, ..peer::VoteRequest::default() }).is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        let without_vote = peer::AppendRequest { vote: None, ..request(4, &[5]) };
        assert!(append(without_vote).unwrap_err().message().contains("vote: missing"));
        let mut without_payload = request(4, &[5]);
        without_payload.entries[0].payload = None;
        assert!(append(without_payload).unwrap_err().message().contains("no payload"));
        assert!(appended(peer::AppendResponse { outcome: None }).is_err());
    }
}
