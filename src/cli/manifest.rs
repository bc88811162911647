//! Owns: `--manifest`: what this worker is, as JSON. Never: a file or a connection.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::error::CliError;
use crate::config::Config;

/// The targets that releases are built for.
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

pub fn print() -> Result<ExitCode, CliError> {
    println!("{:#}", manifest());
    Ok(ExitCode::SUCCESS)
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
