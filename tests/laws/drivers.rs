//! Drivers: which one is asked for a turn, and that those of two tenants do not meet.

use std::sync::Arc;

use serde_json::{Value, json};
use session_manager::machine::apply::long;
use session_manager::machine::event::EventKind;
use session_manager::machine::long::Steps;
use session_manager::machine::scope::Scope;
use session_manager::machine::turn::driver::DriverRecord;
use session_manager::storage::state::memory::MemoryStore;

use crate::turns::World;

/// Who is asked, by the last request for a turn: the driver that is asked first, or the one that did not take it.
fn asked(world: &World) -> (Value, Value) {
    let requests = world.events.iter().rev();
    let last = requests.into_iter().find(|event| event.kind() == EventKind::TurnRequested).expect("a request");
    let payload = last.payload().value();
    (payload["driver_id"].clone(), payload["not_taken_by"].clone())
}

#[test]
fn the_least_loaded_driver_is_asked_first_then_the_same_one_and_in_the_end_all() {
    let store = Arc::new(MemoryStore::new());
    let mut world = World::over(store.clone());
    let ask = |world: &mut World, session: &str| {
        let body = json!({"session_id": session, "text": "go", "agent_type": "coder"});
        world.call("session::turn::ask", body)["turn_id"].as_str().expect("a turn").to_owned()
    };
    let first = |driver: &str| (json!(driver), Value::Null);
    let sessions = ["s", "t", "u", "v"];
    sessions.iter().for_each(|session| world.session(session));
    // Nobody is there: all are asked.
    let lonely = ask(&mut world, "v");
    assert_eq!(asked(&world), (Value::Null, Value::Null));
    assert_eq!(world.claim(&lonely, "c")["claimed"], true);
    for (driver, types) in [("a", json!(["coder"])), ("b", Value::Null), ("0", json!(["writer"]))] {
        world.call("session::turn::attach", json!({"driver_id": driver, "agent_types": types}));
    }
    let s = ask(&mut world, "s");
    assert_eq!(asked(&world), first("a"), "a tie goes by name");
    let t = ask(&mut world, "t");
    assert_eq!(asked(&world), first("b"), "a turn that one is asked for counts");
    // The faster one has it, and only that one counts.
    assert_eq!(
        (world.claim(&s, "a")["claimed"].clone(), world.claim(&t, "a")["claimed"].clone()),
        (json!(true), json!(true))
    );
    let u = ask(&mut world, "u");
    assert_eq!(asked(&world), first("b"));
    // It does not answer: the others are asked once, and it may still take the turn.
    let requests = world.count(EventKind::TurnRequested);
    assert_eq!((world.wait(1_900), world.wait(200), world.wait(3_000)), (0, 1, 0));
    assert_eq!(asked(&world), (Value::Null, json!("b")));
    assert_eq!(world.count(EventKind::TurnRequested), requests + 1);
    assert!(world.call("session::turn::pending", json!({}))["turns"][0]["driver_id"].is_null());
    assert_eq!(world.claim(&u, "b")["claimed"], true);
    // The driver of the last turn is asked again, although it has more to do.
    let done = json!([{"type": "turn_complete", "finalText": "ok"}]);
    world.call("session::turn::emit", json!({"turn_id": s, "driver_id": "a", "n": 1, "events": done}));
    world.call("session::turn::emit", json!({"turn_id": u, "driver_id": "b", "n": 1, "events": done}));
    let again = ask(&mut world, "s");
    assert_eq!(asked(&world), first("a"));
    // Unless it has left.
    world.call("session::turn::send-command", json!({"session_id": "s", "command": "stop"}));
    world.call("session::turn::detach", json!({"driver_id": "a"}));
    let last = ask(&mut world, "s");
    assert_eq!(asked(&world), first("b"));
    assert_ne!(again, last);
    // Whatever became of the turns, nothing of them is left behind.
    sessions.iter().for_each(|session| drop(world.call("session::delete", json!({"session_id": session}))));
    world.wait(10_000_000);
    while let Some(command) = world.run.look(|view| long::due(view, world.now, Steps::default())).unwrap() {
        world.propose(command).unwrap();
    }
    assert_eq!(World::records(&store), 0);
}

/// A driver belongs to the scope that attached it: nobody else can take its name, end it or learn of it.
#[test]
fn drivers_of_two_tenants_do_not_meet() {
    let mut world = World::new();
    let tenant = |owner: &str| Some(Arc::new(Scope::new(json!({"owner": owner})).unwrap()));
    let attach = json!({"driver_id": "d"});
    world.scope = tenant("a");
    assert_eq!(world.call("session::turn::attach", attach.clone())["attached"], true);
    assert_eq!(world.call("session::turn::attach", attach.clone())["attached"], true, "again");
    world.scope = tenant("b");
    let refused = world.try_call("session::turn::attach", attach.clone()).unwrap_err();
    assert!(refused.contains("driver_id: somebody else has a driver with this name"), "{refused}");
    assert_eq!(world.call("session::turn::detach", attach.clone())["detached"], false);
    let drivers = world.call("session::turn::drivers", json!({}));
    assert!(!drivers.to_string().contains("\"d\""), "{drivers}");
    // Its own driver serves all agents, but no session of the other tenant.
    world.call("session::turn::attach", json!({"driver_id": "e"}));
    world.scope = None;
    let drivers: Vec<DriverRecord> = serde_json::from_value(world.call("session::turn::drivers", json!({}))).unwrap();
    assert_eq!(drivers.len(), 2, "a caller without a scope sees all");
    let other = drivers.iter().find(|record| record.driver.driver_id == "e").unwrap();
    assert!(other.sees(json!({"owner": "b"}).as_object()));
    assert!(!other.sees(json!({"owner": "a"}).as_object()) && !other.sees(None));
    assert_eq!(world.call("session::turn::detach", attach)["detached"], true, "and ends all");
}
