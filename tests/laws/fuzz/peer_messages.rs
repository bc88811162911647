//! The laws of the messages of the peer protocol: any bytes are refused or decoded, and what is decoded encodes to the
//! same message. A command that is decoded can be applied.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use session_manager::machine::Command;
use session_manager::proto::{log, peer};
use session_manager::replication::wire;
use session_manager::requests::{Decision, Limits, functions};
use session_manager::storage::log::command::Order;
use session_manager::storage::state::answer;

use super::corruption::{Corruption, corrupt, corruptions};
use super::inputs;
use super::memory::peak;
use super::requests;
use crate::applied_log::stamped;

/// A protobuf field may be two bytes on the wire and a struct in memory.
const MEMORY_FACTOR: usize = 200;
const MEMORY_SLACK: usize = 64 << 10;

fn hop() -> Option<peer::Hop> {
    Some(peer::Hop { protocol: 1, cluster_id: "c".to_owned(), to_node: 2, from_node: 1, ..peer::Hop::default() })
}

fn vote() -> Option<log::Vote> {
    Some(log::Vote { term: 3, node: 1, committed: true })
}

fn id(index: u64) -> Option<log::LogId> {
    Some(log::LogId { term: 3, leader: 1, index })
}

fn commands() -> Vec<Command> {
    let limits = Limits::DEFAULT;
    let decide = |function: &session_manager::requests::Function| match (function.decide)(
        &requests::good(function.id).to_string(),
        &limits,
    ) {
        Ok(Decision::Propose(command) | Decision::ProposeOnce { command, .. }) => Some(command),
        Ok(Decision::Ask(_) | Decision::Introduce { .. } | Decision::ConfigStatus | Decision::ReloadConfig)
        | Err(_) => None,
    };
    functions().iter().filter_map(decide).collect()
}

fn membership() -> log::Membership {
    let member =
        |node| log::Member { node, address: "127.0.0.1:1".to_owned(), instance: "i".to_owned(), name: "n".to_owned() };
    log::Membership { configs: vec![log::Voters { nodes: vec![1, 2] }], members: vec![member(1), member(2)] }
}

fn append() -> peer::AppendRequest {
    let command = |(place, command): (u64, Command)| {
        log::entry::Payload::Command(Order::new(stamped(place + 1, 5, command)).encoded().clone())
    };
    let payloads = (0..).zip(commands()).map(command).chain([log::entry::Payload::Membership(membership())]);
    let entries = (5..)
        .zip(payloads)
        .map(|(index, payload)| log::Entry { term: 3, leader: 1, index, payload: Some(payload) })
        .collect();
    let head = peer::AppendRequest { hop: hop(), vote: vote(), previous: id(4), ..Default::default() };
    let traces = vec![peer::EntryTrace { index: 5, context: bytes::Bytes::from_static(&[7; 24]) }];
    peer::AppendRequest { entries, committed: id(4), traces, ..head }
}

/// One valid message of each kind, by number.
fn good(kind: usize) -> Vec<u8> {
    let header = peer::SnapshotHeader {
        hop: hop(),
        vote: vote(),
        last_log: id(9),
        membership_at: id(1),
        membership: Some(membership()),
        length: 100,
        checksum: Bytes::from_static(&[7; 16]),
    };
    let answer = answer::encode(&Err(session_manager::machine::refusal::Refusal::EmptyBatch));
    match kind % KINDS {
        0 => append().encode_to_vec(),
        1 => peer::VoteRequest { hop: hop(), vote: vote(), last_log: id(3), leader_transfer: true }.encode_to_vec(),
        2 => peer::VoteResponse { vote: vote(), granted: true, last_log: id(3) }.encode_to_vec(),
        3 => {
            let matched = peer::Matched { upto: id(8) };
            let outcome = Some(peer::append_response::Outcome::Partial(matched));
            peer::AppendResponse { outcome, nobody_listens: true }.encode_to_vec()
        }
        4 => header.encode_to_vec(),
        5 => peer::TransferLeaderRequest { hop: hop(), from: vote(), to: 2, last_log: id(3) }.encode_to_vec(),
        6 => {
            let outcome = Some(peer::forward_outcome::Outcome::Answer(answer));
            let outcome = peer::ForwardOutcome { outcome, retry_is_late: false };
            peer::ForwardResponse { outcomes: vec![outcome] }.encode_to_vec()
        }
        _seven => {
            let order = Order::new(stamped(1, 5, commands().remove(0)));
            let mutation = peer::Forwarded {
                command: order.encoded().clone(),
                remaining_ms: 1_000,
                trace: bytes::Bytes::from_static(&[7; 24]),
            };
            peer::ForwardRequest { hop: hop(), term: 3, mutations: vec![mutation] }.encode_to_vec()
        }
    }
}

const KINDS: usize = 8;

/// Decodes bytes as each kind of message. What is decoded must encode to the same message.
fn decode_and_encode(bytes: &[u8]) -> Result<(), TestCaseError> {
    let spelled = peer::Hop::default;
    if let Ok(Ok(read)) = peer::AppendRequest::decode(bytes).map(wire::append_from_proto) {
        let again = wire::append_from_proto(wire::append_to_proto(Some(spelled()), read.clone()))
            .expect("it was decoded before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
        let previous = read.prev_log_id.map(|previous| previous.index);
        for (place, entry) in read.entries.iter().enumerate() {
            let next = previous.map_or(0, |previous| previous + 1) + place as u64;
            prop_assert_eq!(entry.index(), next, "there is a gap");
        }
    }
    if let Ok(Ok(read)) = peer::VoteRequest::decode(bytes).map(wire::vote_request_from_proto) {
        let again = wire::vote_request_from_proto(wire::vote_request_to_proto(spelled(), &read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    if let Ok(Ok(read)) = peer::VoteResponse::decode(bytes).map(wire::vote_response_from_proto) {
        let again = wire::vote_response_from_proto(wire::vote_response_to_proto(&read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    if let Ok(Ok(read)) = peer::AppendResponse::decode(bytes).map(wire::appended_from_proto) {
        let again = wire::appended_from_proto(wire::appended_to_proto(&read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    if let Ok(header) = peer::SnapshotHeader::decode(bytes)
        && let (Ok(meta), Ok(checksum), Ok(vote)) = (
            wire::snapshot_meta_from_proto(&header),
            wire::checksum_from_proto(&header),
            wire::vote_from_proto(header.vote),
        )
    {
        let again = wire::snapshot_header_to_proto(spelled(), &vote, &meta, header.length, checksum);
        prop_assert_eq!(wire::snapshot_meta_from_proto(&again).expect("as before"), meta);
    }
    if let Ok(Ok(read)) = peer::TransferLeaderRequest::decode(bytes).map(wire::transfer_from_proto) {
        let again = wire::transfer_from_proto(wire::transfer_to_proto(spelled(), &read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    let _ = peer::SnapshotResponse::decode(bytes).map(wire::snapshot_response_from_proto);
    if let Ok(forwarded) = peer::ForwardResponse::decode(bytes) {
        forwarded.outcomes.into_iter().for_each(|outcome| drop(wire::attempt_from_proto(outcome)));
    }
    if let Ok(forward) = peer::ForwardRequest::decode(bytes) {
        forward.mutations.into_iter().for_each(|mutation| drop(Order::read(mutation.command)));
    }
    let _ = peer::SnapshotPart::decode(bytes);
    let _ = peer::ReadIndexResponse::decode(bytes);
    Ok(())
}

fn within_memory(bytes: &[u8]) -> Result<(), TestCaseError> {
    // The limit covers all kinds together.
    let (decoded, held) = peak(|| decode_and_encode(bytes));
    prop_assert!(held <= MEMORY_FACTOR * bytes.len() + MEMORY_SLACK, "{held} bytes for {}", bytes.len());
    decoded
}

#[test]
fn the_valid_messages_are_decoded() {
    assert_eq!(wire::append_from_proto(append()).expect("a good append").entries.len(), commands().len() + 1);
    (0..KINDS).for_each(|kind| within_memory(&good(kind)).unwrap());
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn any_bytes_are_refused_or_decoded(bytes in vec(any::<u8>(), 0..300)) {
        within_memory(&bytes)?;
    }

    #[test]
    fn corrupted_messages_are_refused_or_decoded(kind in 0..KINDS, corruptions in corruptions()) {
        let corruptions: Vec<Corruption> = corruptions;
        let mut bytes = good(kind);
        corrupt(&mut bytes, &corruptions);
        within_memory(&bytes)?;
    }

    /// Every node applies what a peer proposes or replicates, so no decoded command may break apply.
    #[test]
    fn a_corrupted_command_that_is_decoded_can_be_applied(at: prop::sample::Index, corruptions in corruptions()) {
        let corruptions: Vec<Corruption> = corruptions;
        let commands = commands();
        let order = Order::new(stamped(9, 5, commands[at.index(commands.len())].clone()));
        let mut bytes = order.encoded().to_vec();
        corrupt(&mut bytes, &corruptions);
        let Ok(order) = Order::read(bytes.into()) else { return Ok(()) };
        let mut run = requests::prepared();
        let outcome = run.apply(order.stamped());
        // Bodies are checked to be JSON when a client sends them, and peers are trusted. A corrupted body is printed
        // unchanged.
        for event in &outcome.events {
            let _ = event.payload();
        }
    }
}
