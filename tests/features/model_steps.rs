//! Owns: the steps of the feature files about time, the loss of a leader, and the settings of the session model.

use cucumber::{given, when};
use serde_json::json;
use session_manager::machine::model::access::AgentAccess;

use crate::world::World;

fn unit_ms(unit: &str) -> i64 {
    match unit {
        "second" => 1_000,
        "minute" => 60_000,
        "hour" => 3_600_000,
        "day" => 24 * 3_600_000,
        other => panic!("{other} is no unit of time"),
    }
}

/// What is due fires. Its events need not be asserted.
#[given(regex = r"^(\d+) (second|minute|hour|day)s? passed$")]
async fn time_passed(world: &mut World, count: i64, unit: String) {
    world.node.time_passes(count * unit_ms(&unit)).await;
    world.node.wait_for_events().await;
    world.node.recorder.take();
}

#[when(regex = r"^(\d+) (second|minute|hour|day)s? pass(?:es)?$")]
async fn time_passes(world: &mut World, count: i64, unit: String) {
    world.before = world.node.everything().await;
    let proposed = world.node.time_passes(count * unit_ms(&unit)).await;
    world.answer = Some(Ok(json!({ "due": proposed })));
}

#[given("the leader is lost")]
async fn the_leader_is_lost(world: &mut World) {
    world.node.stop_leader().await;
}

#[given(regex = r"^a checkpoint after (\d+) turns and after (\d+) messages without one$")]
async fn checkpoints_after(world: &mut World, turns: u64, passive: u64) {
    world.node.configure(|settings| {
        settings.limits.model.checkpoint_turns = turns;
        settings.limits.model.checkpoint_passive = passive;
    });
}

#[given("an agent that talks to no strangers")]
async fn protected(world: &mut World) {
    world.node.configure(|settings| settings.limits.model.access = AgentAccess::Protected);
}

#[given("an agent that asks owners for a mention too")]
async fn owners_mention(world: &mut World) {
    world.node.configure(|settings| settings.limits.model.group_owner_always = false);
}
