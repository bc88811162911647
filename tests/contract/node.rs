//! Owns: one node in memory for transcripts. The script sets its clock, and its events are recorded.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use session_manager::events::{Committed, EventSink};
use session_manager::machine::Command;
use session_manager::machine::apply::delete::DeleteSession;
use session_manager::machine::ids::{RequestId, SessionId};
use session_manager::machine::model::profile::Terms;
use session_manager::machine::stamp::Stamp;
use session_manager::mint::Mint;
use session_manager::proposal::Proposal;
use session_manager::proposal::local::LocalAdapter;
use session_manager::requests::Limits;
use session_manager::requests::Printed;
use session_manager::surface::calls::{Calls, Runtime};
use session_manager::surface::{Call, CallError, Caller, Door, Service};

/// A clock that the script sets, and a seed that counts up.
#[derive(Default)]
struct ScriptedMint {
    now_ms: AtomicI64,
    seed: AtomicI64,
}

impl Mint for ScriptedMint {
    fn stamp(&self) -> Stamp {
        Stamp { at_ms: self.now_ms.load(Ordering::SeqCst), seed: self.seed.fetch_add(1, Ordering::SeqCst) as u128 }
    }

    fn request_id(&self) -> RequestId {
        RequestId::NONE
    }
}

#[derive(Default)]
struct RecordedEvents(Mutex<Vec<Arc<Committed>>>);

impl EventSink for RecordedEvents {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        self.0.lock().unwrap().extend(events);
    }
}

pub struct Node {
    calls: Calls,
    mint: Arc<ScriptedMint>,
    events: Arc<RecordedEvents>,
}

impl Node {
    pub fn start() -> Node {
        let (mint, events) = (Arc::new(ScriptedMint::default()), Arc::new(RecordedEvents::default()));
        let adapter =
            LocalAdapter::memory(Arc::clone(&mint) as Arc<dyn Mint>, Arc::clone(&events) as Arc<dyn EventSink>);
        let limits = Limits { default_list_limit: 3, max_list_limit: 5, model: Terms::DEFAULT };
        let runtime = Runtime { limits, ..Runtime::new(Arc::new(adapter)) };
        Node { calls: Calls::new(runtime), mint, events }
    }

    pub fn set_clock(&self, now_ms: i64) {
        self.mint.now_ms.store(now_ms, Ordering::SeqCst);
    }

    /// `None`: no such function.
    pub async fn call(&self, function_id: &str, body: &str) -> Option<Result<String, CallError>> {
        let call = Call::new(function_id, body, deadline(), Caller::unauthenticated(Door::Bus));
        match self.calls.call(&call).await {
            Err(CallError::FunctionUnknown(_)) => None,
            answer => Some(answer.map(Printed::into_text)),
        }
    }

    /// The events of all calls answered so far that were not taken yet.
    pub async fn take_events(&self) -> Vec<Arc<Committed>> {
        // Events are published after the answer. A command that changes nothing, proposed now, comes after them.
        let no_op = DeleteSession { session_id: SessionId::from("no such session") };
        let fence = self.calls.runtime().adapter.propose(Proposal::new(Command::Delete(no_op), deadline())).await;
        fence.expect("the fence is answered");
        std::mem::take(&mut *self.events.0.lock().unwrap())
    }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}
