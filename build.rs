//! Compiles every `proto/*.proto` in this process, so that no protoc has to be installed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut protos: Vec<PathBuf> = Vec::new();
    for file in std::fs::read_dir("proto")? {
        protos.push(file?.path());
    }
    protos.retain(|path| path.extension().is_some_and(|extension| extension == "proto"));
    // Directory order differs between machines, and the generated code must not.
    protos.sort();
    let descriptors = protox::compile(&protos, ["proto"])?;
    tonic_prost_build::configure().bytes(".").emit_rerun_if_changed(false).compile_fds(descriptors)?;
    Ok(())
}
