//! Owns: the translation of openraft's messages to our protobuf messages and back. An invalid message is refused with
//! the name of the wrong field.

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use tonic::Status;

use super::attempt::Attempt;
use super::types::{self, Entry, LogId, SnapshotMeta, Types, Vote};
use crate::proto::{log, peer};
use crate::storage::log::record;
use crate::storage::state::answer;

fn invalid(why: impl std::fmt::Display) -> Status {
    Status::invalid_argument(why.to_string())
}

fn log_id_to_proto(id: &Option<LogId>) -> Option<log::LogId> {
    id.as_ref().map(|id| types::our_log_id(id).to_proto())
}

/// Refuses the largest index: the code behind this adds one to the indexes it gets.
fn log_id_from_proto(spelled: Option<log::LogId>) -> Result<Option<LogId>, Status> {
    let id = spelled.map(record::LogId::from_proto);
    match id.filter(|id| id.is_beyond_any_log()) {
        Some(beyond) => Err(invalid(format!("log id {beyond}: no log is that long"))),
        None => Ok(id.map(types::log_id)),
    }
}

pub fn vote_to_proto(vote: &Vote) -> Option<log::Vote> {
    Some(types::our_vote(vote).to_proto())
}

pub fn vote_from_proto(spelled: Option<log::Vote>) -> Result<Vote, Status> {
    let spelled = spelled.ok_or_else(|| invalid("vote: missing"))?;
    Ok(types::vote(record::Vote::from_proto(spelled)))
}

pub fn vote_request_to_proto(hop: peer::Hop, request: &VoteRequest<Types>) -> peer::VoteRequest {
    peer::VoteRequest {
        hop: Some(hop),
        vote: vote_to_proto(&request.vote),
        last_log: log_id_to_proto(&request.last_log_id),
        leader_transfer: request.leadership_transfer,
    }
}

pub fn vote_request_from_proto(spelled: peer::VoteRequest) -> Result<VoteRequest<Types>, Status> {
    let mut request = VoteRequest::new(vote_from_proto(spelled.vote)?, log_id_from_proto(spelled.last_log)?);
    request.leadership_transfer = spelled.leader_transfer;
    Ok(request)
}

pub fn vote_response_to_proto(response: &VoteResponse<Types>) -> peer::VoteResponse {
    peer::VoteResponse {
        vote: vote_to_proto(&response.vote),
        granted: response.vote_granted,
        last_log: log_id_to_proto(&response.last_log_id),
    }
}

pub fn vote_response_from_proto(spelled: peer::VoteResponse) -> Result<VoteResponse<Types>, Status> {
    Ok(VoteResponse::new(vote_from_proto(spelled.vote)?, log_id_from_proto(spelled.last_log)?, spelled.granted))
}

/// `hop` is set in a single call and in the first request of a stream.
pub fn append_to_proto(hop: Option<peer::Hop>, request: AppendEntriesRequest<Types>) -> peer::AppendRequest {
    peer::AppendRequest {
        hop,
        vote: vote_to_proto(&request.vote),
        previous: log_id_to_proto(&request.prev_log_id),
        entries: request.entries.iter().map(Entry::to_proto).collect(),
        committed: log_id_to_proto(&request.leader_commit),
        ..peer::AppendRequest::default()
    }
}

/// Refuses entries with a gap: openraft checks for gaps in debug builds only.
pub fn append_from_proto(spelled: peer::AppendRequest) -> Result<AppendEntriesRequest<Types>, Status> {
    if spelled.more || spelled.left > 0 || !spelled.rest.is_empty() {
        return Err(invalid("more, rest, left: only a stream has requests in pieces"));
    }
    let previous = log_id_from_proto(spelled.previous)?;
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
        let entry = Entry::from_proto(entry).and_then(|entry| types::check(&entry).map(|()| entry));
        entries.push(entry.map_err(|error| invalid(format!("entries: {error}")))?);
    }
    Ok(AppendEntriesRequest {
        vote: vote_from_proto(spelled.vote)?,
        prev_log_id: previous,
        entries,
        leader_commit: log_id_from_proto(spelled.committed)?,
    })
}

pub fn appended_to_proto(response: &AppendEntriesResponse<Types>) -> peer::AppendResponse {
    use peer::append_response::Outcome;
    let outcome = match response {
        AppendEntriesResponse::Success => Outcome::Success(peer::Matched { upto: None }),
        AppendEntriesResponse::PartialSuccess(upto) => Outcome::Partial(peer::Matched { upto: log_id_to_proto(upto) }),
        AppendEntriesResponse::Conflict => Outcome::Conflict(peer::Conflict {}),
        AppendEntriesResponse::HigherVote(vote) => Outcome::HigherVote(types::our_vote(vote).to_proto()),
    };
    peer::AppendResponse { outcome: Some(outcome), nobody_listens: false }
}

pub fn appended_from_proto(spelled: peer::AppendResponse) -> Result<AppendEntriesResponse<Types>, Status> {
    use peer::append_response::Outcome;
    Ok(match spelled.outcome.ok_or_else(|| invalid("outcome: none this version knows"))? {
        Outcome::Success(_) => AppendEntriesResponse::Success,
        Outcome::Partial(matched) => AppendEntriesResponse::PartialSuccess(log_id_from_proto(matched.upto)?),
        Outcome::Conflict(_) => AppendEntriesResponse::Conflict,
        Outcome::HigherVote(higher) => AppendEntriesResponse::HigherVote(vote_from_proto(Some(higher))?),
    })
}

pub fn transfer_to_proto(hop: peer::Hop, request: &TransferLeaderRequest<Types>) -> peer::TransferLeaderRequest {
    peer::TransferLeaderRequest {
        hop: Some(hop),
        from: vote_to_proto(request.from_leader()),
        to: *request.to_node_id(),
        last_log: log_id_to_proto(&request.last_log_id().copied()),
    }
}

pub fn transfer_from_proto(spelled: peer::TransferLeaderRequest) -> Result<TransferLeaderRequest<Types>, Status> {
    Ok(TransferLeaderRequest::new(vote_from_proto(spelled.from)?, spelled.to, log_id_from_proto(spelled.last_log)?))
}

pub fn snapshot_header_to_proto(
    hop: peer::Hop,
    vote: &Vote,
    meta: &SnapshotMeta,
    length: u64,
    checksum: u128,
) -> peer::SnapshotHeader {
    peer::SnapshotHeader {
        hop: Some(hop),
        vote: vote_to_proto(vote),
        last_log: log_id_to_proto(&meta.last_log_id),
        membership_at: log_id_to_proto(meta.last_membership.log_id()),
        membership: Some(types::our_membership(meta.last_membership.membership()).to_proto()),
        length,
        checksum: Bytes::copy_from_slice(&checksum.to_be_bytes()),
    }
}

pub fn snapshot_meta_from_proto(header: &peer::SnapshotHeader) -> Result<SnapshotMeta, Status> {
    let membership = record::Membership::from_proto(header.membership.clone().unwrap_or_default());
    let membership = membership.and_then(|membership| types::membership(&membership)).map_err(invalid)?;
    let last_membership = types::StoredMembership::new(log_id_from_proto(header.membership_at)?, membership);
    Ok(SnapshotMeta { last_log_id: log_id_from_proto(header.last_log)?, last_membership })
}

pub fn checksum_from_proto(header: &peer::SnapshotHeader) -> Result<u128, Status> {
    let bytes = header.checksum.as_ref().try_into();
    Ok(u128::from_be_bytes(bytes.map_err(|_| invalid("checksum: 16 bytes are expected"))?))
}

pub fn snapshot_response_to_proto(response: &SnapshotResponse<Types>) -> peer::SnapshotResponse {
    peer::SnapshotResponse { vote: vote_to_proto(&response.vote) }
}

pub fn snapshot_response_from_proto(spelled: peer::SnapshotResponse) -> Result<SnapshotResponse<Types>, Status> {
    Ok(SnapshotResponse::new(vote_from_proto(spelled.vote)?))
}

pub fn attempt_to_proto(attempt: Attempt) -> peer::ForwardOutcome {
    use peer::forward_outcome::Outcome;
    let outcome = match attempt {
        Attempt::Answered(answer) => Outcome::Answer(answer::encode(&answer)),
        Attempt::NotLeader(leader) => Outcome::NotLeader(peer::NotLeader { leader: leader.unwrap_or(0) }),
        Attempt::Unavailable(why) => Outcome::Unavailable(why),
        Attempt::Full(why) => {
            return peer::ForwardOutcome { outcome: Some(Outcome::Unavailable(why)), retry_is_late: true };
        }
        Attempt::Unknown(why) => Outcome::Unknown(why),
    };
    peer::ForwardOutcome { outcome: Some(outcome), retry_is_late: false }
}

pub fn attempt_from_proto(spelled: peer::ForwardOutcome) -> Attempt {
    use peer::forward_outcome::Outcome;
    match spelled.outcome {
        Some(Outcome::Answer(answer)) => match answer::decode(&answer) {
            Ok(answer) => Attempt::Answered(answer),
            Err(fault) => Attempt::Unknown(format!("this version cannot read the leader's answer: {fault}")),
        },
        Some(Outcome::NotLeader(peer::NotLeader { leader })) => Attempt::NotLeader((leader != 0).then_some(leader)),
        Some(Outcome::Unavailable(why)) if spelled.retry_is_late => Attempt::Full(why),
        Some(Outcome::Unavailable(why)) => Attempt::Unavailable(why),
        Some(Outcome::Unknown(why)) => Attempt::Unknown(why),
        None => Attempt::Unknown("this version does not know the kind of the leader's answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::log::record::Payload;

    fn request(previous: u64, indexes: &[u64]) -> peer::AppendRequest {
        let id = |index| types::log_id(record::LogId::new(2, 1, index));
        let entry = |index: &u64| Entry { id: record::LogId::new(2, 1, *index), payload: Payload::Blank };
        let request = AppendEntriesRequest {
            vote: types::vote(record::Vote { term: 2, node: 1, committed: true }),
            prev_log_id: Some(id(previous)),
            entries: indexes.iter().map(entry).collect(),
            leader_commit: Some(id(previous)),
        };
        append_to_proto(Some(peer::Hop::default()), request)
    }

    #[test]
    fn entries_that_leave_a_gap_are_refused() {
        assert_eq!(append_from_proto(request(4, &[5, 6])).unwrap().entries.len(), 2);
        for indexes in [&[6][..], &[5, 7], &[4]] {
            let refused = append_from_proto(request(4, indexes)).unwrap_err();
            assert!(refused.message().contains("is next"), "{refused:?}");
        }
    }

    #[test]
    fn an_index_that_has_no_next_is_refused() {
        let beyond = Some(log::LogId { term: 2, leader: 1, index: u64::MAX });
        let refused = append_from_proto(peer::AppendRequest { previous: beyond, ..request(4, &[]) }).unwrap_err();
        assert!(refused.message().contains("no log is that long"), "{refused:?}");
        assert!(append_from_proto(request(u64::MAX - 1, &[u64::MAX])).is_err());
        assert!(
            vote_request_from_proto(peer::VoteRequest { last_log: beyond, ..peer::VoteRequest::default() }).is_err()
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let without_vote = peer::AppendRequest { vote: None, ..request(4, &[5]) };
        assert!(append_from_proto(without_vote).unwrap_err().message().contains("vote: missing"));
        let mut without_payload = request(4, &[5]);
        without_payload.entries[0].payload = None;
        assert!(append_from_proto(without_payload).unwrap_err().message().contains("no payload"));
        assert!(appended_from_proto(peer::AppendResponse::default()).is_err());
    }
}
