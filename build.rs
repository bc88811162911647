//! Compiles every `proto/*.proto` in this process, so that no protoc has to be installed, and packs the files of the
//! console into the program.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

const CONSOLE: &str = "src/surface/console/assets";

fn main() -> Result<(), Box<dyn Error>> {
    compile_protos()?;
    pack_console()
}

fn compile_protos() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files_in("proto", "proto")?, ["proto"])?;
    tonic_prost_build::configure().bytes(".").emit_rerun_if_changed(false).compile_fds(descriptors)?;
    Ok(())
}

/// Directory order differs between machines, and the generated code must not.
fn files_in(dir: &str, extension: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for file in fs::read_dir(dir)? {
        files.push(file?.path());
    }
    files.retain(|path| extension.is_empty() || path.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}

/// Writes the table of the console's files, each as it is and compressed.
fn pack_console() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={CONSOLE}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let mut table = String::from("&[\n");
    for path in files_in(CONSOLE, "")? {
        let name = path.file_name().ok_or("a file without a name")?.to_string_lossy().into_owned();
        let packed = out.join(format!("console-{name}.gz"));
        compress(&path, &packed)?;
        writeln!(
            table,
            "File {{ name: {name:?}, plain: include_bytes!({:?}), gzip: include_bytes!({packed:?}) }},",
            root.join(&path)
        )?;
    }
    table.push_str("]\n");
    Ok(fs::write(out.join("console.rs"), table)?)
}

fn compress(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&fs::read(from)?)?;
    Ok(fs::write(to, encoder.finish()?)?)
}
