//! The bridge adapter: an edge node whose data is stored at another node, the main, reached over the main's bus.
//!
//! Owns: `BridgeAdapter`. Calls are relayed to a main of this project, which decides them. A main that only stores
//! records cannot decide: then the machine runs here over fetched records (`records`), one mutation per session at a
//! time (`per_session_lock`). `main_client` connects, fails over and retries; `handshake` finds out what kind of main
//! answers; `main_feed` receives the main's events; `connection` is the interface to a bus, `sdk` its implementation.
//! Never: store data, or publish an event that did not come from the main.

pub mod connection;
pub mod error;
mod handshake;
mod main_client;
mod main_feed;
mod per_session_lock;
mod records;
pub mod sdk;

use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use self::connection::Connector;
use self::error::BridgeError;
use self::handshake::{MainKind, NameStyle};
pub use self::main_client::{Address, BridgeSettings};
use self::main_client::{Effect, MainClient};
use self::main_feed::MainFeed;
pub use self::main_feed::OnFirstConnect;
use self::records::RemoteRecords;
use super::mint::Mint;
use super::{Adapter, AdapterError, Freshness, Intent, Proposal, Relayed};
use crate::events::EventSink;
use crate::machine::ids::RequestId;
use crate::machine::json::integer_beyond_64_bits;
use crate::machine::refusal::Refusal;
use crate::machine::{Answer, Found, Query};

pub struct BridgeAdapter {
    main: Arc<MainClient>,
    records: RemoteRecords,
    mint: Arc<dyn Mint>,
}

impl BridgeAdapter {
    /// Connects to the first main that can be used. The error names each configured key and what is wrong with it.
    pub async fn open(
        settings: BridgeSettings,
        connector: Arc<dyn Connector>,
        mint: Arc<dyn Mint>,
        sink: Arc<dyn EventSink>,
        on_first_connect: Option<OnFirstConnect>,
    ) -> Result<BridgeAdapter, BridgeError> {
        // Indexes start from the clock, so that a restarted bridge does not give the same position twice.
        let last_index = u64::try_from(mint.stamp().at_ms).unwrap_or(0) << 16;
        let feed = Arc::new(MainFeed::new(sink, last_index, on_first_connect));
        let main = MainClient::connect(settings, connector, feed).await?;
        let names = match main.kind() {
            MainKind::Deciding { .. } => NameStyle::Kebab,
            MainKind::RecordsOnly(names) => *names,
        };
        let records = RemoteRecords::new(main.clone(), names, mint.clone());
        Ok(BridgeAdapter { main, records, mint })
    }

    /// Why calls cannot be served at the moment; `None` if they can.
    pub fn trouble(&self) -> Option<String> {
        self.main.trouble()
    }

    /// Disconnects from the main. Later calls fail as unavailable.
    pub fn close(&self) {
        self.main.close();
    }

    /// Sends a call to a main that decides, and returns its answer.
    async fn relay_to_main(&self, call: Relayed<'_>, deadline: Instant) -> Result<String, AdapterError> {
        let deadline = self.main.limit(deadline);
        let mut body = parse_body(call.body)?;
        let answer = match call.intent {
            Intent::Read { page } => {
                if let Some((page, fields)) = page.zip(body.as_object_mut()) {
                    fields.insert("limit".to_owned(), page.into());
                }
                self.main.call(call.function_id, &body, Effect::Read, deadline).await?
            }
            Intent::Change => {
                // One request id for all retries. It carries the time of the main's log, because the main expires the
                // answers it keeps for dedup by that.
                let request_id = RequestId::new(self.main.now_ms(deadline).await?, self.mint.request_id().0);
                let proposal = json!({
                    "request_id": format!("{:032x}", request_id.0),
                    "function": call.function_id,
                    "request": body,
                });
                self.main.call("session::store::propose", &proposal, Effect::Write, deadline).await?
            }
        };
        Ok(answer.to_string())
    }
}

impl Adapter for BridgeAdapter {
    /// Decides here, over records fetched from the main.
    fn propose(&self, proposal: Proposal) -> BoxFuture<'_, Result<Answer, AdapterError>> {
        if proposal.request_id.is_some() {
            let why = "a bridge does not store request ids; send the call to its main";
            return std::future::ready(Err(AdapterError::Unavailable(why.to_owned()))).boxed();
        }
        self.records.propose(proposal.command, self.main.limit(proposal.deadline)).boxed()
    }

    fn ask(&self, query: Query, _: Freshness, deadline: Instant) -> BoxFuture<'_, Result<Found, AdapterError>> {
        self.records.ask(query, self.main.limit(deadline)).boxed()
    }

    fn relay<'a>(
        &'a self,
        call: Relayed<'a>,
        deadline: Instant,
    ) -> Option<BoxFuture<'a, Result<String, AdapterError>>> {
        match self.main.kind() {
            MainKind::Deciding { .. } => Some(self.relay_to_main(call, deadline).boxed()),
            MainKind::RecordsOnly(_) => None,
        }
    }
}

impl Drop for BridgeAdapter {
    fn drop(&mut self) {
        self.main.close();
    }
}

/// The body was validated before; an empty body is an empty object.
fn parse_body(body: &str) -> Result<Value, AdapterError> {
    match body.trim_ascii() {
        "" | "null" => Ok(json!({})),
        body if integer_beyond_64_bits(body).is_some() => {
            // The SDK parses what it sends.
            let number: String = integer_beyond_64_bits(body).unwrap_or_default().chars().take(80).collect();
            Err(AdapterError::Refused(Refusal::RequestInvalid(format!(
                "the integer {number} does not fit 64 bits, and a bridge cannot pass it on unchanged: write it as a string"
            ))))
        }
        body => serde_json::from_str(body).map_err(|error| AdapterError::Unavailable(format!("the body: {error}"))),
    }
}

#[cfg(test)]
mod tests;
