//! The laws of small texts: cursors, positions, filters, file names, JSONL files and configurations. Each is refused in
//! words or read, and what is read is printed the same again.

use std::fs;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use session_manager::config::Config;
use session_manager::events::filter::Filter;
use session_manager::events::position::ClusterTag;
use session_manager::machine::event::EventKind;
use session_manager::machine::ids::{EntryId, Position, SessionId};
use session_manager::machine::query::cursor;
use session_manager::machine::view::{ListOrder, ListPoint};
use session_manager::storage::jsonl::JsonlDir;
use session_manager::surface::bus::inbound::Inbound;

use super::inputs;
use super::memory::peak;
use super::spoil::{Harm, Twist, any_json, harms, spoil, twist, twist_value};

const ORDERS: [ListOrder; 3] = [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc];
/// The reader follows aliases up to a number of them that depends on the text's length, then gives up.
const BOMB_BYTES_MAX: usize = 64 << 20;
const MEMORY_FACTOR: usize = 200;
const MEMORY_SLACK: usize = 256 << 10;

fn spoiled(text: &str, harms: &[Harm]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    spoil(&mut bytes, harms);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn take_cursor(text: &str) -> Result<(), TestCaseError> {
    if let Ok(entry) = cursor::parse_messages(text) {
        prop_assert_eq!(cursor::parse_messages(&cursor::print_messages(&entry)).unwrap(), entry);
    }
    let mut orders = 0;
    for order in ORDERS {
        if let Ok(point) = cursor::parse_list(text, order) {
            orders += 1;
            prop_assert_eq!(cursor::parse_list(&cursor::print_list(order, &point), order).unwrap(), point);
        }
    }
    prop_assert!(orders <= 1, "a cursor of two orders");
    Ok(())
}

fn take_position(text: &str) -> Result<(), TestCaseError> {
    let tag = ClusterTag::new("c-1");
    match tag.parse(text) {
        Ok(position) => prop_assert_eq!(tag.parse(&tag.print(position)), Ok(position)),
        Err(why) => prop_assert!(!why.is_empty()),
    }
    Ok(())
}

fn take_config(text: &str) -> Result<(), TestCaseError> {
    let (read, held) = peak(|| Config::from_yaml(text));
    prop_assert!(held <= MEMORY_FACTOR * text.len() + MEMORY_SLACK, "{held} bytes for {} of YAML", text.len());
    match read {
        Ok(config) => {
            let printed = serde_json::to_string(&config).unwrap();
            // What was expanded may hold a dollar sign; it is not expanded twice.
            if !printed.contains('$') && !printed.contains('~') {
                prop_assert_eq!(Config::from_yaml(&printed).unwrap(), config);
            }
        }
        Err(error) => prop_assert!(!error.0.is_empty() && error.0.len() <= 4 << 10, "{} bytes", error.0.len()),
    }
    Ok(())
}

/// Lines a JSONL file may hold, good ones.
const LINES: [&str; 6] = [
    r#"{"type":"meta","meta":{"session_id":"s","title":"t","description":"","status":"idle","message_count":1,"created_at":1,"updated_at":2}}"#,
    r#"{"type":"entry","entry":{"kind":"message","id":"a","timestamp":1,"revision":0,"message":{"role":"user","content":[],"timestamp":1}}}"#,
    r#"{"type":"entry","entry":{"kind":"custom","id":"b","parent_id":"a","timestamp":2,"revision":3,"custom_type":"note","data":{"x":[1]}}}"#,
    r#"{"type":"entry","entry":{"kind":"custom","id":"a","parent_id":"b","timestamp":2,"revision":0,"custom_type":"loop"}}"#,
    r#"{"type":"leaf","entry_id":"b"}"#,
    r#"{"type":"leaf","entry_id":"nowhere"}"#,
];

/// Opens a directory whose only session file has these bytes, twice: with the same result, and the file untouched.
fn take_jsonl(name: &str, bytes: &[u8]) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    let (first, held) = peak(|| JsonlDir::open(dir.path()).map(|(_, state)| state));
    prop_assert!(held <= MEMORY_FACTOR * bytes.len() + MEMORY_SLACK, "{held} bytes for {}", bytes.len());
    let first = first.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let (_, second) = JsonlDir::open(dir.path()).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert!(first == second, "two readings differ");
    prop_assert_eq!(fs::read(&path).unwrap(), bytes, "reading changed the file");
    Ok(())
}

proptest! {
    #![proptest_config(inputs(1))]

    #[test]
    fn cursors_of_any_text(text in ".{0,40}", tail in "[0-9a-f.]{0,12}") {
        take_cursor(&text)?;
        take_cursor(&format!("m.{tail}"))?;
        take_cursor(&format!("l.created_asc.{tail}"))?;
    }

    #[test]
    fn spoiled_cursors(id in ".{0,20}", time: i64, order in 0..3usize, harms in harms()) {
        let harms: Vec<Harm> = harms;
        let point = ListPoint { time, session_id: SessionId::from(id.as_str()) };
        let list = cursor::print_list(ORDERS[order], &point);
        let messages = cursor::print_messages(&EntryId::from(id));
        for good in [list, messages] {
            take_cursor(&good)?;
            take_cursor(&spoiled(&good, &harms))?;
        }
    }

    #[test]
    fn positions_of_any_text(text in ".{0,40}", group: u32, index: u64, ordinal: u32, harms in harms()) {
        let harms: Vec<Harm> = harms;
        take_position(&text)?;
        let good = ClusterTag::new("c-1").print(Position { group, index, ordinal });
        take_position(&good)?;
        take_position(&spoiled(&good, &harms))?;
    }

    #[test]
    fn filters_of_any_config(config in any_json(), kind in 0..6usize, twists in vec(twist(), 0..3)) {
        let twists: Vec<Twist> = twists;
        let trigger = EventKind::ALL[kind].trigger_type();
        let mut good = serde_json::json!({"session_id": "s", "roles": ["user"], "metadata": {"k": 1}});
        twist_value(&mut good, &twists);
        for config in [config, good] {
            if let Err(why) = Filter::parse(trigger, &config) {
                prop_assert!(why.contains(trigger));
            }
        }
        let _ = Filter::parse("session::store::events", &Value::Null);
    }

    #[test]
    fn frames_of_any_text(text in ".{0,200}", value in any_json()) {
        for text in [text.clone(), format!("{{{text}}}"), value.to_string()] {
            let (_, held) = peak(|| drop(Inbound::parse(&text)));
            prop_assert!(held <= MEMORY_FACTOR * text.len() + MEMORY_SLACK);
        }
    }

    #[test]
    fn configurations_of_any_text(text in "(?s).{0,200}", value in any_json()) {
        take_config(&text)?;
        take_config(&value.to_string())?;
    }

    #[test]
    fn spoiled_configurations(harms in harms(), twists in vec(twist(), 1..4)) {
        let harms: Vec<Harm> = harms;
        let twists: Vec<Twist> = twists;
        take_config(&spoiled(Config::default_yaml(), &harms))?;
        let mut value = serde_json::to_value(Config::default()).unwrap();
        twist_value(&mut value, &twists);
        take_config(&value.to_string())?;
    }

    #[test]
    fn jsonl_files_of_any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        take_jsonl("s.jsonl", &bytes)?;
    }

    #[test]
    fn spoiled_jsonl_files(lines in vec(0..LINES.len(), 0..8), harms in harms(), twisted in (0..LINES.len(), vec(twist(), 0..3))) {
        let harms: Vec<Harm> = harms;
        let (line, twists): (usize, Vec<Twist>) = twisted;
        let mut value: Value = serde_json::from_str(LINES[line]).unwrap();
        twist_value(&mut value, &twists);
        let mut lines: Vec<String> = lines.into_iter().map(|line| LINES[line].to_owned()).collect();
        lines.push(value.to_string());
        let good = lines.join("\n");
        take_jsonl("s.jsonl", good.as_bytes())?;
        let mut bytes = good.into_bytes();
        spoil(&mut bytes, &harms);
        take_jsonl("s.jsonl", &bytes)?;
    }

    #[test]
    fn session_files_of_any_name(name in "[a-zA-Z0-9%._-]{0,20}") {
        take_jsonl(&format!("{name}.jsonl"), LINES[1].as_bytes())?;
    }
}

#[test]
fn aliases_and_deep_yaml_take_no_more_memory_than_they_deserve() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    for text in [bomb, "[".repeat(5_000), "- ".repeat(5_000), "{a: ".repeat(2_000), "? ".repeat(2_000)] {
        let (read, held) = peak(|| Config::from_yaml(&text));
        assert!(read.is_err() && held <= BOMB_BYTES_MAX, "{held} bytes for {}", text.len());
    }
}
