//! The laws of the delivery cursors: a replica that takes an engine over skips no event that was not confirmed, and
//! delivers to no binding an event that is older than the binding.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures::future::BoxFuture;
use serde_json::json;

use super::*;
use crate::events::bindings::{Binding, BindingKey};
use crate::events::delivery::{AttachPoint, Delivery, Handed};
use crate::events::feed::FeedSettings;
use crate::events::filter::Filter;
use crate::events::{Committed, EventSink};
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::json::Json;
use crate::machine::{Answer, Found, Query};
use crate::mint::SystemMint;
use crate::proposal::local::LocalAdapter;
use crate::proposal::{Adapter, Freshness, Proposal};

struct NoSubscribers;

impl EventSink for NoSubscribers {
    fn publish(&self, _: Vec<Arc<Committed>>) {}
}

/// Fails some writes, as a cluster without a leader does.
struct FailingAdapter {
    adapter: LocalAdapter,
    /// How many more writes fail.
    failures: Arc<AtomicUsize>,
}

impl Adapter for FailingAdapter {
    fn propose(&self, proposal: Proposal) -> BoxFuture<'_, Result<Answer, AdapterError>> {
        let fails =
            self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if fails {
            return Box::pin(std::future::ready(Err(AdapterError::Unavailable("no leader".to_owned()))));
        }
        self.adapter.propose(proposal)
    }

    fn ask(&self, query: Query, freshness: Freshness, until: Instant) -> BoxFuture<'_, Result<Found, AdapterError>> {
        self.adapter.ask(query, freshness, until)
    }
}

struct AcceptAll;

impl AttachPoint for AcceptAll {
    fn deliver(&self, _: Delivery<'_>) -> Handed {
        Handed::Taken
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

fn at(index: u64) -> Position {
    Position { group: 0, index, ordinal: 0 }
}

/// A cluster's cursors, and the feed of the current leader.
struct Scene {
    cursors: Cursors,
    feed: Arc<Feed>,
    failures: Arc<AtomicUsize>,
}

impl Scene {
    fn new() -> Scene {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(NoSubscribers));
        let failures = Arc::new(AtomicUsize::new(0));
        let adapter = FailingAdapter { adapter, failures: failures.clone() };
        let scene = Scene { cursors: Cursors::new(Arc::new(adapter)), feed: feed(), failures };
        scene.feed.starts_after(at(1));
        scene
    }

    /// Another replica takes over, after the same events.
    fn next_leader(&mut self, now: u64) {
        self.feed = feed();
        self.feed.starts_after(at(now));
    }

    async fn open(&self) -> Arc<DeliveryCursors> {
        DeliveryCursors::open(self.feed.clone(), self.cursors.clone(), "engine".to_owned(), None).await.unwrap()
    }

    fn publish(&self, index: u64) {
        let happened = Happened::Published { kind: EventKind::Deleted, role: None, payload: Json::adopt("{}") };
        let event = Event { session_id: "s".into(), seq: index, happened, metadata: None };
        self.feed.publish(vec![Arc::new(Committed::new(at(index), event))]);
    }

    /// As `Subscribers` does it: to the feed, then to the cursors.
    fn bind(&self, cursors: &Arc<DeliveryCursors>, id: &str, named: Option<Position>) {
        let now = self.feed.now();
        let resume = cursors.resume_position(id);
        self.feed.resume(Binding {
            key: BindingKey { owner: ENGINE, id: id.into() },
            function_id: "f".into(),
            filter: Filter::parse("session::deleted", &json!({})).unwrap(),
            sidecar_fields: String::new(),
            after: resume.or(named),
            to: Arc::new(AcceptAll),
        });
        cursors.binding_added(id, named, now);
    }

    async fn cursor(&self, name: &str) -> Option<Position> {
        self.cursors.cursor(name).await.unwrap()
    }

    /// Waits for a write in the background.
    async fn until_cursor_is(&self, name: &str, position: Option<Position>) {
        let begun = Instant::now();
        while self.cursor(name).await != position {
            assert!(begun.elapsed() < Duration::from_secs(20), "{name}: {:?}", self.cursor(name).await);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Publishing delivers at once, so that tests need not wait.
fn feed() -> Arc<Feed> {
    Feed::new(FeedSettings { queue_bytes_max: 0, ..FeedSettings::default() })
}

#[tokio::test]
async fn the_first_replica_starts_now_and_the_next_one_at_its_cursor() {
    let mut scene = Scene::new();
    let cursors = scene.open().await;
    assert_eq!(scene.cursor("engine").await, Some(at(1)));
    assert_eq!(cursors.resume_position("b"), None);
    scene.bind(&cursors, "b", None);
    (2..=4).for_each(|index| scene.publish(index));
    cursors.checkpoint().unwrap().confirm(3);
    cursors.close(None).await;
    scene.until_cursor_is("engine", Some(at(4))).await;
    scene.until_cursor_is("engine#b", Some(at(1))).await;

    scene.next_leader(9);
    let next = scene.open().await;
    assert_eq!(next.resume_position("b"), Some(at(4)));
    assert_eq!(next.resume_position("new"), None, "it has no record, so it starts when it is made");
}

#[tokio::test]
async fn a_binding_made_after_the_cursor_gets_no_older_events() {
    let mut scene = Scene::new();
    let cursors = scene.open().await;
    scene.bind(&cursors, "old", None);
    (2..=5).for_each(|index| scene.publish(index));
    scene.bind(&cursors, "young", None);
    scene.until_cursor_is("engine#young", Some(at(5))).await;
    // Killed before anything was confirmed.
    drop(cursors);
    scene.next_leader(7);
    let next = scene.open().await;
    assert_eq!((next.resume_position("old"), next.resume_position("young")), (Some(at(1)), Some(at(5))));
}

#[tokio::test]
async fn the_cursor_stands_still_until_every_recorded_binding_is_back() {
    let mut scene = Scene::new();
    let cursors = scene.open().await;
    for id in ["a", "b", "gone"] {
        scene.bind(&cursors, id, None);
        scene.until_cursor_is(&format!("engine#{id}"), Some(at(1))).await;
    }
    cursors.close(None).await;
    scene.next_leader(3);
    let next = scene.open().await;
    scene.bind(&next, "a", None);
    scene.publish(4);
    // The engine sends b after the checkpoint and before its confirmation: b still needs the earlier events.
    let early = next.checkpoint().unwrap();
    scene.bind(&next, "b", None);
    next.forget_missing();
    early.confirm(1);
    assert_eq!(next.state().confirmed, Some(at(1)));
    scene.until_cursor_is("engine#gone", None).await;
    next.checkpoint().unwrap().confirm(1);
    next.close(None).await;
    scene.until_cursor_is("engine", Some(at(4))).await;
}

#[tokio::test]
async fn a_binding_that_catches_up_starts_over_until_it_has_caught_up() {
    let scene = Scene::new();
    let cursors = scene.open().await;
    scene.bind(&cursors, "live", None);
    (2..=6).for_each(|index| scene.publish(index));
    let before = cursors.checkpoint().unwrap();
    scene.bind(&cursors, "late", Some(at(2)));
    before.confirm(5);
    assert_eq!(cursors.resume_position("late"), None, "the checkpoint was taken before the binding came");
    cursors.checkpoint().unwrap().confirm(5);
    scene.until_cursor_is("engine#late", Some(at(6))).await;
    assert_eq!(cursors.resume_position("late"), Some(at(6)));
}

#[tokio::test]
async fn the_record_of_a_removed_binding_is_deleted() {
    let scene = Scene::new();
    let cursors = scene.open().await;
    scene.bind(&cursors, "b", None);
    scene.until_cursor_is("engine#b", Some(at(1))).await;
    cursors.binding_removed("b");
    scene.until_cursor_is("engine#b", None).await;
    assert_eq!(cursors.resume_position("b"), None);
}

#[tokio::test]
async fn a_binding_with_a_long_id_is_recorded_like_any_other() {
    let mut scene = Scene::new();
    let cursors = scene.open().await;
    let (long, longer) = ("x".repeat(300), "x".repeat(301));
    for id in [&long, &longer] {
        scene.bind(&cursors, id, None);
        scene.publish(2);
    }
    cursors.close(None).await;
    scene.next_leader(2);
    let next = scene.open().await;
    assert_eq!((next.resume_position(&long), next.resume_position(&longer)), (Some(at(1)), Some(at(2))));
    assert_eq!(next.resume_position(&"x".repeat(302)), None);
    for id in [&long, &longer] {
        next.binding_removed(id);
    }
    next.close(None).await;
    assert_eq!(scene.cursors.starting("engine#").await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_planned_stop_leaves_nothing_to_be_delivered_again() {
    let scene = Scene::new();
    let cursors = scene.open().await;
    scene.bind(&cursors, "b", None);
    (2..=4).for_each(|index| scene.publish(index));
    let released = scene.feed.release(ENGINE).unwrap();
    scene.publish(5);
    assert_eq!(released.stands, at(4));
    assert!(cursors.close(Some(&released)).await.is_none());
    assert_eq!(scene.cursor("engine").await, Some(at(4)), "later events are for the next replica");
}

#[tokio::test]
async fn a_planned_stop_before_all_bindings_are_back_records_each_position() {
    let mut scene = Scene::new();
    let cursors = scene.open().await;
    for id in ["here", "late"] {
        scene.bind(&cursors, id, None);
    }
    cursors.close(None).await;
    scene.next_leader(1);
    let cursors = scene.open().await;
    scene.bind(&cursors, "here", None);
    scene.bind(&cursors, "asked", Some(at(1)));
    (2..=4).for_each(|index| scene.publish(index));
    let released = scene.feed.release(ENGINE).unwrap();
    assert!(cursors.close(Some(&released)).await.is_none());
    scene.next_leader(4);
    let next = scene.open().await;
    let positions = ["late", "here", "asked"].map(|id| next.resume_position(id));
    assert_eq!(positions, [Some(at(1)), Some(at(4)), Some(at(4))]);
}

#[tokio::test]
async fn the_final_cursor_is_retried_until_it_is_written() {
    let scene = Scene::new();
    let cursors = scene.open().await;
    scene.bind(&cursors, "b", None);
    scene.until_cursor_is("engine#b", Some(at(1))).await;
    (2..=4).for_each(|index| scene.publish(index));
    let released = scene.feed.release(ENGINE).unwrap();
    scene.failures.store(3, Ordering::Relaxed);
    assert!(cursors.close(Some(&released)).await.is_none());
    assert_eq!(scene.cursor("engine").await, Some(at(4)));
}

#[tokio::test]
async fn unwritten_final_cursors_are_written_before_the_same_replica_serves_again() {
    let scene = Scene::new();
    let cursors = scene.open().await;
    scene.bind(&cursors, "b", None);
    scene.until_cursor_is("engine#b", Some(at(1))).await;
    (2..=4).for_each(|index| scene.publish(index));
    cursors.state().confirmed = Some(scene.feed.release(ENGINE).unwrap().stands);
    let unwritten = cursors.unwritten();
    scene.failures.store(1, Ordering::Relaxed);
    let open =
        || DeliveryCursors::open(scene.feed.clone(), scene.cursors.clone(), "engine".to_owned(), Some(&unwritten));
    assert!(open().await.is_err(), "the replica does not serve before they are written");
    assert_eq!(open().await.unwrap().resume_position("b"), Some(at(4)));
    // They are not written to other data.
    let other = Scene::new();
    let opened =
        DeliveryCursors::open(other.feed.clone(), other.cursors.clone(), "engine".to_owned(), Some(&unwritten)).await;
    assert_eq!(opened.unwrap().previous_cursor, at(1));
}
