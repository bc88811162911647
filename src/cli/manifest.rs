//! Owns: `--manifest`. Reads nothing, writes nothing but its one answer.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::Config;

/// Where a release runs: what the tests of this repository are expected to pass on.
const SUPPORTED_TARGETS: [&str; 5] = [
    "aarch64-apple-darwin",
    "aarch64-unknown-linux-gnu",
    "x86_64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "x86_64-unknown-linux-gnu",
];

fn manifest() -> Value {
    json!({
        "name": env!("CARGO_PKG_NAME"),
        "version": env!("CARGO_PKG_VERSION"),
        "description": env!("CARGO_PKG_DESCRIPTION"),
        "default_config": Config::default(),
        "supported_targets": SUPPORTED_TARGETS,
    })
}

pub fn print() -> ExitCode {
    println!("{:#}", manifest());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_what_the_bus_needs() {
        let manifest = manifest();
        for field in ["name", "version", "description", "default_config", "supported_targets"] {
            assert!(manifest.get(field).is_some(), "{field} is missing");
        }
    }
}
