//! Owns: the session files of coding agents as Toolpath documents, through the public crates that read them.
//!
//! What those crates leave open is settled here and noted: dates that are missing, usage stated twice in a group, parents
//! that were not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Value, json};

use super::TransferError;
use crate::machine::toolpath::{actor, time};

/// A coding agent whose session files can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Producer {
    Claude,
    Codex,
    Gemini,
    Copilot,
    Pi,
}

impl Producer {
    fn name(self) -> &'static str {
        match self {
            Producer::Claude => "Claude Code",
            Producer::Codex => "Codex",
            Producer::Gemini => "Gemini CLI",
            Producer::Copilot => "Copilot CLI",
            Producer::Pi => "Pi",
        }
    }
}

/// A transcript as a document, and what could not be told.
pub struct Transcript {
    pub document: Value,
    pub notes: Vec<String>,
}

/// Whether a file found in a directory is a session file of this agent.
pub fn is_transcript(producer: Producer, file: &Path) -> bool {
    let is = |ending: &str| file.extension().is_some_and(|extension| extension == ending);
    match producer {
        Producer::Claude | Producer::Codex | Producer::Pi => is("jsonl"),
        Producer::Copilot => file.file_name().is_some_and(|name| name == "events.jsonl"),
        // Files of sub-agents lie in a directory of their session and are read with it.
        Producer::Gemini => {
            is("json") && file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("session-"))
        }
    }
}

pub fn read(producer: Producer, file: &Path) -> Result<Transcript, TransferError> {
    let (session, path) = derive(producer, file)?;
    let refused =
        |why: &str| TransferError::Transcript { file: file.to_owned(), from: producer.name(), why: why.to_owned() };
    let mut path = serde_json::to_value(path).map_err(|error| refused(&error.to_string()))?;
    if path["steps"].as_array().is_none_or(Vec::is_empty) {
        return Err(refused("no turn was found in it"));
    }
    // The crates name a path by the first characters of its session, which several sessions may share.
    let source = path["meta"]["source"].as_str().unwrap_or("toolpath").to_owned();
    path["path"]["id"] = Value::from(format!("{source}-{session}"));
    let notes = settle(&mut path);
    let document = json!({ "graph": { "id": path["path"]["id"] }, "paths": [path] });
    Ok(Transcript { document, notes })
}

/// The session's id and its path, by the agent's own reader.
fn derive(producer: Producer, file: &Path) -> Result<(String, toolpath::v1::Path), TransferError> {
    let refused = |why: String| TransferError::Transcript { file: file.to_owned(), from: producer.name(), why };
    Ok(match producer {
        Producer::Claude => {
            let read = toolpath_claude::ConversationReader::read_conversation(file);
            let conversation = read.map_err(|error| refused(error.to_string()))?;
            (conversation.session_id.clone(), claude_path(conversation))
        }
        Producer::Codex => {
            let read = toolpath_codex::RolloutReader::read_session(file);
            let session = read.map_err(|error| refused(error.to_string()))?;
            let config = toolpath_codex::derive::DeriveConfig::default();
            (session.id.clone(), toolpath_codex::derive::derive_path(&session, &config))
        }
        Producer::Gemini => {
            let read = toolpath_gemini::ConversationReader::read_chat_file(file);
            let main = read.map_err(|error| refused(error.to_string()))?;
            let id = Some(main.session_id.clone()).filter(|id| !id.is_empty());
            let id = id.unwrap_or_else(|| stem(file));
            let mut conversation = toolpath_gemini::types::Conversation::new(id.clone(), main);
            for sub_agent in sub_agents(file, &id) {
                let read = toolpath_gemini::ConversationReader::read_chat_file(&sub_agent);
                conversation.sub_agents.push(read.map_err(|error| refused(error.to_string()))?);
            }
            let config = toolpath_gemini::derive::DeriveConfig { project_path: None, include_thinking: true };
            (id, toolpath_gemini::derive::derive_path(&conversation, &config))
        }
        Producer::Copilot => {
            let directory = if file.is_dir() { Some(file) } else { file.parent() };
            let directory = directory.ok_or_else(|| refused("events.jsonl lies in no directory".to_owned()))?;
            let read = toolpath_copilot::EventReader::read_session_dir(directory);
            let session = read.map_err(|error| refused(error.to_string()))?;
            let config = toolpath_copilot::derive::DeriveConfig::default();
            (session.id.clone(), toolpath_copilot::derive::derive_path(&session, &config))
        }
        Producer::Pi => {
            let read = toolpath_pi::reader::read_session_from_file(file);
            let session = read.map_err(|error| refused(error.to_string()))?;
            let config = toolpath_pi::DeriveConfig::default();
            (session.header.id.clone(), toolpath_pi::derive_path(&session, &config))
        }
    })
}

/// The path of a Claude Code transcript.
///
/// For a file that was written as a whole, the reader runs `git show` in the directory that the turn names, to find
/// what the file held before. A transcript may come from a stranger: it must not choose where a program runs, nor bring
/// the contents of other repositories into a session. So the reader does not see the directories; they are put back
/// afterwards.
fn claude_path(mut conversation: toolpath_claude::Conversation) -> toolpath::v1::Path {
    let start = conversation.entries.iter().find_map(|entry| entry.cwd.clone());
    let mut directories: BTreeMap<String, String> = BTreeMap::new();
    for entry in conversation.entries.iter_mut().filter(|entry| entry.message.is_some()) {
        if let Some(directory) = entry.cwd.take() {
            directories.entry(entry.uuid.clone()).or_insert(directory);
        }
    }
    let mut view = toolpath_claude::provider::to_view(&conversation);
    for turn in &mut view.turns {
        if let Some(directory) = directories.get(&turn.id) {
            turn.environment.get_or_insert_default().working_dir = Some(directory.clone());
        }
    }
    if start.is_some() {
        view.base.get_or_insert_default().working_dir = start;
    }
    let first: String = conversation.session_id.chars().take(8).collect();
    let title = Some(format!("Claude session: {first}"));
    toolpath_convo::derive_path(&view, &toolpath_convo::DeriveConfig { title, ..Default::default() })
}

fn stem(file: &Path) -> String {
    file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The chat files of a Gemini session's sub-agents.
fn sub_agents(file: &Path, session: &str) -> Vec<PathBuf> {
    let directory = file.parent().map(|parent| parent.join(session));
    let listed = directory.and_then(|directory| std::fs::read_dir(directory).ok());
    let mut files: Vec<PathBuf> = listed.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

/// Makes a path keep the rules of its kind. Gives what had to be changed, in words.
fn settle(path: &mut Value) -> Vec<String> {
    let head = path["path"]["head"].as_str().map(str::to_owned);
    let Some(steps) = path["steps"].as_array_mut() else { return Vec::new() };
    let dates = settle_dates(steps);
    let usages = settle_usage(steps);
    let actors = settle_actors(steps);
    let parents = settle_parents(steps);
    let ids: BTreeSet<&str> = steps.iter().filter_map(|step| step["step"]["id"].as_str()).collect();
    let last = steps.last().map(|step| step["step"]["id"].clone());
    let has_head = head.is_some_and(|head| ids.contains(head.as_str()));
    if let Some(last) = last.filter(|_| !has_head) {
        path["path"]["head"] = last;
    }
    let counted = [
        (dates, "dates were missing and taken from the step before"),
        (usages, "usages stood twice in their group and were told once"),
        (actors, "actors had names that the format does not take"),
        (parents, "parents were not in the file"),
    ];
    counted.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
}

fn settle_dates(steps: &mut [Value]) -> u64 {
    let is_date = |step: &Value| step["step"]["timestamp"].as_str().is_some_and(|date| time::parse(date).is_some());
    let first = steps.iter().find(|step| is_date(step)).map(|step| step["step"]["timestamp"].clone());
    let mut last = first.unwrap_or_else(|| Value::from(time::print(0)));
    let mut missing = 0;
    for step in steps {
        if is_date(step) {
            last = step["step"]["timestamp"].clone();
        } else {
            step["step"]["timestamp"] = last.clone();
            missing += 1;
        }
    }
    missing
}

/// Only the last step of a group states its usage.
fn settle_usage(steps: &mut [Value]) -> u64 {
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let turn = |step: &Value| -> Option<(String, String)> {
        let change = step["change"].as_object()?;
        change.iter().find_map(|(artifact, change)| {
            let structural = change.get("structural")?;
            structural.get("token_usage")?;
            Some((artifact.clone(), structural.get("group_id")?.as_str()?.to_owned()))
        })
    };
    for (at, step) in steps.iter().enumerate() {
        if let Some((_, group)) = turn(step) {
            last.insert(group, at);
        }
    }
    let mut repeated = 0;
    for (at, step) in steps.iter_mut().enumerate() {
        if let Some((artifact, group)) = turn(step)
            && last.get(&group) != Some(&at)
        {
            step["change"][artifact]["structural"].as_object_mut().map(|turn| turn.remove("token_usage"));
            repeated += 1;
        }
    }
    repeated
}

fn settle_actors(steps: &mut [Value]) -> u64 {
    let mut renamed = 0;
    for step in steps {
        let given = step["step"]["actor"].as_str().unwrap_or_default();
        if !actor::is_valid(given) {
            let name = given.split_once(':').map_or(given, |(_, name)| name);
            step["step"]["actor"] = Value::from(actor::of_model(name));
            renamed += 1;
        }
    }
    renamed
}

fn settle_parents(steps: &mut [Value]) -> u64 {
    let ids: BTreeSet<String> =
        steps.iter().filter_map(|step| step["step"]["id"].as_str().map(str::to_owned)).collect();
    let mut dropped = 0;
    for step in steps {
        if let Some(parents) = step["step"].get_mut("parents").and_then(Value::as_array_mut) {
            let before = parents.len();
            parents.retain(|parent| parent.as_str().is_some_and(|parent| ids.contains(parent)));
            dropped += (before - parents.len()) as u64;
        }
    }
    dropped
}
