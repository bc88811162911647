//! Events that are not kept: who gets them, and who is told of what.

use super::*;

/// An event beside the published ones.
fn noted(index: u64, kept: bool) -> Arc<Committed> {
    let happened =
        Happened::Noted { kind: EventKind::StreamEvent, payload: Json::adopt(&format!("{{\"n\":{index}}}")), kept };
    let event = Event { session_id: "s".into(), seq: 0, happened, metadata: tenant() };
    Arc::new(Committed::new(at(index), event))
}

#[tokio::test]
async fn an_event_that_is_not_kept_reaches_live_subscribers_and_short_laggards_only() {
    // The ring holds the last few events, whether they are kept or not.
    let world = World::new(4096);
    let (live, stuck) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
    world.feed.bind(binding(&live, "session::stream::event", None)).unwrap();
    let mut second = binding(&stuck, "session::stream::event", None);
    second.key.owner = 2;
    world.feed.bind(second).unwrap();
    stuck.stick(true);
    for index in 1..=3 {
        world.feed.publish(vec![noted(index, false)]);
    }
    live.gets([1, 2, 3]).await;
    stuck.stick(false);
    stuck.gets([1, 2, 3]).await;
    // Far behind: the stored feed has none of them.
    stuck.stick(true);
    for index in 4..=60 {
        world.feed.publish(vec![noted(index, false)]);
    }
    live.gets(1..=60).await;
    stuck.stick(false);
    until("the slow one has the newest", || stuck.indexes().last() == Some(&60)).await;
    let got = stuck.indexes();
    let told = locked(&stuck.got).iter().any(|(_, _, sidecar)| sidecar["session-manager"]["compacted"].is_string());
    assert!(!told, "nothing that is kept was lost");
    assert!(got.len() < 60 && got.windows(2).all(|pair| pair[0] < pair[1]), "{got:?}");
}

#[test]
fn a_published_binding_hears_nothing_of_other_kinds() {
    let feed = inline();
    let (everything, stream) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
    feed.bind(binding(&everything, "session::store::events", None)).unwrap();
    feed.bind(binding(&stream, "session::stream::event", None)).unwrap();
    feed.publish(vec![noted(1, true), event(2)]);
    assert_eq!((locked(&everything.got).len(), stream.indexes()), (1, vec![1]));
}

#[tokio::test]
async fn a_stream_is_told_that_it_caught_up_even_if_all_that_it_missed_is_not_kept() {
    let world = World::new(4096);
    world.publish([1]);
    world.feed.drain(usize::MAX);
    let stream = open(&world.feed, Filter::of_stream(Kinds::PUBLISHED, None, None, Object::new()), None);
    let next = async || {
        stream.follow().await.map(|item| match item {
            Item::Event(committed, _) => committed.position,
            other => panic!("{other:?}"),
        })
    };
    // A snapshot: the newest event that is kept is still the first.
    world.feed.jumped(at(1));
    assert_eq!(next().await, None);
    // Another one, which has a second one.
    world.kept.keep(&event(3));
    world.feed.jumped(at(3));
    assert_eq!((next().await, next().await), (Some(at(3)), None));
    world.publish([7]);
    assert_eq!(next().await, Some(at(7)));
}
