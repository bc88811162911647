//! Owns: the conversations of `session-manager demo` that come through the session model: somebody writes to an agent in
//! a chat, a driver runs the turn, and a person approves what it does.

use iii_sdk::IIIClient;
use iii_sdk::protocol::TriggerRequest;
use serde_json::{Value, json};

const AGENT: &str = "demo-ops";
const SESSION: &str = "telegram:billing";
const DRIVER: &str = "demo-driver";

/// Writes the conversation, unless it is there. `false`: this node keeps no turns.
pub async fn tell(client: &IIIClient) -> Result<bool, iii_sdk::Error> {
    let call = async |function: &str, request: Value| client.trigger(TriggerRequest::new(function, request)).await;
    // Only the raft adapter keeps the records of turns. It is asked with a question, which changes nothing.
    if call("session::turn::drivers", json!({})).await.is_err() {
        return Ok(false);
    }
    let here = |more: Value| {
        let mut request = json!({ "agent_id": AGENT, "session_id": SESSION });
        for (name, value) in more.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        request
    };
    let source = json!({ "kind": "channel", "platform": "telegram", "interactive": true });
    call("session::open", here(json!({ "source": source, "metadata": { "demo": true, "tenant": "acme" } }))).await?;
    let sender = json!({ "channel": "telegram", "channelUserId": "demo-anna", "displayName": "Anna" });
    let text = "Billing answers slowly since noon. Can you look, and restart it if that helps?";
    let message = json!({ "text": text, "messageId": "demo-billing-1", "sender": sender });
    let posted = call("session::post", here(json!({ "message": message }))).await?;
    // The message was stored by an earlier run, which told the rest as well.
    let (Some(turn_id), false) = (posted["turn_id"].as_str(), posted["deduped"] == true) else { return Ok(true) };
    let claimed = call("session::turn::claim", json!({ "turn_id": turn_id, "driver_id": DRIVER })).await?;
    if claimed["claimed"] == false {
        return Ok(true);
    }
    let emit = async |n: u64, events: Value| {
        let batch = json!({ "turn_id": turn_id, "driver_id": DRIVER, "n": n, "events": events });
        call("session::turn::emit", batch).await
    };
    emit(1, look()).await?;
    emit(2, ask()).await?;
    call("session::approve", here(json!({ "tool_call_id": "restart", "approved": true }))).await?;
    emit(3, finish()).await?;
    Ok(true)
}

fn look() -> Value {
    json!([
        { "type": "thinking_start" },
        { "type": "thinking_progress", "text": "Noon was the release of the invoices. First the numbers, then the cure." },
        { "type": "thinking_complete" },
        { "type": "text_delta", "text": "I compare the last hour with the one before." },
        {
            "type": "tool_call", "toolCallId": "latency", "toolName": "metrics.query",
            "args": { "service": "billing", "figure": "latency_p99_ms", "hours": 2 },
        },
        {
            "type": "tool_result", "toolCallId": "latency", "toolName": "metrics.query", "status": "success",
            "output": "{\"before_noon\": 120, \"now\": 1850, \"connections\": \"100 of 100 in use\"}",
        },
        { "type": "text_delta", "text": "All 100 connections to the database are in use. A restart frees them." },
    ])
}

fn ask() -> Value {
    json!([
        {
            "type": "tool_call", "toolCallId": "restart", "toolName": "service.restart",
            "args": { "service": "billing", "drain_s": 20 },
        },
        {
            "type": "permission_requested", "requestId": "demo-restart", "toolCallId": "restart",
            "toolName": "service.restart", "description": "Restart billing? Open invoices are finished first.",
        },
    ])
}

fn finish() -> Value {
    let text = "Restarted. The slowest answers take **95 ms** again. The cause is a connection that is not given back when \
                an invoice is empty; I opened a ticket for it.";
    json!([
        {
            "type": "tool_result", "toolCallId": "restart", "toolName": "service.restart", "status": "success",
            "output": "drained in 3.2 s, started in 1.1 s",
        },
        { "type": "text_delta", "text": text },
        { "type": "turn_complete", "finalText": text },
    ])
}
