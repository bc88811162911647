//! Owns: an iii bus that serves no function of its own. To a node it is an engine; to a bridge it is a bus without a
//! main.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use session_manager::events::current::CurrentFeed;
use session_manager::events::feed::{Feed, FeedSettings};
use session_manager::requests::Printed;
use session_manager::surface::bus::{Bus, BusSettings};
use session_manager::surface::endpoint::{self, EndpointSettings};
use session_manager::surface::{Call, CallError, DescribedFunction, Gate, Service};
use tokio_util::sync::CancellationToken;

struct NoFunctions;

impl Service for NoFunctions {
    fn call<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Printed, CallError>> {
        Box::pin(std::future::ready(Err(CallError::FunctionUnknown(call.function.clone()))))
    }

    fn functions(&self) -> Vec<DescribedFunction> {
        Vec::new()
    }
}

/// Stops when it is dropped.
pub struct EmptyBus {
    pub address: SocketAddr,
    stop: CancellationToken,
}

impl EmptyBus {
    pub async fn start(listen: &str) -> EmptyBus {
        let feed = CurrentFeed::new(Feed::new(FeedSettings::default()));
        let bus = Bus::new(BusSettings::default(), Gate::new(Arc::new(NoFunctions)), feed);
        let stop = CancellationToken::new();
        let opened = endpoint::serve(EndpointSettings::new(listen), bus, stop.clone()).await;
        let (address, _serving) = opened.expect("the bus listens");
        EmptyBus { address, stop }
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }
}

impl Drop for EmptyBus {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
