//! `session::turn::attach`: a driver says that it is there.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{answered, command, driver_id, names};
use crate::machine::json::Object;
use crate::machine::refusal::Refusal;
use crate::machine::turn::TurnCommand;
use crate::machine::turn::driver::AttachDriver;
use crate::machine::{Answer, Command};
use crate::requests::{Limits, Mutation, checks};

/// More families than there are kinds of requests.
const FAMILIES_MAX: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct AttachRequest {
    pub driver_id: String,
    /// The agents it runs; all if none is named.
    pub agent_ids: Option<Vec<String>>,
    pub agent_types: Option<Vec<String>>,
    pub tenants: Option<Vec<String>>,
    /// The function that answers each family of requests, such as `{"files": "my::files"}`.
    #[serde(default)]
    pub families: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct AttachResponse {
    pub attached: bool,
    /// It counts as gone after this time, and its turns fail, unless it attaches again.
    pub seen_until: i64,
}

impl Mutation for AttachRequest {
    const ID: &'static str = "session::turn::attach";
    const DESCRIPTION: &'static str =
        "Say that a driver is there, for 10 seconds: call it every 3 seconds. Its turns fail when it is gone.";
    type Response = AttachResponse;

    fn command(self, _limits: &Limits) -> Result<Command, Refusal> {
        driver_id(&self.driver_id)?;
        names("agent_ids", self.agent_ids.as_ref())?;
        names("agent_types", self.agent_types.as_ref())?;
        names("tenants", self.tenants.as_ref())?;
        if self.families.len() > FAMILIES_MAX {
            return Err(checks::invalid(format!("families: at most {FAMILIES_MAX}")));
        }
        for (family, function) in &self.families {
            checks::id("families", family)?;
            checks::id("families", function)?;
        }
        let AttachRequest { driver_id, agent_ids, agent_types, tenants, families } = self;
        let (session_id, metadata) = (None, Object::new());
        let attach =
            AttachDriver { driver_id, agent_ids, agent_types, tenants, session_id, metadata, families, node: None };
        Ok(command(TurnCommand::Attach(attach)))
    }

    fn response(answer: Answer) -> Option<AttachResponse> {
        answered(answer)
    }
}
