//! Owns: the rules for the pages: README.md, CONTRIBUTING.md and architecture/. The names in backticks exist in the
//! tree, lines are short, and the map of rooms agrees with `house.rs`.
//! Never: style. Whether a sentence is clear is for a reviewer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use super::house::{ARROWS, ON_TOP, is_word, root};

const COLUMNS_MAX: usize = 120;

/// Where code and data of the project live. A name in backticks must occur in one of these files.
const SOURCES: [&str; 9] =
    ["src/", "simulation/", "tests/", "proto/", "examples/", "deploy/", "Cargo.toml", ".cargo/", ".ci/"];
/// This file quotes names that need not exist.
const THIS_FILE: &str = "tests/laws/documents.rs";
/// Too large to read for every run, and they name nothing that a page quotes.
const BYTES_MAX: u64 = 1 << 20;

/// Names that a page may quote although the project does not contain them: other projects, their functions and files.
const OUTSIDE: [&str; 15] = [
    "etcd",
    "databend-meta",
    "bbolt",
    "fsync",
    "kill",
    "curl",
    "EventSource",
    // Functions of the Linux kernel and a setting of mimalloc, in the notes on performance.
    "clear_page_erms",
    "do_huge_pmd_anonymous_page",
    "MIMALLOC_PURGE_DELAY=0",
    // A feature of serde_json, names in readers of other tools' transcripts, a system call.
    "arbitrary_precision",
    "provider.rs",
    "git_head_content",
    "parentSession",
    "fallocate",
];

/// A span in backticks and where it is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    text: String,
    /// `architecture/machine.md:12`.
    place: String,
}

fn pages() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    walk(&root(), "", &mut paths);
    let is_page = |path: &String| {
        ["README.md", "CONTRIBUTING.md"].contains(&path.as_str())
            || (path.starts_with("architecture/") && path.ends_with(".md"))
    };
    let read = |path: String| (fs::read_to_string(root().join(&path)).expect("a page is readable"), path);
    paths.into_iter().filter(is_page).map(read).map(|(text, path)| (path, text)).collect()
}

/// Every file below the root, relative to it. Build output, data and git's own files are left out.
fn walk(root: &Path, below: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(below)).expect("a directory is readable") {
        let entry = entry.expect("a directory entry is readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.path().is_dir() {
            if !["target", ".git", "data", "node_modules"].contains(&name.as_str()) {
                walk(root, &path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// The lines of a page with their numbers, without fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((number + 1, line))
    })
}

/// A span that continues on the next line holds several words, and those are not checked.
fn spans(page: &str, text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    let mut open = false;
    for (number, line) in prose(text) {
        if line.trim().is_empty() {
            open = false;
        }
        let mut pieces = line.split('`').peekable();
        let mut inside = open;
        let mut whole = !open;
        while let Some(piece) = pieces.next() {
            let last = pieces.peek().is_none();
            if inside && whole && !last && !piece.is_empty() {
                found.push(Span { text: piece.to_owned(), place: format!("{page}:{number}") });
            }
            if !last {
                inside = !inside;
                whole = true;
            }
        }
        open = inside;
    }
    found
}

/// The names that the tree holds.
struct Tree {
    /// Every file, with a slash before it.
    paths: Vec<String>,
    /// Text and words of each source file.
    sources: Vec<(String, BTreeSet<String>)>,
    /// The words of `src/cli`, with dashes for underscores: clap derives flags from the names of fields.
    flags: BTreeSet<String>,
}

impl Tree {
    /// The tests share one tree, because reading it is the slow part.
    fn get() -> &'static Tree {
        static TREE: OnceLock<Tree> = OnceLock::new();
        TREE.get_or_init(Tree::read)
    }

    fn read() -> Tree {
        let mut paths = Vec::new();
        walk(&root(), "", &mut paths);
        let (mut sources, mut flags) = (Vec::new(), BTreeSet::new());
        for path in paths.iter().filter(|path| SOURCES.iter().any(|source| path.starts_with(source))) {
            let file = root().join(path);
            let small = fs::metadata(&file).is_ok_and(|found| found.len() <= BYTES_MAX);
            let Some(text) = fs::read_to_string(&file).ok().filter(|_| small && path != THIS_FILE) else { continue };
            let words: BTreeSet<String> = words(&text).map(str::to_owned).collect();
            if path.starts_with("src/cli/") || path.starts_with("src/bench/") {
                flags.extend(words.iter().map(|word| word.replace('_', "-")));
            }
            sources.push((text, words));
        }
        Tree { paths: paths.into_iter().map(|path| format!("/{path}")).collect(), sources, flags }
    }

    fn has_word(&self, word: &str) -> bool {
        self.sources.iter().any(|(_, words)| words.contains(word))
    }

    /// A file or a directory whose path ends with this one.
    fn has_path(&self, path: &str) -> bool {
        let (wanted, path_inside) = (format!("/{path}"), format!("/{path}/"));
        self.paths.iter().any(|path| path.ends_with(&wanted) || path.contains(&path_inside))
    }

    /// The text as it is, or each of its words in one and the same file: `Foo::bar` may be `fn bar` in `impl Foo`.
    fn has_name(&self, name: &str) -> bool {
        let wanted: Vec<&str> = words(name).collect();
        self.sources.iter().any(|(_, words)| wanted.iter().all(|word| words.contains(*word)))
    }

    fn has_text(&self, text: &str) -> bool {
        let first = words(text).max_by_key(|word| word.len()).unwrap_or_default();
        self.sources.iter().any(|(source, words)| words.contains(first) && source.contains(text))
    }

    /// Whether a span is a name of this project, or none that a test can look up.
    fn knows(&self, span: &str) -> bool {
        if is_exempt(span) || OUTSIDE.contains(&span) {
            return true;
        }
        if let Some(flag) = span.strip_prefix("--") {
            return self.flags.contains(flag) || self.has_text(span);
        }
        // `NAME=value`, `?name=value`, `name(arguments)`: the name counts.
        let end = span.find(['=', '(']).unwrap_or(span.len());
        let name = span[..end].trim_start_matches(['?', '&', '@', '#', '-']).trim_end_matches(['!', '?']);
        if name.ends_with(".rs") || name.ends_with(".md") {
            return self.has_path(name);
        }
        if name.contains('/') || name.contains('.') {
            let path = name.trim_matches('/');
            // `package.v1.Service/Method` and `section.key` are spread over the lines of one file.
            let dotted = path.split('/').next().is_some_and(|first| first.contains('.'));
            return self.has_path(path) || self.has_text(name) || (dotted && self.has_name(path));
        }
        match name.contains("::") {
            true => self.has_text(name) || self.has_name(name),
            false if name.chars().all(is_word) => self.has_word(name),
            false => self.has_text(name),
        }
    }
}

/// Several words, placeholders, URLs, a user's own paths, and values.
fn is_exempt(span: &str) -> bool {
    span.contains(|c: char| c.is_whitespace() || "<>…$*{}[]|\"',;%→".contains(c))
        || span.contains("://")
        || span.starts_with("./")
        || span.starts_with(|c: char| c.is_ascii_digit() || c == '~')
        || !span.contains(|c: char| c.is_alphabetic())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c)).filter(|word| !word.is_empty())
}

#[test]
fn names_in_backticks_exist() {
    let tree = Tree::get();
    let mut known: BTreeMap<String, bool> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for Span { text, place } in spans(&page, &text) {
            if !*known.entry(text.clone()).or_insert_with(|| tree.knows(&text)) {
                wrong.push(format!("{place}: `{text}`"));
            }
        }
    }
    let help = "Correct the page, or add a name of another project to OUTSIDE in tests/laws/documents.rs.";
    assert!(wrong.is_empty(), "{} names are not in the tree:\n{}\n{help}", wrong.len(), wrong.join("\n"));
}

#[test]
fn lines_of_pages_fit_into_120_columns() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for (number, line) in prose(&text) {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !is_table(line) && !is_only_links(line) {
                wrong.push(format!("{page}:{number}: {columns} columns"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} lines are longer than {COLUMNS_MAX}:\n{}", wrong.len(), wrong.join("\n"));
}

fn is_table(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

/// Nothing but links and marks between them: an address cannot be broken.
fn is_only_links(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '-', '*']);
    if line.starts_with("http") || (line.starts_with('[') && line.contains("]: ")) {
        return true;
    }
    let mut rest = line;
    let mut left = String::new();
    while let Some((before, after)) = rest.split_once('[') {
        left.push_str(before);
        rest = after.split_once("](").and_then(|(_, address)| address.split_once(')')).map_or("", |(_, rest)| rest);
    }
    left.push_str(rest);
    !left.contains(char::is_alphanumeric)
}

/// The rows of the table below "The map" in architecture/README.md: line, room, and the text of "may touch".
fn map() -> Vec<(usize, String, String)> {
    let text = fs::read_to_string(root().join("architecture/README.md")).expect("architecture/README.md is readable");
    let mut rows = Vec::new();
    let mut in_map = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("## ") {
            in_map = line == "## The map";
        }
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if let (true, [room, .., touches]) = (in_map && line.starts_with("| `"), &cells[..]) {
            rows.push((number + 1, room.trim_matches(['`', '/']).to_owned(), (*touches).to_owned()));
        }
    }
    rows
}

#[test]
fn the_map_names_exactly_the_rooms_of_the_house() {
    let named: BTreeSet<String> = map().into_iter().map(|(_, room, _)| room).collect();
    let rooms: BTreeSet<String> = ARROWS.iter().map(|(room, _)| *room).chain(ON_TOP).map(str::to_owned).collect();
    assert_eq!(named, rooms, "left: the map in architecture/README.md, right: tests/laws/house.rs");
}

#[test]
fn the_map_says_what_each_room_may_touch() {
    let mut wrong = Vec::new();
    for (number, room, touches) in map() {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == room) else { continue };
        let is_room = |word: &&str| *word != room && ARROWS.iter().any(|(name, _)| name == word);
        let said: BTreeSet<&str> = words(&touches).filter(is_room).collect();
        let meant: BTreeSet<&str> = allowed.iter().copied().filter(is_room).collect();
        if said != meant {
            wrong
                .push(format!("architecture/README.md:{number}: {room} names {said:?}, but house.rs allows {meant:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The stops below a heading of architecture/walks.md: a file and the functions that are entered in it.
fn walk_of<'a>(page: &'a str, what: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let (_, after) = page.split_once(&format!("## The walk of {what}\n")).expect("the walk has a heading");
    let lines = after.lines().take_while(|line| !line.starts_with("## "));
    let stop = |line: &'a str| {
        let names: Vec<&str> = line.strip_prefix("- `")?.split('`').step_by(2).collect();
        let (file, functions) = names.split_first()?;
        Some((*file, functions.iter().copied().filter(|name| !name.is_empty()).collect()))
    };
    lines.filter_map(stop).collect()
}

#[test]
fn the_walks_name_functions_where_they_are_and_count_right() {
    let page = fs::read_to_string(root().join("architecture/walks.md")).expect("the page is readable");
    let guide = fs::read_to_string(root().join("architecture/README.md")).expect("the page is readable");
    for (what, row) in [("an append", "| append: "), ("a read", "| read: ")] {
        let walk = walk_of(&page, what);
        for (file, functions) in &walk {
            let code = fs::read_to_string(root().join("src").join(file)).unwrap_or_else(|_| panic!("no file {file}"));
            for function in functions {
                let defined = code.split(&format!("fn {function}")).skip(1).any(|rest| !rest.starts_with(is_word));
                assert!(defined, "src/{file} has no function {function}");
            }
        }
        let files: BTreeSet<&str> = walk.iter().map(|(file, _)| *file).collect();
        let (stops, files) = (walk.len(), files.len());
        let again = stops - files;
        let counted = format!("{stops}, {files}, {again} |");
        assert!(page.lines().any(|line| line.starts_with(row) && line.ends_with(&counted)), "{row}{counted}");
        let told = format!("{stops} stops in {files} files with {again} re-entries");
        let guide: Vec<&str> = guide.split_whitespace().collect();
        assert!(guide.join(" ").contains(&told), "architecture/README.md: {told}");
    }
}

#[test]
fn the_guide_lists_every_decision() {
    let guide = fs::read_to_string(root().join("architecture/README.md")).expect("the page is readable");
    for entry in fs::read_dir(root().join("architecture/decisions")).expect("the directory is readable") {
        let name = entry.expect("an entry is readable").file_name().to_string_lossy().into_owned();
        assert!(guide.contains(&format!("(decisions/{name})")), "architecture/README.md does not list {name}");
    }
}

#[test]
fn the_reader_of_pages_finds_spans_and_long_lines() {
    let page = "a `b` and `c d`\n```\n`code`\n```\n`e\nf` then `g`\n";
    let found: Vec<String> = spans("p", page).into_iter().map(|span| format!("{} {}", span.place, span.text)).collect();
    assert_eq!(found, ["p:1 b", "p:1 c d", "p:6 g"]);
    assert!(is_exempt("a b") && is_exempt("<id>") && is_exempt("1.0.0") && is_exempt("http://x"));
    assert!(!is_exempt("session::append") && !is_exempt("src/lib.rs"));
    assert!(is_only_links("- [a](b), [c](d)") && !is_only_links("see [a](b)"));
    let tree = Tree::get();
    for known in
        ["src/lib.rs", "machine/mod.rs", "ARROWS", "Source::room", "session::append", "--data-dir", "FUZZ_CASES=1"]
    {
        assert!(tree.knows(known), "{known}");
    }
    let nothing = ["no", "such", "name"].join("_");
    for unknown in [nothing.clone(), format!("src/{nothing}.rs"), format!("Source::{nothing}"), format!("--{nothing}")]
    {
        assert!(!tree.knows(&unknown), "{unknown}");
    }
}
