//! Real processes as one cluster: load through every node's client port while nodes are killed, paused, added and
//! replaced; and what must hold of it. `CLUSTER_TEST_SECONDS` makes the load longer (default 15).
#![cfg(unix)]

#[allow(dead_code)] // the tests of single processes use the rest of it
#[path = "../process/client.rs"]
mod client;
mod commands;
mod cut;
mod edges;
mod full_disk;
mod kills;
mod machinery;
mod membership;
mod pause;
