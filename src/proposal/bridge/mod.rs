//! An edge instance: the data lives at a main, reached over the main's bus.
//!
//! Owns: `BridgeAdapter`. A main of this project decides whole calls (`relay`); any other main only keeps records, and
//! the machine decides here over records fetched from it (`records`, one session at a time).
//! `mains` keeps the connection, `follow` the feed, `line` is all a bridge needs of a bus, `sdk` the SDK behind it.
//! Never: data of its own, or an event that did not come from the main.

mod follow;
mod introduce;
pub mod line;
mod mains;
mod records;
pub mod sdk;
mod turns;

use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use self::follow::Follower;
pub use self::follow::OnMain;
use self::introduce::{Kind, Spelling};
use self::line::Dial;
pub use self::mains::{Address, BridgeSettings};
use self::mains::{Effect, Mains};
use self::records::Remote;
use super::mint::Mint;
use super::{Adapter, Intent, Relayed, Undone};
use crate::events::EventSink;
use crate::machine::ids::RequestId;
use crate::machine::{Answer, Command, Found, Query};

pub struct BridgeAdapter {
    mains: Arc<Mains>,
    remote: Remote,
    mint: Arc<dyn Mint>,
}

impl BridgeAdapter {
    /// Attaches to the first main that answers. An error names the key of each and what is wrong with it.
    pub async fn open(
        settings: BridgeSettings,
        dial: Arc<dyn Dial>,
        mint: Arc<dyn Mint>,
        sink: Arc<dyn EventSink>,
        on_main: Option<OnMain>,
    ) -> Result<BridgeAdapter, String> {
        // Like the positions of JSONL files: from the clock, so that none is given twice.
        let last_index = u64::try_from(mint.stamp().at_ms).unwrap_or(0) << 16;
        let follower = Arc::new(Follower::new(sink, last_index, on_main));
        let mains = Mains::open(settings, dial, follower).await?;
        let spelling = match mains.kind() {
            Kind::Whole { .. } => Spelling::Kebab,
            Kind::Plain(spelling) => *spelling,
        };
        let remote = Remote::new(mains.clone(), spelling, mint.clone());
        Ok(BridgeAdapter { mains, remote, mint })
    }

    /// Why nothing can be served at the moment, if so.
    pub fn trouble(&self) -> Option<String> {
        self.mains.trouble()
    }

    /// Lets go of the main. Later calls are answered `Unavailable`.
    pub fn close(&self) {
        self.mains.close();
    }

    /// A call at a main that decides.
    async fn relayed(&self, call: Relayed<'_>, deadline: Instant) -> Result<String, Undone> {
        let deadline = self.mains.deadline(deadline);
        let mut body = read(call.body)?;
        let answer = match call.intent {
            Intent::Read { page } => {
                if let Some((page, fields)) = page.zip(body.as_object_mut()) {
                    fields.insert("limit".to_owned(), page.into());
                }
                self.mains.call(call.function_id, &body, Effect::None, deadline).await?
            }
            Intent::Change => {
                // Named once, by the main's clock: it forgets by that one.
                let born_ms = self.mains.attached(deadline).await?.now_ms().unwrap_or(0);
                let request_id = RequestId::new(born_ms, self.mint.request_id().0);
                let proposal = json!({
                    "request_id": format!("{:032x}", request_id.0),
                    "function": call.function_id,
                    "request": body,
                });
                self.mains.call("session::store::propose", &proposal, Effect::Some, deadline).await?
            }
        };
        Ok(answer.to_string())
    }
}

impl Adapter for BridgeAdapter {
    /// Decided here, over the main's records.
    fn propose(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Answer, Undone>> {
        self.remote.propose(command, self.mains.deadline(deadline)).boxed()
    }

    fn ask(&self, query: Query, deadline: Instant) -> BoxFuture<'_, Result<Found, Undone>> {
        self.remote.ask(query, self.mains.deadline(deadline)).boxed()
    }

    fn relay<'a>(&'a self, call: Relayed<'a>, deadline: Instant) -> Option<BoxFuture<'a, Result<String, Undone>>> {
        match self.mains.kind() {
            Kind::Whole { .. } => Some(self.relayed(call, deadline).boxed()),
            Kind::Plain(_) => None,
        }
    }
}

impl Drop for BridgeAdapter {
    fn drop(&mut self) {
        self.mains.close();
    }
}

/// The body was checked already; nothing at all is an empty object.
fn read(body: &str) -> Result<Value, Undone> {
    match body.trim_ascii() {
        "" | "null" => Ok(json!({})),
        body => serde_json::from_str(body).map_err(|error| Undone::Unavailable(format!("the body: {error}"))),
    }
}

#[cfg(test)]
mod tests;
