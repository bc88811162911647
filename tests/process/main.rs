//! Real processes: the binary as users run it, with the Rust SDK as a client. Covers kill -9, signals, concurrent
//! clients and invalid bytes.
#![cfg(unix)]

mod access;
mod bad_input;
mod bridge;
mod client;
mod concurrent_clients;
mod console;
mod data_directory;
mod deploy;
mod empty_bus;
mod exposition;
mod feed;
mod gateway;
mod gateway_client;
mod gateway_table;
mod golden;
mod hostile;
mod kill;
mod metrics;
mod node;
mod overload;
mod plain_http;
mod probes;
mod readme;
mod reload;
mod start_up;
mod three_nodes;
mod tls;
mod traces;
mod wrong_credentials;
