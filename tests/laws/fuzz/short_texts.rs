//! The laws of short texts: cursors, positions, filters, file names, JSONL files and configurations. Each text is
//! refused with a message or parsed, and what is parsed prints to the same value.

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

use super::corruption::{Corruption, JsonChange, any_json, change_json, corrupt, corruptions, json_change};
use super::inputs;
use super::memory::peak;

const ORDERS: [ListOrder; 3] = [ListOrder::CreatedAsc, ListOrder::CreatedDesc, ListOrder::UpdatedDesc];
/// The YAML parser limits the number of aliases by the length of the text.
const BOMB_BYTES_MAX: usize = 64 << 20;
const MEMORY_FACTOR: usize = 200;
const MEMORY_SLACK: usize = 256 << 10;

fn corrupted(text: &str, corruptions: &[Corruption]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    corrupt(&mut bytes, corruptions);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn check_cursor(text: &str) -> Result<(), TestCaseError> {
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
    prop_assert!(orders <= 1, "the cursor parses for two orders");
    Ok(())
}

fn check_position(text: &str) -> Result<(), TestCaseError> {
    let tag = ClusterTag::new("c-1");
    match tag.parse(text) {
        Ok(position) => prop_assert_eq!(tag.parse(&tag.print(position)), Ok(position)),
        Err(why) => prop_assert!(!why.to_string().is_empty()),
    }
    Ok(())
}

fn check_config(text: &str) -> Result<(), TestCaseError> {
    let (read, held) = peak(|| Config::from_yaml(text));
    prop_assert!(held <= MEMORY_FACTOR * text.len() + MEMORY_SLACK, "{held} bytes for {} of YAML", text.len());
    match read {
        Ok(config) => {
            let printed = serde_json::to_string(&config).unwrap();
            // An expanded value may contain a dollar sign, and parsing it again would expand it again.
            if !printed.contains('$') && !printed.contains('~') {
                prop_assert_eq!(Config::from_yaml(&printed).unwrap(), config);
            }
        }
        Err(error) => {
            let text = error.to_string();
            prop_assert!(!text.is_empty() && text.len() <= 4 << 10, "{} bytes", text.len());
        }
    }
    Ok(())
}

/// Valid lines of a JSONL file.
const LINES: [&str; 6] = [
    r#"{"type":"meta","meta":{"session_id":"s","title":"t","description":"","status":"idle","message_count":1,"created_at":1,"updated_at":2}}"#,
    r#"{"type":"entry","entry":{"kind":"message","id":"a","timestamp":1,"revision":0,"message":{"role":"user","content":[],"timestamp":1}}}"#,
    r#"{"type":"entry","entry":{"kind":"custom","id":"b","parent_id":"a","timestamp":2,"revision":3,"custom_type":"note","data":{"x":[1]}}}"#,
    r#"{"type":"entry","entry":{"kind":"custom","id":"a","parent_id":"b","timestamp":2,"revision":0,"custom_type":"loop"}}"#,
    r#"{"type":"leaf","entry_id":"b"}"#,
    r#"{"type":"leaf","entry_id":"nowhere"}"#,
];

/// Opens a directory whose only session file has these bytes, twice. The results are equal and the file is unchanged.
fn check_jsonl(name: &str, bytes: &[u8]) -> Result<(), TestCaseError> {
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
        check_cursor(&text)?;
        check_cursor(&format!("m.{tail}"))?;
        check_cursor(&format!("l.created_asc.{tail}"))?;
    }

    #[test]
    fn corrupted_cursors(id in ".{0,20}", time: i64, order in 0..3usize, corruptions in corruptions()) {
        let corruptions: Vec<Corruption> = corruptions;
        let point = ListPoint { time, session_id: SessionId::from(id.as_str()) };
        let list = cursor::print_list(ORDERS[order], &point);
        let messages = cursor::print_messages(&EntryId::from(id));
        for good in [list, messages] {
            check_cursor(&good)?;
            check_cursor(&corrupted(&good, &corruptions))?;
        }
    }

    #[test]
    fn positions_of_any_text(text in ".{0,40}", group: u32, index: u64, ordinal: u32, corruptions in corruptions()) {
        let corruptions: Vec<Corruption> = corruptions;
        check_position(&text)?;
        let good = ClusterTag::new("c-1").print(Position { group, index, ordinal });
        check_position(&good)?;
        check_position(&corrupted(&good, &corruptions))?;
    }

    #[test]
    fn filters_of_any_config(config in any_json(), kind in 0..11usize, json_changes in vec(json_change(), 0..3)) {
        let json_changes: Vec<JsonChange> = json_changes;
        let trigger = EventKind::ALL[kind].trigger_type();
        let mut good = serde_json::json!({"session_id": "s", "roles": ["user"], "metadata": {"k": 1}});
        change_json(&mut good, &json_changes);
        for config in [config, good] {
            if let Err(why) = Filter::parse(trigger, &config) {
                prop_assert!(why.to_string().contains(trigger));
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
        check_config(&text)?;
        check_config(&value.to_string())?;
    }

    #[test]
    fn corrupted_configurations(corruptions in corruptions(), json_changes in vec(json_change(), 1..4)) {
        let corruptions: Vec<Corruption> = corruptions;
        let json_changes: Vec<JsonChange> = json_changes;
        check_config(&corrupted(Config::default_yaml(), &corruptions))?;
        let mut value = serde_json::to_value(Config::default()).unwrap();
        change_json(&mut value, &json_changes);
        check_config(&value.to_string())?;
    }

    #[test]
    fn jsonl_files_of_any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        check_jsonl("s.jsonl", &bytes)?;
    }

    #[test]
    fn corrupted_jsonl_files(lines in vec(0..LINES.len(), 0..8), corruptions in corruptions(), changed in (0..LINES.len(), vec(json_change(), 0..3))) {
        let corruptions: Vec<Corruption> = corruptions;
        let (line, json_changes): (usize, Vec<JsonChange>) = changed;
        let mut value: Value = serde_json::from_str(LINES[line]).unwrap();
        change_json(&mut value, &json_changes);
        let mut lines: Vec<String> = lines.into_iter().map(|line| LINES[line].to_owned()).collect();
        lines.push(value.to_string());
        let good = lines.join("\n");
        check_jsonl("s.jsonl", good.as_bytes())?;
        let mut bytes = good.into_bytes();
        corrupt(&mut bytes, &corruptions);
        check_jsonl("s.jsonl", &bytes)?;
    }

    #[test]
    fn session_files_of_any_name(name in "[a-zA-Z0-9%._-]{0,20}") {
        check_jsonl(&format!("{name}.jsonl"), LINES[1].as_bytes())?;
    }
}

#[test]
fn aliases_and_deep_yaml_take_bounded_memory() {
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
