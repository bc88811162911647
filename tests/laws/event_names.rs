//! The table of event names agrees with the specification of the gateway, where that is beside the project.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use session_manager::machine::turn::events::{Class, EVENTS};

#[test]
fn the_table_of_event_names_agrees_with_the_specification() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/spec/gateway-events.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        eprintln!("SKIPPED: the specification is not here");
        return;
    };
    let spec: Value = serde_json::from_str(&text).unwrap();
    let events = spec["events"].as_object().unwrap();
    assert_eq!(events.len(), EVENTS.len());
    for event in EVENTS {
        let said = &events[event.name];
        assert_eq!(said["persist"] == "persisted", event.class == Class::Kept, "{}", event.name);
        let own = ["sessionId", "turnId", "seq", "ts"];
        let names = said["fields"].as_object().unwrap().keys().map(String::as_str);
        let listed: BTreeSet<&str> = names.filter(|name| !own.contains(name)).collect();
        let ours = event.fields.iter().map(|field| field.name);
        let ours: BTreeSet<&str> = ours.filter(|name| listed.contains(name)).collect();
        assert_eq!(ours, listed, "{}", event.name);
    }
}
