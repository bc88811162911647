//! Owns: the parts of a running node that may be exchanged while it runs: its data with the feed, and its door; and what
//! the other parts hear of them.
//! Never: when they are exchanged (`reload.rs`).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Ground, OpenStore, bus_settings, close_store, connections_max, ended, keeper, open_store};
use crate::config::Config;
use crate::events::deliver::Feed;
use crate::proposal::cursor::Cursors;
use crate::proposal::retention::Keeper;
use crate::surface::bus::Bus;
use crate::surface::endpoint::{self, EndpointSettings, LiveLimits};
use crate::surface::http::{Health, HealthCheck};

/// The data and the feed of its commits.
pub struct Data {
    pub store: OpenStore,
    pub feed: Arc<Feed>,
    dispatch: JoinHandle<()>,
    /// Ends with the data.
    retention: Option<AbortOnDropHandle<()>>,
    close_feed: CancellationToken,
}

impl Data {
    /// Recovered, locked, ready to commit.
    pub async fn open(config: &Config, ground: &Ground, instance: &str) -> Result<Data, String> {
        let (store, feed) = open_store(config, ground, instance).await?;
        let close_feed = CancellationToken::new();
        let dispatch = tokio::spawn(feed.clone().dispatch(close_feed.clone()));
        let mut data = Data { store, feed, dispatch, retention: None, close_feed };
        data.keep_feed(config, ground);
        Ok(data)
    }

    /// From now on the feed is kept as long as these settings say.
    pub fn keep_feed(&mut self, config: &Config, ground: &Ground) {
        let close_feed = self.close_feed.clone();
        let tend = |keeper: Keeper| AbortOnDropHandle::new(tokio::spawn(keeper.tend(close_feed)));
        self.retention = keeper(config, &self.store, ground).map(tend);
    }

    /// Where it is kept how far the events of this data were delivered, with their feed.
    pub fn cursors(&self) -> Option<(Arc<Feed>, Cursors)> {
        match &self.store {
            OpenStore::Raft(adapter) => Some((self.feed.clone(), Cursors::new(adapter.clone()))),
            // Files of this format have no place for it, and an edge hears everything from its main.
            OpenStore::Fs(_) | OpenStore::Bridge(_) => None,
        }
    }

    /// The feed ends last, once nothing commits any more.
    pub async fn close(self) {
        drop(self.retention);
        close_store(&self.store).await;
        self.close_feed.cancel();
        ended("feed", self.dispatch).await;
    }
}

/// The port clients come through.
pub struct OpenDoor {
    pub address: SocketAddr,
    live: Arc<LiveLimits>,
    serving: JoinHandle<()>,
    close: CancellationToken,
}

impl OpenDoor {
    pub async fn open(
        config: &Config,
        ground: &Ground,
        bus: &Arc<Bus>,
        health: HealthCheck,
    ) -> std::io::Result<OpenDoor> {
        let settings = EndpointSettings {
            health,
            sockets: ground.sockets.clone(),
            connections_max: connections_max(config),
            body_bytes_max: config.max_message_bytes,
            ..EndpointSettings::new(config.listen.to_string())
        };
        let (live, close) = (settings.live.clone(), CancellationToken::new());
        let (address, serving) = endpoint::serve(settings, bus.clone(), close.clone()).await?;
        Ok(OpenDoor { address, live, serving, close })
    }

    /// Other bounds from now on.
    pub fn change(&self, config: &Config, bus: &Bus) {
        bus.change_settings(bus_settings(config));
        self.live.change(connections_max(config), config.max_message_bytes);
    }

    /// No new connections; calls under way are finished and answered.
    pub async fn close(self) {
        self.close.cancel();
        ended("door", self.serving).await;
    }
}

/// What the parts of a node hear of its data, whichever it is now.
pub struct Signals {
    /// Whether this node is the one of its cluster that serves on an engine they share.
    pub leads: watch::Sender<bool>,
    /// Why the node cannot go on, once that is so.
    pub failed: watch::Sender<Option<String>>,
    health: RwLock<HealthCheck>,
    watching: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Signals {
    pub fn new() -> Arc<Signals> {
        Arc::new(Signals {
            leads: watch::Sender::new(false),
            failed: watch::Sender::new(None),
            health: RwLock::new(Arc::new(|| Health { role: "stopped", trouble: Some("the node starts".to_owned()) })),
            watching: Mutex::default(),
        })
    }

    /// Tells of this store from now on, and no more of the one before.
    pub fn watch(self: &Arc<Signals>, store: &OpenStore) {
        *self.health.write().unwrap_or_else(PoisonError::into_inner) = store.health();
        let leads = store.leads();
        self.leads.send_if_modified(|before| std::mem::replace(before, leads) != leads);
        let (signals, store) = (Arc::downgrade(self), store.clone());
        let watching = tokio::spawn(async move {
            let mut leads = leads;
            loop {
                tokio::select! {
                    () = store.leadership_changes(leads) => {}
                    why = store.failed() => {
                        if let Some(signals) = signals.upgrade() {
                            signals.failed.send_replace(Some(why));
                        }
                        return;
                    }
                }
                leads = store.leads();
                let Some(signals) = signals.upgrade() else { return };
                signals.leads.send_replace(leads);
            }
        });
        let watching = AbortOnDropHandle::new(watching);
        *self.watching.lock().unwrap_or_else(PoisonError::into_inner) = Some(watching);
    }

    pub fn stop(&self) {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// What `GET /health` says.
    pub fn health(self: &Arc<Signals>) -> HealthCheck {
        let signals = Arc::downgrade(self);
        Arc::new(move || {
            let check = signals
                .upgrade()
                .map(|signals| Arc::clone(&signals.health.read().unwrap_or_else(PoisonError::into_inner)));
            let stopping = || Health { role: "stopped", trouble: Some("the node is stopping".to_owned()) };
            check.map_or_else(stopping, |check| check())
        })
    }
}
