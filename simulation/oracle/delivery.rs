//! The law of delivery: a subscriber hears events of the log and no others, in order, without a gap from where it began; one
//! that lived to the end heard everything there was. An event is told as the log made it, or, to who resumes or lags, as the
//! kept feed tells it: made whole from the state of some later entry, and left out where that state has something newer to
//! say. The later entry must have been applied by the time; what is heard live is told as it was.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use session_manager::machine::event::{Event, EventKind};
use session_manager::machine::ids::{FeedPlace, SessionId};
use session_manager::machine::query::feed::{self, FeedLimits};

use super::Findings;
use super::replay::Replay;
use super::versions::Versions;
use crate::history::{Applied, Delivery, History, Moment, Place, Subscription};

pub fn check(history: &History, replay: &Replay, versions: &Versions) -> Findings {
    let mut findings = Findings::of("delivery");
    let committed = committed(replay);
    let kept = Kept { versions, applied: applied(history) };
    check_sequence(&committed, &mut findings);
    let mut heard: BTreeMap<usize, Vec<&Delivery>> = BTreeMap::new();
    for delivery in &history.deliveries {
        heard.entry(delivery.subscription).or_default().push(delivery);
    }
    for subscription in &history.subscriptions {
        let heard = heard.remove(&subscription.id).unwrap_or_default();
        check_truth(&committed, &kept, &heard, &mut findings);
        check_order(&heard, &mut findings);
        check_gaps(history, &committed, &kept, subscription, &heard, &mut findings);
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

fn check_truth(committed: &BTreeMap<Place, &Event>, kept: &Kept<'_>, heard: &[&Delivery], findings: &mut Findings) {
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
        let by = kept.known(delivery.heard);
        let same = is_told_as(event, delivery)
            || kept.forms(delivery.place, event, by).any(|form| form.is_some_and(|form| is_told_as(&form, delivery)));
        findings.check(same, Some(delivery.heard), || {
            format!(
                "event {index}.{ordinal} was heard as {delivery:?}, but is {} {}",
                event.kind().trigger_type(),
                event.payload().text()
            )
        });
    }
}

fn is_told_as(event: &Event, delivery: &Delivery) -> bool {
    event.kind().trigger_type() == delivery.kind
        && event.session_id.as_str() == delivery.session_id
        && event.seq == delivery.seq
        && event.payload().parse::<Value>().is_ok_and(|payload| payload == delivery.payload)
}

/// What the kept feed could tell at the time.
struct Kept<'a> {
    versions: &'a Versions,
    /// How far anybody had applied the log, by when.
    applied: Vec<(u64, u64)>,
}

/// Who applies is looked at every few milliseconds.
const NOTICED_MS: u64 = 50;
const ONE: FeedLimits = FeedLimits { records: 1, body_bytes: usize::MAX };

fn applied(history: &History) -> Vec<(u64, u64)> {
    let mut furthest = 0;
    let mut applied = Vec::new();
    for one in &history.applied {
        if one.entry.index() >= furthest {
            furthest = one.entry.index();
            applied.push((one.noticed.at_ms, furthest));
        }
    }
    applied
}

impl Kept<'_> {
    /// The last entry that a node may have applied by then.
    fn known(&self, by: Moment) -> u64 {
        let later = self.applied.partition_point(|(at_ms, _)| *at_ms <= by.at_ms + NOTICED_MS);
        later.checked_sub(1).map_or(0, |last| self.applied[last].1)
    }

    /// What the states up to this entry make of an event: another form, or nothing at all.
    fn forms<'b>(&'b self, place: Place, event: &'b Event, upto: u64) -> impl Iterator<Item = Option<Event>> + 'b {
        let before = match place.ordinal.checked_sub(1) {
            Some(ordinal) => FeedPlace { index: place.index, ordinal },
            None => FeedPlace { index: place.index.saturating_sub(1), ordinal: u32::MAX },
        };
        let states = self.versions.since(&event.session_id, place.index).iter();
        states.take_while(move |(from, _)| *from <= upto).filter_map(move |(_, state)| {
            let page = feed::page(&state.view(), Some(before), ONE, &|_| true).ok()?;
            let (index, ordinal) = (place.index, place.ordinal);
            // A line that is not there was trimmed, and says nothing.
            page.upto.filter(|upto| *upto == FeedPlace { index, ordinal })?;
            Some(page.events.into_iter().next().map(|(_, event)| event))
        })
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
    kept: &Kept<'_>,
    subscription: &Subscription,
    heard: &[&Delivery],
    findings: &mut Findings,
) {
    // Nodes that are no members any more, or never were, have nothing to tell. A bridge has, whoever it is attached to.
    let lived = subscription.ended.is_none()
        && history.rested.is_some_and(|rested| subscription.bound < rested)
        && (history.voters.contains(&subscription.node) || history.bridge == Some(subscription.node));
    let promised = match subscription.after {
        Some(after) => Some(after),
        // Without a position it hears what is published after it was bound: what nobody had applied by then is among it.
        None => before_anything_new(history, subscription),
    };
    let first = subscription.after.or(heard.first().map(|delivery| delivery.place)).or(promised);
    let last = if lived { committed.keys().next_back().copied() } else { heard.last().map(|delivery| delivery.place) };
    let (Some(first), Some(last)) = (first.min(promised.or(first)), last) else { return };
    let places: BTreeSet<Place> = heard.iter().map(|delivery| delivery.place).collect();
    let expected = committed.iter().filter(|(place, _)| first < **place && **place <= last && !places.contains(place));
    let left_out = |place: &Place, event: &Event| {
        // It would have been told before the next one was.
        let next = heard.get(heard.partition_point(|delivery| delivery.place < *place));
        let by = next.map_or(u64::MAX, |next| kept.known(next.heard));
        kept.forms(*place, event, by).any(|form| form.is_none())
    };
    let missed: Vec<&Place> =
        expected.filter(|(place, event)| !left_out(place, event)).map(|(place, _)| place).collect();
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
/// Who is bound on a node before it belongs to a cluster is promised nothing of what happens until then.
fn before_anything_new(history: &History, subscription: &Subscription) -> Option<Place> {
    let before = |applied: &&Applied| applied.noticed < subscription.bound;
    history.applied.iter().filter(before).find(|applied| applied.node == subscription.node)?;
    let last = history.applied.iter().filter(before).map(|applied| applied.entry.index()).max()?;
    // Its own node may have been behind or ahead of what was seen; a later subscriber promises less.
    Some(Place { index: last, ordinal: u32::MAX })
}
