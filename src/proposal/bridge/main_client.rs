//! Owns: the connection of a bridge to its main. Connects to the first configured main that answers, subscribes to its
//! feed, detects that it is lost, fails over to the next one, and retries calls until their deadline.
//! Never: what a call says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connection::{CallFailure, Connection, Connector};
use super::error::BridgeError;
use super::handshake::{MainInfo, MainKind, handshake};
use super::main_feed::MainFeed;
use crate::machine::refusal::Refusal;
use crate::proposal::AdapterError;

/// Back-off between rounds of connection attempts. Doubles with each round up to the maximum.
const RECONNECT_AFTER: Duration = Duration::from_millis(50);
const RECONNECT_AFTER_MAX: Duration = Duration::from_secs(1);

/// The main is asked for the time again after this long. A step of its clock disturbs writes no longer than that.
const CLOCK_FRESH: Duration = Duration::from_secs(1);

/// More mains than any cluster has. Further ones are not learned.
const MAINS_MAX: usize = 32;

/// Pause before a failed call is retried.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A main as the configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The configuration key of the url, for error messages.
    pub key: String,
    pub url: String,
    /// The url without credentials, for logs and errors.
    pub shown: String,
}

#[derive(Debug, Clone)]
pub struct BridgeSettings {
    /// At least one.
    pub mains: Vec<Address>,
    /// The longest time for one call, including all retries and failovers.
    pub timeout: Duration,
    /// The id of this process. A bridge refuses a main with the same id: it would be connected to itself.
    pub instance: String,
}

/// The main that the bridge is connected to.
pub struct ConnectedMain {
    /// Index in `MainClient::mains`.
    index: usize,
    connection: Arc<dyn Connection>,
    info: Option<MainInfo>,
    /// What the main last said of time, and when. Mains that only store records say nothing.
    clock: tokio::sync::Mutex<Option<(i64, tokio::time::Instant)>>,
    /// Wakes the watcher when a call waits too long for its answer.
    check_now: Notify,
}

impl ConnectedMain {
    fn new(index: usize, connection: Arc<dyn Connection>, info: Option<MainInfo>) -> ConnectedMain {
        let clock = info.as_ref().map(|info| (info.now_ms, tokio::time::Instant::now()));
        ConnectedMain { index, connection, info, clock: tokio::sync::Mutex::new(clock), check_now: Notify::new() }
    }

    /// The time of the main's log, in milliseconds since the epoch; `None` for a main that only stores records. The main
    /// is asked again if its last word is old: its clock may have stepped since, and this process may have slept.
    pub async fn now_ms(&self, within: Duration) -> Option<i64> {
        let mut clock = self.clock.lock().await;
        let (now_ms, at) = (*clock)?;
        if at.elapsed() < CLOCK_FRESH {
            return Some(now_ms.saturating_add(at.elapsed().as_millis() as i64));
        }
        // A failure shows in the call that asks for the time.
        if let Ok((_, Some(info))) = handshake(&*self.connection, None, within).await {
            *clock = Some((info.now_ms, tokio::time::Instant::now()));
            return Some(info.now_ms);
        }
        Some(now_ms.saturating_add(at.elapsed().as_millis() as i64))
    }
}

pub struct MainClient {
    settings: BridgeSettings,
    /// The configured mains, and after them those that a main named. Only appended to.
    mains: Mutex<Vec<Address>>,
    connector: Arc<dyn Connector>,
    kind: MainKind,
    feed: Arc<MainFeed>,
    connected: watch::Sender<Option<Arc<ConnectedMain>>>,
    /// Why there is no connection.
    last_error: Mutex<Option<BridgeError>>,
    closed: CancellationToken,
}

/// Whether a call can change data. If it can, a missing answer means that the outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Read,
    Write,
}

impl MainClient {
    /// Connects to the first main that can be used. The error names every key and what is wrong with it.
    pub async fn connect(
        settings: BridgeSettings,
        connector: Arc<dyn Connector>,
        feed: Arc<MainFeed>,
    ) -> Result<Arc<MainClient>, BridgeError> {
        let mut tried = Vec::new();
        for (index, address) in settings.mains.iter().enumerate() {
            let error = match connect_to(&settings, &*connector, (index, address), None).await {
                Ok((kind, main)) => {
                    feed.start(main.info.as_ref())?;
                    let client = Arc::new(MainClient {
                        connector,
                        kind,
                        feed,
                        connected: watch::Sender::new(None),
                        last_error: Mutex::default(),
                        closed: CancellationToken::new(),
                        mains: Mutex::new(settings.mains.clone()),
                        settings,
                    });
                    client.use_main(main)?;
                    tokio::spawn(client.clone().stay_connected());
                    return Ok(client);
                }
                Err(error) => error,
            };
            let named = (format!("{}: {}", address.key, address.shown), error);
            // The address list is wrong, so the remaining mains are not tried.
            if named.1 == BridgeError::IsThisInstance {
                return Err(BridgeError::NoUsableMain(vec![named]));
            }
            tried.push(named);
        }
        Err(BridgeError::NoUsableMain(tried))
    }

    pub fn kind(&self) -> &MainKind {
        &self.kind
    }

    /// The time of the connected main's log; 0 if it has none.
    pub async fn now_ms(&self, deadline: Instant) -> Result<i64, AdapterError> {
        Ok(self.connected(deadline).await?.now_ms(self.silence_max()).await.unwrap_or(0))
    }

    /// Why the main cannot be used at the moment; `None` if it can.
    pub fn trouble(&self) -> Option<String> {
        self.connected.borrow().is_none().then(|| self.unreachable())
    }

    pub fn close(&self) {
        self.closed.cancel();
        self.disconnect(BridgeError::Closed);
    }

    /// The deadline of a call that starts now: the caller's, or the configured timeout if that is earlier.
    pub fn limit(&self, deadline: Instant) -> Instant {
        deadline.min(Instant::now() + self.settings.timeout)
    }

    /// Waits until a main is connected.
    pub async fn connected(&self, deadline: Instant) -> Result<Arc<ConnectedMain>, AdapterError> {
        let mut connected = self.connected.subscribe();
        let waited = tokio::time::timeout_at(deadline.into(), connected.wait_for(Option::is_some)).await;
        let main = waited.ok().and_then(|main| main.ok()?.clone());
        main.ok_or_else(|| AdapterError::Unavailable(self.unreachable()))
    }

    /// Calls a function at the connected main, and retries until it is answered or the deadline passes. A write must
    /// therefore be safe to retry.
    pub async fn call(
        &self,
        function_id: &str,
        body: &Value,
        effect: Effect,
        deadline: Instant,
    ) -> Result<Value, AdapterError> {
        let mut may_have_happened = false;
        loop {
            let main = match self.connected(deadline).await {
                Ok(main) => main,
                Err(_) => return Err(failed(may_have_happened, self.unreachable())),
            };
            let failure = match self.attempt(&main, function_id, body.clone(), deadline).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match &failure {
                CallFailure::Refused { code, message } => {
                    if let Some(code) = Refusal::CODES.into_iter().find(|known| known == code) {
                        return Err(AdapterError::RefusedByMain { code, message: message.clone() });
                    }
                }
                CallFailure::OutcomeUnknown(_) => may_have_happened |= effect == Effect::Write,
                // The worker that served this function left the bus. Another bus may have one.
                CallFailure::NoSuchFunction => main.connection.close(),
                CallFailure::Unavailable(_) | CallFailure::NotSent(_) => {}
            }
            if Instant::now() + RETRY_AFTER >= deadline {
                // Fail over, so that the next call tries another main.
                if self.mains().len() > 1 {
                    main.connection.close();
                }
                let shown = self.shown(main.index);
                let why = format!("the main at {shown} did not execute {function_id}: {failure}");
                return Err(failed(may_have_happened, why));
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn attempt(
        &self,
        main: &ConnectedMain,
        function_id: &str,
        body: Value,
        deadline: Instant,
    ) -> Result<Value, CallFailure> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let mut call = main.connection.call(function_id, body, remaining);
        tokio::select! {
            answer = &mut call => return answer,
            () = tokio::time::sleep(self.silence_max()) => main.check_now.notify_one(),
        }
        call.await
    }

    /// How long a call may wait before the bridge checks that the main is alive, and how long that check may take.
    fn silence_max(&self) -> Duration {
        self.settings.timeout / 4
    }

    /// Reconnects whenever the main is lost, until the bridge is closed.
    async fn stay_connected(self: Arc<Self>) {
        while !self.closed.is_cancelled() {
            let main = self.connected.borrow().clone();
            let next = match main {
                Some(main) => {
                    let error = tokio::select! {
                        error = self.until_lost(&main) => error,
                        () = self.closed.cancelled() => return,
                    };
                    let shown = self.shown(main.index);
                    warn!(url = shown, %error, "the main is lost");
                    self.disconnect(BridgeError::NoUsableMain(vec![(shown, error)]));
                    main.index + 1
                }
                None => 0,
            };
            tokio::select! {
                () = self.reconnect(next) => {}
                () = self.closed.cancelled() => return,
            }
        }
    }

    /// Returns when the main is lost, with the reason.
    async fn until_lost(&self, main: &ConnectedMain) -> BridgeError {
        // The position of the main's feed at the previous check. By now its event must have arrived here.
        let mut previous_position = None;
        loop {
            tokio::select! {
                () = main.connection.lost() => return BridgeError::ConnectionLost,
                () = main.check_now.notified() => {}
                () = tokio::time::sleep(self.settings.timeout) => {}
            }
            let info = match handshake(&*main.connection, None, self.silence_max()).await {
                Ok((kind, info)) if kind == self.kind => info,
                Ok(_) => return BridgeError::DifferentMain,
                Err(error) => return error,
            };
            if self.feed.is_behind(previous_position.as_deref()) {
                return BridgeError::FeedStalled;
            }
            if let Some(info) = &info {
                self.learn(main.index, &info.urls);
            }
            previous_position = info.and_then(|info| info.position);
        }
    }

    /// Tries the mains in turn, beginning with `first`, until one of them is the main this bridge was started with.
    async fn reconnect(&self, first: usize) {
        let mut pause = RECONNECT_AFTER;
        loop {
            let mut tried = Vec::new();
            let mains = self.mains();
            for index in (0..mains.len()).map(|step| (first + step) % mains.len()) {
                match self.reconnect_to(index, &mains[index]).await {
                    Ok(()) => return,
                    Err(error) => tried.push((mains[index].shown.clone(), error)),
                }
            }
            *self.last_error() = Some(BridgeError::NoUsableMain(tried));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_AFTER_MAX);
        }
    }

    async fn reconnect_to(&self, index: usize, address: &Address) -> Result<(), BridgeError> {
        let after = self.feed.resume_after();
        let (kind, main) = connect_to(&self.settings, &*self.connector, (index, address), after.as_deref()).await?;
        if kind != self.kind {
            main.connection.close();
            return Err(BridgeError::DifferentMain);
        }
        self.use_main(main)
    }

    /// Subscribes to the main's feed, then lets calls go to it.
    fn use_main(&self, main: ConnectedMain) -> Result<(), BridgeError> {
        let after = self.feed.resume_from(main.info.as_ref())?;
        let feed = self.feed.clone();
        let on_event = Arc::new(move |envelope, metadata| feed.receive(envelope, metadata));
        main.connection.subscribe(after.as_deref(), on_event)?;
        if let Some(info) = &main.info {
            self.learn(main.index, &info.urls);
        }
        info!(url = self.shown(main.index), after, "connected to the main");
        self.connected.send_replace(Some(Arc::new(main)));
        Ok(())
    }

    fn mains(&self) -> Vec<Address> {
        self.mains.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn shown(&self, index: usize) -> String {
        let mains = self.mains.lock().unwrap_or_else(PoisonError::into_inner);
        mains.get(index).map(|main| main.shown.clone()).unwrap_or_default()
    }

    /// Adds the other nodes of a main to those that are tried when it is lost. A main behind TLS names no node without.
    fn learn(&self, from: usize, urls: &[String]) {
        let mut mains = self.mains.lock().unwrap_or_else(PoisonError::into_inner);
        let secure = mains.get(from).is_some_and(|main| main.url.starts_with("wss://"));
        for url in urls {
            let fits = url.starts_with("wss://") || (url.starts_with("ws://") && !secure);
            let known = mains.iter().any(|main| main.url.trim_end_matches('/') == url.trim_end_matches('/'));
            if fits && !known && mains.len() < MAINS_MAX {
                info!(url, "the main named another node of its cluster");
                mains.push(Address { key: "named by the main".to_owned(), url: url.clone(), shown: url.clone() });
            }
        }
    }

    fn disconnect(&self, why: BridgeError) {
        *self.last_error() = Some(why);
        if let Some(main) = self.connected.send_replace(None) {
            main.connection.close();
        }
    }

    fn unreachable(&self) -> String {
        let error = self.last_error().as_ref().map(BridgeError::to_string).unwrap_or_default();
        format!("the main cannot be reached: {error}")
    }

    fn last_error(&self) -> MutexGuard<'_, Option<BridgeError>> {
        // A panic cannot leave the value half written, so a poisoned lock is still usable.
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects to one main and does the handshake.
async fn connect_to(
    settings: &BridgeSettings,
    connector: &dyn Connector,
    (index, address): (usize, &Address),
    after: Option<&str>,
) -> Result<(MainKind, ConnectedMain), BridgeError> {
    let connection = connector.connect(&address.url, settings.timeout).await?;
    let error = match handshake(&*connection, after, settings.timeout).await {
        Ok((_, Some(info))) if info.instance == settings.instance => BridgeError::IsThisInstance,
        Ok((kind, info)) => return Ok((kind, ConnectedMain::new(index, connection, info))),
        Err(error) => error,
    };
    connection.close();
    Err(error)
}

fn failed(may_have_happened: bool, why: String) -> AdapterError {
    match may_have_happened {
        true => AdapterError::OutcomeUnknown(why),
        false => AdapterError::Unavailable(why),
    }
}
