//! The laws of delivery: every subscriber gets each event exactly once, and none waits for another.

use std::collections::BTreeMap;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::*;
use crate::events::current::CurrentFeed;
use crate::events::delivery::AttachPoint;
use crate::events::filter::{Filter, Kinds};
use crate::events::stream::{Item, Stream};
use crate::machine::Answer;
use crate::machine::entry::Entry;
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::feed_record::{FeedEdge, Record, Recorded};
use crate::machine::ids::{EntryId, FeedPlace, RequestId, SessionId};
use crate::machine::json::{Json, Object};
use crate::machine::refusal::{Fault, Refusal};
use crate::machine::session::SessionMeta;
use crate::machine::view::{Facet, ListOrder, ListPoint, View};
use std::sync::atomic::{AtomicU64, Ordering};

/// What each binding received, and whether its queue is full.
#[derive(Default)]
struct Seen {
    got: Mutex<Vec<(String, Value, Value)>>,
    stuck: Mutex<bool>,
    freed: Arc<Notify>,
}

impl AttachPoint for Seen {
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        if *locked(&self.stuck) {
            return Handed::Full;
        }
        let data = serde_json::from_str(delivery.data).unwrap();
        let sidecar = serde_json::from_str(&delivery.sidecar()).unwrap();
        locked(&self.got).push((delivery.binding.key.id.to_string(), data, sidecar));
        Handed::Taken
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        let mut freed = Box::pin(self.freed.clone().notified_owned());
        freed.as_mut().enable();
        freed.boxed()
    }
}

impl Seen {
    fn indexes(&self) -> Vec<u64> {
        locked(&self.got).iter().map(|(_, data, _)| data["n"].as_u64().unwrap()).collect()
    }

    async fn gets(&self, expected: impl IntoIterator<Item = u64>) {
        let expected: Vec<u64> = expected.into_iter().collect();
        for _ in 0..20_000 {
            if self.indexes().len() >= expected.len() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(self.indexes(), expected);
    }

    fn stick(&self, stuck: bool) {
        *locked(&self.stuck) = stuck;
        self.freed.notify_waiters();
    }
}

fn at(index: u64) -> Position {
    Position { group: 0, index, ordinal: 0 }
}

fn tenant() -> Option<Object> {
    json!({"tenant": "a"}).as_object().cloned()
}

fn event(index: u64) -> Arc<Committed> {
    let payload = Json::adopt(&format!("{{\"n\":{index}}}"));
    let event = Event {
        session_id: "s".into(),
        seq: index,
        happened: Happened::Published { kind: EventKind::Deleted, role: None, payload },
        metadata: tenant(),
    };
    Arc::new(Committed::new(at(index), event))
}

fn binding(to: &Arc<Seen>, trigger_type: &str, after: Option<u64>) -> Binding {
    Binding {
        key: BindingKey { owner: 1, id: trigger_type.into() },
        function_id: "f".into(),
        filter: Filter::parse(trigger_type, &Value::Null).unwrap(),
        sidecar_fields: "\"mine\":1".to_owned(),
        after: after.map(at),
        to: to.clone(),
    }
}

/// A state that stores event records, as an adapter would, and nothing else.
#[derive(Default)]
struct Kept {
    lines: Mutex<Lines>,
    applied: AtomicU64,
    /// Runs right after the next read, before the reader uses what it found.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[derive(Default)]
struct Lines {
    records: BTreeMap<FeedPlace, Record>,
    trimmed: Option<FeedPlace>,
}

impl View for Lines {
    fn feed_records(&self, after: Option<FeedPlace>, limit: usize) -> Result<Vec<(FeedPlace, Record)>, Fault> {
        let wanted = self.records.iter().filter(|(place, _)| Some(**place) > after);
        Ok(wanted.take(limit).map(|(place, record)| (*place, record.clone())).collect())
    }

    fn feed_edge(&self) -> Result<FeedEdge, Fault> {
        let newest = self.records.last_key_value().map(|(place, _)| *place);
        Ok(FeedEdge { trimmed: self.trimmed, newest, bytes: 0 })
    }

    fn meta(&self, _: &SessionId) -> Result<Option<SessionMeta>, Fault> {
        Ok(None)
    }

    fn leaf(&self, _: &SessionId) -> Result<Option<EntryId>, Fault> {
        Ok(None)
    }

    fn entry(&self, _: &SessionId, _: &EntryId) -> Result<Option<Entry>, Fault> {
        Ok(None)
    }

    fn entries(&self, _: &SessionId) -> Result<Vec<Entry>, Fault> {
        Ok(Vec::new())
    }

    fn entries_after(&self, _: &SessionId, _: Option<&EntryId>, _: usize, _: usize) -> Result<Vec<Entry>, Fault> {
        Ok(Vec::new())
    }

    fn seq(&self, _: &SessionId) -> Result<u64, Fault> {
        Ok(0)
    }

    fn listed(&self, _: &Facet, _: ListOrder, _: Option<&ListPoint>, _: usize) -> Result<Vec<ListPoint>, Fault> {
        Ok(Vec::new())
    }

    fn recorded_answer(&self, _: RequestId) -> Result<Option<Result<Answer, Refusal>>, Fault> {
        Ok(None)
    }

    fn deleted_at(&self, _: &SessionId) -> Result<Option<FeedPlace>, Fault> {
        Ok(None)
    }

    fn cursor(&self, _: &str) -> Result<Option<Position>, Fault> {
        Ok(None)
    }

    fn cursors(&self, _: &str) -> Result<Vec<(String, Position)>, Fault> {
        Ok(Vec::new())
    }

    fn clock_ms(&self) -> Result<i64, Fault> {
        Ok(0)
    }
}

impl StoredFeed for Kept {
    fn read_view(&self, read: &mut dyn FnMut(&dyn View)) {
        read(&*locked(&self.lines));
        let meanwhile = locked(&self.meanwhile).take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
    }

    fn applied(&self) -> FeedPlace {
        FeedPlace { index: self.applied.load(Ordering::SeqCst), ordinal: u32::MAX }
    }

    fn catch_up(&self) -> BoxFuture<'_, Result<(), ResumeError>> {
        async { Ok(()) }.boxed()
    }
}

impl Kept {
    fn keep(&self, committed: &Committed) {
        let payload = committed.payload().clone();
        let what = Recorded::Published { kind: EventKind::Deleted, role: None, payload, metadata: tenant() };
        self.keep_as(committed.position, committed.event.seq, what);
    }

    fn keep_as(&self, position: Position, seq: u64, what: Recorded) {
        let record = Record { session_id: "s".into(), seq, at_ms: 0, what };
        let mut lines = locked(&self.lines);
        lines.trimmed.get_or_insert(FeedPlace { index: 0, ordinal: 0 });
        lines.records.insert(position.place(), record);
        self.applied.store(position.index, Ordering::SeqCst);
    }

    fn trim(&self, upto: u64) {
        let upto = at(upto).place();
        let mut lines = locked(&self.lines);
        lines.records.retain(|place, _| *place > upto);
        lines.trimmed = Some(upto);
    }
}

struct World {
    feed: Arc<Feed>,
    kept: Arc<Kept>,
    _dispatch: tokio_util::task::AbortOnDropHandle<()>,
}

impl World {
    /// A feed with a stored feed behind it and a ring of this size.
    fn new(ring_bytes_max: usize) -> World {
        let kept = Arc::new(Kept::default());
        let settings = FeedSettings { cluster: ClusterTag::new("c"), ring_bytes_max, ..FeedSettings::default() };
        let feed = Feed::new(settings);
        let stored: Arc<dyn StoredFeed> = kept.clone();
        feed.reads_from(&stored);
        let dispatch = tokio::spawn(feed.clone().dispatch(CancellationToken::new()));
        World { feed, kept, _dispatch: tokio_util::task::AbortOnDropHandle::new(dispatch) }
    }

    fn publish(&self, indexes: impl IntoIterator<Item = u64>) {
        for index in indexes {
            self.kept.keep(&event(index));
            self.feed.publish(vec![event(index)]);
        }
    }
}

fn open(feed: &Arc<Feed>, filter: Filter, after: Option<Position>) -> Stream {
    Stream::open_on(&CurrentFeed::new(feed.clone()), feed, filter, after).unwrap().unwrap()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("never happened: {what}");
}

/// A feed without a stored feed, whose publisher dispatches.
fn inline() -> Arc<Feed> {
    let cluster = ClusterTag::new("c");
    Feed::new(FeedSettings { cluster, queue_bytes_max: 0, ..FeedSettings::default() })
}

#[test]
fn a_delivery_carries_the_payload_untouched_and_its_place_beside_it() {
    let (feed, seen) = (inline(), Arc::new(Seen::default()));
    feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    feed.bind(binding(&seen, "session::store::events", None)).unwrap();
    feed.publish(vec![event(4)]);
    let sidecar = json!({"mine": 1, "session-manager": {"position": "c.0.4.0", "seq": 4}});
    let envelope =
        json!({"trigger_type": "session::deleted", "payload": {"n": 4}, "session_metadata": {"tenant": "a"}});
    assert_eq!(
        *locked(&seen.got),
        [
            ("session::deleted".to_owned(), json!({"n": 4}), sidecar.clone()),
            ("session::store::events".to_owned(), envelope, sidecar),
        ]
    );
}

#[test]
fn a_binding_hears_nothing_that_was_published_before_it() {
    let feed = Feed::new(FeedSettings::default());
    let seen = Arc::new(Seen::default());
    feed.publish(vec![event(1)]);
    feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    feed.publish(vec![event(2), event(3)]);
    feed.drain(usize::MAX);
    assert_eq!(seen.indexes(), [2, 3]);
}

#[tokio::test]
async fn a_resumed_binding_gets_what_it_missed_then_the_rest_each_once() {
    // With a ring that holds everything, and with one that holds next to nothing.
    for ring_bytes_max in [1 << 20, 1] {
        let (world, seen) = (World::new(ring_bytes_max), Arc::new(Seen::default()));
        world.publish(1..=300);
        world.feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap();
        world.publish(301..=305);
        seen.gets(2..=305).await;
        world.publish(306..=307);
        seen.gets(2..=307).await;
        assert!(locked(&seen.got).iter().all(|(_, _, sidecar)| sidecar["session-manager"].get("lagged").is_none()));
    }
}

#[tokio::test]
async fn bindings_of_one_subscriber_are_resumed_in_one_order() {
    let (world, seen) = (World::new(1 << 20), Arc::new(Seen::default()));
    world.publish(1..=5);
    world.feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap();
    world.feed.bind(binding(&seen, "session::store::events", Some(3))).unwrap();
    for _ in 0..20_000 {
        if locked(&seen.got).len() == 6 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let order: Vec<String> = locked(&seen.got)
        .iter()
        .map(|(_, _, sidecar)| sidecar["session-manager"]["position"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(order, ["c.0.2.0", "c.0.3.0", "c.0.4.0", "c.0.4.0", "c.0.5.0", "c.0.5.0"]);
}

#[tokio::test]
async fn a_binding_registered_again_misses_nothing_and_hears_nothing_twice() {
    let (world, seen) = (World::new(1 << 20), Arc::new(Seen::default()));
    world.publish([1]);
    world.feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    world.publish([2]);
    seen.gets([2]).await;
    world.publish([3]);
    world.feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    world.feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap();
    world.publish([4]);
    seen.gets([2, 3, 4]).await;
}

#[tokio::test]
async fn a_position_that_is_not_kept_of_another_group_or_of_the_future_is_refused_in_words() {
    let (world, seen) = (World::new(1), Arc::new(Seen::default()));
    world.publish(1..=9);
    world.kept.trim(4);
    let bind = |position| {
        let binding = Binding { after: Some(position), ..binding(&seen, "session::deleted", None) };
        world.feed.bind(binding).unwrap_err().to_string()
    };
    let error = bind(at(3));
    assert!(error.starts_with("compacted: cannot resume after c.0.3.0, the oldest is c.0.4.0"), "{error}");
    let error = bind(at(10));
    assert!(error.contains("`c.0.10.0` is from the future: the newest here is c.0.9."), "{error}");
    let error = bind(Position { group: 7, ..at(5) });
    assert!(error.contains("belongs to group 7"), "{error}");
    assert_eq!(world.feed.bindings(), 0);
    world.feed.bind(binding(&seen, "session::deleted", Some(4))).unwrap();
    seen.gets(5..=9).await;
}

#[tokio::test]
async fn without_a_state_the_ring_says_how_far_back_one_may_go() {
    let feed = Feed::new(FeedSettings {
        cluster: ClusterTag::new("c"),
        ring_bytes_max: 2048,
        queue_bytes_max: 0,
        ..FeedSettings::default()
    });
    let seen = Arc::new(Seen::default());
    feed.publish((1..=9).map(event).collect());
    let error = feed.bind(binding(&seen, "session::deleted", Some(1))).unwrap_err().to_string();
    assert!(error.starts_with("compacted: cannot resume after c.0.1.0, the oldest is c.0."), "{error}");
    assert_eq!(feed.bindings(), 0);
}

#[test]
fn a_publisher_that_is_ahead_of_dispatch_delivers_itself() {
    let feed = Feed::new(FeedSettings { queue_bytes_max: 2000, ..FeedSettings::default() });
    let seen = Arc::new(Seen::default());
    feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    feed.publish(vec![event(1)]);
    assert!(seen.indexes().is_empty());
    feed.publish((2..=6).map(event).collect());
    assert_eq!(seen.indexes(), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn a_stuck_subscriber_delays_no_other_and_later_gets_everything_with_a_notice() {
    for ring_bytes_max in [1 << 20, 1] {
        let world = World::new(ring_bytes_max);
        let (slow, quick) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        world.feed.bind(binding(&slow, "session::deleted", None)).unwrap();
        let key = BindingKey { owner: 2, id: "quick".into() };
        world.feed.bind(Binding { key, ..binding(&quick, "session::deleted", None) }).unwrap();
        world.publish(1..=3);
        slow.gets(1..=3).await;
        slow.stick(true);
        world.publish(4..=500);
        quick.gets(1..=500).await;
        slow.stick(false);
        slow.gets(1..=500).await;
        world.publish(501..=502);
        slow.gets(1..=502).await;
        let lagged: Vec<u64> = locked(&slow.got)
            .iter()
            .filter(|(_, _, sidecar)| sidecar["session-manager"]["lagged"] == true)
            .map(|(_, data, _)| data["n"].as_u64().unwrap())
            .collect();
        assert_eq!(lagged, [4]);
    }
}

/// An update whose stored record cannot be completed any more, because a later update replaced it.
fn replaced_update(kept: &Kept, index: u64) -> Arc<Committed> {
    let payload = Json::adopt(&format!("{{\"n\":{index}}}"));
    let happened = Happened::Published { kind: EventKind::MessageUpdated, role: None, payload };
    let event = Event { session_id: "s".into(), seq: index, happened, metadata: tenant() };
    let what = Recorded::MessageUpdated { entry_id: "e".into(), revision: index, origin: None };
    kept.keep_as(at(index), index, what);
    Arc::new(Committed::new(at(index), event))
}

#[tokio::test]
async fn a_slow_subscriber_gets_replaced_updates_from_the_ring_and_is_told_what_an_older_one_skips() {
    for (ring_bytes_max, expected, skipped) in [
        (1 << 20, (1..=500).collect::<Vec<u64>>(), Vec::new()),
        // The ring is so small that it holds nothing: the stored feed has only the last update.
        (1, vec![1, 2, 3, 500], vec![json!({"first": 4, "last": 499})]),
    ] {
        let (world, slow) = (World::new(ring_bytes_max), Arc::new(Seen::default()));
        world.feed.bind(binding(&slow, "session::message-updated", None)).unwrap();
        let last = |index: u64| {
            let update = replaced_update(&world.kept, index);
            let payload = update.payload().clone();
            let what = Recorded::Published { kind: EventKind::MessageUpdated, role: None, payload, metadata: tenant() };
            world.kept.keep_as(at(index), index, what);
            update
        };
        world.feed.publish((1..=3).map(last).collect());
        slow.gets(1..=3).await;
        slow.stick(true);
        world.feed.publish((4..=499).map(|index| replaced_update(&world.kept, index)).chain([last(500)]).collect());
        world.feed.drain(usize::MAX);
        slow.stick(false);
        slow.gets(expected).await;
        let got = locked(&slow.got);
        let told = got.iter().map(|(_, _, sidecar)| sidecar["session-manager"]["skipped"].clone());
        assert_eq!(told.filter(|told| !told.is_null()).collect::<Vec<_>>(), skipped);
    }
}

#[tokio::test]
async fn what_was_left_out_of_a_deleted_session_is_not_told_with_an_event_of_a_new_one_with_the_same_id() {
    for (seq, told) in [(10, json!({"first": 4, "last": 9})), (1, Value::Null)] {
        let (world, slow) = (World::new(1), Arc::new(Seen::default()));
        world.feed.bind(binding(&slow, "session::message-updated", None)).unwrap();
        slow.stick(true);
        let payload = Json::adopt("{\"n\":10}");
        let (kind, role, metadata) = (EventKind::MessageUpdated, None, tenant());
        let happened = Happened::Published { kind, role, payload: payload.clone() };
        let event = Event { session_id: "s".into(), seq, happened, metadata: metadata.clone() };
        world.kept.keep_as(at(10), seq, Recorded::Published { kind, role, payload, metadata });
        let updates = (4..=9).map(|index| replaced_update(&world.kept, index));
        world.feed.publish(updates.chain([Arc::new(Committed::new(at(10), event))]).collect());
        world.feed.drain(usize::MAX);
        slow.stick(false);
        slow.gets([10]).await;
        assert_eq!(locked(&slow.got)[0].2["session-manager"]["skipped"], told, "seq {seq}");
    }
}

#[tokio::test]
async fn a_subscriber_that_the_feed_no_longer_reaches_is_told_and_goes_on() {
    let (world, seen) = (World::new(1), Arc::new(Seen::default()));
    world.feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    seen.stick(true);
    world.publish(1..=20);
    world.feed.drain(usize::MAX);
    world.kept.trim(15);
    seen.stick(false);
    seen.gets(16..=20).await;
    let (_, _, sidecar) = &locked(&seen.got)[0];
    assert_eq!(sidecar["session-manager"]["compacted"], "c.0.15.0");
}

#[tokio::test]
async fn lines_that_the_state_lost_are_told_as_lost_and_not_waited_for() {
    let (world, seen) = (World::new(1), Arc::new(Seen::default()));
    world.feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    seen.stick(true);
    world.publish(1..=20);
    world.feed.drain(usize::MAX);
    locked(&world.kept.lines).records.retain(|place, _| place.index <= 15);
    seen.stick(false);
    seen.gets(1..=15).await;
    world.publish([21]);
    seen.gets((1..=15).chain([21])).await;
    let (_, _, sidecar) = &locked(&seen.got)[15];
    assert_eq!(sidecar["session-manager"]["compacted"], "c.0.20.0");
}

#[tokio::test]
async fn a_state_that_jumped_ahead_loses_no_event() {
    let (world, seen) = (World::new(1 << 20), Arc::new(Seen::default()));
    world.publish([1]);
    world.feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    world.publish([2]);
    // Events 3 to 6 came with a snapshot: they are stored and were never published here.
    (3..=6).for_each(|index| world.kept.keep(&event(index)));
    world.feed.jumped(at(6));
    world.publish([7]);
    seen.gets(2..=7).await;
}

#[tokio::test]
async fn a_subscriber_that_took_over_another_goes_on_after_what_is_confirmed() {
    let (world, seen) = (World::new(1 << 20), Arc::new(Seen::default()));
    world.feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    world.publish(1..=4);
    seen.gets(1..=4).await;
    locked(&seen.got).clear();
    world.feed.change_owner(1, 9, Some(at(2)));
    world.publish([5]);
    seen.gets(3..=5).await;
    assert_eq!(world.feed.bindings(), 1);
    world.feed.unbind_owner(9);
    assert_eq!(world.feed.bindings(), 0);
}

#[tokio::test]
async fn a_stream_is_bounded_told_when_it_lagged_and_gone_when_dropped() {
    let world = World::new(1 << 20);
    let filter = || Filter::of_stream(Kinds::PUBLISHED, None, None, Object::new());
    let stream = open(&world.feed, filter(), None);
    world.publish([1]);
    world.feed.drain(usize::MAX);
    // From here on the stream is live. Nothing reads from it until everything is published.
    while world.feed.stands(stream.owner()) != Some(at(1))
        || locked(&world.feed.state).bindings.owner(stream.owner()).unwrap().is_behind()
    {
        tokio::task::yield_now().await;
    }
    world.publish(2..=2000);
    world.feed.drain(usize::MAX);
    let (mut got, mut lagged) = (BTreeMap::new(), 0);
    while got.len() < 2000 {
        match stream.next().await {
            Item::Event(committed, _) => {
                let again = got.insert(committed.position, committed.event.seq);
                assert!(again.is_none() && committed.position.index == got.len() as u64);
            }
            Item::Lagged => lagged += 1,
            Item::Skipped(..) => panic!("the ring has everything"),
            Item::Compacted(..) => panic!("everything is kept"),
        }
    }
    assert!(lagged > 0);
    drop(stream);
    assert_eq!(world.feed.bindings(), 0);
    let resumed = open(&world.feed, filter(), Some(at(1998)));
    let next = async || match resumed.next().await {
        Item::Event(committed, _) => committed.position.index,
        other => panic!("{other:?}"),
    };
    assert_eq!((next().await, next().await), (1999, 2000));
}

#[tokio::test]
async fn a_binding_added_while_a_page_is_read_for_another_misses_nothing() {
    let (world, seen) = (World::new(1), Arc::new(Seen::default()));
    world.publish(1..=5);
    until("everything is handed out", || locked(&world.feed.state).dispatched == Some(at(5))).await;
    // The reader task of the first binding, which matches none of these events, has read its page when the second
    // binding is added and another event is published.
    let created = Binding {
        key: BindingKey { owner: 1, id: "created".into() },
        filter: Filter::parse("session::created", &Value::Null).unwrap(),
        ..binding(&seen, "session::deleted", Some(0))
    };
    let (feed, kept, deleted) = (world.feed.clone(), world.kept.clone(), binding(&seen, "session::deleted", None));
    world.feed.bind(created).unwrap();
    *locked(&world.kept.meanwhile) = Some(Box::new(move || {
        // An adapter stores an event before it publishes it.
        kept.keep(&event(6));
        feed.bind(Binding { after: Some(at(3)), ..deleted }).unwrap();
        feed.publish(vec![event(6)]);
    }));
    seen.gets(4..=6).await;
    world.publish([7]);
    seen.gets(4..=7).await;
}

#[tokio::test]
async fn what_is_trimmed_while_it_is_read_for_a_subscriber_is_not_missed_in_silence() {
    let (world, seen) = (World::new(1), Arc::new(Seen::default()));
    world.publish(1..=400);
    until("everything is handed out", || locked(&world.feed.state).dispatched == Some(at(400))).await;
    world.feed.bind(binding(&seen, "session::deleted", Some(0))).unwrap();
    // The first page is 1 to 128. It has been read when everything up to 300 is trimmed.
    let kept = world.kept.clone();
    *locked(&world.kept.meanwhile) = Some(Box::new(move || kept.trim(300)));
    seen.gets((1..=128).chain(301..=400)).await;
    let told: Vec<Value> = locked(&seen.got)
        .iter()
        .filter(|(_, _, sidecar)| !sidecar["session-manager"]["compacted"].is_null())
        .map(|(_, data, sidecar)| json!([data["n"], sidecar["session-manager"]["compacted"]]))
        .collect();
    assert_eq!(told, [json!([301, "c.0.300.0"])]);
}

#[tokio::test]
async fn a_place_is_not_told_while_the_loss_before_it_is_untold() {
    let (world, seen) = (World::new(1), Arc::new(Seen::default()));
    world.feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    seen.stick(true);
    world.publish(1..=20);
    world.feed.drain(usize::MAX);
    world.kept.trim(20);
    // Its queue has room again, but the notice of the loss needs another event to travel with.
    seen.stick(false);
    until("the loss is noticed", || world.feed.stands(1).is_none()).await;
    world.publish([21]);
    seen.gets([21]).await;
    assert_eq!(world.feed.stands(1), Some(at(21)));
    let (_, _, sidecar) = &locked(&seen.got)[0];
    assert_eq!(sidecar["session-manager"]["compacted"], "c.0.20.0");
}

#[tokio::test]
async fn before_the_first_event_every_place_can_be_resumed() {
    let (world, seen) = (World::new(1 << 20), Arc::new(Seen::default()));
    world.kept.applied.store(9, Ordering::SeqCst);
    world.feed.bind(binding(&seen, "session::deleted", Some(4))).unwrap();
    world.publish([10]);
    seen.gets([10]).await;
}

#[tokio::test]
async fn many_stuck_streams_together_hold_little() {
    const STREAMS: usize = 300;
    let world = World::new(1);
    let large = |index| {
        let payload = Json::adopt(&format!("{{\"n\":{index},\"text\":\"{}\"}}", "x".repeat(4 << 10)));
        let event = Event {
            session_id: "s".into(),
            seq: index,
            happened: Happened::Published { kind: EventKind::Deleted, role: None, payload },
            metadata: None,
        };
        Committed::new(at(index), event)
    };
    (1..=100).for_each(|index| world.kept.keep(&large(index)));
    let filter = || Filter::of_stream(Kinds::PUBLISHED, None, None, Object::new());
    // Each stream reads the stored feed on its own, so no event is shared between queues.
    let streams: Vec<Stream> = (0..STREAMS).map(|_| open(&world.feed, filter(), Some(at(0)))).collect();
    until("all of them are full", || streams.iter().all(|stream| stream.holds().1)).await;
    let held: usize = streams.iter().map(|stream| stream.holds().0).sum();
    // Half a megabyte for each would be 150 MiB.
    assert!(held < 60 << 20, "{held} bytes are held for {STREAMS} stuck streams");
    let mut indexes = Vec::new();
    while indexes.len() < 100 {
        if let Item::Event(committed, _) = streams[STREAMS - 1].next().await {
            indexes.push(committed.position.index);
        }
    }
    assert_eq!(indexes, (1..=100).collect::<Vec<_>>());
}

#[test]
fn a_subscriber_stands_no_further_than_the_binding_that_was_handed_least() {
    let feed = Feed::new(FeedSettings::default());
    feed.starts_after(at(1));
    let seen = Arc::new(Seen::default());
    feed.bind(binding(&seen, "session::deleted", None)).unwrap();
    feed.publish(vec![event(2)]);
    // The second binding starts after the event that the first one has yet to receive.
    feed.bind(binding(&seen, "session::store::events", None)).unwrap();
    assert_eq!(feed.stands(1), Some(at(1)));
    feed.drain(usize::MAX);
    assert_eq!(feed.stands(1), Some(at(2)));
    let released = feed.release(1).unwrap();
    assert_eq!((released.stands, released.seen.into_values().collect()), (at(2), vec![at(2), at(2)]));
    assert_eq!((feed.stands(1), feed.bindings()), (None, 0));
}

#[tokio::test]
async fn a_subscriber_that_is_resumed_too_far_back_gets_what_is_kept_and_is_told() {
    let (world, seen) = (World::new(1), Arc::new(Seen::default()));
    world.publish(1..=9);
    world.kept.trim(4);
    world.feed.resume(binding(&seen, "session::deleted", Some(2)));
    seen.gets(5..=9).await;
    let first = locked(&seen.got)[0].2["session-manager"].clone();
    assert_eq!(first["compacted"], "c.0.4.0");
}

#[path = "ephemeral_test.rs"]
mod ephemeral;
