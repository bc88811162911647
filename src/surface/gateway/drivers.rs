//! Owns: drivers that are connected to the gateway: attaching, the commands they get and their answers, and the requests
//! of front-ends that a driver answers instead of the store.
//! Never: what a turn does (`machine::turn`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::connection::Connection;
use super::errors::GatewayError;
use super::messages::{DriverTerms, Family};
use super::sessions::Speaker;
use super::turns::agent_of;
use super::{Gateway, Reads};
use crate::access::credentials::now_ms;
use crate::events::filter::{Filter, Kinds};
use crate::events::stream::{Item, Stream};
use crate::machine::apply::beside::Beside;
use crate::machine::event::EventKind;
use crate::machine::gateway::GatewayCommand;
use crate::machine::gateway::relay::RELAYS;
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, Object};
use crate::machine::query::beside::BesideQuery;
use crate::machine::turn::choose;
use crate::machine::turn::driver::{Agent, AttachDriver, DriverRecord};
use crate::machine::turn::events::{EventName, Fields};
use crate::machine::turn::{TurnCommand, TurnQuery};
use crate::surface::gate::{Call, Caller};
use crate::surface::locked;

/// A driver that is connected is seen this often. It is gone after three times as long.
const SEEN_EVERY: Duration = Duration::from_secs(3);
/// How long a driver may take to answer a request of a front-end.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The command that offers a turn.
const RUN_TURN: &str = "run_turn";
/// The commands that come from another node.
const RELAYED: &str = "relay-";
/// The function that stands for "over this WebSocket" in the record of a driver.
const OVER_SOCKET: &str = "gateway";

impl Connection {
    /// Makes this connection a driver.
    pub(super) async fn attach_driver(
        self: &Arc<Self>,
        speaker: &Speaker,
        terms: DriverTerms,
    ) -> Result<(), GatewayError> {
        let asked_id = terms.driver_id;
        let terms = DriverTerms { driver_id: own_id(speaker, &asked_id), ..terms };
        let record = AttachDriver {
            driver_id: terms.driver_id.clone(),
            agent_ids: None,
            agent_types: Some(terms.agent_types.clone()).filter(|types| !types.is_empty()),
            tenants: Some(vec![speaker.person.tenant.to_string()]),
            session_id: terms.session_id.as_deref().map(SessionId::from),
            metadata: Object::new(),
            families: terms.families.iter().map(|family| (family.name().to_owned(), OVER_SOCKET.to_owned())).collect(),
            node: Some(self.id.clone()),
        };
        if self.driver.get().is_some_and(|driver| *driver != terms) {
            return Err(GatewayError::InvalidMessage("driver_id: this connection is another driver".to_owned()));
        }
        let kinds = Kinds::of([EventKind::TurnRequested, EventKind::TurnCommand]);
        let filter = Filter::of_stream(kinds, None, None, Object::new()).within(speaker.person.scope());
        let streams = [self.gateway.subscribe(filter)?, self.gateway.subscribe_to_relays(speaker)?];
        self.gateway.change(None, Beside::Turn(TurnCommand::Attach(record.clone()))).await?;
        let is_first = self.driver.set(terms.clone()).is_ok();
        self.send(&json!({ "type": "driver_attached", "driver_id": asked_id }));
        if is_first {
            self.become_driver();
            self.gateway.add_driver(&terms.driver_id, self);
            let keep = self.clone();
            self.spawn(async move { keep.stay_attached(record).await });
            let (told, speaker) = (self.clone(), speaker.clone());
            self.spawn(told.tell_commands(streams, speaker, terms));
        }
        Ok(())
    }

    /// Tells the driver about turns that wait for it and about commands for its turns.
    async fn tell_commands(self: Arc<Self>, [stream, relays]: [Stream; 2], speaker: Speaker, terms: DriverTerms) {
        // What was asked before it came.
        if let Ok(waiting) = self.call_turn(&speaker, "pending", json!({})).await {
            for payload in waiting["turns"].as_array().into_iter().flatten() {
                self.offer(payload, &speaker, &terms);
            }
        }
        loop {
            let item = tokio::select! {
                item = stream.next() => item,
                item = relays.next() => item,
            };
            let Item::Event(committed, _) = item else { continue };
            self.outbox.room_for_events().await;
            let Ok(mut payload) = committed.payload().parse::<Value>() else { continue };
            match committed.event.kind() {
                EventKind::TurnRequested => self.offer(&payload, &speaker, &terms),
                EventKind::StreamEvent => {
                    let request = payload["relay"].take();
                    if request["driver_id"] == terms.driver_id.as_str() {
                        self.command(request);
                    }
                }
                _command if payload["driver_id"] == terms.driver_id.as_str() => self.command(payload),
                _of_another_driver => {}
            }
        }
    }

    /// Offers a turn to the driver, if it runs the agent and is asked. The first driver that accepts gets it.
    fn offer(&self, payload: &Value, speaker: &Speaker, terms: &DriverTerms) {
        let of_type =
            |name: &Value| terms.agent_types.is_empty() || terms.agent_types.iter().any(|known| name == known);
        let is_ours = payload["tenant"].as_str().is_none_or(|tenant| tenant == &*speaker.person.tenant);
        let of_session = terms.session_id.as_ref().is_none_or(|session| payload["session_id"] == session.as_str());
        // First one driver is asked, then the others.
        let is_asked = payload[choose::ASKED].as_str().is_none_or(|asked| asked == terms.driver_id)
            && payload[choose::NOT_TAKEN_BY] != terms.driver_id.as_str();
        if of_type(&payload["agent_type"]) && is_ours && of_session && is_asked {
            let mut command = payload.clone();
            command["command"] = Value::from(RUN_TURN);
            command["command_id"] = payload["turn_id"].clone();
            self.command(command);
        }
    }

    fn command(&self, mut payload: Value) {
        payload["type"] = Value::from("driver_command");
        self.send(&payload);
    }

    /// Calls a function of `session::turn::*` as the user of the driver's token.
    async fn call_turn(&self, speaker: &Speaker, name: &str, body: Value) -> Result<Value, GatewayError> {
        let function = format!("session::turn::{name}");
        self.gateway.call(&speaker.person.caller, &function, body, Reads::Fresh).await
    }

    fn driver_id(&self) -> Result<&str, GatewayError> {
        let missing = || GatewayError::InvalidMessage("send attach_driver first".to_owned());
        self.driver.get().map(|terms| terms.driver_id.as_str()).ok_or_else(missing)
    }

    pub(super) async fn emit(
        &self,
        speaker: &Speaker,
        turn_id: &str,
        n: u64,
        events: Vec<Value>,
    ) -> Result<(), GatewayError> {
        let body = json!({ "turn_id": turn_id, "driver_id": self.driver_id()?, "n": n, "events": events });
        let mut emitted = self.call_turn(speaker, "emit", body).await?;
        emitted["type"] = Value::from("emitted");
        emitted["turn_id"] = Value::from(turn_id);
        self.send(&emitted);
        Ok(())
    }

    /// What a driver says about a command: a request of a front-end, a turn that it takes, or another command.
    pub(super) async fn command_result(
        &self,
        speaker: &Speaker,
        command_id: String,
        outcome: Result<Value, String>,
    ) -> Result<(), GatewayError> {
        let driver_id = self.driver_id()?;
        if let Some(reply) = self.forget_reply(&command_id) {
            // Nobody waits any more if the front-end's time is over.
            let _ = reply.send(outcome);
            return Ok(());
        }
        // A front-end at another node waits for it.
        if command_id.starts_with(RELAYED) {
            let told = match outcome {
                Ok(result) => json!({ "relayed": command_id, "result": result }),
                Err(error) => json!({ "relayed": command_id, "error": error }),
            };
            return self.gateway.tell_nodes(&speaker.person.tenant, &told).await;
        }
        // The commands of a turn are numbered, `<number>.<turn>`.
        if command_id.contains('.') {
            let body = match outcome {
                Ok(_) => json!({ "command_id": command_id, "driver_id": driver_id, "accepted": true }),
                Err(error) => json!({ "command_id": command_id, "driver_id": driver_id, "error": error }),
            };
            self.call_turn(speaker, "ack", body).await?;
        } else if outcome.is_ok() {
            let body = json!({ "turn_id": command_id, "driver_id": driver_id });
            let mut claimed = self.call_turn(speaker, "claim", body).await?;
            claimed["type"] = Value::from("turn_claimed");
            claimed["turn_id"] = Value::from(command_id);
            self.send(&claimed);
        }
        Ok(())
    }

    /// Asks a driver for what the store does not have.
    pub(super) async fn relay(self: Arc<Self>, speaker: Speaker, request: Relay) -> Result<(), GatewayError> {
        let agent = match &request.session {
            Some(session) => {
                let meta = self.gateway.session(&speaker, session, Reads::Local).await?;
                agent_of(&meta, &speaker.person)
            }
            None => Agent { tenant: Some(speaker.person.tenant.to_string()), ..Agent::default() },
        };
        let reply = self.gateway.relay(&speaker, &agent, &request).await?;
        match (&request.session, EventName::find(request.reply)) {
            (Some(session), Some(event)) if event.is_numbered() => self.keep_answer(&speaker, session, reply).await,
            _reply_to_this_client => {
                self.send(&reply);
                Ok(())
            }
        }
    }

    /// Says that the driver behind this connection is gone. If it does not come back, it was not lost with this node.
    pub(super) fn detach_driver(self: &Arc<Self>) {
        let Some(terms) = self.driver.get() else { return };
        let (gateway, driver_id, node) = (self.gateway.clone(), terms.driver_id.clone(), Some(self.id.clone()));
        tokio::spawn(async move {
            let detach = Beside::Turn(TurnCommand::Detach { driver_id, node });
            if let Err(error) = gateway.change(None, detach).await {
                tracing::debug!(%error, "a driver that left could not be detached");
            }
        });
    }

    /// Keeps the record of the driver alive, as long as the connection lives.
    async fn stay_attached(&self, record: AttachDriver) {
        loop {
            tokio::time::sleep(SEEN_EVERY).await;
            let seen = self.gateway.change(None, Beside::Turn(TurnCommand::Attach(record.clone()))).await;
            if let Err(error) = seen {
                tracing::debug!(%error, driver = record.driver_id, "a driver could not be seen");
            }
        }
    }
}

/// Drivers of all tenants share one space of names: nobody takes the name of another tenant's driver here.
fn own_id(speaker: &Speaker, driver_id: &str) -> String {
    match speaker.person.is_dev {
        true => driver_id.to_owned(),
        false => format!("{}:{driver_id}", speaker.person.tenant),
    }
}

impl Gateway {
    fn add_driver(&self, driver_id: &str, connection: &Arc<Connection>) {
        let mut drivers = locked(&self.drivers);
        drivers.retain(|_, connection| connection.strong_count() > 0);
        drivers.insert(driver_id.to_owned(), Arc::downgrade(connection));
    }

    /// The drivers that are attached now.
    async fn attached_drivers(&self) -> Result<Vec<DriverRecord>, GatewayError> {
        let records: Vec<DriverRecord> = self.ask(None, BesideQuery::Turn(TurnQuery::Drivers), Reads::Local).await?;
        let now_ms = now_ms();
        Ok(records.into_iter().filter(|record| record.seen_until > now_ms).collect())
    }

    /// Asks the driver that offers a family, and returns its reply as the event that answers the front-end.
    async fn relay(&self, speaker: &Speaker, agent: &Agent, request: &Relay) -> Result<Value, GatewayError> {
        let drivers = self.attached_drivers().await?;
        let offers = |record: &&DriverRecord| {
            let driver = &record.driver;
            let of_tenant =
                || driver.tenants.as_ref().is_none_or(|names| agent.tenant.iter().all(|tenant| names.contains(tenant)));
            // What concerns no session concerns no agent either.
            let serves = if request.session.is_some() { driver.serves(agent) } else { of_tenant() };
            let tenant = speaker.person.scope();
            let may_run = record.sees(tenant.as_ref().map(|scope| scope.fields()));
            serves && may_run && driver.families.contains_key(request.family.name())
        };
        let answer = match drivers.iter().find(offers) {
            Some(record) => Some(self.ask_driver(record, speaker, request).await),
            None => None,
        };
        let family = request.family.name();
        let nobody = || {
            let why = format!("no driver is attached that offers {family}");
            Err(GatewayError::AgentUnavailable(why))
        };
        match answer.unwrap_or_else(nobody)? {
            Value::Object(mut fields) => {
                request.check(&fields)?;
                fields.insert("type".to_owned(), Value::from(request.reply));
                if let Some(session) = &request.session {
                    fields.insert("sessionId".to_owned(), Value::from(session.as_str()));
                }
                Ok(Value::Object(fields))
            }
            _other => Err(GatewayError::AgentError(format!("the driver's answer for {family} is no object"))),
        }
    }

    /// Asks a driver wherever it is connected.
    async fn ask_driver(
        &self,
        record: &DriverRecord,
        speaker: &Speaker,
        request: &Relay,
    ) -> Result<Value, GatewayError> {
        let (driver_id, function) = (&record.driver.driver_id, &record.driver.families[request.family.name()]);
        let here = match function.as_str() {
            OVER_SOCKET => self.relay_to_socket(driver_id, speaker, request).await,
            function => self.relay_to_function(function, speaker, request).await,
        };
        match here {
            Some(answer) => answer,
            None => self.relay_to_node(driver_id, speaker, request).await,
        }
    }

    /// `None` when the driver is not connected to this node.
    async fn relay_to_socket(
        &self,
        driver_id: &str,
        speaker: &Speaker,
        request: &Relay,
    ) -> Option<Result<Value, GatewayError>> {
        let connection = locked(&self.drivers).get(driver_id)?.upgrade()?;
        let command_id = Uuid::new_v4().to_string();
        let mut command = request.command(&command_id, speaker);
        command["type"] = Value::from("driver_command");
        let (reply, replied) = oneshot::channel();
        connection.expect_reply(&command_id, reply);
        connection.send(&command);
        let outcome = tokio::time::timeout(ANSWER_MAX, replied).await;
        connection.forget_reply(&command_id);
        Some(match outcome {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(Ok(Err(error))) => Err(GatewayError::AgentError(error)),
            Ok(Err(_)) => Err(GatewayError::AgentUnavailable("the driver is gone".to_owned())),
            Err(_) => Err(GatewayError::AgentError(format!("the driver did not answer within {ANSWER_MAX:?}"))),
        })
    }

    /// Asks a driver that is connected to another node.
    async fn relay_to_node(&self, driver_id: &str, speaker: &Speaker, request: &Relay) -> Result<Value, GatewayError> {
        let relays = self.subscribe_to_relays(speaker)?;
        let command_id = format!("{RELAYED}{}", Uuid::new_v4());
        let mut command = request.command(&command_id, speaker);
        command["driver_id"] = Value::from(driver_id);
        self.tell_nodes(&speaker.person.tenant, &json!({ "relay": command })).await?;
        let answered = async {
            loop {
                let Item::Event(committed, _) = relays.next().await else { continue };
                let Ok(mut told) = committed.payload().parse::<Value>() else { continue };
                if told["relayed"] == command_id.as_str() {
                    return match told["error"].as_str() {
                        Some(error) => Err(GatewayError::AgentError(error.to_owned())),
                        None => Ok(told["result"].take()),
                    };
                }
            }
        };
        match tokio::time::timeout(ANSWER_MAX, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(GatewayError::AgentError(format!("the driver did not answer within {ANSWER_MAX:?}"))),
        }
    }

    /// Tells all nodes about a request for a driver, or its answer.
    pub(super) async fn tell_nodes(&self, tenant: &str, payload: &Value) -> Result<(), GatewayError> {
        let command = GatewayCommand::Relay { tenant: tenant.to_owned(), payload: Json::print(payload) };
        self.change(None, Beside::Gateway(command)).await?;
        Ok(())
    }

    fn subscribe_to_relays(&self, speaker: &Speaker) -> Result<Stream, GatewayError> {
        let kinds = Kinds::of([EventKind::StreamEvent]);
        let filter = Filter::of_stream(kinds, Some(SessionId::from(RELAYS)), None, Object::new());
        self.subscribe(filter.within(speaker.person.scope()))
    }

    /// `None` when no client of this node's bus serves the function.
    async fn relay_to_function(
        &self,
        function: &str,
        speaker: &Speaker,
        request: &Relay,
    ) -> Option<Result<Value, GatewayError>> {
        let within = speaker.person.caller.clone();
        let whole_store = Caller { identity: speaker.person.identity.clone(), ..within.clone() };
        let serves = |caller: &Caller| self.bus.serves_for(&caller.identity, function);
        let caller = [within, whole_store].into_iter().find(serves)?;
        let mut body = Value::Object(request.body.clone());
        body["request"] = Value::from(request.name);
        body["tenant"] = Value::from(&*speaker.person.tenant);
        body["user"] = Value::from(&*speaker.person.user);
        let call = Call::new(function, body.to_string(), self.bus.gate().deadline(), caller);
        Some(match tokio::time::timeout(ANSWER_MAX, self.bus.call(call)).await {
            Ok(Ok(answer)) => serde_json::from_str(&answer.into_text())
                .map_err(|_| GatewayError::AgentError("the driver's answer is not JSON".to_owned())),
            Ok(Err(error)) => Err(GatewayError::AgentError(error.message())),
            Err(_) => Err(GatewayError::AgentError(format!("the driver did not answer within {ANSWER_MAX:?}"))),
        })
    }
}

fn fields_of(object: &Object) -> Fields {
    object.iter().map(|(name, value)| (name.clone(), Json::print(value))).collect()
}

/// A request of a front-end that a driver answers.
pub struct Relay {
    pub name: &'static str,
    pub reply: &'static str,
    pub family: Family,
    pub session: Option<String>,
    pub body: Object,
}

impl Relay {
    /// Fails when a driver's answer has not the shape of the event that it becomes.
    fn check(&self, answer: &Object) -> Result<(), GatewayError> {
        let Some(event) = EventName::find(self.reply) else { return Ok(()) };
        event.check(&fields_of(answer)).map_err(|why| GatewayError::AgentError(format!("the driver's answer: {why}")))
    }

    /// The request as the driver gets it.
    fn command(&self, command_id: &str, speaker: &Speaker) -> Value {
        let mut command = Value::Object(self.body.clone());
        command["command_id"] = Value::from(command_id);
        command["command"] = Value::from(self.name);
        command["family"] = Value::from(self.family.name());
        command["tenant"] = Value::from(&*speaker.person.tenant);
        command["user"] = Value::from(&*speaker.person.user);
        command
    }
}
