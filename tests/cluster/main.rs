//! Real processes as one cluster. A load calls every node while nodes are killed, paused, added, cut off and replaced;
//! an oracle checks the answers and the final state. `CLUSTER_TEST_SECONDS` is the length of the longest load (default
//! 15).
#![cfg(unix)]

mod backup;
#[allow(dead_code)] // the process tests use the rest
#[path = "../process/client.rs"]
mod client;
mod commands;
mod cut;
mod edges;
mod forming;
mod full_disk;
#[path = "../../simulation/http_call.rs"]
mod http_call;
mod import;
mod kills;
mod large_batches;
mod load;
mod membership;
mod pause;
mod processes;
