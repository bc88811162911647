//! Owns: the rules for the source tree: which room may name which, headers, file sizes, purity of the machine. The
//! tests read the source as text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Which room may name which. A room is a directory below `src`. Every arrow leads toward `machine`, which names no
/// room.
pub const ARROWS: [(&str, &[&str]); 11] = [
    (
        "surface",
        &[
            "access", "requests", "proposal", "events", "machine", "metrics", "blocking", "mint", "planted", "proto",
            "sockets",
        ],
    ),
    ("requests", &["machine"]),
    ("proposal", &["replication", "storage", "events", "machine", "metrics", "mint", "planted"]),
    (
        "replication",
        &["access", "machine", "metrics", "storage", "events", "blocking", "mint", "proto", "sockets", "planted"],
    ),
    ("access", &["machine"]),
    ("machine", &[]),
    ("storage", &["machine", "metrics", "blocking", "proto"]),
    ("events", &["machine", "metrics"]),
    // What the others count. It names nothing, and the machine does not name it.
    ("metrics", &[]),
    // Outside the write path: programs that start nodes and talk to them through their public ports.
    ("bench", &["access", "dev", "node", "proto"]),
    ("dev", &["access", "admin", "proto"]),
];

/// The program on top of the rooms. It may name any of them, and none of them may name it.
pub const ON_TOP: [&str; 1] = ["cli"];

/// Files beside the rooms that several of them use. A room may name one of them only where `ARROWS` says so.
const BESIDE: [&str; 9] = ["admin", "blocking", "config", "mint", "node", "observe", "planted", "proto", "sockets"];

/// What would make two replicas differ, or block apply. Clippy denies the same by type (clippy.toml). Comments and
/// strings are not searched.
const IMPURE: [&str; 10] =
    ["std::time", "SystemTime", "Instant", "HashMap", "HashSet", "rand", "tokio", "std::fs", "async", "await"];

/// A longer file owns more than one thing.
const LINES_MAX: usize = 700;

struct Source {
    /// `machine/apply/append.rs`.
    path: String,
    text: String,
}

impl Source {
    fn room(&self) -> Option<&str> {
        self.path.split_once('/').map(|(room, _)| room)
    }

    /// The text without comments and string literals.
    fn code(&self) -> String {
        let mut code = String::with_capacity(self.text.len());
        for line in self.text.lines() {
            let mut in_string = false;
            let mut before = ' ';
            let mut chars = line.chars().peekable();
            while let Some(c) = chars.next() {
                match (in_string, c) {
                    (false, '/') if chars.peek() == Some(&'/') => break,
                    (_, '"') if before != '\\' && before != '\'' => in_string = !in_string,
                    (false, c) => code.push(c),
                    (true, _) => {}
                }
                before = if before == '\\' { ' ' } else { c };
            }
            code.push('\n');
        }
        code
    }

    /// How many modules deep this file is below the crate: 1 for `machine/mod.rs`, 2 for `machine/ids.rs`.
    fn depth(&self) -> usize {
        let parts = self.path.split('/').count();
        if self.path.ends_with("mod.rs") { parts - 1 } else { parts }
    }
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|ending| ending == extension) {
            found.push(path);
        }
    }
    found.sort();
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let mut paths = Vec::new();
    files_below(&src, "rs", &mut paths);
    let sources = paths.into_iter().map(|path| Source {
        path: path.strip_prefix(&src).unwrap().to_string_lossy().replace('\\', "/"),
        text: fs::read_to_string(&path).unwrap(),
    });
    sources.collect()
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The positions of `word` in `code`, as a whole word.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| !code[..*at].ends_with(is_word) && !code[at + word.len()..].starts_with(is_word))
}

/// The first names of the paths that start at `crate::`: one, or those of a `{a, b::c}` group.
fn rooms_named(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for at in words(code, "crate") {
        let Some(path) = code[at..].strip_prefix("crate::") else { continue };
        let first = |text: &str| text.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
        let Some(group) = path.strip_prefix('{') else {
            named.insert(first(path));
            continue;
        };
        let mut depth = 0;
        let mut start = 0;
        for (at, c) in group.char_indices() {
            match c {
                ',' | '}' if depth == 0 => {
                    named.insert(first(&group[start..at]));
                    start = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                '{' => depth += 1,
                '}' => depth -= 1,
                _other => {}
            }
        }
    }
    named.remove("");
    named
}

/// The longest run of `super::` in a piece of code.
fn supers(code: &str) -> usize {
    let run = |at: usize| code[at..].split("super::").take_while(|between| between.is_empty()).count();
    code.match_indices("super::").map(|(at, _)| run(at)).max().unwrap_or(0)
}

#[test]
fn rooms_name_only_the_rooms_they_may_touch() {
    let sources = sources();
    let all: BTreeSet<&str> = sources.iter().filter_map(|source| source.room()).collect();
    let mut wrong = Vec::new();
    for source in &sources {
        let Some(room) = source.room() else { continue };
        let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == room) else {
            let is_known = ON_TOP.contains(&room) || BESIDE.contains(&room);
            assert!(is_known, "src/{room} is a new room: say in tests/laws/house.rs which rooms it may name");
            continue;
        };
        for named in rooms_named(&source.code()) {
            let is_room = all.contains(named.as_str()) || ARROWS.iter().any(|(room, _)| *room == named);
            if named != room && (is_room || BESIDE.contains(&named.as_str())) && !allowed.contains(&named.as_str()) {
                wrong.push(format!("src/{}: {room} → {named}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "these rooms name rooms that ARROWS does not allow:\n{}", wrong.join("\n"));
}

#[test]
fn no_path_leaves_its_room_by_super() {
    for source in sources().iter().filter(|source| source.room().is_some()) {
        // A test module is one level deeper than its file.
        let code = source.code();
        let (body, tests) = code.split_once("#[cfg(test)]").unwrap_or((&code, ""));
        assert!(supers(body) < source.depth(), "src/{} leaves its room by super::", source.path);
        assert!(supers(tests) <= source.depth(), "the tests of src/{} leave their room by super::", source.path);
    }
}

/// Doors describe the functions with `Gate::service`. What they execute goes through the gate, which admits, times and
/// counts it.
#[test]
fn no_door_executes_anything_beside_the_gate() {
    for source in sources().iter().filter(|source| source.room() == Some("surface") && !source.path.contains("test")) {
        let code: String = source.code().split_whitespace().collect();
        for way in [".service().call(", ".service().propose(", ".service().ask("] {
            assert!(!code.contains(way), "src/{} passes by the gate with {way}", source.path);
        }
    }
}

#[test]
fn the_machine_is_pure() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.room() == Some("machine")) {
        let code = source.code();
        for impure in IMPURE {
            if words(&code, impure).next().is_some() {
                wrong.push(format!("src/{} mentions {impure}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_has_a_header_and_stays_small() {
    let mut wrong = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//!") {
            wrong.push(format!("src/{} does not start with a //! header", source.path));
        }
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("src/{} has {lines} lines, more than {LINES_MAX}", source.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_file_contains_unfinished_work() {
    let mut wrong = Vec::new();
    for source in sources() {
        let code = source.code();
        for unfinished in ["todo!", "unimplemented!"] {
            if code.contains(unfinished) {
                wrong.push(format!("src/{} contains {unfinished}", source.path));
            }
        }
        for mark in ["TODO", "FIXME", "XXX"] {
            if words(&source.text, mark).next().is_some() {
                wrong.push(format!("src/{} is marked {mark}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_scenario_has_a_prevents_line() {
    let mut features = Vec::new();
    files_below(&root().join("tests"), "feature", &mut features);
    let mut wrong = Vec::new();
    for path in &features {
        let text = fs::read_to_string(path).unwrap();
        let mut above = "";
        for line in text.lines().map(str::trim) {
            let is_scenario = line.starts_with("Scenario:") || line.starts_with("Scenario Outline:");
            let reason = above.strip_prefix("# Prevents:").map(str::trim);
            if is_scenario && reason.is_none_or(str::is_empty) {
                wrong.push(format!("{}: {line}", path.display()));
            }
            above = line;
        }
    }
    assert!(wrong.is_empty(), "these scenarios have no `# Prevents:` line directly above them:\n{}", wrong.join("\n"));
}

#[test]
fn the_parser_of_this_file_finds_named_rooms_and_nothing_else() {
    let source = |text: &str| Source { path: "surface/door.rs".to_owned(), text: text.to_owned() };
    let named = |text: &str| rooms_named(&source(text).code()).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(named("use crate::machine::ids::EntryId;"), "machine");
    assert_eq!(named("use crate::{machine::{ids, view}, storage as disk};"), "machine storage");
    assert_eq!(named("let x = crate::events::Feed::new();"), "events");
    assert_eq!(named("// crate::events\nlet x = \"crate::events\";"), "");
    assert_eq!(named("let quote = '\"'; crate::proposal::go(\"a \\\" crate::x\")"), "proposal");
    assert_eq!(supers("use super::super::x; use super::y;"), 2);
    assert_eq!(source("").depth(), 2);
}
