//! Real processes: the binary as users run it, the Rust SDK as a client, kill -9, signals and hostile bytes.
#![cfg(unix)]

mod bad_input;
mod bridge;
mod client;
mod golden;
mod feed;
mod kill;
mod node;
mod race;
mod reload;
mod readme;
mod start_up;
