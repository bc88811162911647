//! Owns: the world of scenarios tagged @door: nodes, clients of the session model at their doors, drivers and workers.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use session_manager::access::Role;
use session_manager::access::token::TokenHash;
use tempfile::TempDir;

use crate::door_client::{Answer, Client, Frame, Socket, Sse, Turn};
use crate::door_nodes::{DoorStore, Nodes, Place};
use crate::json_shorthand::{self, Variables};

/// Long enough for a busy machine. What takes longer counts as a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The store that the scenarios of this round run on.
pub static DOOR: Mutex<DoorStore> = Mutex::new(DoorStore::Memory);

/// The agent that scenarios talk to.
pub const AGENT: &str = "main";
/// Signs the JWTs of people.
const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// The admin of nodes that know people.
const ADMIN: &str = "Ops";

#[derive(cucumber::World)]
#[world(init = Self::start)]
pub struct DoorWorld {
    pub dir: TempDir,
    pub store: DoorStore,
    nodes: Option<Nodes>,
    /// Whether callers need tokens or JWTs. Otherwise everybody is an admin.
    knows_people: bool,
    /// Where clients are that are not at the place of clients.
    pub places: BTreeMap<String, Place>,
    pub variables: Variables,
    /// Answers that no step has looked at, of each client, the oldest first.
    pub answers: BTreeMap<String, VecDeque<BoxFuture<'static, Answer>>>,
    pub streams: BTreeMap<String, Sse>,
    /// The frames with numbers that each client has seen.
    pub seen: BTreeMap<String, Vec<Frame>>,
    pub sockets: BTreeMap<String, Socket>,
    /// The last response on each socket.
    pub responses: BTreeMap<String, Value>,
    pub turns: BTreeMap<String, Turn>,
    /// Requests for checkpoints as workers hear of them.
    pub requests: BTreeMap<String, Sse>,
}

impl fmt::Debug for DoorWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorWorld").field("variables", &self.variables).finish_non_exhaustive()
    }
}

impl DoorWorld {
    async fn start() -> DoorWorld {
        DoorWorld {
            dir: TempDir::new().expect("a directory"),
            store: *DOOR.lock().unwrap(),
            nodes: None,
            knows_people: false,
            places: BTreeMap::new(),
            variables: Variables::new(),
            answers: BTreeMap::new(),
            streams: BTreeMap::new(),
            seen: BTreeMap::new(),
            sockets: BTreeMap::new(),
            responses: BTreeMap::new(),
            turns: BTreeMap::new(),
            requests: BTreeMap::new(),
        }
    }

    /// `settings` is YAML.
    pub async fn start_nodes(&mut self, settings: &str) {
        self.nodes = Some(Nodes::start(self.store, self.dir.path(), settings).await);
    }

    /// Nodes that let nobody in without a token or a JWT.
    pub async fn start_nodes_with_people(&mut self) {
        let (key, tokens) = (self.dir.path().join("key"), self.dir.path().join("tokens"));
        std::fs::write(&key, SECRET).expect("a key");
        let admin = json!({ "name": ADMIN, "role": Role::Admin, "hash": TokenHash::of(ADMIN).to_string() });
        std::fs::write(&tokens, format!("{admin}\n")).expect("a token file");
        // A person needs no role, and one for everybody must not let a person read the sessions of others.
        let jwt = json!({ "key_file": key, "algorithm": "HS256", "default_role": Role::App });
        self.start_nodes(&json!({ "token_file": tokens, "jwt": jwt }).to_string()).await;
        self.knows_people = true;
    }

    pub fn nodes(&mut self) -> &mut Nodes {
        self.nodes.as_mut().expect("the scenario begins with an agent")
    }

    fn at(&self, place: Place, token: Option<String>) -> Client {
        let address = self.nodes.as_ref().expect("the scenario begins with an agent").address(place);
        Client { address, token, agent: AGENT.to_owned() }
    }

    /// Ops has a token of the file; everybody else is a person of the channel `web`. On open nodes a name is a token.
    pub fn client(&self, name: &str) -> Client {
        let place = self.places.get(name).copied().unwrap_or(Place::Clients);
        let is_person = self.knows_people && name != ADMIN;
        self.at(place, Some(if is_person { jwt(&name.to_lowercase(), SECRET) } else { name.to_owned() }))
    }

    /// A driver or a worker, or a program that calls functions.
    pub fn program(&self) -> Client {
        self.at(Place::Drivers, self.knows_people.then(|| ADMIN.to_owned()))
    }

    pub fn json(&self, text: &str) -> Value {
        json_shorthand::read(text, &self.variables)
    }

    pub fn compare(&mut self, expected: &str, actual: &Value, exact: bool) {
        json_shorthand::check(expected, actual, exact, &mut self.variables);
    }

    /// Binds variables only if it is so.
    pub fn is_as(&mut self, expected: &Value, actual: &Value) -> Result<(), String> {
        let mut variables = self.variables.clone();
        json_shorthand::compare(expected, actual, false, &mut variables)?;
        self.variables = variables;
        Ok(())
    }

    pub fn answered(&mut self, name: &str, answer: impl Future<Output = Answer> + Send + 'static) {
        self.answers.entry(name.to_owned()).or_default().push_back(answer.boxed());
    }

    /// The oldest answer that no step has looked at.
    pub async fn answer(&mut self, name: &str) -> Answer {
        let waiting = self.answers.get_mut(name).and_then(VecDeque::pop_front);
        waiting.unwrap_or_else(|| panic!("{name} has asked nothing more")).await
    }

    pub fn stream(&mut self, name: &str) -> &mut Sse {
        self.streams.get_mut(name).unwrap_or_else(|| panic!("{name} follows nothing"))
    }

    /// The next frame of a client's stream. Its number is the next one that the client expects.
    pub async fn frame(&mut self, name: &str) -> Option<Frame> {
        let frame = self.stream(name).next().await?;
        if let Some(id) = &frame.id {
            let id: u64 = id.parse().unwrap_or_else(|_| panic!("{id:?} is no number"));
            let seen = self.seen.entry(name.to_owned()).or_default();
            let before = seen.last().and_then(|frame| frame.id.as_ref()?.parse::<u64>().ok());
            assert!(before.is_none_or(|before| id == before + 1), "after {before:?} came {frame:?}");
            seen.push(frame.clone());
        }
        Some(frame)
    }

    pub fn seen(&self, name: &str) -> &[Frame] {
        self.seen.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn socket(&mut self, name: &str) -> &mut Socket {
        self.sockets.get_mut(name).unwrap_or_else(|| panic!("{name} has no socket"))
    }

    pub fn turn(&mut self, driver: &str) -> &mut Turn {
        self.turns.get_mut(driver).unwrap_or_else(|| panic!("{driver} runs no turn"))
    }

    /// Stops the nodes, and fails a scenario that left an answer unlooked at.
    pub async fn finish(&mut self) {
        self.streams.clear();
        self.sockets.clear();
        self.requests.clear();
        if let Some(nodes) = self.nodes.take() {
            nodes.stop().await;
        }
        let forgotten: Vec<&String> =
            self.answers.iter().filter(|(_, answers)| !answers.is_empty()).map(|(name, _)| name).collect();
        assert!(forgotten.is_empty(), "no step looks at what was answered to {forgotten:?}");
    }
}

/// The JWT of a person of the channel `web`.
pub fn jwt(id: &str, secret: &str) -> String {
    let claims = json!({ "sub": format!("web:{id}"), "channel": "web", "channelUserId": id, "exp": 4_102_444_800_u64 });
    let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a JWT")
}
