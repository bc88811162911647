//! Owns: what a step and a path must look like. The rules are those of the base schema of Toolpath, of the kind
//! `agent-coding-session`, and two that no schema can say: dates are dates, actors are actors.

use serde_json::{Map, Value};

use super::error::Problem;
use super::step::{APPEND, EVENT, FILE_WRITE};
use super::{KIND, KIND_BEFORE, actor, time};

type Checked = Result<(), Problem>;

const CATEGORIES: [&str; 6] = ["file_read", "file_write", "file_search", "shell", "network", "delegation"];
const IDENTITY: [&str; 4] = ["id", "parents", "actor", "timestamp"];

/// The id of a step, if it can be read: an error can then name it.
pub fn step_id(step: &Value) -> Option<&str> {
    step.get("step")?.get("id")?.as_str()
}

pub fn step(step: &Value) -> Checked {
    let step = object(step, "step")?;
    only(step, &["step", "change", "meta"])?;
    identity(required(step, "step")?)?;
    for (artifact, change) in object(required(step, "change")?, "change")? {
        let change = object(change, artifact)?;
        only(change, &["raw", "structural"])?;
        optional(change, "raw", string)?;
        optional(change, "structural", structural)?;
        if change.is_empty() {
            return Err(Problem::wrong(artifact, "an object with `raw` or `structural`"));
        }
    }
    optional(step, "meta", meta)
}

fn identity(identity: &Value) -> Checked {
    let identity = object(identity, "step")?;
    only(identity, &IDENTITY)?;
    string(required(identity, "id")?, "step.id")?;
    optional(identity, "parents", |parents, at| each(parents, at, string))?;
    let actor = text(required(identity, "actor")?, "step.actor")?;
    if !actor::is_valid(actor) {
        return Err(Problem::BadActor(actor.to_owned()));
    }
    let timestamp = text(required(identity, "timestamp")?, "step.timestamp")?;
    match time::parse(timestamp) {
        Some(_) => Ok(()),
        None => Err(Problem::BadDate(timestamp.to_owned())),
    }
}

fn structural(structural: &Value, at: &str) -> Checked {
    let structural = object(structural, at)?;
    match text(required(structural, "type")?, "structural.type")? {
        APPEND => turn(structural),
        EVENT => {
            string(required(structural, "entry_type")?, "entry_type")?;
            optional(structural, "event_source_id", string)
        }
        FILE_WRITE => {
            for key in ["tool_id", "tool", "operation", "before", "after", "rename_to"] {
                optional(structural, key, string)?;
            }
            Ok(())
        }
        // Other types are extras of the producer.
        _ => Ok(()),
    }
}

fn turn(turn: &Map<String, Value>) -> Checked {
    string(required(turn, "role")?, "role")?;
    string(required(turn, "text")?, "text")?;
    for key in ["thinking", "group_id", "stop_reason"] {
        optional(turn, key, string)?;
    }
    optional(turn, "tool_uses", |uses, at| each(uses, at, tool_use))?;
    optional(turn, "token_usage", |usage, at| {
        let fields = object(usage, at)?;
        required(fields, "input_tokens")?;
        required(fields, "output_tokens")?;
        counters(usage, at)?;
        optional(fields, "breakdowns", |classes, at| {
            for (class, parts) in object(classes, at)? {
                for (part, tokens) in object(parts, class)? {
                    integer(tokens, part)?;
                }
            }
            Ok(())
        })
    })?;
    optional(turn, "attributed_token_usage", counters)?;
    optional(turn, "delegations", |all, at| {
        each(all, at, |delegation, at| {
            let delegation = object(delegation, at)?;
            string(required(delegation, "agent_id")?, "agent_id")?;
            string(required(delegation, "prompt")?, "prompt")?;
            optional(delegation, "turns", |turns, at| each(turns, at, |_, _| Ok(())))?;
            optional(delegation, "result", string)
        })
    })?;
    optional(turn, "environment", |environment, at| {
        let environment = object(environment, at)?;
        for key in ["working_dir", "vcs_branch", "vcs_revision"] {
            optional(environment, key, string)?;
        }
        Ok(())
    })
}

fn tool_use(used: &Value, at: &str) -> Checked {
    let used = object(used, at)?;
    string(required(used, "id")?, "tool_uses.id")?;
    string(required(used, "name")?, "tool_uses.name")?;
    required(used, "input")?;
    match required(used, "category")? {
        Value::Null => {}
        Value::String(category) if CATEGORIES.contains(&category.as_str()) => {}
        _ => return Err(Problem::wrong("tool_uses.category", "a category of the kind, or null")),
    }
    optional(used, "result", |result, at| {
        let result = object(result, at)?;
        string(required(result, "content")?, "result.content")?;
        match required(result, "is_error")? {
            Value::Bool(_) => Ok(()),
            _ => Err(Problem::wrong("result.is_error", "true or false")),
        }
    })
}

fn counters(usage: &Value, at: &str) -> Checked {
    let usage = object(usage, at)?;
    for key in ["input_tokens", "output_tokens"] {
        optional(usage, key, |tokens, at| if tokens.is_null() { Ok(()) } else { integer(tokens, at) })?;
    }
    for key in ["cache_read_tokens", "cache_write_tokens"] {
        optional(usage, key, integer)?;
    }
    Ok(())
}

/// The metadata of a graph, a path or a step. Extra keys are allowed.
pub fn meta(meta: &Value, at: &str) -> Checked {
    let meta = object(meta, at)?;
    for key in ["title", "intent", "description", "kind"] {
        optional(meta, key, string)?;
    }
    optional(meta, "refs", |refs, at| {
        each(refs, at, |reference, at| {
            let reference = object(reference, at)?;
            only(reference, &["rel", "href"])?;
            string(required(reference, "rel")?, "refs.rel")?;
            string(required(reference, "href")?, "refs.href")
        })
    })?;
    optional(meta, "actors", |actors, at| {
        for (name, definition) in object(actors, at)? {
            if !actor::is_valid(name) {
                return Err(Problem::BadActor(name.clone()));
            }
            only(object(definition, name)?, &["name", "provider", "model", "identities", "keys"])?;
        }
        Ok(())
    })?;
    optional(meta, "signatures", |signatures, at| {
        each(signatures, at, |signature, at| {
            let signature = object(signature, at)?;
            ["signer", "key", "scope", "sig"].into_iter().try_for_each(|key| string(required(signature, key)?, key))
        })
    })
}

/// The metadata of a path: it must state a kind that is known here. True: the kind with the rule about groups.
pub fn path_meta(meta: &Value) -> Result<bool, Problem> {
    self::meta(meta, "meta")?;
    for key in ["source", "vcs_remote"] {
        optional(object(meta, "meta")?, key, string)?;
    }
    match meta.get("kind").and_then(Value::as_str) {
        Some(KIND) => Ok(true),
        Some(KIND_BEFORE) => Ok(false),
        Some(other) => Err(Problem::WrongKind(other.to_owned())),
        None => Err(Problem::NoKind),
    }
}

/// `path`: the identity of a path.
pub fn path_identity(path: &Value) -> Checked {
    let path = object(path, "path")?;
    only(path, &["id", "base", "head", "graph_ref"])?;
    string(required(path, "id")?, "path.id")?;
    string(required(path, "head")?, "path.head")?;
    optional(path, "graph_ref", string)?;
    optional(path, "base", base)
}

pub fn base(base: &Value, at: &str) -> Checked {
    let base = object(base, at)?;
    only(base, &["uri", "ref", "branch"])?;
    string(required(base, "uri")?, "base.uri")?;
    optional(base, "ref", string)?;
    optional(base, "branch", string)
}

pub fn only(object: &Map<String, Value>, known: &[&str]) -> Checked {
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Problem::UnknownKey(key.clone())),
        None => Ok(()),
    }
}

pub fn object<'a>(value: &'a Value, at: &str) -> Result<&'a Map<String, Value>, Problem> {
    value.as_object().ok_or_else(|| Problem::wrong(at, "an object"))
}

pub fn required<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a Value, Problem> {
    object.get(key).ok_or_else(|| Problem::wrong(key, "given"))
}

pub fn text<'a>(value: &'a Value, at: &str) -> Result<&'a str, Problem> {
    value.as_str().ok_or_else(|| Problem::wrong(at, "a string"))
}

pub fn string(value: &Value, at: &str) -> Checked {
    text(value, at).map(|_| ())
}

fn integer(value: &Value, at: &str) -> Checked {
    let is_whole = value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    if is_whole { Ok(()) } else { Err(Problem::wrong(at, "a whole number")) }
}

fn optional(object: &Map<String, Value>, key: &str, check: impl Fn(&Value, &str) -> Checked) -> Checked {
    object.get(key).map_or(Ok(()), |value| check(value, key))
}

fn each(value: &Value, at: &str, check: impl Fn(&Value, &str) -> Checked) -> Checked {
    let items = value.as_array().ok_or_else(|| Problem::wrong(at, "an array"))?;
    items.iter().try_for_each(|item| check(item, at))
}
