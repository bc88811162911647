//! Every message that a client of the gateway can send, one by one: who may send it, what answers it, and that it changes
//! nothing for those who may not.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use session_manager::access::Role;
use session_manager::surface::gateway::messages::TABLE;

use crate::gateway::closed_node;
use crate::gateway_client::Client;

/// Name, the lowest role, and the event that answers, as the protocol has them.
const PROTOCOL: &[(&str, &str, &str)] = &[
    ("list_sessions", "guest", "session_list"),
    ("create_session", "developer", "session_created"),
    ("rename_session", "developer", "session_updated"),
    ("archive_session", "developer", "session_archived"),
    ("unarchive_session", "developer", "session_unarchived"),
    ("join_session", "guest", "state_snapshot"),
    ("get_history", "guest", "history"),
    ("get_events", "guest", "events"),
    ("set_mode", "developer", "mode_switched"),
    ("set_autonomy_profile", "developer", "autonomy_profile_updated"),
    ("update_session_settings", "developer", "session_settings_updated"),
    ("manage_members", "admin", "member_list"),
    ("list_files", "viewer", "file_list"),
    ("read_file", "viewer", "file_content"),
    ("file_history", "viewer", "file_history_result"),
    ("file_at_iteration", "viewer", "file_content"),
    ("memory_recall", "viewer", "memory_recalled"),
    ("memory_forget", "developer", "memory_forgotten"),
    ("list_automations", "viewer", "automation_list"),
    ("list_templates", "viewer", "template_list"),
    ("list_inbox", "viewer", "inbox_list"),
    ("create_automation", "developer", "automation_created"),
    ("update_automation", "developer", "automation_updated"),
    ("delete_automation", "developer", "automation_deleted"),
    ("toggle_automation", "developer", "automation_toggled"),
    ("update_inbox_item", "developer", "inbox_item_updated"),
    ("list_projects", "viewer", "project_list"),
    ("get_project", "viewer", "project_detail"),
    ("create_project", "developer", "project_created"),
    ("update_project", "admin", "project_updated"),
    ("archive_project", "admin", "project_archived"),
    ("unarchive_project", "admin", "project_unarchived"),
    ("delete_project", "admin", "project_deleted"),
    ("run_turn", "developer", "turn_started"),
    ("steer", "developer", "steer_sent"),
    ("answer_question", "developer", "session_state"),
    ("answer_permission", "developer", "approval_resolved"),
    ("github.create_repo_answer", "developer", "github.create_repo_answer"),
    ("github.create_pr_answer", "developer", "github.create_pr_answer"),
    ("github.add_comment_answer", "developer", "github.add_comment_answer"),
    ("github.add_review_answer", "developer", "github.add_review_answer"),
    ("github.update_pr_answer", "developer", "github.update_pr_answer"),
    ("github.add_reviewers_answer", "developer", "github.add_reviewers_answer"),
    ("github.fork_repo_answer", "developer", "github.fork_repo_answer"),
    ("github.create_issue_answer", "developer", "github.create_issue_answer"),
    ("github.update_issue_answer", "developer", "github.update_issue_answer"),
    ("stop_turn", "developer", "stop_acknowledged"),
    ("leave_session", "guest", ""),
    ("delete_session", "admin", "session_deleted"),
    ("ping", "", "pong"),
    ("authenticate", "", "authenticated"),
];

/// A message with everything that any of them needs.
fn message(name: &str, session: &Value) -> Value {
    json!({
        "type": name, "sessionId": session, "requestId": "none", "approved": true, "token": "owner", "ts": 1,
        "name": "n", "agentType": "coder", "text": "go", "content": "x", "answers": {"q": "a"}, "mode": "plan",
        "action": "list", "profile": "recommended", "settings": {"coalesceMs": 50}, "path": "a/b", "iteration": 1,
        "memoryId": "m", "projectId": "p", "id": "i",
    })
}

/// What a driver answers, with everything that any of the replies needs.
fn answer() -> Value {
    json!({
        "files": [], "path": "a/b", "content": "x", "encoding": "utf-8", "size": 1, "iterations": [], "memories": [],
        "memoryId": "m",
    })
}

/// The event that opens the request which a message answers.
fn request(name: &str) -> Option<Value> {
    let (kind, id) = match name {
        "answer_question" => ("question_requested".to_owned(), "none"),
        "answer_permission" => ("permission_requested".to_owned(), "none"),
        github => (github.strip_prefix("github.")?.replace("_answer", "_request"), "none"),
    };
    let kind = if name.starts_with("github.") { format!("github.{kind}") } else { kind };
    Some(json!({"type": kind, "requestId": id, "questions": [], "toolName": "t", "description": "d"}))
}

#[test]
fn the_table_of_the_protocol_is_the_table_of_the_gateway() {
    let protocol: BTreeMap<&str, (String, Option<&str>)> = PROTOCOL
        .iter()
        .map(|(name, role, reply)| (*name, ((*role).to_owned(), Some(*reply).filter(|reply| !reply.is_empty()))))
        .collect();
    assert_eq!(protocol.len(), 51);
    for row in TABLE {
        // What drivers send is no part of the protocol of front-ends.
        let Some((role, reply)) = protocol.get(row.name) else {
            assert!(["attach_driver", "emit", "command_result"].contains(&row.name), "{}", row.name);
            continue;
        };
        assert_eq!(
            format!("{:?}", row.needs).to_lowercase(),
            match role.as_str() {
                "" => "nothing".to_owned(),
                role => format!("role({role})"),
            }
        );
        assert_eq!(row.reply, *reply, "{}", row.name);
    }
    assert_eq!(TABLE.len(), protocol.len() + 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_is_refused_to_strangers_and_to_lower_roles_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = [
        ("owner", Role::Admin, "acme"),
        ("developer", Role::App, "acme"),
        ("viewer", Role::Reader, "acme"),
        ("foreign", Role::Admin, "bravo"),
    ];
    let node = closed_node(dir.path(), &tokens).await;
    let mut owner = Client::ready(&node, Some("owner")).await;
    owner.send(json!({"type": "create_session", "agentType": "coder", "name": "before"})).await;
    let session = owner.expect("session_created").await["session"]["id"].clone();
    let rank =
        |role: &str| ["", "guest", "viewer", "developer", "admin"].iter().position(|known| *known == role).unwrap();
    for who in ["", "viewer", "developer", "foreign"] {
        // A connection has sixty messages in ten seconds.
        for part in PROTOCOL.chunks(50) {
            let mut client = match who {
                "" => Client::to(&node).await,
                token => Client::ready(&node, Some(token)).await,
            };
            for (name, role, _) in part.iter().filter(|(_, role, _)| !role.is_empty()) {
                let is_allowed = !who.is_empty() && (who == "foreign" || rank(role) <= rank(who));
                let names_session = message_has_session(name);
                let expected = match (who, is_allowed) {
                    ("", _) => "AUTH_REQUIRED",
                    ("foreign", _) if names_session => "SessionNotFound",
                    (_, false) => "Forbidden",
                    (_, true) => continue,
                };
                client.send(message(name, &session)).await;
                assert_eq!(client.error().await, expected, "{name} by {who:?}");
            }
        }
    }
    owner.send(json!({"type": "join_session", "sessionId": session, "afterSeq": 0})).await;
    let snapshot = owner.expect("state_snapshot").await;
    assert_eq!((&snapshot["session"]["name"], &snapshot["headSeq"]), (&json!("before"), &json!(0)));
    assert_eq!((&snapshot["recentHistory"], &snapshot["session"]["archived"]), (&json!([]), &json!(false)));
    node.shutdown().await;
}

fn message_has_session(name: &str) -> bool {
    let of_tenant = ["list_sessions", "create_session", "manage_members"];
    let has = |word: &str| name.contains(word);
    !(of_tenant.contains(&name) || has("automation") || has("template") || has("inbox") || has("project"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_gets_its_reply() {
    let dir = tempfile::tempdir().unwrap();
    let node = closed_node(dir.path(), &[("owner", Role::Admin, "acme"), ("driver", Role::App, "acme")]).await;
    let mut owner = Client::ready(&node, Some("owner")).await;
    owner.send(json!({"type": "create_session", "agentType": "coder"})).await;
    let session = owner.expect("session_created").await["session"]["id"].clone();
    let mut driver = Client::ready(&node, Some("driver")).await;
    let families = ["files", "memory", "automations", "inbox", "projects"];
    driver
        .send(json!({"type": "attach_driver", "driver_id": "d", "agent_types": ["coder"], "families": families}))
        .await;
    driver.expect("driver_attached").await;
    let (mut turn_id, mut n) = (Value::Null, 1);
    for (at, (name, _, reply)) in PROTOCOL.iter().enumerate() {
        // Not more than a connection may send.
        if at == 40 {
            owner = Client::ready(&node, Some("owner")).await;
        }
        let row = TABLE.iter().find(|row| row.name == *name).unwrap();
        if let Some(request) = request(name) {
            driver.send(json!({"type": "emit", "turn_id": turn_id, "n": n, "events": [request]})).await;
            driver.expect("emitted").await;
            n += 1;
        }
        owner.send(message(name, &session)).await;
        let is_command = row.family.is_some() || ["run_turn", "stop_turn"].contains(name);
        if is_command {
            let command = loop {
                let command = driver.expect("driver_command").await;
                // Answers and settings are commands too. They are acknowledged.
                let is_it = [*name, "stop"].contains(&command["command"].as_str().unwrap());
                let result = if row.family.is_some() { answer() } else { json!(null) };
                let told = json!({"type": "command_result", "command_id": command["command_id"], "accepted": true,
                                  "result": result});
                driver.send(told).await;
                if is_it {
                    break command;
                }
            };
            if *name == "run_turn" {
                turn_id = command["turn_id"].clone();
                driver.expect("turn_claimed").await;
            }
        }
        match *reply {
            "" => owner.works().await,
            reply => drop(owner.expect(reply).await),
        }
    }
    node.shutdown().await;
}
