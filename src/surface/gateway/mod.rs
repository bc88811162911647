//! The gateway: live agents for browsers and other front-ends, on a WebSocket of its own.
//!
//! Owns: the messages of clients (`messages`, `fields`), who sends them (`person`), the life of one connection
//! (`connection`, `pace`), sessions as clients see them (`sessions`), what all connections of a tenant learn
//! (`tenant_feed`, `pushes`), streams and histories (`follow`, `audience`, `history`), turns (`turns`), drivers
//! (`drivers`, `relays`), members (`members`), and the errors (`errors`).
//! Reads: the node's functions (through the gate), the feed. Never: state, WebSocket plumbing (`socket`).

pub mod audience;
pub mod connection;
pub mod drivers;
pub mod errors;
pub mod fields;
pub mod follow;
pub mod history;
pub mod members;
pub mod messages;
pub mod pace;
pub mod person;
pub mod pushes;
pub mod relays;
pub mod sessions;
pub mod tenant_feed;
pub mod turns;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::audience::Audience;
use self::connection::Connection;
use self::errors::GatewayError;
use self::pushes::Tenants;
use super::bus::Bus;
use super::fair_share::CallerKey;
use super::gate::{Call, Caller, Door, DoorWork};
use super::sidecar::NAME;
use super::socket::SocketLimits;
use super::socket::outbox::OutboxLimits;
use crate::access::logins::FailedLogins;
use crate::events::filter::Filter;
use crate::events::stream::Stream;
use crate::machine::apply::beside::Beside;
use crate::machine::json::Json;
use crate::machine::query::beside::BesideQuery;
use crate::machine::scope::Scope;
use crate::machine::{Answer, Command, Found, Query};
use crate::metrics::{Page, catalogue};
use crate::proposal::{Freshness, Proposal};

/// The paths of the gateway.
pub const PATHS: [&str; 2] = ["ws", "gateway"];

/// Whether a path is one of the gateway.
pub fn owns(path: &str) -> bool {
    PATHS.contains(&path.trim_matches('/'))
}

/// Wrong credentials of one address in a minute. The eleventh is told to wait.
const LOGIN_FAILURES_MAX: u32 = 10;
/// Larger messages close the connection. Those above `connection::MESSAGE_BYTES_MAX` are refused and not parsed.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// What one connection may leave unread, besides one large reply.
const OUTBOX_BYTES_MAX: usize = 4 << 20;
/// Past this, live events wait in the stored feed or become a gap.
const EVENTS_BYTES_MAX: usize = 256 << 10;

/// The gateway of one port.
pub struct Gateway {
    pub bus: Arc<Bus>,
    failures: FailedLogins,
    connections: AtomicUsize,
    /// The drivers that are connected here, by their ids.
    drivers: Mutex<BTreeMap<String, Weak<Connection>>>,
    /// The connections of each tenant.
    tenants: Mutex<Tenants>,
    /// Starts what runs as long as the node, with the first connection.
    begun: Once,
    /// How many connections follow each session.
    audience: Arc<Audience>,
    /// Cancelled when the port closes.
    closing: CancellationToken,
}

impl Gateway {
    /// Within a runtime: it answers other nodes from now on.
    pub fn new(bus: Arc<Bus>, closing: CancellationToken) -> Arc<Gateway> {
        let gateway = Arc::new(Gateway {
            bus,
            failures: FailedLogins::limited_to(LOGIN_FAILURES_MAX),
            connections: AtomicUsize::default(),
            drivers: Mutex::default(),
            tenants: Mutex::default(),
            begun: Once::new(),
            audience: Arc::default(),
            closing: closing.clone(),
        });
        let here = Arc::downgrade(&gateway);
        tokio::spawn(async move {
            tokio::select! {
                () = relays::run(here) => {}
                () = closing.cancelled() => {}
            }
        });
        gateway
    }

    /// Subscribes to events from now on.
    fn subscribe(&self, filter: Filter) -> Result<Stream, GatewayError> {
        let current = self.bus.feed();
        loop {
            let feed = current.read(Arc::clone);
            // A reload may have replaced the feed meanwhile.
            if let Some(opened) = Stream::open_on(current, &feed, filter.clone(), None) {
                return opened.map_err(|error| {
                    tracing::error!(%error, "a subscription to live events was refused");
                    GatewayError::Internal
                });
            }
        }
    }

    /// Calls a function of this node.
    async fn call(&self, caller: &Caller, function: &str, body: Value, at: Reads) -> Result<Value, GatewayError> {
        let gate = self.bus.gate();
        let (body, deadline) = (body.to_string(), gate.deadline());
        let key = CallerKey::of(&caller.identity, CallerKey::Door("gateway"));
        let mut admitted = gate.admit(key, function, body.len(), deadline, &self.closing).await?;
        let mut call = Call::new(function, body, deadline, caller.clone());
        if at == Reads::Local {
            call.metadata = Some(json!({ NAME: { "consistency": "local" } }).to_string());
        }
        let answer = gate.call(&call).await?.into_text();
        admitted.answers(answer.len());
        serde_json::from_str(&answer).map_err(|error| {
            tracing::error!(function, %error, "a function answered with text that is not JSON");
            GatewayError::Internal
        })
    }

    /// Executes a command of the gateway. Without a scope, the door itself answers for what it names.
    async fn change(&self, scope: Option<Arc<Scope>>, command: Beside) -> Result<Value, GatewayError> {
        let gate = self.bus.gate();
        let work = work_of(scope.as_deref());
        let proposal = Proposal { scope, ..Proposal::new(Command::Beside(command), gate.deadline()) };
        match gate.propose(work, proposal).await? {
            Answer::Value(value) => parsed(&value),
            Answer::MetaSet { meta } => Ok(json!({ "meta": meta })),
            other => {
                tracing::error!(?other, "a command of the gateway got the answer of another one");
                Err(GatewayError::Internal)
            }
        }
    }

    /// Asks about records beside sessions.
    async fn ask<T: DeserializeOwned>(
        &self,
        scope: Option<Arc<Scope>>,
        query: BesideQuery,
        reads: Reads,
    ) -> Result<T, GatewayError> {
        let work = work_of(scope.as_deref());
        let query = Query::Beside(query);
        let query = match scope {
            Some(scope) => Query::Within { scope, query: Box::new(query) },
            None => query,
        };
        let freshness = match reads {
            Reads::Fresh => Freshness::Linearizable,
            Reads::Local => Freshness::Local,
        };
        match self.bus.gate().ask(work, query, freshness).await? {
            Found::Value(value) => parsed(&value),
            other => {
                tracing::error!(?other, "a query of the gateway got the answer of another one");
                Err(GatewayError::Internal)
            }
        }
    }

    fn socket_limits(&self) -> SocketLimits {
        let shared = self.bus.settings().socket.clone();
        SocketLimits { message_bytes_max: FRAME_BYTES_MAX.min(shared.message_bytes_max), ..shared }
    }

    fn outbox_limits(&self) -> OutboxLimits {
        let shared = self.bus.settings().outbox.clone();
        OutboxLimits {
            bytes_max: OUTBOX_BYTES_MAX.min(shared.bytes_max),
            events_bytes_max: EVENTS_BYTES_MAX.min(shared.events_bytes_max),
            ..shared
        }
    }

    /// Adds the figures of the gateway to a page.
    pub fn measure(&self, page: &mut Page) {
        page.whole(catalogue::GATEWAY_CONNECTIONS, self.connections.load(Ordering::Relaxed) as u64);
    }
}

/// The commands and queries of one scope share the calls that run, as the calls of one caller do.
fn work_of(scope: Option<&Scope>) -> DoorWork {
    let key = scope.map_or(CallerKey::Door("gateway"), |scope| CallerKey::Name(scope.text().into()));
    DoorWork { door: Door::Gateway, key }
}

fn parsed<T: DeserializeOwned>(value: &Json) -> Result<T, GatewayError> {
    value.parse().map_err(|error| {
        tracing::error!(%error, "a record of the gateway cannot be read");
        GatewayError::Internal
    })
}

/// How fresh an answer must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// It includes everything that was acknowledged before.
    Fresh,
    /// What this node knows.
    Local,
}
