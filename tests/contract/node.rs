//! One node in memory for transcripts: its clock says what the script says, and its events are caught.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use session_manager::events::{Committed, EventSink};
use session_manager::machine::Command;
use session_manager::machine::apply::delete::DeleteSession;
use session_manager::machine::ids::{RequestId, SessionId};
use session_manager::machine::stamp::Stamp;
use session_manager::proposal::local::LocalAdapter;
use session_manager::proposal::mint::Mint;
use session_manager::requests::Limits;
use session_manager::surface::calls::{Calls, Runtime};
use session_manager::surface::{CallError, Service};

/// A clock that stands still until the script moves on, and a seed that counts along.
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
        RequestId::UNREPEATED
    }
}

#[derive(Default)]
struct Caught(Mutex<Vec<Arc<Committed>>>);

impl EventSink for Caught {
    fn publish(&self, events: Vec<Arc<Committed>>) {
        self.0.lock().unwrap().extend(events);
    }
}

pub struct Node {
    calls: Calls,
    mint: Arc<ScriptedMint>,
    caught: Arc<Caught>,
}

impl Node {
    pub fn start() -> Node {
        let (mint, caught) = (Arc::new(ScriptedMint::default()), Arc::new(Caught::default()));
        let adapter =
            LocalAdapter::memory(Arc::clone(&mint) as Arc<dyn Mint>, Arc::clone(&caught) as Arc<dyn EventSink>);
        let limits = Limits { default_list_limit: 3, max_list_limit: 5 };
        let runtime = Runtime {
            adapter: Arc::new(adapter),
            limits,
            legacy_names: true,
            authoritative: true,
            call_timeout: Duration::from_secs(30),
        };
        Node { calls: Calls::new(runtime), mint, caught }
    }

    pub fn set_clock(&self, now_ms: i64) {
        self.mint.now_ms.store(now_ms, Ordering::SeqCst);
    }

    /// `None`: no such function.
    pub async fn call(&self, function_id: &str, body: &str) -> Option<Result<String, CallError>> {
        Some(self.calls.call(function_id, body, None, deadline())?.await)
    }

    /// The events of all calls answered so far that were not taken yet.
    pub async fn take_events(&self) -> Vec<Arc<Committed>> {
        // Events follow their answer. What is proposed now, and changes nothing, comes after both.
        let nobody = DeleteSession { session_id: SessionId::from("no such session") };
        let fence = self.calls.runtime().adapter.propose(Command::Delete(nobody), deadline()).await;
        fence.expect("the fence is answered");
        std::mem::take(&mut *self.caught.0.lock().unwrap())
    }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}
