//! Owns: an edge for scenarios: a bridge and its main in one process, connected by function calls instead of sockets.

use session_manager::machine::model::profile::Terms;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use session_manager::events::bindings::{Binding, BindingKey};
use session_manager::events::delivery::{AttachPoint, Delivery, Handed};
use session_manager::events::feed::{Feed, FeedSettings};
use session_manager::events::filter::{Filter, STORE_EVENTS};
use session_manager::mint::Mint;
use session_manager::proposal::bridge::connection::{
    CallFailure, CallFuture, ConnectFuture, Connection, Connector, OnEvent,
};
use session_manager::proposal::bridge::error::BridgeError;
use session_manager::proposal::bridge::{Address, BridgeAdapter, BridgeSettings};
use session_manager::proposal::local::LocalAdapter;
use session_manager::requests::Limits;
use session_manager::requests::store::about::Introduction;
use session_manager::surface::calls::{Calls, Runtime};
use session_manager::surface::{Call, CallError, Caller, Door, Service};

use crate::event_recorder::EventRecorder;

pub struct Edge {
    pub adapter: Arc<BridgeAdapter>,
}

impl Edge {
    /// `decides`: whether the main takes decisions for the bridge, or only stores records as version 1.0.0 does.
    pub async fn open(decides: bool, mint: Arc<dyn Mint>, recorder: Arc<EventRecorder>) -> Edge {
        let main = Main::new(decides, mint.clone());
        let address = Address { key: "url".to_owned(), url: "main".to_owned(), shown: "main".to_owned() };
        let settings =
            BridgeSettings { mains: vec![address], timeout: Duration::from_secs(20), instance: "edge".to_owned() };
        let adapter = BridgeAdapter::open(settings, Arc::new(main), mint, recorder, None).await;
        Edge { adapter: Arc::new(adapter.expect("the main answers")) }
    }

    pub fn close(self) {
        self.adapter.close();
    }
}

#[derive(Clone)]
struct Main {
    calls: Arc<Calls>,
    feed: Arc<Feed>,
    decides: bool,
}

impl Main {
    fn new(decides: bool, mint: Arc<dyn Mint>) -> Main {
        // Without a queue, publishing delivers at once, so tests need not wait.
        let feed = Feed::new(FeedSettings { queue_bytes_max: 0, ..FeedSettings::default() });
        let adapter = Arc::new(LocalAdapter::memory(mint.clone(), feed.clone()));
        let limits = Limits { default_list_limit: 50, max_list_limit: 500, model: Terms::DEFAULT };
        let calls = Arc::new(Calls::new(Runtime {
            adapter,
            limits,
            legacy_names: true,
            authoritative: true,
            keeps_turns: true,
            call_timeout: Duration::from_secs(30),
        }));
        let described = feed.clone();
        calls.introduce_with(Arc::new(move |_| Introduction {
            instance: "main".to_owned(),
            cluster: described.cluster().name().to_owned(),
            position: described.position().map(|position| described.cluster().print(position)),
            oldest: described.oldest().ok().map(|oldest| described.cluster().print(oldest)),
            urls: Vec::new(),
            gap: None,
            now_ms: mint.stamp().at_ms,
        }));
        Main { calls, feed, decides }
    }
}

impl Connector for Main {
    fn connect<'a>(&'a self, _url: &'a str, _within: Duration) -> ConnectFuture<'a> {
        let connection: Arc<dyn Connection> = Arc::new(self.clone());
        std::future::ready(Ok(connection)).boxed()
    }
}

impl Connection for Main {
    fn call<'a>(&'a self, function_id: &'a str, body: Value, within: Duration) -> CallFuture<'a> {
        async move {
            let hidden = ["session::store::about", "session::store::propose"].contains(&function_id);
            if hidden && !self.decides {
                return Err(CallFailure::NoSuchFunction);
            }
            let caller = Caller::unauthenticated(Door::Bus);
            let call = Call::new(function_id, body.to_string(), Instant::now() + within, caller);
            let answer = self.calls.call(&call).await.map_err(|error| match error {
                CallError::FunctionUnknown(_) => CallFailure::NoSuchFunction,
                other => CallFailure::from_bus(other.bus().code, &other.bus().message),
            })?;
            Ok(serde_json::from_str(&answer.into_text()).expect("a response is JSON"))
        }
        .boxed()
    }

    fn subscribe(&self, after: Option<&str>, on_event: OnEvent) -> Result<(), BridgeError> {
        let binding = Binding {
            key: BindingKey { owner: 1, id: "bridge".into() },
            function_id: "bridge".into(),
            filter: Filter::parse(STORE_EVENTS, &Value::Null).expect("the feed takes no filter"),
            sidecar_fields: String::new(),
            after: after
                .map(|after| self.feed.cluster().parse(after))
                .transpose()
                .map_err(|why| BridgeError::InvalidPosition(why.to_string()))?,
            to: Arc::new(ToBridge(on_event)),
        };
        self.feed.bind(binding).map_err(|why| BridgeError::SubscriptionRefused(why.to_string()))
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }

    fn close(&self) {}
}

/// Passes deliveries to the bridge.
struct ToBridge(OnEvent);

impl AttachPoint for ToBridge {
    fn deliver(&self, delivery: Delivery<'_>) -> Handed {
        let data = serde_json::from_str(delivery.data).expect("an envelope is JSON");
        let sidecar = serde_json::from_str(&delivery.sidecar()).expect("a sidecar is JSON");
        (self.0)(data, Some(sidecar));
        Handed::Taken
    }

    fn room(&self, _: &Binding) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}
