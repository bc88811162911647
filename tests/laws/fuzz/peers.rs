//! The laws of the peer protocol's words: any bytes a peer may send are refused by name or understood, and what was
//! understood is spelled the same again. A command that was understood can be applied.

use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use session_manager::machine::Command;
use session_manager::proto::{log, peer};
use session_manager::replication::wire;
use session_manager::requests::{Decision, Limits, functions};
use session_manager::storage::answers;
use session_manager::storage::log::command::Order;

use super::inputs;
use super::memory::peak;
use super::requests;
use super::spoil::{Harm, harms, spoil};
use crate::workshop::stamped;

/// A field of protobuf may be two bytes on the wire and a struct in memory.
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
    let limits = Limits { default_list_limit: 50, max_list_limit: 500 };
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
    let member = |node| log::Member { node, address: "127.0.0.1:1".to_owned(), instance: "i".to_owned() };
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
    peer::AppendRequest { hop: hop(), vote: vote(), previous: id(4), entries, committed: id(4) }
}

/// One good message of each kind, by number.
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
    let answer = answers::print(&Err(session_manager::machine::refusal::Refusal::EmptyBatch));
    match kind % KINDS {
        0 => append().encode_to_vec(),
        1 => peer::VoteRequest { hop: hop(), vote: vote(), last_log: id(3), leader_transfer: true }.encode_to_vec(),
        2 => peer::VoteResponse { vote: vote(), granted: true, last_log: id(3) }.encode_to_vec(),
        3 => {
            let matched = peer::Matched { upto: id(8) };
            peer::AppendResponse { outcome: Some(peer::append_response::Outcome::Partial(matched)) }.encode_to_vec()
        }
        4 => header.encode_to_vec(),
        5 => peer::TransferLeaderRequest { hop: hop(), from: vote(), to: 2, last_log: id(3) }.encode_to_vec(),
        6 => {
            let outcome = peer::ForwardOutcome { outcome: Some(peer::forward_outcome::Outcome::Answer(answer)) };
            peer::ForwardResponse { outcomes: vec![outcome] }.encode_to_vec()
        }
        _seven => {
            let order = Order::new(stamped(1, 5, commands().remove(0)));
            let mutation = wire::spell_forwarded(order.encoded().clone(), Duration::from_secs(1));
            peer::ForwardRequest { hop: hop(), term: 3, mutations: vec![mutation] }.encode_to_vec()
        }
    }
}

const KINDS: usize = 8;

/// Reads bytes as each kind of message there is; what is understood must be spelled the same again.
fn understand(bytes: &[u8]) -> Result<(), TestCaseError> {
    let spelled = peer::Hop::default;
    if let Ok(Ok(read)) = peer::AppendRequest::decode(bytes).map(wire::append) {
        let again = wire::append(wire::spell_append(Some(spelled()), read.clone())).expect("it was understood before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
        let previous = read.prev_log_id.map(|previous| previous.index);
        for (place, entry) in read.entries.iter().enumerate() {
            let next = previous.map_or(0, |previous| previous + 1) + place as u64;
            prop_assert_eq!(entry.log_id.index, next, "a gap");
        }
    }
    if let Ok(Ok(read)) = peer::VoteRequest::decode(bytes).map(wire::vote_request) {
        let again = wire::vote_request(wire::spell_vote_request(spelled(), &read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    if let Ok(Ok(read)) = peer::VoteResponse::decode(bytes).map(wire::vote_response) {
        let again = wire::vote_response(wire::spell_vote_response(&read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    if let Ok(Ok(read)) = peer::AppendResponse::decode(bytes).map(wire::appended) {
        let again = wire::appended(wire::spell_appended(&read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    if let Ok(header) = peer::SnapshotHeader::decode(bytes)
        && let (Ok(meta), Ok(checksum), Ok(vote)) =
            (wire::snapshot_meta(&header), wire::checksum(&header), wire::vote(header.vote))
    {
        let again = wire::spell_snapshot_header(spelled(), &vote, &meta, header.length, checksum);
        prop_assert_eq!(wire::snapshot_meta(&again).expect("as before"), meta);
    }
    if let Ok(Ok(read)) = peer::TransferLeaderRequest::decode(bytes).map(wire::transfer) {
        let again = wire::transfer(wire::spell_transfer(spelled(), &read)).expect("as before");
        prop_assert_eq!(format!("{read:?}"), format!("{again:?}"));
    }
    let _ = peer::SnapshotResponse::decode(bytes).map(wire::snapshot_response);
    if let Ok(forwarded) = peer::ForwardResponse::decode(bytes) {
        forwarded.outcomes.into_iter().for_each(|outcome| drop(wire::attempt(outcome)));
    }
    if let Ok(forward) = peer::ForwardRequest::decode(bytes) {
        forward.mutations.into_iter().for_each(|mutation| drop(Order::read(mutation.command)));
    }
    let _ = peer::SnapshotPart::decode(bytes);
    let _ = peer::ReadIndexResponse::decode(bytes);
    Ok(())
}

fn within_memory(bytes: &[u8]) -> Result<(), TestCaseError> {
    // The longest reading is that of all kinds together.
    let (understood, held) = peak(|| understand(bytes));
    prop_assert!(held <= MEMORY_FACTOR * bytes.len() + MEMORY_SLACK, "{held} bytes for {}", bytes.len());
    understood
}

#[test]
fn the_good_messages_are_understood() {
    assert_eq!(wire::append(append()).expect("a good append").entries.len(), commands().len() + 1);
    (0..KINDS).for_each(|kind| within_memory(&good(kind)).unwrap());
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn any_bytes_are_refused_or_understood(bytes in vec(any::<u8>(), 0..300)) {
        within_memory(&bytes)?;
    }

    #[test]
    fn spoiled_messages_are_refused_or_understood(kind in 0..KINDS, harms in harms()) {
        let harms: Vec<Harm> = harms;
        let mut bytes = good(kind);
        spoil(&mut bytes, &harms);
        within_memory(&bytes)?;
    }

    /// What a peer proposes or replicates is applied by everybody: it must not break any of them.
    #[test]
    fn a_spoiled_command_that_is_understood_can_be_applied(at: prop::sample::Index, harms in harms()) {
        let harms: Vec<Harm> = harms;
        let commands = commands();
        let order = Order::new(stamped(9, 5, commands[at.index(commands.len())].clone()));
        let mut bytes = order.encoded().to_vec();
        spoil(&mut bytes, &harms);
        let Ok(order) = Order::read(bytes.into()) else { return Ok(()) };
        let mut run = requests::begun();
        let outcome = run.apply(order.stamped());
        // Bodies are JSON because the door they came in by checked them; peers are believed. What stands in a spoiled
        // one is printed as it is.
        for event in &outcome.events {
            let _ = event.payload();
        }
    }
}
