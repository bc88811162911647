//! Owns: `GET /v1/openapi.json`: every public function and every other address of the HTTP port, as OpenAPI 3.1. The
//! schemas of the functions are those of `requests`, so the document cannot differ from what is checked.
//! Never: internal functions.

use std::sync::LazyLock;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::cluster::Operation;
use super::http::Port;
use crate::machine::toolpath::redact::Field;
use crate::requests::limits::{BATCH_LENGTH_MAX, ID_BYTES_MAX, TEXT_BYTES_MAX};
use crate::requests::{self, Function};

static DOCUMENT: LazyLock<String> = LazyLock::new(|| build().to_string());

pub async fn document(State(_): State<Port>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

fn build() -> Value {
    let mut schemas = Map::new();
    schemas.insert("Error".to_owned(), error_schema());
    let mut paths = Map::new();
    for function in requests::served().filter(|function| !function.internal) {
        paths.insert(format!("/v1/call/{}", function.id), json!({ "post": operation(function, &mut schemas) }));
    }
    paths.extend(beside_the_functions());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "session-manager",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "A replicated, durable, reactive store of branching conversations.",
            "description": "Every function is a POST with a JSON body. Events arrive as server-sent events.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, {}],
        "tags": [
            { "name": "sessions", "description": "Sessions and their records." },
            { "name": "messages", "description": "Entries of a session: messages and custom entries." },
            { "name": "documents", "description": "Sessions as Toolpath documents." },
            { "name": "events", "description": "The change feed." },
            { "name": "cluster", "description": "The nodes, for operators." },
            { "name": "node", "description": "This node: probes, figures, configuration." },
            { "name": "login", "description": "Who is calling." },
        ],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Error": {
                    "description": "The request was refused or could not be served.",
                    "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
                },
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `session-manager token create`, or a JWT. Needed if the node has credentials.",
                },
            },
        },
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {
                    "code": { "type": "string", "description": "Stable, such as session/not_found." },
                    "message": { "type": "string", "description": "Names the field and the fix." },
                },
            },
        },
    })
}

fn operation(function: &Function, schemas: &mut Map<String, Value>) -> Value {
    let name = function.id.replace("::", "_").replace('-', "_");
    let mut request = lift((function.request_schema)(), schemas);
    refine(function.id, &mut request);
    let needs_body = request["required"].as_array().is_some_and(|fields| !fields.is_empty());
    if !needs_body {
        // SDKs send null for a call without arguments.
        request["type"] = json!(["object", "null"]);
    }
    let response = lift((function.response_schema)(), schemas);
    let mut operation = json!({
        "operationId": name,
        "summary": first_sentence(function.description),
        "description": function.description,
        "tags": [tag(function.id)],
        // No body means an empty object.
        "requestBody": {
            "required": needs_body,
            "content": { "application/json": { "schema": request } },
        },
        "responses": responses("application/json", response, "The response."),
    });
    if !function.writes {
        operation["parameters"] = json!([{
            "name": "consistency",
            "in": "query",
            "description": "local: answer from the state of this node, which may be stale.",
            "schema": { "type": "string", "enum": ["linearizable", "local"] },
        }]);
    }
    operation
}

/// Adds what is checked beyond the types. The schemas of the functions are published without it.
fn refine(id: &str, request: &mut Value) {
    let Some(Value::Object(fields)) = request.get_mut("properties") else { return };
    for (name, field) in fields.iter_mut() {
        let more = match (name.as_str(), id) {
            // Only ids of something new must not be empty. No session and no entry has an empty one.
            ("session_id" | "entry_id" | "parent_id" | "from_entry_id", _) => json!({ "maxLength": ID_BYTES_MAX }),
            ("title" | "description" | "reason", _) => json!({ "maxLength": TEXT_BYTES_MAX }),
            ("messages", "session::append-many") => json!({ "minItems": 1, "maxItems": BATCH_LENGTH_MAX }),
            ("strings_max", _) => json!({ "minimum": 64 }),
            _ => continue,
        };
        if let (Value::Object(field), Value::Object(more)) = (field, more) {
            field.extend(more);
        }
    }
    match id {
        "session::ensure" => request["properties"]["session_id"]["minLength"] = json!(1),
        "session::append" => {
            request["properties"]["entry_id"]["minLength"] = json!(1);
            request["oneOf"] = json!(
                ["message", "custom"]
                    .map(|field| { json!({ "required": [field], "properties": { (field): { "type": "object" } } }) })
            );
        }
        "session::export" => {
            let names: Vec<&str> = Field::ALL.iter().map(|field| field.name()).collect();
            request["properties"]["redact"]["items"] = json!({ "type": "string", "enum": names });
        }
        _as_typed => {}
    }
}

fn tag(id: &str) -> &'static str {
    match id.rsplit("::").next().unwrap_or(id) {
        "append" | "append-many" | "update-message" | "messages" | "get-message" | "set-active-leaf" | "path"
        | "tree" => "messages",
        "export" | "import" => "documents",
        "config-status" | "on-config-change" => "node",
        _session => "sessions",
    }
}

/// The first sentence, without its stop.
fn first_sentence(text: &str) -> &str {
    let end = text.find([';', '.', '(']).unwrap_or(text.len());
    text[..end].trim_end()
}

/// Moves the definitions of a schema to the components of the document, and points to them there.
fn lift(schema: schemars::schema::RootSchema, schemas: &mut Map<String, Value>) -> Value {
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    repoint(&mut schema);
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("$schema");
        if let Some(Value::Object(definitions)) = fields.remove("definitions") {
            schemas.extend(definitions);
        }
    }
    schema
}

fn repoint(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get_mut("$ref") {
                *target = target.replace("#/definitions/", "#/components/schemas/");
            }
            fields.values_mut().for_each(repoint);
        }
        Value::Array(items) => items.iter_mut().for_each(repoint),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn responses(content_type: &str, schema: Value, description: &str) -> Value {
    json!({
        "200": { "description": description, "content": { (content_type): { "schema": schema } } },
        "400": { "$ref": "#/components/responses/Error" },
        "401": { "$ref": "#/components/responses/Error" },
        "403": { "$ref": "#/components/responses/Error" },
        "404": { "$ref": "#/components/responses/Error" },
        "default": { "$ref": "#/components/responses/Error" },
    })
}

fn get(id: &str, tag: &str, summary: &str, content_type: &str, schema: Value) -> Value {
    let responses = responses(content_type, schema, "The answer.");
    json!({ "operationId": id, "tags": [tag], "summary": summary, "responses": responses })
}

fn open(mut operation: Value) -> Value {
    operation["security"] = json!([{}]);
    operation
}

fn post(id: &str, tag: &str, summary: &str, body: Value) -> Value {
    let mut operation = get(id, tag, summary, "application/json", json!({ "type": "object" }));
    let needs_body = body["required"].as_array().is_some_and(|fields| !fields.is_empty());
    operation["requestBody"] = json!({ "required": needs_body, "content": { "application/json": { "schema": body } } });
    operation
}

/// Everything on the port that is not a function.
fn beside_the_functions() -> Vec<(String, Value)> {
    const JSON: &str = "application/json";
    const TEXT: &str = "text/plain";
    let object = || json!({ "type": "object" });
    let text = || json!({ "type": "string" });
    let mut events = get("events", "events", "Stream events", "text/event-stream", text());
    events["parameters"] = parameters(&[
        ("session", "Only events of this session."),
        ("type", "Only these types, such as message-added,message-updated."),
        ("roles", "Only messages with these roles."),
        ("metadata", "Only sessions with this metadata: a JSON object."),
        ("after", "Resume after this position; `oldest` for everything that is kept."),
    ]);
    let mut ready = open(get("readyz", "node", "Whether this node can serve", TEXT, text()));
    ready["responses"]["503"] = json!({ "description": "Not now.", "content": { (TEXT): { "schema": text() } } });
    let mut health = open(get("health", "node", "How this node is", JSON, object()));
    health["responses"]["503"] =
        json!({ "description": "It cannot serve now.", "content": { (JSON): { "schema": object() } } });
    let mut paths = vec![
        ("/v1/events".to_owned(), events),
        ("/v1/feed".to_owned(), get("feed", "events", "The kept feed and its subscribers", JSON, object())),
        ("/v1/nodes".to_owned(), get("nodes", "cluster", "The nodes and their URLs", JSON, object())),
        ("/v1/cluster".to_owned(), get("cluster", "cluster", "Every member with its status", JSON, object())),
        ("/v1/history".to_owned(), get("history", "node", "Figures of the last hour", JSON, object())),
        ("/v1/me".to_owned(), get("me", "login", "Who the caller is, and what it may do", JSON, object())),
        ("/v1/openapi.json".to_owned(), open(get("openapi", "node", "This document", JSON, object()))),
        ("/metrics".to_owned(), get("metrics", "node", "Figures for Prometheus", TEXT, text())),
        ("/livez".to_owned(), open(get("livez", "node", "Whether the process answers", TEXT, text()))),
        ("/readyz".to_owned(), ready),
        ("/health".to_owned(), health),
    ];
    paths.iter_mut().for_each(|(_, operation)| *operation = json!({ "get": operation.take() }));
    let token = json!({
        "type": "object",
        "required": ["token"],
        "additionalProperties": false,
        "properties": { "token": { "type": "string", "minLength": 1, "maxLength": 3800, "pattern": "^[A-Za-z0-9._~+/=-]+$" } },
    });
    let login = open(post("login", "login", "Keep a token in a cookie", token));
    let mut logout = open(get("logout", "login", "Forget the cookie", JSON, object()));
    logout["description"] = json!("For the console.");
    paths.push(("/v1/login".to_owned(), json!({ "post": login })));
    paths.push(("/v1/logout".to_owned(), json!({ "post": logout })));
    for name in Operation::NAMES {
        let (summary, body) = operation_of(name);
        let operation = post(&name.replace('-', "_"), "cluster", summary, body);
        paths.push((format!("/v1/cluster/{name}"), json!({ "post": operation })));
    }
    paths
}

fn parameters(named: &[(&str, &str)]) -> Value {
    let one = |(name, description): &(&str, &str)| json!({ "name": name, "in": "query", "description": description, "schema": { "type": "string" } });
    named.iter().map(one).collect()
}

/// What an operation does, and its body.
fn operation_of(name: &str) -> (&'static str, Value) {
    let node = json!({ "type": "integer", "minimum": 1, "format": "uint64" });
    let body = |required: &[&str], properties: Value| json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties });
    match name {
        "transfer-leader" => ("Hand over leadership", body(&[], json!({ "to": node }))),
        "add" => {
            ("Add a learner", body(&["node", "address"], json!({ "node": node, "address": { "type": "string" } })))
        }
        "promote" => ("Make a learner a voter", body(&["node"], json!({ "node": node }))),
        "remove" => ("Remove a member", body(&["node"], json!({ "node": node, "force": { "type": "boolean" } }))),
        _snapshot => ("Build a snapshot on this node", body(&[], json!({}))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(target)) = fields.get("$ref") {
                    found.insert(target.clone());
                }
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_public_function_is_in_the_document_and_every_reference_leads_somewhere() {
        let document = build();
        for function in requests::served() {
            let path = format!("/v1/call/{}", function.id);
            assert_eq!(document["paths"].get(&path).is_none(), function.internal, "{path}");
        }
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for target in found {
            let pointer = target.strip_prefix('#').expect("a reference within the document");
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
    }

    /// Two functions may not mean different things by one name: the document has one place for it.
    #[test]
    fn a_definition_means_the_same_in_every_function() {
        let mut known: Map<String, Value> = Map::new();
        for function in requests::served().filter(|function| !function.internal) {
            for schema in [(function.request_schema)(), (function.response_schema)()] {
                let mut own = Map::new();
                lift(schema, &mut own);
                for (name, definition) in own {
                    let before = known.entry(name.clone()).or_insert_with(|| definition.clone());
                    assert_eq!(*before, definition, "{name} in {}", function.id);
                }
            }
        }
    }
}
