//! Owns: the life of one connection to the gateway: greeting, authentication, limits, dispatch of its messages,
//! heartbeats, draining and closing.
//! Never: what a message does, reading and writing of a socket (`socket`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::drivers::Relay;
use super::errors::GatewayError;
use super::messages::{self, Asked, DriverTerms, Needs};
use super::pace::Pace;
use super::person::Person;
use super::sessions::Speaker;
use super::{Gateway, Reads, follow, tenant_feed};
use crate::access::credentials::now_ms;
use crate::access::{Action, Credentials, Identity, LoginError, Presented, audit};
use crate::machine::gateway::MemberRole;
use crate::machine::json::{Json, Object};
use crate::machine::turn::order::Order;
use crate::surface::errors::CallError;
use crate::surface::gate::Door;
use crate::surface::locked;
use crate::surface::socket::outbox::{Class, Outbox};
use crate::surface::socket::probe::Probe;
use crate::surface::socket::reader::Incoming;
use crate::surface::socket::{self, CloseReason, Text};

/// Larger messages are refused before they are parsed.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
const HEARTBEAT: Duration = Duration::from_secs(30);
/// How long a client may take to authenticate.
const AUTHENTICATE_MAX: Duration = Duration::from_secs(30);
/// Wrong credentials on one connection before it is closed.
const FAILURES_MAX: u32 = 5;
/// How long messages in progress may take when the node shuts down.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Messages that wait for the ones before them. The socket is not read while there are more.
const WAITING_MAX: usize = 32;
/// Requests that may wait for a driver at the same time. Further messages wait for one of them.
const WAITS_MAX: usize = 16;
/// Answers to `authenticate` that may wait besides.
const ARRIVALS_MAX: usize = 8;
/// Sessions that one connection may follow.
const JOINED_MAX: usize = 64;
/// Sessions that this connection created and whose event is still to come.
const CREATED_MAX: usize = 64;

/// Who opened a connection.
pub struct Entrant {
    /// The credentials of the request, if it had some.
    pub login: Result<Arc<Identity>, LoginError>,
    pub credentials: Arc<Credentials>,
    pub peer: SocketAddr,
    /// The version of the protocol that both speak.
    pub version: Option<u8>,
}

/// One client.
pub struct Connection {
    pub gateway: Arc<Gateway>,
    pub outbox: Arc<Outbox>,
    pub id: String,
    credentials: Arc<Credentials>,
    peer: SocketAddr,
    person: RwLock<Option<Arc<Person>>>,
    authenticated: Notify,
    failures: AtomicU32,
    pace: Mutex<Pace>,
    /// A driver has no limit of messages.
    is_driver: AtomicBool,
    created: Mutex<BTreeSet<String>>,
    /// What the driver behind this connection said of itself.
    pub(super) driver: OnceLock<DriverTerms>,
    /// The requests that the driver has yet to answer.
    replies: Mutex<BTreeMap<String, oneshot::Sender<DriverReply>>>,
    /// The sessions that the client joined. A task follows each.
    joined: Mutex<BTreeMap<String, AbortOnDropHandle<()>>>,
    /// The session that the client is about to join.
    joining: Mutex<Option<String>>,
    /// The sessions whose turn the client wants to stop, and is yet to be told so.
    stops: Mutex<BTreeSet<String>>,
    /// What runs for this connection and ends with it.
    tasks: Mutex<JoinSet<()>>,
    /// Its permits are the requests that may wait for a driver at the same time.
    waits: Arc<Semaphore>,
    /// What waits for the worker.
    work: mpsc::Sender<Work>,
    /// Its permits are the messages that wait or run.
    busy: Semaphore,
}

pub struct Joining<'a>(&'a Connection);

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        *locked(&self.0.joining) = None;
    }
}

/// The answer of a driver to a request of a front-end.
pub type DriverReply = Result<Value, String>;

/// What the worker does next.
enum Work {
    /// The client authenticated: for the first time, or again with newer credentials.
    Arrived {
        is_first: bool,
    },
    Asked(Asked, Needs),
}

/// The version to speak, of the query `protocolVersion`. `None` when there is no common one.
pub fn version(query: Option<&str>) -> Option<u8> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    match pairs.filter(|(name, _)| *name == "protocolVersion").map(|(_, version)| version).next() {
        None | Some("1") => Some(1),
        Some("2") => Some(2),
        Some(_) => None,
    }
}

/// Serves a connection after its upgrade, until it ends.
pub async fn serve<S>(gateway: Arc<Gateway>, socket: S, entrant: Entrant, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (work, waiting) = mpsc::channel(WAITING_MAX + ARRIVALS_MAX);
    let (writer, mut reader) = socket::open(socket, gateway.socket_limits(), gateway.bus.intake()).await;
    let connection = Arc::new(Connection {
        outbox: Arc::new(Outbox::new(gateway.outbox_limits(), gateway.bus.outgoing_bytes())),
        id: Uuid::new_v4().to_string(),
        credentials: entrant.credentials.clone(),
        peer: entrant.peer,
        person: RwLock::default(),
        authenticated: Notify::new(),
        failures: AtomicU32::default(),
        pace: Mutex::default(),
        is_driver: AtomicBool::default(),
        created: Mutex::default(),
        driver: OnceLock::new(),
        replies: Mutex::default(),
        joined: Mutex::default(),
        joining: Mutex::default(),
        stops: Mutex::default(),
        tasks: Mutex::default(),
        waits: Arc::new(Semaphore::new(WAITS_MAX)),
        busy: Semaphore::new(WAITING_MAX),
        work,
        gateway,
    });
    connection.gateway.connections.fetch_add(1, Ordering::Relaxed);
    let probe = Probe::default();
    let write = writer.run(&connection.outbox, &probe, |_| None);
    tokio::pin!(write);
    let life = async {
        if let Err(close) = connection.greet(entrant) {
            return close;
        }
        tokio::select! {
            close = reader.each(&connection.outbox, |incoming| connection.receive(incoming)) => close,
            close = connection.work(waiting) => close,
            close = connection.lapse() => close,
            close = connection.beat() => close,
            close = connection.drain(&shutdown) => close,
        }
    };
    tokio::select! {
        () = &mut write => {}
        close = life => {
            connection.outbox.finish(close.code, close.reason);
            (&mut write).await;
        }
    }
    reader.finish().await;
    if let Some(person) = connection.person() {
        connection.gateway.stops_listening(&person.tenant, &connection.id);
    }
    connection.detach_driver();
    // The tasks hold the connection, so they would never end by themselves.
    locked(&connection.tasks).abort_all();
    let joined = std::mem::take(&mut *locked(&connection.joined));
    for session in joined.keys() {
        connection.gateway.audience.left(session);
    }
    connection.gateway.connections.fetch_sub(1, Ordering::Relaxed);
    tracing::debug!(client = connection.id, close = ?connection.outbox.close_reason(), "a gateway client disconnected");
}

impl Connection {
    pub fn send(&self, frame: &Value) {
        self.outbox.push(Text::from(frame.to_string()), Class::Other);
    }

    pub fn send_text(&self, text: Text) {
        self.outbox.push(text, Class::Other);
    }

    pub fn refuse(&self, error: &GatewayError) {
        self.outbox.push(error.frame(), Class::Other);
    }

    /// The frames that every client gets. `Err` when there is nothing more to say.
    fn greet(&self, entrant: Entrant) -> Result<(), CloseReason> {
        let needs_login = self.credentials.are_needed();
        let spoken = entrant.version.unwrap_or(2);
        self.send(&json!({ "type": "welcome", "protocolVersion": spoken, "requiresAuth": needs_login }));
        if entrant.version.is_none() {
            self.refuse(&GatewayError::VersionMismatch);
            return Err(CloseReason::new(1002, "no common version of the protocol"));
        }
        self.send(&json!({
            "type": "connected", "clientId": self.id, "heartbeatIntervalMs": HEARTBEAT.as_millis() as u64,
            "ts": now_ms(),
        }));
        match entrant.login {
            Ok(identity) => self.admit(&identity),
            Err(LoginError::Missing) => Ok(()),
            Err(refused) => self.login_failed(refused),
        }
    }

    /// Acts on one message. `Err` when the client must be disconnected.
    async fn receive(&self, incoming: Incoming) -> Result<(), CloseReason> {
        match incoming {
            Incoming::Text(text) => self.accept(&text).await,
            Incoming::Binary(bytes) => {
                self.refuse(&self.refusal_of_binary(bytes.len()));
                Ok(())
            }
            Incoming::Pong(_) => Ok(()),
        }
    }

    /// Checks one message. What it asks for is done by the worker, in order, so that a slow store delays no ping.
    async fn accept(&self, text: &Text) -> Result<(), CloseReason> {
        match self.parse(text) {
            Ok((Asked::Ping { ts }, _)) => {
                self.send(&json!({ "type": "pong", "clientTs": ts, "serverTs": now_ms() }));
                Ok(())
            }
            Ok((Asked::Authenticate { token }, _)) => self.authenticate(&token),
            Ok((asked, needs)) => {
                if let Ok(permit) = self.busy.acquire().await {
                    permit.forget();
                }
                // The worker lives as long as the reader.
                let _ = self.work.send(Work::Asked(asked, needs)).await;
                Ok(())
            }
            Err(error) => {
                self.refuse(&error);
                Ok(())
            }
        }
    }

    fn refusal_of_binary(&self, bytes: usize) -> GatewayError {
        match self.keep_pace() {
            Err(error) => error,
            Ok(()) if bytes > MESSAGE_BYTES_MAX => GatewayError::MessageTooLarge { bytes_max: MESSAGE_BYTES_MAX },
            Ok(()) => GatewayError::InvalidJson("binary frames are not supported: send JSON text".to_owned()),
        }
    }

    /// Fails when the client sends too many messages.
    fn keep_pace(&self) -> Result<(), GatewayError> {
        if self.is_driver.load(Ordering::Relaxed) {
            return Ok(());
        }
        let kept = locked(&self.pace).accept(Instant::now());
        kept.map_err(|wait| GatewayError::RateLimited { retry_after_ms: wait.as_millis() as u64 + 1 })
    }

    fn parse(&self, text: &Text) -> Result<(Asked, Needs), GatewayError> {
        self.keep_pace()?;
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(GatewayError::MessageTooLarge { bytes_max: MESSAGE_BYTES_MAX });
        }
        let value: Value = serde_json::from_str(text).map_err(|error| GatewayError::InvalidJson(error.to_string()))?;
        let Value::Object(object) = value else {
            return Err(GatewayError::InvalidMessage("send a JSON object with a type".to_owned()));
        };
        self.recognise(&object)
    }

    fn recognise(&self, object: &Object) -> Result<(Asked, Needs), GatewayError> {
        let name = object.get("type").and_then(Value::as_str);
        let row = name.and_then(messages::find);
        let is_open = row.is_some_and(|row| row.needs == Needs::Nothing);
        if !is_open && self.person().is_none() {
            return Err(GatewayError::AuthRequired);
        }
        let Some(row) = row else {
            let name: String = name.unwrap_or("(none)").chars().take(64).collect();
            return Err(GatewayError::InvalidMessage(format!("type: {name:?} is not a message of this protocol")));
        };
        let asked = messages::read(row, object).map_err(|error| GatewayError::InvalidMessage(error.0))?;
        Ok((asked, row.needs))
    }

    pub fn person(&self) -> Option<Arc<Person>> {
        self.person.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The user and the role that he has now. `None` before `authenticate`.
    pub async fn speaker(&self) -> Option<Speaker> {
        let person = self.person()?;
        let role = self.gateway.role_of(&person).await;
        Some(Speaker { person, role })
    }

    fn authenticate(&self, token: &str) -> Result<(), CloseReason> {
        let presented = Presented { token: Some(token), certificate: None, from: self.peer.ip() };
        match self.credentials.check(presented) {
            Ok(_) if token.is_empty() => self.failed("token: give a token".to_owned()),
            Ok(identity) => self.admit(&identity),
            Err(refused) => self.login_failed(refused),
        }
    }

    fn login_failed(&self, refused: LoginError) -> Result<(), CloseReason> {
        audit::refused_login(self.peer.ip(), Door::Gateway.name(), refused);
        self.gateway.bus.gate().refused_login(Door::Gateway);
        self.failed(refused.to_string())
    }

    fn failed(&self, why: String) -> Result<(), CloseReason> {
        match self.gateway.failures.failed(self.peer.ip(), now_ms()) {
            Some(retry_after_ms) => self.refuse(&GatewayError::AuthRateLimited { retry_after_ms }),
            None => self.refuse(&GatewayError::AuthFailed(why)),
        }
        match self.failures.fetch_add(1, Ordering::Relaxed) + 1 {
            FAILURES_MAX.. => Err(CloseReason::new(1008, "too many wrong credentials")),
            _fewer => Ok(()),
        }
    }

    /// Lets a user in whose credentials are right. A second time it can only be the same user, with newer credentials.
    fn admit(&self, identity: &Arc<Identity>) -> Result<(), CloseReason> {
        let person = match Person::of(identity) {
            Ok(person) => Arc::new(person),
            Err(error) => return self.failed(error.to_string()),
        };
        if let Some(before) = self.person()
            && !before.is_same_user(&person)
        {
            return self.failed("this connection belongs to another user: open a new one".to_owned());
        }
        let is_first = self.person().is_none();
        *self.person.write().unwrap_or_else(PoisonError::into_inner) = Some(person);
        self.authenticated.notify_waiters();
        match self.work.try_send(Work::Arrived { is_first }) {
            Ok(()) => Ok(()),
            Err(_) => Err(CloseReason::new(1008, "authenticate was sent too often")),
        }
    }

    /// Tells the client who it is, once the store knows it too.
    async fn arrive(self: &Arc<Self>, is_first: bool) {
        let Some(person) = self.person() else { return };
        if let Err(error) = self.gateway.arrive(&person).await {
            tracing::warn!(%error, tenant = &*person.tenant, "whether a user is the first of a tenant is not known");
        }
        let Some(speaker) = self.speaker().await else { return };
        if is_first {
            self.gateway.listens(&person.tenant, self);
            self.follow_tenant(&speaker);
        }
        self.send(&person.frame(speaker.role));
    }

    fn follow_tenant(self: &Arc<Self>, speaker: &Speaker) {
        match tenant_feed::open(self, speaker) {
            Ok(stream) => self.spawn(tenant_feed::follow(self.clone(), stream)),
            Err(error) => self.refuse(&error),
        }
    }

    /// Runs something as long as the connection lives.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Does what clients ask for, one message after another.
    async fn work(self: &Arc<Self>, mut waiting: mpsc::Receiver<Work>) -> CloseReason {
        while let Some(work) = waiting.recv().await {
            match work {
                Work::Arrived { is_first } => self.arrive(is_first).await,
                Work::Asked(asked, needs) => {
                    if let Err(error) = self.answer(asked, needs).await {
                        self.refuse(&error);
                    }
                    self.busy.add_permits(1);
                }
            }
        }
        std::future::pending().await
    }

    async fn answer(self: &Arc<Self>, asked: Asked, needs: Needs) -> Result<(), GatewayError> {
        let speaker = self.speaker().await.ok_or(GatewayError::AuthRequired)?;
        match needs {
            Needs::Role(needs) if speaker.role < needs => {
                return Err(GatewayError::Forbidden { needs, has: speaker.role });
            }
            Needs::Driver | Needs::AttachedDriver if !speaker.person.may_drive() => {
                let why = "the token of a driver must be allowed to write and to register functions: role app";
                return Err(GatewayError::TokenForbids(why.to_owned()));
            }
            // Whatever the member's role is: the token decides what the caller may do in the store.
            Needs::Role(needs) if needs > MemberRole::Viewer && !speaker.person.identity.may(Action::Write) => {
                let refused = CallError::forbidden(&speaker.person.identity, Action::Write);
                return Err(GatewayError::TokenForbids(refused.message()));
            }
            Needs::Nothing | Needs::Role(_) | Needs::Driver | Needs::AttachedDriver => {}
        }
        let gateway = &self.gateway;
        if let Some(id) = asked.session() {
            gateway.session(&speaker, id, Reads::Fresh).await?;
        }
        match asked {
            // Answered by the reader.
            Asked::Ping { .. } | Asked::Authenticate { .. } => {}
            Asked::ListSessions { include_archived } => {
                self.send(&gateway.list_sessions(&speaker, include_archived).await?);
            }
            Asked::CreateSession { agent_type, name } => {
                let id = Uuid::new_v4().to_string();
                self.remember_created(&id);
                let created = gateway.create_session(&speaker, &id, &agent_type, name.as_deref()).await;
                self.send(&created.inspect_err(|_| {
                    self.forget_created(&id);
                })?);
            }
            Asked::RenameSession { session, name } => gateway.rename_session(&speaker, &session, &name).await?,
            Asked::SetArchived { session, archived } => {
                self.send(&gateway.set_archived(&speaker, &session, archived).await?);
            }
            Asked::DeleteSession { session } => gateway.delete_session(&speaker, &session).await?,
            Asked::Members(action) => self.send(&gateway.manage_members(&speaker, action).await?),
            Asked::Join { session, after_seq } => follow::join(self, &speaker, &session, after_seq).await?,
            Asked::Leave { session } => self.leave(&session),
            Asked::RunTurn { session, text, client_turn_id } => {
                let run = self.clone().run_turn(speaker, session, text, client_turn_id);
                self.slowly(run).await;
            }
            Asked::StopTurn { session } => self.slowly(self.clone().stop_turn(speaker, session)).await,
            Asked::Steer { session, content } => self.steer(&speaker, &session, content).await?,
            Asked::Answer { session, request_id, reply } => {
                self.slowly(self.clone().answer_request(speaker, session, request_id, reply)).await;
            }
            Asked::SetMode { session, mode } => {
                self.slowly(self.clone().set(speaker, session, Order::SetMode { mode })).await;
            }
            Asked::SetProfile { session, profile } => {
                self.slowly(self.clone().set(speaker, session, Order::SetProfile { profile })).await;
            }
            Asked::UpdateSettings { session, settings } => {
                let settings = Json::print(&settings);
                self.slowly(self.clone().set(speaker, session, Order::SetSettings { settings })).await;
            }
            Asked::History { session, before_id, limit } => {
                let items = gateway.history(&speaker, &session, before_id.as_deref(), limit).await?;
                self.send(&json!({ "type": "history", "sessionId": session, "items": items }));
            }
            Asked::Events { session, after_seq, limit } => {
                let page = gateway.journal(&speaker, &session, after_seq, limit as usize, Reads::Fresh).await?;
                self.send(&json!({ "type": "events", "sessionId": session, "events": page.events }));
            }
            Asked::Relay { name, reply, family, session, body } => {
                let relay = Relay { name, reply, family, session, body };
                self.slowly(self.clone().relay(speaker, relay)).await;
            }
            Asked::AttachDriver(terms) => self.attach_driver(&speaker, terms).await?,
            Asked::Emit { turn_id, n, events } => self.emit(&speaker, &turn_id, n, events).await?,
            Asked::CommandResult { command_id, outcome } => {
                self.command_result(&speaker, command_id, outcome).await?;
            }
        }
        Ok(())
    }

    /// Does something that may wait for a driver, beside the messages that follow.
    async fn slowly(&self, task: impl Future<Output = Result<(), GatewayError>> + Send + 'static) {
        // The semaphore is never closed.
        let Ok(permit) = self.waits.clone().acquire_owned().await else { return };
        let outbox = self.outbox.clone();
        self.spawn(async move {
            if let Err(error) = task.await {
                outbox.push(error.frame(), Class::Other);
            }
            drop(permit);
        });
    }

    /// Remembers that this connection creates a session, so that its event is not told to it as news.
    pub fn remember_created(&self, id: &str) {
        let mut created = locked(&self.created);
        if created.len() < CREATED_MAX {
            created.insert(id.to_owned());
        }
    }

    pub fn forget_created(&self, id: &str) -> bool {
        locked(&self.created).remove(id)
    }

    /// Resolves when the client did not authenticate in time, or when its credentials no longer hold.
    async fn lapse(&self) -> CloseReason {
        let known = async {
            loop {
                let authenticated = self.authenticated.notified();
                tokio::pin!(authenticated);
                authenticated.as_mut().enable();
                if self.person().is_some() {
                    return;
                }
                authenticated.await;
            }
        };
        if timeout(AUTHENTICATE_MAX, known).await.is_err() {
            return CloseReason::new(1008, format!("no authenticate within {AUTHENTICATE_MAX:?}"));
        }
        while let Some(person) = self.person() {
            self.credentials.lapsed(&person.identity).await;
            // The client may have presented newer credentials meanwhile.
            if self.person().is_none_or(|now| !self.credentials.hold(&now.identity)) {
                break;
            }
        }
        CloseReason::new(1008, "the credentials no longer hold: connect again with new ones")
    }

    /// Tells clients that follow a session that the connection lives.
    async fn beat(&self) -> CloseReason {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            if !locked(&self.joined).is_empty() {
                self.send(&json!({ "type": "heartbeat", "ts": now_ms() }));
            }
        }
    }

    /// Follows a session from now on, instead of what followed it before.
    pub fn follow(&self, session: &str, following: impl Future<Output = ()> + Send + 'static) {
        let task = AbortOnDropHandle::new(tokio::spawn(following));
        if locked(&self.joined).insert(session.to_owned(), task).is_none() {
            self.gateway.audience.joined(session);
        }
    }

    pub fn follows(&self, session: &str) -> bool {
        locked(&self.joined).contains_key(session)
    }

    /// The client is about to join a session, until this is dropped. The worker joins one at a time.
    pub fn joining(&self, session: &str) -> Joining<'_> {
        *locked(&self.joining) = Some(session.to_owned());
        Joining(self)
    }

    /// Whether the follower of the session sends this client its events, now or as soon as it has joined. An event that is
    /// sent by another way would arrive twice, or before earlier ones.
    pub fn has_joined(&self, session: &str) -> bool {
        self.follows(session) || locked(&self.joining).as_deref() == Some(session)
    }

    pub fn leave(&self, session: &str) {
        if locked(&self.joined).remove(session).is_some() {
            self.gateway.audience.left(session);
        }
    }

    /// Fails when the client follows as many sessions as it may.
    pub fn check_room(&self, session: &str) -> Result<(), GatewayError> {
        let joined = locked(&self.joined);
        match joined.len() >= JOINED_MAX && !joined.contains_key(session) {
            true => Err(GatewayError::TooManySessions { max: JOINED_MAX }),
            false => Ok(()),
        }
    }

    pub fn asks_to_stop(&self, session: &str) {
        locked(&self.stops).insert(session.to_owned());
    }

    /// Whether the client asked to stop the turn of a session and was not told yet that it is.
    pub fn takes_stop(&self, session: &str) -> bool {
        locked(&self.stops).remove(session)
    }

    /// A driver has no limit of messages.
    pub fn become_driver(&self) {
        self.is_driver.store(true, Ordering::Relaxed);
    }

    pub fn expect_reply(&self, command_id: &str, reply: oneshot::Sender<DriverReply>) {
        locked(&self.replies).insert(command_id.to_owned(), reply);
    }

    pub fn forget_reply(&self, command_id: &str) -> Option<oneshot::Sender<DriverReply>> {
        locked(&self.replies).remove(command_id)
    }

    /// Completes when the node shuts down and the messages in progress are answered, or took too long.
    async fn drain(&self, shutdown: &CancellationToken) -> CloseReason {
        shutdown.cancelled().await;
        self.send(&json!({ "type": "server_shutdown", "reason": "the node is shutting down", "ts": now_ms() }));
        let _ = timeout(DRAIN_MAX, self.busy.acquire_many(WAITING_MAX as u32)).await;
        CloseReason::new(1001, "the node is shutting down: go to another one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_both_speak() {
        for (query, spoken) in [
            (None, Some(1)),
            (Some("a=b"), Some(1)),
            (Some("protocolVersion=1"), Some(1)),
            (Some("a=b&protocolVersion=2"), Some(2)),
            (Some("protocolVersion=9"), None),
            (Some("protocolVersion="), None),
            (Some("protocolVersion=two"), None),
        ] {
            assert_eq!(version(query), spoken, "{query:?}");
        }
    }
}
