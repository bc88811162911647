//! Owns: which drivers are attached. A node keeps the record of a driver that is connected to it alive.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::due::{Due, DueKind, Loss, sessions_of_gone_driver};
use crate::machine::beside::{RecordKey, Space};
use crate::machine::change::Change;
use crate::machine::command::{Answer, Outcome};
use crate::machine::ids::SessionId;
use crate::machine::json::{Json, Object};
use crate::machine::refusal::{Failure, Fault, Refusal};
use crate::machine::scope::Scope;
use crate::machine::session::{SessionMeta, metadata_matches};
use crate::machine::stamp::Stamp;
use crate::machine::view::View;

/// A driver that was not seen for so long is gone.
pub const GONE_AFTER_MS: i64 = 10_000;

/// More drivers than a cluster has. It bounds what choosing one reads.
pub const DRIVERS_MAX: usize = 256;

pub const DRIVER_ID_BYTES_MAX: usize = 256;

/// What a driver says about itself. `None` of a list: it serves all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachDriver {
    pub driver_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ids: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_types: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    /// The only session that it runs turns of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// It runs turns of sessions with this metadata.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
    /// The function that answers each family of requests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub families: BTreeMap<String, String>,
    /// Who tells of it: a name of its connection, or of one start of its node. `None`: it attaches itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// An attached driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverRecord {
    pub driver: AttachDriver,
    pub attached_at: i64,
    /// It is gone after this time, unless it is seen again.
    pub seen_until: i64,
    /// It said good-bye. It may still come back before it counts as gone.
    #[serde(default)]
    pub detached: bool,
    /// The scope of the caller that attached it. It runs turns of sessions within the scope, and nobody of another scope
    /// can attach or detach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// The agent that a turn is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl AttachDriver {
    /// Whether it runs this agent.
    pub fn serves(&self, agent: &Agent) -> bool {
        let has = |served: &Option<Vec<String>>, name: &Option<String>| {
            served.as_ref().is_none_or(|served| name.as_ref().is_some_and(|name| served.contains(name)))
        };
        has(&self.agent_ids, &agent.agent_id)
            && has(&self.agent_types, &agent.agent_type)
            && has(&self.tenants, &agent.tenant)
    }
}

impl DriverRecord {
    pub fn key(driver_id: &str) -> RecordKey {
        RecordKey::of_cluster(Space::Driver).with(driver_id)
    }

    pub fn read(view: &dyn View, driver_id: &str) -> Result<Option<DriverRecord>, Fault> {
        let Some(value) = view.record(&DriverRecord::key(driver_id))? else { return Ok(None) };
        parse(&value).map(Some)
    }

    /// Whether it runs turns of this session, whatever the agent.
    pub fn may_run(&self, session: &SessionMeta) -> bool {
        let (driver, metadata) = (&self.driver, session.metadata.as_ref());
        driver.session_id.as_ref().is_none_or(|only| *only == session.session_id)
            && metadata_matches(&driver.metadata, metadata)
            && self.sees(metadata)
    }

    /// Whether its scope has sessions with this metadata.
    pub fn sees(&self, metadata: Option<&Object>) -> bool {
        let Some(text) = &self.scope else { return true };
        Scope::parse(text).is_ok_and(|scope| scope.includes(metadata))
    }

    /// Whether it was lost together with the node that told of it: nobody saw it leave.
    fn lost_its_node(&self) -> bool {
        self.driver.node.is_some() && !self.detached
    }

    /// Whether the caller that sees this view may attach and detach it.
    fn belongs_to(&self, view: &dyn View) -> bool {
        view.scope().is_none_or(|scope| self.scope.as_deref() == Some(scope.text()))
    }

    /// The drivers that the caller may know of: its own, and those that run turns for everybody.
    pub fn shown(view: &dyn View) -> Result<Vec<DriverRecord>, Fault> {
        let mut all = DriverRecord::all(view)?;
        all.retain(|record| record.scope.is_none() || record.belongs_to(view));
        Ok(all)
    }

    pub fn all(view: &dyn View) -> Result<Vec<DriverRecord>, Fault> {
        let found = view.records(&RecordKey::of_cluster(Space::Driver), None, DRIVERS_MAX)?;
        found.iter().map(|(_, value)| parse(value)).collect()
    }
}

fn parse(value: &Json) -> Result<DriverRecord, Fault> {
    value.parse().map_err(|error| Fault(format!("damaged driver record: {error}")))
}

pub fn check_driver_id(driver_id: &str) -> Result<(), Refusal> {
    if driver_id.is_empty() || driver_id.len() > DRIVER_ID_BYTES_MAX {
        let why = format!("driver_id: give a name of 1 to {DRIVER_ID_BYTES_MAX} bytes");
        return Err(Refusal::RequestInvalid(why));
    }
    Ok(())
}

pub fn attach(view: &dyn View, stamp: &Stamp, attach: &AttachDriver) -> Result<Outcome, Failure> {
    check_driver_id(&attach.driver_id)?;
    let old = DriverRecord::read(view, &attach.driver_id)?;
    if old.as_ref().is_some_and(|old| !old.belongs_to(view)) {
        let why = "driver_id: somebody else has a driver with this name; choose another one";
        return Err(Refusal::RequestInvalid(why.to_owned()).into());
    }
    if old.is_none() && DriverRecord::all(view)?.len() >= DRIVERS_MAX {
        let why = format!("driver_id: {DRIVERS_MAX} drivers are attached already");
        return Err(Refusal::RequestInvalid(why).into());
    }
    let record = DriverRecord {
        driver: attach.clone(),
        attached_at: old.as_ref().map_or(stamp.at_ms, |old| old.attached_at),
        seen_until: stamp.at_ms.saturating_add(GONE_AFTER_MS),
        detached: false,
        scope: view.scope().map(|scope| scope.text().to_owned()),
    };
    let mut changes = vec![Change::put_record(DriverRecord::key(&attach.driver_id), Json::print(&record))];
    // While there is a record, there is a due time: it is set again when it fires too early.
    if old.is_none() {
        changes.push(due(&attach.driver_id, record.seen_until).put());
    }
    changes.push(Change::Clock(stamp.at_ms));
    let answer = serde_json::json!({ "attached": true, "seen_until": record.seen_until });
    Ok(Outcome { answer: Ok(Answer::Value(Json::print(&answer))), changes, events: Vec::new() })
}

/// Marks a driver as gone. A node does so when its connection ends; if the driver has attached at another node since, it
/// stays.
pub fn detach(view: &dyn View, stamp: &Stamp, driver_id: &str, node: Option<&str>) -> Result<Outcome, Failure> {
    let answer = |detached: bool| Answer::Value(Json::print(&serde_json::json!({ "detached": detached })));
    let told_by = |record: &DriverRecord| node.is_none() || record.driver.node.as_deref() == node;
    let Some(record) = DriverRecord::read(view, driver_id)?
        .filter(|record| !record.detached && record.belongs_to(view) && told_by(record))
    else {
        return Ok(Outcome::unchanged(answer(false)));
    };
    let record = DriverRecord { detached: true, seen_until: stamp.at_ms.saturating_add(GONE_AFTER_MS), ..record };
    let put = Change::put_record(DriverRecord::key(driver_id), Json::print(&record));
    Ok(Outcome { answer: Ok(answer(true)), changes: vec![put, Change::Clock(stamp.at_ms)], events: Vec::new() })
}

/// Leads from a driver to the sessions whose last turn it ran.
pub fn session_key(driver_id: &str, session_id: &SessionId) -> RecordKey {
    RecordKey::of_cluster(Space::DriverSession).with(driver_id).with(session_id.as_str())
}

fn due(driver_id: &str, at_ms: i64) -> Due {
    Due { at_ms, kind: DueKind::Driver, session_id: None, id: driver_id.to_owned() }
}

/// The driver was not seen for too long. One command ends what it had in one session; the due time stays until there is
/// none left.
pub(super) fn overdue(view: &dyn View, stamp: &Stamp, fired: &Due) -> Result<Outcome, Failure> {
    let answer = |fired: bool| Ok(Answer::Value(Json::print(&serde_json::json!({ "fired": fired }))));
    let clock = Change::Clock(stamp.at_ms);
    let driver_id = &fired.id;
    let record = DriverRecord::read(view, driver_id)?;
    let loss = match record.as_ref().is_some_and(DriverRecord::lost_its_node) {
        true => Loss::WithItsNode,
        false => Loss::Alone,
    };
    if let Some(record) = record.filter(|record| record.seen_until > stamp.at_ms) {
        let changes = vec![Change::delete_record(fired.key()), due(driver_id, record.seen_until).put(), clock];
        return Ok(Outcome { answer: answer(false), changes, events: Vec::new() });
    }
    let under = RecordKey::of_cluster(Space::DriverSession).with(&**driver_id);
    if let Some((key, _)) = view.records(&under, None, 1)?.into_iter().next() {
        let session_id = SessionId::from(key.text(1).unwrap_or_default());
        let ended = sessions_of_gone_driver(view, stamp, driver_id, &session_id, loss)?;
        let mut outcome =
            ended.unwrap_or_else(|| Outcome { answer: answer(true), changes: vec![clock], events: Vec::new() });
        outcome.changes.insert(0, Change::delete_record(key));
        return Ok(outcome);
    }
    let changes = vec![Change::delete_record(DriverRecord::key(driver_id)), Change::delete_record(fired.key()), clock];
    Ok(Outcome { answer: answer(true), changes, events: Vec::new() })
}
