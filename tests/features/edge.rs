//! Owns: an edge of a scenario: a bridge and its main in one process, with calls instead of sockets between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use session_manager::events::bindings::{Binding, BindingKey};
use session_manager::events::deliver::{AttachPoint, Delivery, Feed, FeedSettings, Handed};
use session_manager::events::filter::{Filter, STORE_EVENTS};
use session_manager::proposal::bridge::line::{CallFailure, Dial, Hear, Line};
use session_manager::proposal::bridge::{Address, BridgeAdapter, BridgeSettings};
use session_manager::proposal::local::LocalAdapter;
use session_manager::proposal::mint::Mint;
use session_manager::requests::Limits;
use session_manager::requests::store::about::Introduction;
use session_manager::surface::Service;
use session_manager::surface::calls::{Calls, Runtime};

use crate::hearing::Ear;

pub struct Edge {
    pub adapter: Arc<BridgeAdapter>,
}

impl Edge {
    /// `decides`: whether the main offers to, or only keeps records as version 1.0.0 does.
    pub async fn open(decides: bool, mint: Arc<dyn Mint>, ear: Arc<Ear>) -> Edge {
        let main = Main::new(decides, mint.clone());
        let address = Address { key: "url".to_owned(), url: "main".to_owned(), shown: "main".to_owned() };
        let settings =
            BridgeSettings { mains: vec![address], timeout: Duration::from_secs(20), instance: "edge".to_owned() };
        let adapter = BridgeAdapter::open(settings, Arc::new(main), mint, ear, None).await;
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
        // Whoever publishes also delivers, so that nothing has to be awaited.
        let feed = Feed::new(FeedSettings { queue_bytes_max: 0, ..FeedSettings::default() });
        let adapter = Arc::new(LocalAdapter::memory(mint.clone(), feed.clone()));
        let limits = Limits { default_list_limit: 50, max_list_limit: 500 };
        let calls = Arc::new(Calls::new(Runtime {
            adapter,
            limits,
            legacy_names: true,
            authoritative: true,
            call_timeout: Duration::from_secs(30),
        }));
        let told = feed.clone();
        calls.introduce_with(Arc::new(move |_| Introduction {
            instance: "main".to_owned(),
            cluster: told.cluster().name().to_owned(),
            position: told.position().map(|position| told.cluster().print(position)),
            oldest: told.oldest().ok().map(|oldest| told.cluster().print(oldest)),
            gap: None,
            now_ms: mint.stamp().at_ms,
        }));
        Main { calls, feed, decides }
    }
}

impl Dial for Main {
    fn dial<'a>(&'a self, _url: &'a str, _within: Duration) -> BoxFuture<'a, Result<Arc<dyn Line>, String>> {
        let line: Arc<dyn Line> = Arc::new(self.clone());
        std::future::ready(Ok(line)).boxed()
    }
}

impl Line for Main {
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        body: Value,
        within: Duration,
    ) -> BoxFuture<'a, Result<Value, CallFailure>> {
        async move {
            let hidden = ["session::store::about", "session::store::propose"].contains(&function_id);
            if hidden && !self.decides {
                return Err(CallFailure::NoSuchFunction);
            }
            let body = body.to_string();
            let call = self.calls.call(function_id, &body, None, Instant::now() + within);
            let answer = call.ok_or(CallFailure::NoSuchFunction)?.await;
            let text = answer.map_err(|error| CallFailure::Answered(error.to_string()))?;
            Ok(serde_json::from_str(&text).expect("a response is JSON"))
        }
        .boxed()
    }

    fn follow(&self, after: Option<&str>, hear: Hear) -> Result<(), String> {
        self.feed.bind(Binding {
            key: BindingKey { owner: 1, id: "bridge".into() },
            function_id: "bridge".into(),
            filter: Filter::parse(STORE_EVENTS, &Value::Null)?,
            sidecar_fields: String::new(),
            after: after.map(|after| self.feed.cluster().parse(after)).transpose()?,
            to: Arc::new(Wire(hear)),
        })
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }

    fn hang_up(&self) {}
}

struct Wire(Hear);

impl AttachPoint for Wire {
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
