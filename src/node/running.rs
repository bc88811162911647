//! Owns: the parts of a running node that a reload may replace: its data and its door; and the signals about them for the
//! other parts.
//! Never: when they are replaced (`reload.rs`).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::figures;
use super::operator::NodeOperator;
use super::report::Report;
use super::store::{OpenError, OpenStore, StoreClock};
use super::{Environment, Process, bus_settings, connections_max, join_task};
use crate::access::Credentials;
use crate::access::tls::ServerTls;
use crate::config::Config;
use crate::events::feed::Feed;
use crate::metrics::trace::Tracer;
use crate::proposal::cursor::Cursors;
use crate::proposal::long::Chores;
use crate::proposal::presence::Presence;
use crate::proposal::raft::RaftAdapter;
use crate::proposal::retention::Keeper;
use crate::replication::client_urls::ClientUrl;
use crate::surface::bus::Bus;
use crate::surface::endpoint::{self, EndpointSettings, LiveLimits};
use crate::surface::http::{Health, HealthCheck, ListNodes, NodeUrl};
use crate::surface::origin::Allowed;
use crate::surface::probes::{Check, CheckData, Readiness};
use crate::surface::scrapes::{MeasureNode, Scrapes};

/// The open store and the tasks of its feed.
pub struct Data {
    pub store: OpenStore,
    dispatch: JoinHandle<()>,
    /// Aborted with the data.
    retention: Option<AbortOnDropHandle<()>>,
    /// Aborted with the data.
    chores: Option<AbortOnDropHandle<()>>,
    /// Aborted with the data.
    presence: Option<AbortOnDropHandle<()>>,
    close_feed: CancellationToken,
}

impl Data {
    /// Opens the store, recovered and locked, and dispatches its feed.
    pub async fn open(config: &Config, environment: &Environment, process: &Process) -> Result<Data, OpenError> {
        let store = OpenStore::open(config, environment, process).await?;
        let close_feed = CancellationToken::new();
        let dispatch = tokio::spawn(store.feed.clone().dispatch(close_feed.clone()));
        let run = |chores: Chores| AbortOnDropHandle::new(tokio::spawn(chores.run(close_feed.clone())));
        let chores = store.chores(environment).map(run);
        // Only a cluster keeps records of drivers.
        let presence = store.member.as_ref().map(|_| {
            let presence = Presence { adapter: store.adapter.clone(), feed: store.feed.clone() };
            AbortOnDropHandle::new(tokio::spawn(presence.run(close_feed.clone())))
        });
        let mut data = Data { store, dispatch, retention: None, chores, presence, close_feed };
        data.keep_feed(config, environment);
        Ok(data)
    }

    /// Trims the feed to these settings from now on.
    pub fn keep_feed(&mut self, config: &Config, environment: &Environment) {
        let close_feed = self.close_feed.clone();
        let run = |keeper: Keeper| AbortOnDropHandle::new(tokio::spawn(keeper.run(close_feed)));
        self.retention = self.store.keeper(config, environment).map(run);
    }

    /// The delivery cursors of a cluster, with its feed. The JSONL files do not hold cursors, and a bridge gets every
    /// event from its main.
    pub fn cursors(&self) -> Option<(Arc<Feed>, Cursors)> {
        let member = self.store.member.clone()?;
        Some((self.store.feed.clone(), Cursors::new(member)))
    }

    /// Closes the store, then the feed: it ends when there are no more commits.
    pub async fn close(self) {
        drop((self.retention, self.chores, self.presence));
        self.store.close().await;
        self.close_feed.cancel();
        join_task("feed", self.dispatch).await;
    }
}

/// The names that requests may carry.
fn allowed(config: &Config) -> Allowed {
    Allowed { hosts: config.allowed_hosts.clone(), origins: config.allowed_origins.clone() }
}

/// Who is let in at the port for clients, and how.
#[derive(Clone)]
pub struct Entry {
    pub credentials: Arc<Credentials>,
    pub tls: Option<Arc<ServerTls>>,
}

/// The port for clients.
pub struct OpenDoor {
    pub address: SocketAddr,
    live: Arc<LiveLimits>,
    serving: JoinHandle<()>,
    close: CancellationToken,
}

impl OpenDoor {
    pub async fn open(
        config: &Config,
        environment: &Environment,
        bus: &Arc<Bus>,
        entry: &Entry,
        signals: &Arc<Signals>,
    ) -> std::io::Result<OpenDoor> {
        let settings = EndpointSettings {
            health: signals.health(),
            ready: Readiness::new(signals.ready()),
            scrapes: Scrapes::new(signals.measure()),
            nodes: signals.nodes(),
            operator: Arc::new(NodeOperator(Arc::downgrade(signals))),
            // The simulation has no threads for it, and nobody who looks.
            keeps_history: !environment.state_in_memory,
            credentials: entry.credentials.clone(),
            tls: entry.tls.clone(),
            sockets: environment.sockets.clone(),
            connections_max: connections_max(config),
            body_bytes_max: config.max_message_bytes,
            allowed: allowed(config),
            ..EndpointSettings::new(config.listen.to_string())
        };
        let (live, close) = (settings.live.clone(), CancellationToken::new());
        let (address, serving) = endpoint::serve(settings, bus.clone(), close.clone()).await?;
        Ok(OpenDoor { address, live, serving, close })
    }

    /// Applies new limits.
    pub fn change(&self, config: &Config, bus: &Bus) {
        bus.change_settings(bus_settings(config));
        bus.gate().change_memory(config.call_memory_bytes);
        self.live.change(connections_max(config), config.max_message_bytes, allowed(config));
    }

    /// Refuses new connections; finishes and answers the calls in progress.
    pub async fn close(self) {
        self.close.cancel();
        join_task("door", self.serving).await;
    }
}

/// The state of the current data, for the other parts of the node.
pub struct Signals {
    /// Whether this node of its cluster serves the engine that they share.
    pub is_leader: watch::Sender<bool>,
    /// The reason, after the node has failed.
    pub failed: watch::Sender<Option<String>>,
    health: RwLock<HealthCheck>,
    ready: RwLock<CheckData>,
    measure: RwLock<MeasureNode>,
    clock: RwLock<StoreClock>,
    /// Weak: the data may be closed.
    member: RwLock<Weak<RaftAdapter>>,
    report: Arc<Report>,
    tracer: Option<Arc<Tracer>>,
    watching: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Signals {
    pub fn new(report: Arc<Report>, tracer: Option<Arc<Tracer>>) -> Arc<Signals> {
        Arc::new(Signals {
            is_leader: watch::Sender::new(false),
            failed: watch::Sender::new(None),
            health: RwLock::new(Arc::new(|| Health {
                role: "stopped",
                trouble: Some("the node is starting".to_owned()),
            })),
            ready: RwLock::new(Arc::new(not_open)),
            measure: RwLock::new(Arc::new(|_| {})),
            clock: RwLock::new(Arc::new(|| 0)),
            member: RwLock::default(),
            report,
            tracer,
            watching: Mutex::default(),
        })
    }

    /// Reports on this store from now on, instead of the previous one.
    pub fn watch(self: &Arc<Signals>, store: &OpenStore) {
        *self.health.write().unwrap_or_else(PoisonError::into_inner) = store.health.clone();
        *self.ready.write().unwrap_or_else(PoisonError::into_inner) = store.ready.clone();
        *self.measure.write().unwrap_or_else(PoisonError::into_inner) = store.measure.clone();
        *self.clock.write().unwrap_or_else(PoisonError::into_inner) = store.clock.clone();
        *self.member.write().unwrap_or_else(PoisonError::into_inner) =
            store.member.as_ref().map(Arc::downgrade).unwrap_or_default();
        let is_leader = store.is_leader();
        self.is_leader.send_if_modified(|before| std::mem::replace(before, is_leader) != is_leader);
        let (signals, store) = (Arc::downgrade(self), store.clone());
        let watching = tokio::spawn(async move {
            let mut is_leader = is_leader;
            loop {
                tokio::select! {
                    () = store.leadership_changed(is_leader) => {}
                    why = store.failed() => {
                        if let Some(signals) = signals.upgrade() {
                            signals.failed.send_replace(Some(why));
                        }
                        return;
                    }
                }
                is_leader = store.is_leader();
                let Some(signals) = signals.upgrade() else { return };
                signals.is_leader.send_replace(is_leader);
            }
        });
        let watching = AbortOnDropHandle::new(watching);
        *self.watching.lock().unwrap_or_else(PoisonError::into_inner) = Some(watching);
    }

    pub fn stop(&self) {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The time by which the current store expires request ids.
    pub fn clock(self: &Arc<Signals>) -> StoreClock {
        let signals = Arc::downgrade(self);
        Arc::new(move || {
            let clock = signals.upgrade().map(|signals| read(&signals.clock));
            clock.map_or(0, |clock| clock())
        })
    }

    /// The member of a cluster that this node is now.
    pub fn member(&self) -> Option<Arc<RaftAdapter>> {
        self.member.read().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// The nodes that a client can go to, as far as this one knows them.
    pub fn nodes(self: &Arc<Signals>) -> ListNodes {
        let signals = Arc::downgrade(self);
        Arc::new(move || {
            let Some(signals) = signals.upgrade() else { return Vec::new() };
            if let Some(member) = signals.member() {
                let urls = member.replica().client_urls();
                return urls.into_iter().map(|ClientUrl { node, url, leads }| NodeUrl { node, url, leads }).collect();
            }
            let url = signals.report.client_url();
            if url.is_empty() { Vec::new() } else { vec![NodeUrl { node: 1, url, leads: true }] }
        })
    }

    /// The checks of the data behind `GET /readyz`.
    fn ready(self: &Arc<Signals>) -> CheckData {
        let signals = Arc::downgrade(self);
        Arc::new(move || match signals.upgrade().map(|signals| read(&signals.ready)) {
            Some(check) => check(),
            None => not_open(),
        })
    }

    /// The figures of the data and of the process.
    fn measure(self: &Arc<Signals>) -> MeasureNode {
        let signals = Arc::downgrade(self);
        Arc::new(move |page| {
            if let Some(signals) = signals.upgrade() {
                read(&signals.measure)(page);
                figures::measure_process(&signals.report, page);
                if let Some(tracer) = &signals.tracer {
                    tracer.measure(page);
                }
            }
        })
    }

    /// The check behind `GET /health`.
    pub fn health(self: &Arc<Signals>) -> HealthCheck {
        let signals = Arc::downgrade(self);
        Arc::new(move || {
            let check = signals.upgrade().map(|signals| read(&signals.health));
            let stopping = || Health { role: "stopped", trouble: Some("the node is stopping".to_owned()) };
            check.map_or_else(stopping, |check| check())
        })
    }
}

/// The check of a node that has no data yet, or has closed it.
fn not_open() -> BoxFuture<'static, Vec<Check>> {
    std::future::ready(vec![Check::require("store", false, "the store is not open")]).boxed()
}

fn read<T: ?Sized>(current: &RwLock<Arc<T>>) -> Arc<T> {
    Arc::clone(&current.read().unwrap_or_else(PoisonError::into_inner))
}
