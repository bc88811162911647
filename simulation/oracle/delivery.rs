//! The law of delivery: a subscriber hears events of the log and no others, each as the log made it, in order, without a gap
//! from where it began; one that lived to the end heard everything there was.

use std::collections::BTreeMap;

use serde_json::Value;
use session_manager::machine::event::{Event, EventKind};
use session_manager::machine::ids::SessionId;

use super::Findings;
use super::replay::Replay;
use crate::history::{Delivery, History, Place, Subscription};

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("delivery");
    let committed = committed(replay);
    check_sequence(&committed, &mut findings);
    let mut heard: BTreeMap<usize, Vec<&Delivery>> = BTreeMap::new();
    for delivery in &history.deliveries {
        heard.entry(delivery.subscription).or_default().push(delivery);
    }
    for subscription in &history.subscriptions {
        let heard = heard.remove(&subscription.id).unwrap_or_default();
        check_truth(&committed, &heard, &mut findings);
        check_order(&heard, &mut findings);
        check_gaps(history, &committed, subscription, &heard, &mut findings);
    }
    findings
}

fn committed(replay: &Replay) -> BTreeMap<Place, &Event> {
    let mut committed = BTreeMap::new();
    for step in &replay.steps {
        for (ordinal, event) in (0..).zip(&step.events) {
            committed.insert(Place { index: step.index, ordinal }, event);
        }
    }
    committed
}

/// The events of a session are numbered one by one, anew after its end.
fn check_sequence(committed: &BTreeMap<Place, &Event>, findings: &mut Findings) {
    let mut last: BTreeMap<&SessionId, u64> = BTreeMap::new();
    for (place, event) in committed {
        let before = last.get(&event.session_id).copied().unwrap_or(0);
        findings.check(event.seq == before + 1, None, || {
            format!(
                "event {}.{} of {:?} has number {} after {before}",
                place.index,
                place.ordinal,
                event.session_id.as_str(),
                event.seq
            )
        });
        let ended = event.kind() == EventKind::Deleted;
        last.insert(&event.session_id, if ended { 0 } else { event.seq });
    }
}

fn check_truth(committed: &BTreeMap<Place, &Event>, heard: &[&Delivery], findings: &mut Findings) {
    for delivery in heard {
        let Place { index, ordinal } = delivery.place;
        let Some(event) = committed.get(&delivery.place) else {
            let words = format!(
                "subscription {} heard {} {index}.{ordinal} of {:?}, which was never committed",
                delivery.subscription, delivery.kind, delivery.session_id
            );
            findings.add(Some(delivery.heard), words);
            continue;
        };
        let payload: Value = event.payload().parse().unwrap_or(Value::Null);
        let same = event.kind().trigger_type() == delivery.kind
            && event.session_id.as_str() == delivery.session_id
            && event.seq == delivery.seq
            && payload == delivery.payload;
        findings.check(same, Some(delivery.heard), || {
            format!(
                "event {index}.{ordinal} was heard as {delivery:?}, but is {} {payload}",
                event.kind().trigger_type()
            )
        });
    }
}

fn check_order(heard: &[&Delivery], findings: &mut Findings) {
    for pair in heard.windows(2) {
        findings.check(pair[0].place < pair[1].place, Some(pair[1].heard), || {
            format!("subscription {} heard {:?} after {:?}", pair[1].subscription, pair[1].place, pair[0].place)
        });
    }
}

fn check_gaps(
    history: &History,
    committed: &BTreeMap<Place, &Event>,
    subscription: &Subscription,
    heard: &[&Delivery],
    findings: &mut Findings,
) {
    let lived = subscription.ended.is_none() && history.rested.is_some_and(|rested| subscription.bound < rested);
    let promised = match subscription.after {
        Some(after) => Some(after),
        // Without a position it hears what is published after it was bound: what nobody had applied by then is among it.
        None => before_anything_new(history, subscription),
    };
    let first = subscription.after.or(heard.first().map(|delivery| delivery.place)).or(promised);
    let last = if lived { committed.keys().next_back().copied() } else { heard.last().map(|delivery| delivery.place) };
    let (Some(first), Some(last)) = (first.min(promised.or(first)), last) else { return };
    let expected = committed.keys().filter(|place| first < **place && **place <= last);
    let missed: Vec<&Place> =
        expected.filter(|place| !heard.iter().any(|delivery| delivery.place == **place)).collect();
    findings.check(missed.is_empty(), heard.last().map(|delivery| delivery.heard), || {
        format!(
            "subscription {} on node {} (after {:?}) missed {} events up to {last:?}, the first {:?}",
            subscription.id,
            subscription.node,
            subscription.after,
            missed.len(),
            missed.first()
        )
    });
}

/// The last entry that anybody was seen to have applied when the binding was confirmed.
fn before_anything_new(history: &History, subscription: &Subscription) -> Option<Place> {
    let applied = history.applied.iter().filter(|applied| applied.noticed < subscription.bound);
    let last = applied.map(|applied| applied.entry.index()).max()?;
    // Its own node may have been behind or ahead of what was seen; a later subscriber promises less.
    Some(Place { index: last, ordinal: u32::MAX })
}
