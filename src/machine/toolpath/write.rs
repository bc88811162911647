//! Owns: the two forms of a document, written line by line: `.path.jsonl` as the lines are, and JSON, which is one graph.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::EXTRAS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Lines,
}

/// Writes the lines of one or more paths. The line form holds one path; only the JSON form holds several.
pub struct Writer<W> {
    out: W,
    form: Form,
    /// The id of a graph of several paths; a single path brings its own.
    graph: Option<String>,
    paths: u64,
    steps: u64,
    open: Option<Map<String, Value>>,
    actors: Map<String, Value>,
    signatures: Vec<Value>,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, form: Form, graph: Option<String>) -> Writer<W> {
        let (actors, signatures) = (Map::new(), Vec::new());
        Writer { out, form, graph, paths: 0, steps: 0, open: None, actors, signatures }
    }

    /// One line as `export.rs` makes it.
    pub fn line(&mut self, line: &Value) -> io::Result<()> {
        let (tag, body) = match line.as_object().and_then(|line| line.iter().next()) {
            Some((tag, body)) => (tag.as_str(), body),
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "a line holds one key")),
        };
        if tag == "ActorDef" {
            // Pages repeat the actors they name.
            let actor = body["actor"].as_str().unwrap_or_default().to_owned();
            if self.actors.insert(actor, body["definition"].clone()).is_some() {
                return Ok(());
            }
        }
        match self.form {
            Form::Lines => {
                serde_json::to_writer(&mut self.out, line)?;
                self.out.write_all(b"\n")
            }
            Form::Json => self.json(tag, body),
        }
    }

    fn json(&mut self, tag: &str, body: &Value) -> io::Result<()> {
        match tag {
            "PathOpen" => {
                self.open = body.as_object().cloned();
                Ok(())
            }
            "Head" => self.begin_path(&body["step_id"]),
            "Signature" => {
                self.signatures.push(body["signature"].clone());
                Ok(())
            }
            "Step" => {
                self.out.write_all(if self.steps == 0 { b"\n" } else { b",\n" })?;
                self.steps += 1;
                Ok(serde_json::to_writer(&mut self.out, body)?)
            }
            "PathClose" => self.end_path(),
            _ => Ok(()),
        }
    }

    fn begin_path(&mut self, head: &Value) -> io::Result<()> {
        let open = self.open.get_or_insert_default();
        let mut path = json!({ "id": open.get("id"), "head": head });
        for key in ["base", "graph_ref"] {
            if let Some(value) = open.remove(key) {
                path[key] = value;
            }
        }
        if self.paths == 0 {
            let extras = open.get_mut("meta").and_then(|meta| meta.get_mut(EXTRAS)).and_then(Value::as_object_mut);
            let own = extras.and_then(|extras| extras.remove("graph")).unwrap_or_else(|| json!({ "id": path["id"] }));
            let mut graph = match &self.graph {
                Some(id) => json!({ "id": id }),
                None => own,
            };
            let meta = graph.as_object_mut().and_then(|graph| graph.remove("meta"));
            write!(self.out, "{{\"graph\":{graph},")?;
            if let Some(meta) = meta {
                write!(self.out, "\"meta\":{meta},")?;
            }
            self.out.write_all(b"\"paths\":[")?;
        } else {
            self.out.write_all(b",")?;
        }
        self.paths += 1;
        self.steps = 0;
        write!(self.out, "{{\"path\":{path},\"steps\":[")
    }

    fn end_path(&mut self) -> io::Result<()> {
        let mut meta = self.open.take().and_then(|mut open| open.remove("meta")).unwrap_or_else(|| json!({}));
        if let Some(fields) = meta.as_object_mut() {
            // A graph id that went into the graph leaves nothing to tell.
            if fields.get(EXTRAS).is_some_and(|extras| extras.as_object().is_some_and(Map::is_empty)) {
                fields.remove(EXTRAS);
            }
            if !self.actors.is_empty() {
                fields.insert("actors".to_owned(), Value::Object(std::mem::take(&mut self.actors)));
            }
            if !self.signatures.is_empty() {
                fields.insert("signatures".to_owned(), Value::from(std::mem::take(&mut self.signatures)));
            }
        }
        write!(self.out, "],\"meta\":{meta}}}")
    }

    /// Ends the document and gives the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        match (self.form, self.paths) {
            (Form::Lines, _) => {}
            (Form::Json, 0) => {
                let id = self.graph.as_deref().unwrap_or(super::SOURCE);
                write!(self.out, "{}", json!({ "graph": { "id": id }, "paths": [] }))?;
            }
            (Form::Json, _) => self.out.write_all(b"]}\n")?,
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
