//! Owns: the index of a document: where each step lies, what it hangs below, and what the document says as a whole.
//! Making it checks the document completely, so that nothing of a bad one is ever written. It holds ids and offsets, no
//! steps: memory follows the number of steps, not their size.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read, Seek, SeekFrom};

use serde_json::{Map, Value, json};

use super::answers::{Answers, Verdict};
use super::error::{DocumentError, Problem, Spot};
use super::scan::{Scan, is_too_deep};
use super::{EXTRAS, SOURCE, check};

/// The largest step that is read. An entry has at most 16 MiB, and a step may hold it twice with diffs beside it.
const STEP_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Up to so many steps a cycle is followed to name a step that stands on it; beyond that, one below it will do.
const CYCLE_WALK_MAX: usize = 2000;

/// One path of a document.
#[derive(Debug)]
pub struct Outline {
    /// The graph around the path: `{id, meta?}`; none in the line form.
    pub graph: Option<Value>,
    /// `{id, head, base?, graph_ref?}`.
    pub path: Value,
    pub meta: Value,
    /// What becomes of the results that tool uses show, by the index of their step.
    verdicts: BTreeMap<u32, Vec<Option<Verdict>>>,
    steps: Vec<Located>,
    /// Signatures that stand on lines of their own, by step.
    signatures: BTreeMap<u32, Vec<Value>>,
    /// The order of reading in which parents come before their children; the document's own when `None`.
    order: Option<Vec<u32>>,
}

#[derive(Debug, Clone, Copy)]
struct Located {
    offset: u64,
    bytes: u32,
}

impl Outline {
    /// Indexes and checks a document in either form. Reads it once, from its start.
    pub fn read(reader: impl BufRead) -> Result<Vec<Outline>, DocumentError> {
        let mut scan = Scan::new(reader);
        let at = |problem| DocumentError::new(Spot::Document, problem);
        if scan.peek().map_err(at)?.is_none() {
            return Err(at(Problem::EndsEarly));
        }
        scan.expect(b'{', "must be a JSON object: a Toolpath graph or the lines of a path").map_err(at)?;
        let first = scan.key(true).map_err(at)?;
        if first.as_deref() == Some("PathOpen") {
            return Ok(vec![read_lines(&mut scan)?]);
        }
        read_graph(&mut scan, first)
    }

    pub fn id(&self) -> &str {
        self.path["id"].as_str().unwrap_or_default()
    }

    pub fn head(&self) -> &str {
        self.path["head"].as_str().unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Where the nth step to import stands in the document.
    pub fn index(&self, nth: usize) -> u32 {
        self.order.as_ref().map_or(nth as u32, |order| order[nth])
    }

    /// What becomes of the results of a step's tool uses. A use without an item has no function result.
    pub fn verdicts(&self, index: u32) -> &[Option<Verdict>] {
        self.verdicts.get(&index).map_or(&[], Vec::as_slice)
    }

    /// The nth step to import: parents come before their children.
    pub fn step(&self, reader: &mut (impl Read + Seek), nth: usize) -> Result<Value, DocumentError> {
        let index = self.index(nth) as usize;
        let located = self.steps[index];
        let at = |problem| DocumentError::new(Spot::StepNumber(index as u64 + 1), problem);
        let mut text = vec![0; located.bytes as usize];
        reader.seek(SeekFrom::Start(located.offset)).map_err(|error| at(error.into()))?;
        reader.read_exact(&mut text).map_err(|error| at(error.into()))?;
        let mut step: Value = serde_json::from_slice(&text).map_err(|error| at(Problem::of_json(error)))?;
        if let Some(line) = step.get_mut("Step") {
            step = line.take();
        }
        for signature in self.signatures.get(&(index as u32)).into_iter().flatten() {
            let meta = step.as_object_mut().map(|step| step.entry("meta").or_insert_with(|| json!({})));
            let Some(Value::Object(meta)) = meta else { continue };
            match meta.entry("signatures").or_insert_with(|| json!([])) {
                Value::Array(signatures) => signatures.push(signature.clone()),
                other => *other = json!([signature]),
            }
        }
        Ok(step)
    }
}

/// The graph form. `first` is its first key, already read.
fn read_graph<R: BufRead>(scan: &mut Scan<R>, first: Option<String>) -> Result<Vec<Outline>, DocumentError> {
    let at = |problem| DocumentError::new(Spot::Document, problem);
    let mut graph = Value::Null;
    let mut graph_meta = None;
    let mut builders: Vec<Builder> = Vec::new();
    let mut number = 0;
    let mut key = first;
    while let Some(name) = key {
        match name.as_str() {
            "graph" => graph = parsed(scan).map_err(at)?,
            "meta" => graph_meta = Some(parsed(scan).map_err(at)?),
            "paths" => {
                scan.expect(b'[', "`paths` must be an array").map_err(at)?;
                let mut is_first = true;
                while scan.item(is_first).map_err(at)? {
                    is_first = false;
                    builders.push(read_path(scan, &mut number)?);
                }
            }
            "path" | "steps" => return Err(at(Problem::Syntax("is a bare path: a document is a graph around paths"))),
            _ => return Err(at(Problem::UnknownKey(name))),
        }
        key = scan.key(false).map_err(at)?;
    }
    if scan.peek().map_err(at)?.is_some() {
        return Err(at(Problem::Syntax("has more text after its end")));
    }
    check_graph(&graph, graph_meta.as_ref()).map_err(at)?;
    if let Some(meta) = graph_meta {
        graph["meta"] = meta;
    }
    let mut ids = BTreeSet::new();
    let mut outlines = Vec::with_capacity(builders.len());
    for mut builder in builders {
        builder.graph = Some(graph.clone());
        let outline = builder.finish()?;
        if !ids.insert(outline.id().to_owned()) {
            return Err(DocumentError::new(Spot::Path(outline.id().to_owned()), Problem::DuplicateId));
        }
        outlines.push(outline);
    }
    if outlines.is_empty() {
        return Err(at(Problem::NoPath));
    }
    Ok(outlines)
}

fn check_graph(graph: &Value, meta: Option<&Value>) -> Result<(), Problem> {
    let graph = check::object(graph, "graph")?;
    check::only(graph, &["id"])?;
    check::string(check::required(graph, "id")?, "graph.id")?;
    meta.map_or(Ok(()), |meta| check::meta(meta, "meta"))
}

fn read_path<R: BufRead>(scan: &mut Scan<R>, number: &mut u64) -> Result<Builder, DocumentError> {
    let at = |problem| DocumentError::new(Spot::Document, problem);
    let mut builder = Builder::default();
    scan.expect(b'{', "a path must be an object").map_err(at)?;
    let mut is_first = true;
    while let Some(key) = scan.key(is_first).map_err(at)? {
        is_first = false;
        match key.as_str() {
            "path" => builder.path = parsed(scan).map_err(at)?,
            "meta" => builder.meta = parsed(scan).map_err(at)?,
            "$ref" => {
                let target = parsed(scan).map_err(at)?;
                return Err(at(Problem::Reference(target.as_str().unwrap_or_default().to_owned())));
            }
            "steps" => {
                scan.expect(b'[', "`steps` must be an array").map_err(at)?;
                let mut is_first_step = true;
                loop {
                    let here = |problem| DocumentError::new(Spot::StepNumber(*number + 1), problem);
                    if !scan.item(is_first_step).map_err(here)? {
                        break;
                    }
                    is_first_step = false;
                    *number += 1;
                    let here = |problem| DocumentError::new(Spot::StepNumber(*number), problem);
                    scan.peek().map_err(here)?;
                    let offset = scan.offset();
                    let text = scan.value(STEP_BYTES_MAX).map_err(here)?;
                    let step: Value = serde_json::from_slice(&text).map_err(Problem::of_json).map_err(here)?;
                    builder.step(&step, Located { offset, bytes: text.len() as u32 }, *number)?;
                }
            }
            _ => return Err(at(Problem::UnknownKey(key))),
        }
    }
    Ok(builder)
}

fn parsed<R: BufRead>(scan: &mut Scan<R>) -> Result<Value, Problem> {
    serde_json::from_slice(&scan.value(STEP_BYTES_MAX)?).map_err(Problem::of_json)
}

/// The line form, its first line read up to the colon after `PathOpen`.
fn read_lines<R: BufRead>(scan: &mut Scan<R>) -> Result<Outline, DocumentError> {
    let mut number = 1;
    let first = |problem| DocumentError::new(Spot::Line(1), problem);
    let open = parsed(scan).map_err(first)?;
    scan.expect(b'}', "a line holds one key").map_err(first)?;
    let mut builder = Builder::default();
    builder.open(open).map_err(first)?;
    let mut steps = 0;
    let mut is_closed = false;
    let mut offset = scan.offset();
    while let Some(text) =
        scan.line(STEP_BYTES_MAX).map_err(|problem| DocumentError::new(Spot::Line(number), problem))?
    {
        let located = Located { offset, bytes: text.len() as u32 };
        offset = scan.offset();
        // The rest of the first line is what comes back first.
        if text.iter().all(u8::is_ascii_whitespace) {
            number += 1;
            continue;
        }
        let here = |problem| DocumentError::new(Spot::Line(number), problem);
        if is_closed {
            return Err(here(Problem::Syntax("stands after PathClose")));
        }
        if is_too_deep(&text) {
            return Err(here(Problem::TooDeep));
        }
        let line: Value = serde_json::from_slice(&text).map_err(Problem::of_json).map_err(here)?;
        let fields = check::object(&line, "line").map_err(here)?;
        let (Some((tag, body)), 1) = (fields.iter().next(), fields.len()) else {
            return Err(here(Problem::Syntax("a line holds one key")));
        };
        match tag.as_str() {
            "PathOpen" => return Err(here(Problem::Syntax("a second PathOpen"))),
            "Step" => {
                steps += 1;
                builder.step(body, located, steps)?;
            }
            "ActorDef" => builder.actor(body).map_err(here)?,
            "Signature" => builder.signature(body).map_err(here)?,
            "PathMeta" => builder.patch(body).map_err(here)?,
            "Head" => {
                let head = body.get("step_id").ok_or_else(|| here(Problem::wrong("step_id", "given")))?;
                builder.path["head"] = head.clone();
            }
            "PathClose" => is_closed = true,
            // The format says that readers skip lines they do not know.
            _ => {}
        }
        number += 1;
    }
    // Other producers may leave the last line out. Without it, branches at the end of an export could be missing.
    if !is_closed && builder.is_ours() {
        return Err(DocumentError::new(Spot::Line(number), Problem::EndsEarly));
    }
    if builder.path.get("head").is_none() {
        builder.infer_head()?;
    }
    builder.finish()
}

/// A path while its document is being read.
#[derive(Default)]
struct Builder {
    graph: Option<Value>,
    path: Value,
    meta: Value,
    steps: Vec<Located>,
    ids: BTreeMap<String, u32>,
    /// First parents, where they are known already.
    parents: Vec<Option<u32>>,
    /// Every other link to a parent: the step, the parent, and whether it is the first one.
    links: Vec<(u32, String, bool)>,
    usages: BTreeMap<String, bool>,
    /// The first step that repeats its group's usage; whether that is an error depends on the kind, told elsewhere.
    usage_twice: Option<(String, String)>,
    answers: Answers,
    signatures: BTreeMap<u32, Vec<Value>>,
}

impl Builder {
    /// Whether this project wrote the document.
    fn is_ours(&self) -> bool {
        self.meta.get(EXTRAS).is_some() || self.meta.get("source").and_then(Value::as_str) == Some(SOURCE)
    }

    fn open(&mut self, open: Value) -> Result<(), Problem> {
        let mut open = match open {
            Value::Object(open) => open,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(Problem::wrong("PathOpen", "an object"));
            }
        };
        check::only(&open, &["version", "id", "base", "graph_ref", "meta"])?;
        self.meta = open.remove("meta").unwrap_or_else(|| json!({}));
        open.remove("version");
        self.path = Value::Object(open);
        Ok(())
    }

    fn actor(&mut self, body: &Value) -> Result<(), Problem> {
        let body = check::object(body, "ActorDef")?;
        let actor = check::text(check::required(body, "actor")?, "actor")?;
        let definition = check::required(body, "definition")?.clone();
        match self.meta.as_object_mut().map(|meta| meta.entry("actors").or_insert_with(|| json!({}))) {
            Some(Value::Object(actors)) => {
                actors.insert(actor.to_owned(), definition);
                Ok(())
            }
            Some(_) | None => Err(Problem::wrong("meta.actors", "an object")),
        }
    }

    fn signature(&mut self, body: &Value) -> Result<(), Problem> {
        let body = check::object(body, "Signature")?;
        let target = check::text(check::required(body, "target")?, "target")?;
        let signature = check::required(body, "signature")?.clone();
        if target == "path" {
            return match self.meta.as_object_mut().map(|meta| meta.entry("signatures").or_insert_with(|| json!([]))) {
                Some(Value::Array(signatures)) => {
                    signatures.push(signature);
                    Ok(())
                }
                Some(_) | None => Err(Problem::wrong("meta.signatures", "an array")),
            };
        }
        let step = target.strip_prefix("step:").and_then(|id| self.ids.get(id));
        let step = step.ok_or_else(|| Problem::SignatureOfNothing(target.to_owned()))?;
        self.signatures.entry(*step).or_default().push(signature);
        Ok(())
    }

    fn patch(&mut self, body: &Value) -> Result<(), Problem> {
        let patch = check::object(check::required(check::object(body, "PathMeta")?, "patch")?, "patch")?;
        let meta = self.meta.as_object_mut().ok_or_else(|| Problem::wrong("meta", "an object"))?;
        meta.extend(patch.iter().map(|(key, value)| (key.clone(), value.clone())));
        Ok(())
    }

    /// Without a Head line, the head is the one step that no other names as its parent.
    fn infer_head(&mut self) -> Result<(), DocumentError> {
        let mut is_parent = vec![false; self.steps.len()];
        let linked = self.links.iter().filter_map(|(_, parent, _)| self.ids.get(parent));
        for parent in self.parents.iter().flatten().chain(linked) {
            is_parent[*parent as usize] = true;
        }
        let mut tips = self.ids.iter().filter(|(_, index)| !is_parent[**index as usize]);
        match (tips.next(), tips.next()) {
            (Some((id, _)), None) => {
                self.path["head"] = Value::from(id.as_str());
                Ok(())
            }
            (None | Some(_), _) => Err(DocumentError::new(Spot::Document, Problem::HeadUnknown)),
        }
    }

    fn step(&mut self, step: &Value, located: Located, number: u64) -> Result<(), DocumentError> {
        let spot = || check::step_id(step).map_or(Spot::StepNumber(number), Spot::step);
        check::step(step).map_err(|problem| DocumentError::new(spot(), problem))?;
        let id = check::step_id(step).unwrap_or_default();
        let index = self.steps.len() as u32;
        if index == u32::MAX {
            return Err(DocumentError::new(spot(), Problem::TooManySteps(index)));
        }
        if self.ids.insert(id.to_owned(), index).is_some() {
            return Err(DocumentError::new(spot(), Problem::DuplicateId));
        }
        self.steps.push(located);
        self.parents.push(None);
        let parents = step["step"].get("parents").and_then(Value::as_array);
        for (nth, parent) in parents.into_iter().flatten().filter_map(Value::as_str).enumerate() {
            match self.ids.get(parent).filter(|parent| nth == 0 && **parent != index) {
                Some(known) => self.parents[index as usize] = Some(*known),
                None => self.links.push((index, parent.to_owned(), nth == 0)),
            }
        }
        for change in step["change"].as_object().into_iter().flat_map(Map::values) {
            self.note_usage(id, change);
        }
        self.answers.note(index, step);
        Ok(())
    }

    fn note_usage(&mut self, id: &str, change: &Value) {
        let Some(structural) = change.get("structural") else { return };
        if let Some(group) = structural.get("group_id").and_then(Value::as_str) {
            let has_usage = structural.get("token_usage").is_some();
            let had_usage = self.usages.entry(group.to_owned()).or_default();
            if has_usage && *had_usage && self.usage_twice.is_none() {
                self.usage_twice = Some((id.to_owned(), group.to_owned()));
            }
            *had_usage |= has_usage;
        }
    }

    /// The checks that need all steps.
    fn finish(mut self) -> Result<Outline, DocumentError> {
        let path_spot = || Spot::Path(self.path.get("id").and_then(Value::as_str).unwrap_or_default().to_owned());
        let refuse = |problem| DocumentError::new(path_spot(), problem);
        check::path_identity(&self.path).map_err(refuse)?;
        let counts_groups = check::path_meta(&self.meta).map_err(refuse)?;
        if let Some((id, group)) = self.usage_twice.take().filter(|_| counts_groups) {
            return Err(DocumentError::new(Spot::Step(id), Problem::UsageTwice(group)));
        }
        let head = self.path["head"].as_str().unwrap_or_default();
        // A session without a leaf has no head to name.
        let is_headless = head.is_empty() && (self.steps.is_empty() || tells_of_no_leaf(&self.meta));
        if !is_headless && !self.ids.contains_key(head) {
            let missing = Problem::HeadMissing(head.to_owned());
            return Err(refuse(missing));
        }
        let head = self.ids.get(head).copied();
        let order = self.order()?;
        let sequence = 0..self.steps.len();
        let sequence = sequence.map(|nth| order.as_ref().map_or(nth as u32, |order| order[nth]));
        let verdicts = self.answers.verdicts(sequence, &self.parents, head);
        let Builder { graph, path, meta, steps, signatures, .. } = self;
        Ok(Outline { graph, path, meta, verdicts, steps, signatures, order })
    }

    /// An order in which parents come before their children; `None` when the document has that order.
    fn order(&mut self) -> Result<Option<Vec<u32>>, DocumentError> {
        let names: Vec<(u32, String, bool)> = std::mem::take(&mut self.links);
        let mut edges: Vec<(u32, u32)> = Vec::with_capacity(names.len());
        for (child, parent, is_first) in names {
            let Some(parent) = self.ids.get(&parent).copied() else {
                return Err(DocumentError::new(self.spot(child), Problem::ParentMissing(parent)));
            };
            edges.push((parent, child));
            if is_first {
                self.parents[child as usize] = Some(parent);
            }
        }
        if edges.iter().all(|(parent, child)| parent < child) {
            return Ok(None);
        }
        let known = self.parents.iter().enumerate();
        edges.extend(known.filter_map(|(child, parent)| Some(((*parent)?, child as u32))));
        edges.sort_unstable();
        edges.dedup();
        let mut waiting = vec![0u32; self.steps.len()];
        for (_, child) in &edges {
            waiting[*child as usize] += 1;
        }
        let mut ready: Vec<u32> = (0..waiting.len() as u32).filter(|step| waiting[*step as usize] == 0).collect();
        ready.reverse();
        let mut order = Vec::with_capacity(waiting.len());
        while let Some(step) = ready.pop() {
            order.push(step);
            let from = edges.partition_point(|(parent, _)| *parent < step);
            for (_, child) in edges[from..].iter().take_while(|(parent, _)| *parent == step) {
                waiting[*child as usize] -= 1;
                if waiting[*child as usize] == 0 {
                    ready.push(*child);
                }
            }
        }
        let Some(stuck) = waiting.iter().position(|left| *left > 0) else { return Ok(Some(order)) };
        // A step that waits stands on a cycle or below one: its waiting ancestors lead onto it.
        let mut on_cycle = stuck as u32;
        for _ in 0..waiting.len() {
            let above = edges.iter().find(|(parent, child)| *child == on_cycle && waiting[*parent as usize] > 0);
            on_cycle = above.map_or(on_cycle, |(parent, _)| *parent);
            if waiting.len() > CYCLE_WALK_MAX {
                break;
            }
        }
        Err(DocumentError::new(self.spot(on_cycle), Problem::Cycle))
    }

    fn spot(&self, step: u32) -> Spot {
        let named = self.ids.iter().find(|(_, index)| **index == step);
        named.map_or(Spot::StepNumber(u64::from(step) + 1), |(id, _)| Spot::step(id))
    }
}

/// Whether the lossless copy of a session says that it has no active leaf.
fn tells_of_no_leaf(meta: &Value) -> bool {
    meta.get(super::EXTRAS).and_then(|extras| extras.get("leaf")).is_some_and(Value::is_null)
}
