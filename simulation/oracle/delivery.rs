//! The law of delivery: a subscriber receives the events of the log that are within its scope and no others, in order and
//! without a gap from where it began; one that was connected to the end receives everything. A live event is delivered as the log made it. A
//! subscriber that resumes or lags gets events from the kept feed: completed with the state of some later entry, which
//! must have been applied by then, and left out where that state holds something newer.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use session_manager::machine::event::{Event, EventKind};
use session_manager::machine::ids::{FeedPlace, SessionId};
use session_manager::machine::query::feed_page::{self, FeedLimits};

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
        check_truth(&committed, &kept, subscription, &heard, &mut findings);
        check_order(&heard, &mut findings);
        check_gaps(history, &committed, &kept, subscription, &heard, &mut findings);
    }
    findings
}

fn committed(replay: &Replay) -> BTreeMap<Place, &Event> {
    let mut committed = BTreeMap::new();
    for step in &replay.steps {
        // A subscriber that names no kind gets the published ones.
        for (ordinal, event) in (0..).zip(&step.events).filter(|(_, event)| event.kind().is_published()) {
            committed.insert(Place { index: step.index, ordinal }, event);
        }
    }
    committed
}

/// The events of a session are numbered without gaps. The numbers start over after a deletion.
fn check_sequence(committed: &BTreeMap<Place, &Event>, findings: &mut Findings) {
    let mut last: BTreeMap<&SessionId, u64> = BTreeMap::new();
    for (place, event) in committed {
        let before = last.get(&event.session_id).copied().unwrap_or(0);
        findings.check(event.seq == before + 1, None, || {
            format!(
                "event {}.{} of {:?} has the sequence number {} after {before}",
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

fn check_truth(
    committed: &BTreeMap<Place, &Event>,
    kept: &Kept<'_>,
    subscription: &Subscription,
    heard: &[&Delivery],
    findings: &mut Findings,
) {
    for delivery in heard {
        let Place { index, ordinal } = delivery.place;
        let Some(event) = committed.get(&delivery.place) else {
            let words = format!(
                "subscription {} received {} {index}.{ordinal} of {:?}, which was never committed",
                delivery.subscription, delivery.kind, delivery.session_id
            );
            findings.add(Some(delivery.heard), words);
            continue;
        };
        let by = kept.known(delivery.heard);
        let fits = |form: &Event| is_within(subscription, form) && is_delivered_as(form, delivery);
        let same =
            fits(event) || kept.forms(delivery.place, event, by).any(|form| form.is_some_and(|form| fits(&form)));
        findings.check(same, Some(delivery.heard), || {
            format!(
                "event {index}.{ordinal} was delivered as {delivery:?}, but is {} {}",
                event.kind().trigger_type(),
                event.payload().text()
            )
        });
    }
}

/// Whether the subscriber may see an event.
fn is_within(subscription: &Subscription, event: &Event) -> bool {
    subscription.scope.as_ref().is_none_or(|scope| scope.includes(event.metadata.as_ref()))
}

fn is_delivered_as(event: &Event, delivery: &Delivery) -> bool {
    event.kind().trigger_type() == delivery.kind
        && event.session_id.as_str() == delivery.session_id
        && event.seq == delivery.seq
        && event.payload().parse::<Value>().is_ok_and(|payload| payload == delivery.payload)
}

/// What the kept feed could deliver at a time.
struct Kept<'a> {
    versions: &'a Versions,
    /// The highest index that any node had applied, and when (in milliseconds).
    applied: Vec<(u64, u64)>,
}

/// The recorder notices an applied entry within this time.
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

    /// The forms of an event in the kept feed, for each state up to this entry. `None`: the event is left out.
    fn forms<'b>(&'b self, place: Place, event: &'b Event, upto: u64) -> impl Iterator<Item = Option<Event>> + 'b {
        let before = match place.ordinal.checked_sub(1) {
            Some(ordinal) => FeedPlace { index: place.index, ordinal },
            None => FeedPlace { index: place.index.saturating_sub(1), ordinal: u32::MAX },
        };
        let states = self.versions.since(&event.session_id, place.index).iter();
        states.take_while(move |(from, _)| *from <= upto).filter_map(move |(_, state)| {
            let page = feed_page::page(&state.view(), Some(before), ONE, &|_| true).ok()?;
            let (index, ordinal) = (place.index, place.ordinal);
            // The record was trimmed.
            page.upto.filter(|upto| *upto == FeedPlace { index, ordinal })?;
            Some(page.events.into_iter().next().map(|(_, event)| event))
        })
    }
}

fn check_order(heard: &[&Delivery], findings: &mut Findings) {
    for pair in heard.windows(2) {
        findings.check(pair[0].place < pair[1].place, Some(pair[1].heard), || {
            format!("subscription {} received {:?} after {:?}", pair[1].subscription, pair[1].place, pair[0].place)
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
    // Only voters and the bridge must deliver everything to the end.
    let lived = subscription.ended.is_none()
        && history.rested.is_some_and(|rested| subscription.bound < rested)
        && (history.voters.contains(&subscription.node) || history.bridge == Some(subscription.node));
    let promised = match subscription.after {
        Some(after) => Some(after),
        // Without a position it receives what is published after it was bound. Entries that no node had applied by then
        // are part of that.
        None => before_anything_new(history, subscription),
    };
    let first = subscription.after.or(heard.first().map(|delivery| delivery.place)).or(promised);
    let last = if lived { committed.keys().next_back().copied() } else { heard.last().map(|delivery| delivery.place) };
    let (Some(first), Some(last)) = (first.min(promised.or(first)), last) else { return };
    let places: BTreeSet<Place> = heard.iter().map(|delivery| delivery.place).collect();
    let expected = committed.iter().filter(|(place, event)| {
        first < **place && **place <= last && !places.contains(place) && is_within(subscription, event)
    });
    let left_out = |place: &Place, event: &Event| {
        // It would have been delivered before the next one.
        let next = heard.get(heard.partition_point(|delivery| delivery.place < *place));
        let by = next.map_or(u64::MAX, |next| kept.known(next.heard));
        kept.forms(*place, event, by).any(|form| form.is_none_or(|form| !is_within(subscription, &form)))
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

/// The last entry that any node was seen to have applied when the binding was confirmed.
/// A subscriber on a node that is not yet a member has no claim to what happens before the node joins.
fn before_anything_new(history: &History, subscription: &Subscription) -> Option<Place> {
    let before = |applied: &&Applied| applied.noticed < subscription.bound;
    history.applied.iter().filter(before).find(|applied| applied.node == subscription.node)?;
    let last = history.applied.iter().filter(before).map(|applied| applied.entry.index()).max()?;
    // Its node may have been behind this entry. Then it must deliver even more, which this does not check.
    Some(Place { index: last, ordinal: u32::MAX })
}
