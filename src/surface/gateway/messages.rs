//! Owns: the messages that clients of the gateway send: their names, the role each needs, what answers it, and their
//! fields as types. One table; a test goes through all of it.
//! Never: what a message does.

use serde_json::Value;

use super::fields::{FieldError, Fields};
use crate::machine::gateway::MemberRole;
use crate::machine::json::Object;

/// The actions of GitHub that a person can be asked to approve.
pub const GITHUB_ACTIONS: [&str; 9] = [
    "create_repo",
    "create_pr",
    "add_comment",
    "add_review",
    "update_pr",
    "add_reviewers",
    "fork_repo",
    "create_issue",
    "update_issue",
];

pub const MODES: [&str; 4] = ["implement", "ideate", "plan", "high_agency"];
pub const PROFILES: [&str; 4] = ["ask_every_time", "recommended", "auto_pilot", "never_ask"];

const HISTORY_DEFAULT: u64 = 50;
const EVENTS_DEFAULT: u64 = 200;
const PAGE_MAX: u64 = 500;
/// A batch of a driver, as `session::turn::emit` takes it.
const BATCH_EVENTS_MAX: usize = 256;

/// Who may send a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Everybody, also before `authenticate`.
    Nothing,
    /// A member with at least this role.
    Role(MemberRole),
    /// A program that runs agents: its token may register functions.
    Driver,
    /// A driver after `attach_driver`.
    AttachedDriver,
}

/// A family of requests that the store does not answer itself: they go to the driver that offers the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    Files,
    Memory,
    Automations,
    Inbox,
    Projects,
}

impl Family {
    pub const ALL: [Family; 5] = [Family::Files, Family::Memory, Family::Automations, Family::Inbox, Family::Projects];

    pub fn name(self) -> &'static str {
        match self {
            Family::Files => "files",
            Family::Memory => "memory",
            Family::Automations => "automations",
            Family::Inbox => "inbox",
            Family::Projects => "projects",
        }
    }

    pub fn named(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    pub needs: Needs,
    /// The event that answers it. `None`: nothing does.
    pub reply: Option<&'static str>,
    /// The family that it belongs to, if a driver answers it.
    pub family: Option<Family>,
}

const fn row(name: &'static str, needs: Needs, reply: &'static str) -> Row {
    Row { name, needs, reply: Some(reply), family: None }
}

const fn relayed(name: &'static str, needs: Needs, reply: &'static str, family: Family) -> Row {
    Row { name, needs, reply: Some(reply), family: Some(family) }
}

const VIEWER: Needs = Needs::Role(MemberRole::Viewer);
/// A guest reads the sessions that name him.
const GUEST: Needs = Needs::Role(MemberRole::Guest);
const DEVELOPER: Needs = Needs::Role(MemberRole::Developer);
const ADMIN: Needs = Needs::Role(MemberRole::Admin);

/// Every message that a client can send.
pub const TABLE: &[Row] = &[
    row("authenticate", Needs::Nothing, "authenticated"),
    row("ping", Needs::Nothing, "pong"),
    row("list_sessions", GUEST, "session_list"),
    row("create_session", DEVELOPER, "session_created"),
    row("rename_session", DEVELOPER, "session_updated"),
    row("archive_session", DEVELOPER, "session_archived"),
    row("unarchive_session", DEVELOPER, "session_unarchived"),
    row("delete_session", ADMIN, "session_deleted"),
    row("join_session", GUEST, "state_snapshot"),
    Row { name: "leave_session", needs: GUEST, reply: None, family: None },
    row("run_turn", DEVELOPER, "turn_started"),
    row("stop_turn", DEVELOPER, "stop_acknowledged"),
    row("steer", DEVELOPER, "steer_sent"),
    row("answer_question", DEVELOPER, "session_state"),
    row("answer_permission", DEVELOPER, "approval_resolved"),
    row("github.create_repo_answer", DEVELOPER, "github.create_repo_answer"),
    row("github.create_pr_answer", DEVELOPER, "github.create_pr_answer"),
    row("github.add_comment_answer", DEVELOPER, "github.add_comment_answer"),
    row("github.add_review_answer", DEVELOPER, "github.add_review_answer"),
    row("github.update_pr_answer", DEVELOPER, "github.update_pr_answer"),
    row("github.add_reviewers_answer", DEVELOPER, "github.add_reviewers_answer"),
    row("github.fork_repo_answer", DEVELOPER, "github.fork_repo_answer"),
    row("github.create_issue_answer", DEVELOPER, "github.create_issue_answer"),
    row("github.update_issue_answer", DEVELOPER, "github.update_issue_answer"),
    row("set_mode", DEVELOPER, "mode_switched"),
    row("set_autonomy_profile", DEVELOPER, "autonomy_profile_updated"),
    row("update_session_settings", DEVELOPER, "session_settings_updated"),
    row("get_history", GUEST, "history"),
    row("get_events", GUEST, "events"),
    row("manage_members", ADMIN, "member_list"),
    relayed("list_files", VIEWER, "file_list", Family::Files),
    relayed("read_file", VIEWER, "file_content", Family::Files),
    relayed("file_history", VIEWER, "file_history_result", Family::Files),
    relayed("file_at_iteration", VIEWER, "file_content", Family::Files),
    relayed("memory_recall", VIEWER, "memory_recalled", Family::Memory),
    relayed("memory_forget", DEVELOPER, "memory_forgotten", Family::Memory),
    relayed("list_automations", VIEWER, "automation_list", Family::Automations),
    relayed("list_templates", VIEWER, "template_list", Family::Automations),
    relayed("create_automation", DEVELOPER, "automation_created", Family::Automations),
    relayed("update_automation", DEVELOPER, "automation_updated", Family::Automations),
    relayed("delete_automation", DEVELOPER, "automation_deleted", Family::Automations),
    relayed("toggle_automation", DEVELOPER, "automation_toggled", Family::Automations),
    relayed("list_inbox", VIEWER, "inbox_list", Family::Inbox),
    relayed("update_inbox_item", DEVELOPER, "inbox_item_updated", Family::Inbox),
    relayed("list_projects", VIEWER, "project_list", Family::Projects),
    relayed("get_project", VIEWER, "project_detail", Family::Projects),
    relayed("create_project", DEVELOPER, "project_created", Family::Projects),
    relayed("update_project", ADMIN, "project_updated", Family::Projects),
    relayed("archive_project", ADMIN, "project_archived", Family::Projects),
    relayed("unarchive_project", ADMIN, "project_unarchived", Family::Projects),
    relayed("delete_project", ADMIN, "project_deleted", Family::Projects),
    row("attach_driver", Needs::Driver, "driver_attached"),
    row("emit", Needs::AttachedDriver, "emitted"),
    Row { name: "command_result", needs: Needs::AttachedDriver, reply: None, family: None },
];

pub fn find(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

/// What `manage_members` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberAction {
    List,
    SetRole { user: String, role: MemberRole },
    Remove { user: String },
}

/// An answer of a person to a request of the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Question {
        answers: Object,
        dismissed: bool,
    },
    Permission {
        approved: bool,
        reason: Option<String>,
    },
    /// `name` is the whole name of the message; `fields` is everything that the client sent.
    Github {
        name: &'static str,
        approved: bool,
        fields: Object,
    },
}

/// What a client wants, with checked fields.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Authenticate {
        token: String,
    },
    Ping {
        ts: Value,
    },
    ListSessions {
        include_archived: bool,
    },
    CreateSession {
        agent_type: String,
        name: Option<String>,
    },
    RenameSession {
        session: String,
        name: String,
    },
    SetArchived {
        session: String,
        archived: bool,
    },
    DeleteSession {
        session: String,
    },
    Join {
        session: String,
        after_seq: Option<u64>,
    },
    Leave {
        session: String,
    },
    RunTurn {
        session: String,
        text: String,
        client_turn_id: Option<String>,
    },
    StopTurn {
        session: String,
    },
    Steer {
        session: String,
        content: String,
    },
    Answer {
        session: String,
        request_id: String,
        reply: Reply,
    },
    SetMode {
        session: String,
        mode: String,
    },
    SetProfile {
        session: String,
        profile: String,
    },
    UpdateSettings {
        session: String,
        settings: Object,
    },
    History {
        session: String,
        before_id: Option<String>,
        limit: u64,
    },
    Events {
        session: String,
        after_seq: u64,
        limit: u64,
    },
    Members(MemberAction),
    /// `body` is everything that the client sent except the type.
    Relay {
        name: &'static str,
        reply: &'static str,
        family: Family,
        session: Option<String>,
        body: Object,
    },
    AttachDriver(DriverTerms),
    Emit {
        turn_id: String,
        n: u64,
        events: Vec<Value>,
    },
    CommandResult {
        command_id: String,
        outcome: Result<Value, String>,
    },
}

impl Asked {
    /// The session that the message is about.
    pub fn session(&self) -> Option<&str> {
        match self {
            Asked::RenameSession { session, .. }
            | Asked::SetArchived { session, .. }
            | Asked::DeleteSession { session }
            | Asked::Join { session, .. }
            | Asked::Leave { session }
            | Asked::RunTurn { session, .. }
            | Asked::StopTurn { session }
            | Asked::Steer { session, .. }
            | Asked::Answer { session, .. }
            | Asked::SetMode { session, .. }
            | Asked::SetProfile { session, .. }
            | Asked::UpdateSettings { session, .. }
            | Asked::History { session, .. }
            | Asked::Events { session, .. } => Some(session),
            Asked::Relay { session, .. } => session.as_deref(),
            Asked::Authenticate { .. }
            | Asked::Ping { .. }
            | Asked::ListSessions { .. }
            | Asked::CreateSession { .. }
            | Asked::Members(_)
            | Asked::AttachDriver(_)
            | Asked::Emit { .. }
            | Asked::CommandResult { .. } => None,
        }
    }
}

/// What a driver says of itself when it attaches.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DriverTerms {
    pub driver_id: String,
    /// The types of agents it runs; empty: all.
    pub agent_types: Vec<String>,
    /// Only this session.
    pub session_id: Option<String>,
    pub families: Vec<Family>,
}

/// Reads a message of a known name.
pub fn read(row: &'static Row, object: &Object) -> Result<Asked, FieldError> {
    let fields = Fields(object);
    let session = || fields.id("sessionId");
    if let (Some(family), Some(reply)) = (row.family, row.reply) {
        return relay(row.name, reply, family, object);
    }
    Ok(match row.name {
        "authenticate" => Asked::Authenticate { token: fields.text("token")? },
        "ping" => Asked::Ping { ts: fields.number("ts")? },
        "list_sessions" => {
            Asked::ListSessions { include_archived: fields.optional_flag("includeArchived")?.unwrap_or(false) }
        }
        "create_session" => {
            Asked::CreateSession { agent_type: fields.id("agentType")?, name: fields.optional_text("name")? }
        }
        "rename_session" => Asked::RenameSession { session: session()?, name: fields.text("name")? },
        "archive_session" => Asked::SetArchived { session: session()?, archived: true },
        "unarchive_session" => Asked::SetArchived { session: session()?, archived: false },
        "delete_session" => Asked::DeleteSession { session: session()? },
        "join_session" => Asked::Join { session: session()?, after_seq: fields.optional_whole("afterSeq")? },
        "leave_session" => Asked::Leave { session: session()? },
        "run_turn" => {
            let text = fields.text("text")?;
            if text.is_empty() {
                return Err(FieldError("text: give at least one character".to_owned()));
            }
            Asked::RunTurn { session: session()?, text, client_turn_id: fields.optional_id("clientTurnId")? }
        }
        "stop_turn" => Asked::StopTurn { session: session()? },
        "steer" => Asked::Steer { session: session()?, content: fields.text("content")? },
        "answer_question" => {
            let dismissed = fields.optional_flag("dismissed")?.unwrap_or(false);
            let answers = match dismissed {
                true => fields.optional_object("answers")?.unwrap_or_default(),
                false => fields.object("answers")?,
            };
            answer(&fields, Reply::Question { answers, dismissed })?
        }
        "answer_permission" => {
            let reply =
                Reply::Permission { approved: fields.flag("approved")?, reason: fields.optional_text("reason")? };
            answer(&fields, reply)?
        }
        "set_mode" => Asked::SetMode { session: session()?, mode: fields.word("mode", &MODES)? },
        "set_autonomy_profile" => {
            Asked::SetProfile { session: session()?, profile: fields.word("profile", &PROFILES)? }
        }
        "update_session_settings" => {
            let settings = fields.object("settings")?;
            Fields(&settings)
                .optional_whole("coalesceMs")
                .map_err(|FieldError(why)| FieldError(format!("settings.{why}")))?;
            Asked::UpdateSettings { session: session()?, settings }
        }
        "get_history" => Asked::History {
            session: session()?,
            before_id: fields.optional_id("beforeId")?,
            limit: page(&fields, HISTORY_DEFAULT)?,
        },
        "get_events" => Asked::Events {
            session: session()?,
            after_seq: fields.optional_whole("afterSeq")?.unwrap_or(0),
            limit: page(&fields, EVENTS_DEFAULT)?,
        },
        "manage_members" => Asked::Members(member_action(&fields)?),
        "attach_driver" => Asked::AttachDriver(driver_terms(&fields)?),
        "emit" => {
            let events = fields.array("events")?;
            if events.len() > BATCH_EVENTS_MAX {
                return Err(FieldError(format!("events: give at most {BATCH_EVENTS_MAX} in one batch")));
            }
            Asked::Emit { turn_id: fields.id("turn_id")?, n: fields.whole("n")?, events }
        }
        "command_result" => Asked::CommandResult { command_id: fields.id("command_id")?, outcome: outcome(&fields)? },
        github => {
            let reply = Reply::Github { name: row.name, approved: fields.flag("approved")?, fields: object.clone() };
            debug_assert!(github.starts_with("github."), "every row of the table has an arm");
            answer(&fields, reply)?
        }
    })
}

fn answer(fields: &Fields<'_>, reply: Reply) -> Result<Asked, FieldError> {
    Ok(Asked::Answer { session: fields.id("sessionId")?, request_id: fields.id("requestId")?, reply })
}

fn page(fields: &Fields<'_>, default: u64) -> Result<u64, FieldError> {
    Ok(fields.optional_whole("limit")?.unwrap_or(default).clamp(1, PAGE_MAX))
}

fn member_action(fields: &Fields<'_>) -> Result<MemberAction, FieldError> {
    let action = fields.word("action", &["list", "set_role", "remove"])?;
    Ok(match action.as_str() {
        "set_role" => {
            let role = fields.word("role", &MemberRole::ALL.map(MemberRole::name))?;
            let role = MemberRole::named(&role).ok_or_else(|| FieldError("role: not known".to_owned()))?;
            MemberAction::SetRole { user: fields.id("userId")?, role }
        }
        "remove" => MemberAction::Remove { user: fields.id("userId")? },
        _list => MemberAction::List,
    })
}

fn driver_terms(fields: &Fields<'_>) -> Result<DriverTerms, FieldError> {
    let family = |name: String| {
        let known = Family::ALL.map(Family::name).join(", ");
        Family::named(&name).ok_or_else(|| FieldError(format!("families: {name:?} is none of {known}")))
    };
    Ok(DriverTerms {
        driver_id: fields.id("driver_id")?,
        agent_types: fields.ids("agent_types")?,
        session_id: fields.optional_id("session_id")?,
        families: fields.ids("families")?.into_iter().map(family).collect::<Result<_, _>>()?,
    })
}

/// `{accepted: true}` or `{result: …}`, or `{error: "…"}`.
fn outcome(fields: &Fields<'_>) -> Result<Result<Value, String>, FieldError> {
    if let Some(error) = fields.optional_text("error")? {
        return Ok(Err(error));
    }
    if fields.optional_flag("accepted")? == Some(false) {
        return Ok(Err("the driver refused".to_owned()));
    }
    Ok(Ok(fields.0.get("result").cloned().unwrap_or(Value::Null)))
}

fn relay(name: &'static str, reply: &'static str, family: Family, object: &Object) -> Result<Asked, FieldError> {
    let fields = Fields(object);
    let session = match family {
        Family::Files | Family::Memory => Some(fields.id("sessionId")?),
        Family::Automations | Family::Inbox | Family::Projects => None,
    };
    match name {
        "read_file" | "file_history" => {
            fields.text("path")?;
        }
        "file_at_iteration" => {
            fields.text("path")?;
            fields.whole("iteration")?;
        }
        "memory_forget" => {
            fields.id("memoryId")?;
        }
        "get_project" | "update_project" | "archive_project" | "unarchive_project" | "delete_project" => {
            fields.id("projectId")?;
        }
        "update_automation" | "delete_automation" | "toggle_automation" | "update_inbox_item" => {
            fields.id("id")?;
        }
        _no_required_field => {}
    }
    let mut body = object.clone();
    body.remove("type");
    Ok(Asked::Relay { name, reply, family, session, body })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    /// A message of each name with everything it needs.
    fn sample(name: &str) -> Value {
        let mut message = json!({
            "type": name, "sessionId": "s", "requestId": "r", "approved": true, "token": "t", "ts": 1, "name": "n",
            "agentType": "a", "text": "x", "content": "x", "answers": {"q": "a"}, "mode": "plan", "action": "list",
            "profile": "recommended", "settings": {"coalesceMs": 50}, "path": "a/b", "iteration": 1, "memoryId": "m",
            "projectId": "p", "id": "i", "driver_id": "d", "turn_id": "t", "n": 1, "events": [], "command_id": "c",
        });
        // What nobody knows is ignored.
        message["unknown"] = json!({"x": [1]});
        message
    }

    fn read_value(message: &Value) -> Result<Asked, FieldError> {
        let object = message.as_object().expect("an object");
        read(find(message["type"].as_str().expect("a type")).expect("a row"), object)
    }

    #[test]
    fn every_message_of_the_table_is_read_and_names_what_is_missing() {
        let required = |name: &str| -> &[&str] {
            match name {
                "list_sessions" | "list_automations" | "list_templates" | "list_inbox" | "list_projects"
                | "create_automation" | "create_project" => &[],
                "authenticate" => &["token"],
                "ping" => &["ts"],
                "create_session" => &["agentType"],
                "rename_session" => &["sessionId", "name"],
                "archive_session" | "unarchive_session" | "delete_session" | "join_session" | "leave_session"
                | "stop_turn" | "get_history" | "get_events" | "list_files" | "memory_recall" => &["sessionId"],
                "run_turn" => &["sessionId", "text"],
                "steer" => &["sessionId", "content"],
                "answer_question" => &["sessionId", "requestId", "answers"],
                "answer_permission" => &["sessionId", "requestId", "approved"],
                "set_mode" => &["sessionId", "mode"],
                "set_autonomy_profile" => &["sessionId", "profile"],
                "update_session_settings" => &["sessionId", "settings"],
                "manage_members" => &["action"],
                "read_file" | "file_history" => &["sessionId", "path"],
                "file_at_iteration" => &["sessionId", "path", "iteration"],
                "memory_forget" => &["sessionId", "memoryId"],
                "update_automation" | "delete_automation" | "toggle_automation" | "update_inbox_item" => &["id"],
                "get_project" | "update_project" | "archive_project" | "unarchive_project" | "delete_project" => {
                    &["projectId"]
                }
                "attach_driver" => &["driver_id"],
                "emit" => &["turn_id", "n", "events"],
                "command_result" => &["command_id"],
                github => {
                    assert!(github.starts_with("github."), "{github} has no line in this test");
                    &["sessionId", "requestId", "approved"]
                }
            }
        };
        for row in TABLE {
            let whole = sample(row.name);
            read_value(&whole).unwrap_or_else(|error| panic!("{}: {error:?}", row.name));
            for field in required(row.name) {
                let mut without = whole.clone();
                without.as_object_mut().unwrap().remove(*field);
                let FieldError(words) = read_value(&without).expect_err(row.name);
                assert!(words.starts_with(&format!("{field}: missing")), "{}: {words}", row.name);
                let mut wrong = whole.clone();
                wrong[*field] = json!([[]]);
                if *field == "events" {
                    wrong[*field] = json!("x");
                }
                let FieldError(words) = read_value(&wrong).expect_err(row.name);
                assert!(words.starts_with(&format!("{field}: give ")), "{}: {words}", row.name);
            }
        }
    }

    /// The 51 messages of the protocol, and the three of drivers.
    #[test]
    fn the_table_has_every_name_once_with_its_role() {
        let names: BTreeSet<&str> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
        assert_eq!(TABLE.len(), 51 + 3);
        for action in GITHUB_ACTIONS {
            assert!(names.contains(format!("github.{action}_answer").as_str()), "{action}");
        }
        let needs = |name: &str| find(name).unwrap().needs;
        assert_eq!(needs("delete_session"), Needs::Role(MemberRole::Admin));
        assert_eq!(needs("run_turn"), Needs::Role(MemberRole::Developer));
        assert_eq!(needs("ping"), Needs::Nothing);
        assert_eq!(needs("create_project"), Needs::Role(MemberRole::Developer));
        assert_eq!(needs("manage_members"), Needs::Role(MemberRole::Admin));
        assert!(find("session_list").is_none() && find("").is_none());
    }

    #[test]
    fn limits_are_clamped_and_words_are_checked() {
        let asked = read_value(&json!({"type": "get_events", "sessionId": "s", "limit": 9_999_999})).unwrap();
        assert_eq!(asked, Asked::Events { session: "s".to_owned(), after_seq: 0, limit: PAGE_MAX });
        for (message, words) in [
            (json!({"type": "get_events", "sessionId": "s", "limit": -1}), "limit: give a whole number"),
            (json!({"type": "join_session", "sessionId": "s", "afterSeq": 1.5}), "afterSeq: give a whole number"),
            (json!({"type": "join_session", "sessionId": ""}), "sessionId: give a string of 1 to"),
            (json!({"type": "set_mode", "sessionId": "s", "mode": "fast"}), "mode: give one of implement,"),
            (json!({"type": "manage_members", "action": "set_role", "userId": "u", "role": "root"}), "role: give one"),
            (json!({"type": "run_turn", "sessionId": "s", "text": ""}), "text: give at least one"),
            (
                json!({"type": "update_session_settings", "sessionId": "s", "settings": {"coalesceMs": "x"}}),
                "settings.coalesceMs: give a whole",
            ),
            (json!({"type": "attach_driver", "driver_id": "d", "families": ["cars"]}), "families: \"cars\" is none of"),
        ] {
            let FieldError(found) = read_value(&message).expect_err("refused");
            assert!(found.starts_with(words), "{found}");
        }
    }
}
