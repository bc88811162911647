//! The laws of the ledger: whoever takes an engine over skips nothing that was not confirmed, and gives no binding what
//! happened before it was made.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures::future::BoxFuture;
use serde_json::json;

use super::*;
use crate::events::bindings::{Binding, BindingKey};
use crate::events::deliver::{AttachPoint, Delivery, FeedSettings, Handed};
use crate::events::filter::Filter;
use crate::events::{Committed, EventSink};
use crate::machine::event::{Event, EventKind, Happened};
use crate::machine::json::Json;
use crate::machine::{Answer, Command, Found, Query};
use crate::proposal::Adapter;
use crate::proposal::local::LocalAdapter;
use crate::proposal::mint::SystemMint;

struct Nobody;

impl EventSink for Nobody {
    fn publish(&self, _: Vec<Arc<Committed>>) {}
}

/// Loses orders, as a cluster without a leader does.
struct Deaf {
    adapter: LocalAdapter,
    /// How many more it loses.
    orders: Arc<AtomicUsize>,
}

impl Adapter for Deaf {
    fn propose(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Answer, Undone>> {
        let lost = self.orders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if lost {
            return Box::pin(std::future::ready(Err(Undone::Unavailable("nobody leads".to_owned()))));
        }
        self.adapter.propose(command, deadline)
    }

    fn ask(&self, query: Query, deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
        self.adapter.ask(query, deadline)
    }
}

struct Anywhere;

impl AttachPoint for Anywhere {
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

/// A cluster's cursors, and the feed of whichever replica leads.
struct Scene {
    cursors: Cursors,
    feed: Arc<Feed>,
    deaf: Arc<AtomicUsize>,
}

impl Scene {
    fn new() -> Scene {
        let adapter = LocalAdapter::memory(Arc::new(SystemMint::default()), Arc::new(Nobody));
        let deaf = Arc::new(AtomicUsize::new(0));
        let adapter = Deaf { adapter, orders: deaf.clone() };
        let scene = Scene { cursors: Cursors::new(Arc::new(adapter)), feed: feed(), deaf };
        scene.feed.starts_after(at(1));
        scene
    }

    /// Another replica takes over, with the same events behind it.
    fn next_leader(&mut self, now: u64) {
        self.feed = feed();
        self.feed.starts_after(at(now));
    }

    async fn open(&self) -> Arc<Ledger> {
        Ledger::open(self.feed.clone(), self.cursors.clone(), "engine".to_owned(), None).await.unwrap()
    }

    fn happens(&self, index: u64) {
        let happened = Happened::Published { kind: EventKind::Deleted, role: None, payload: Json::adopt("{}") };
        let event = Event { session_id: "s".into(), seq: index, happened, metadata: None };
        self.feed.publish(vec![Arc::new(Committed::new(at(index), event))]);
    }

    /// As subscribers do it: in the feed, then in the ledger.
    fn bind(&self, ledger: &Arc<Ledger>, id: &str, named: Option<Position>) {
        let now = self.feed.now();
        let resumes = ledger.resumes(id);
        self.feed.resume(Binding {
            key: BindingKey { owner: ENGINE, id: id.into() },
            function_id: "f".into(),
            filter: Filter::parse("session::deleted", &json!({})).unwrap(),
            sidecar_fields: String::new(),
            after: resumes.or(named),
            to: Arc::new(Anywhere),
        });
        ledger.bound(id, named, now);
    }

    async fn cursor(&self, name: &str) -> Option<Position> {
        self.cursors.cursor(name).await.unwrap()
    }

    /// Notes are written on the way.
    async fn comes_to(&self, name: &str, position: Option<Position>) {
        let begun = Instant::now();
        while self.cursor(name).await != position {
            assert!(begun.elapsed() < Duration::from_secs(20), "{name}: {:?}", self.cursor(name).await);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Publishers deliver, so that nothing has to be awaited.
fn feed() -> Arc<Feed> {
    Feed::new(FeedSettings { queue_bytes_max: 0, ..FeedSettings::default() })
}

#[tokio::test]
async fn the_first_ever_begins_with_now_and_the_next_where_it_left() {
    let mut scene = Scene::new();
    let ledger = scene.open().await;
    assert_eq!(scene.cursor("engine").await, Some(at(1)));
    assert_eq!(ledger.resumes("b"), None);
    scene.bind(&ledger, "b", None);
    (2..=4).for_each(|index| scene.happens(index));
    ledger.reached().unwrap().confirmed(3);
    ledger.close(None).await;
    scene.comes_to("engine", Some(at(4))).await;
    scene.comes_to("engine#b", Some(at(1))).await;

    scene.next_leader(9);
    let next = scene.open().await;
    assert_eq!(next.resumes("b"), Some(at(4)));
    assert_eq!(next.resumes("new"), None, "nobody knows it: it begins where it is made");
}

#[tokio::test]
async fn a_binding_made_after_the_cursor_gets_nothing_from_before_it() {
    let mut scene = Scene::new();
    let ledger = scene.open().await;
    scene.bind(&ledger, "old", None);
    (2..=5).for_each(|index| scene.happens(index));
    scene.bind(&ledger, "young", None);
    scene.comes_to("engine#young", Some(at(5))).await;
    // Killed: nothing was confirmed.
    drop(ledger);
    scene.next_leader(7);
    let next = scene.open().await;
    assert_eq!((next.resumes("old"), next.resumes("young")), (Some(at(1)), Some(at(5))));
}

#[tokio::test]
async fn the_cursor_waits_for_every_binding_that_is_known() {
    let mut scene = Scene::new();
    let ledger = scene.open().await;
    for id in ["a", "b", "gone"] {
        scene.bind(&ledger, id, None);
        scene.comes_to(&format!("engine#{id}"), Some(at(1))).await;
    }
    ledger.close(None).await;
    scene.next_leader(3);
    let next = scene.open().await;
    scene.bind(&next, "a", None);
    scene.happens(4);
    // The engine hands b over after this was asked, and before it is confirmed: b is still to get what came before.
    let early = next.reached().unwrap();
    scene.bind(&next, "b", None);
    next.wait_no_more();
    early.confirmed(1);
    assert_eq!(next.notes().told, Some(at(1)));
    scene.comes_to("engine#gone", None).await;
    next.reached().unwrap().confirmed(1);
    next.close(None).await;
    scene.comes_to("engine", Some(at(4))).await;
}

#[tokio::test]
async fn a_binding_that_reads_what_it_missed_begins_there_again_until_it_has_come_through() {
    let scene = Scene::new();
    let ledger = scene.open().await;
    scene.bind(&ledger, "live", None);
    (2..=6).for_each(|index| scene.happens(index));
    let before = ledger.reached().unwrap();
    scene.bind(&ledger, "late", Some(at(2)));
    before.confirmed(5);
    assert_eq!(ledger.resumes("late"), None, "what was confirmed was on its way before it came");
    ledger.reached().unwrap().confirmed(5);
    scene.comes_to("engine#late", Some(at(6))).await;
    assert_eq!(ledger.resumes("late"), Some(at(6)));
}

#[tokio::test]
async fn what_nobody_wants_any_more_is_forgotten() {
    let scene = Scene::new();
    let ledger = scene.open().await;
    scene.bind(&ledger, "b", None);
    scene.comes_to("engine#b", Some(at(1))).await;
    ledger.unbound("b");
    scene.comes_to("engine#b", None).await;
    assert_eq!(ledger.resumes("b"), None);
}

#[tokio::test]
async fn a_binding_with_a_long_id_is_remembered_like_any_other() {
    let mut scene = Scene::new();
    let ledger = scene.open().await;
    let (long, longer) = ("x".repeat(300), "x".repeat(301));
    for id in [&long, &longer] {
        scene.bind(&ledger, id, None);
        scene.happens(2);
    }
    ledger.close(None).await;
    scene.next_leader(2);
    let next = scene.open().await;
    assert_eq!((next.resumes(&long), next.resumes(&longer)), (Some(at(1)), Some(at(2))));
    assert_eq!(next.resumes(&"x".repeat(302)), None);
    for id in [&long, &longer] {
        next.unbound(id);
    }
    next.close(None).await;
    assert_eq!(scene.cursors.starting("engine#").await, Ok(Vec::new()));
}

#[tokio::test]
async fn an_orderly_end_leaves_nothing_to_be_delivered_again() {
    let scene = Scene::new();
    let ledger = scene.open().await;
    scene.bind(&ledger, "b", None);
    (2..=4).for_each(|index| scene.happens(index));
    let released = scene.feed.release(ENGINE).unwrap();
    scene.happens(5);
    assert_eq!(released.stands, at(4));
    assert!(ledger.close(Some(&released)).await.is_none());
    assert_eq!(scene.cursor("engine").await, Some(at(4)), "what came after is for whoever comes next");
}

#[tokio::test]
async fn an_orderly_end_before_the_engine_handed_everything_over_says_how_far_each_came() {
    let mut scene = Scene::new();
    let ledger = scene.open().await;
    for id in ["here", "late"] {
        scene.bind(&ledger, id, None);
    }
    ledger.close(None).await;
    scene.next_leader(1);
    let ledger = scene.open().await;
    scene.bind(&ledger, "here", None);
    scene.bind(&ledger, "asked", Some(at(1)));
    (2..=4).for_each(|index| scene.happens(index));
    let released = scene.feed.release(ENGINE).unwrap();
    assert!(ledger.close(Some(&released)).await.is_none());
    scene.next_leader(4);
    let next = scene.open().await;
    let resumes = ["late", "here", "asked"].map(|id| next.resumes(id));
    assert_eq!(resumes, [Some(at(1)), Some(at(4)), Some(at(4))]);
}

#[tokio::test]
async fn a_last_word_is_repeated_until_it_is_written() {
    let scene = Scene::new();
    let ledger = scene.open().await;
    scene.bind(&ledger, "b", None);
    scene.comes_to("engine#b", Some(at(1))).await;
    (2..=4).for_each(|index| scene.happens(index));
    let released = scene.feed.release(ENGINE).unwrap();
    scene.deaf.store(3, Ordering::Relaxed);
    assert!(ledger.close(Some(&released)).await.is_none());
    assert_eq!(scene.cursor("engine").await, Some(at(4)));
}

#[tokio::test]
async fn what_nobody_wrote_down_is_said_before_the_same_replica_serves_again() {
    let scene = Scene::new();
    let ledger = scene.open().await;
    scene.bind(&ledger, "b", None);
    scene.comes_to("engine#b", Some(at(1))).await;
    (2..=4).for_each(|index| scene.happens(index));
    ledger.notes().told = Some(scene.feed.release(ENGINE).unwrap().stands);
    let unsaid = ledger.unsaid();
    scene.deaf.store(1, Ordering::Relaxed);
    let open = || Ledger::open(scene.feed.clone(), scene.cursors.clone(), "engine".to_owned(), Some(&unsaid));
    assert!(open().await.is_err(), "nobody serves before it is written");
    assert_eq!(open().await.unwrap().resumes("b"), Some(at(4)));
    // Of other data it would mean nothing.
    let other = Scene::new();
    let opened = Ledger::open(other.feed.clone(), other.cursors.clone(), "engine".to_owned(), Some(&unsaid)).await;
    assert_eq!(opened.unwrap().left_at, at(1));
}
