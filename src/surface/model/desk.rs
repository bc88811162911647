//! Owns: the calls that this door makes of the node's own functions, on behalf of its callers.
//! Never: who a caller is, or what a function does.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use crate::access::identity::Proof;
use crate::access::{Identity, Role};
use crate::surface::errors::CallError;
use crate::surface::fair_share::CallerKey;
use crate::surface::gate::{Call, Caller, Door, check_open};
use crate::surface::http::Port;
use crate::surface::sidecar::NAME;

/// This door decides who may do what by the rules of the model, and calls as itself.
static SELF: LazyLock<Arc<Identity>> =
    LazyLock::new(|| Arc::new(Identity::new("session model", Role::App, Proof::Configured)));

/// The identity that this door calls with.
pub fn own_identity() -> Arc<Identity> {
    SELF.clone()
}

/// How fresh the data of a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    Linearizable,
    /// As this node has applied it.
    Local,
}

pub struct Desk<'a> {
    pub port: &'a Port,
}

impl Desk<'_> {
    pub async fn call(&self, function: &str, body: &Value, fresh: Fresh) -> Result<String, CallError> {
        let gate = self.port.bus.gate();
        check_open(function, &self.port.shutdown)?;
        // Every person and every channel is a caller of its own.
        let key = body
            .get("caller")
            .map_or(CallerKey::Door("session model"), |caller| CallerKey::Name(caller.to_string().into()));
        let body = body.to_string();
        let deadline = gate.deadline();
        let mut admitted = gate.admit(key, function, body.len(), deadline, &self.port.shutdown).await?;
        let caller = Caller { door: Door::Http, identity: own_identity() };
        let metadata = match fresh {
            Fresh::Linearizable => None,
            Fresh::Local => Some(json!({ NAME: { "consistency": "local" } }).to_string()),
        };
        let answer = gate.call(&Call { metadata, ..Call::new(function, body, deadline, caller) }).await?.into_text();
        admitted.answers(answer.len());
        Ok(answer)
    }
}
