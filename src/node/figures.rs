//! Owns: the figures of a node that no room has: its data directory, its certificates and its process.
//! Never: on a thread that answers calls. All of it reads files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::report::Report;
use crate::metrics::{Page, catalogue};
use crate::storage::files::disk_space;

/// A data directory may hold many files, so the sizes are read again only after this long.
const DISK_READ_EVERY: Duration = Duration::from_secs(10);

/// The files of a data directory.
pub struct DiskUsage {
    dir: PathBuf,
    last: Mutex<Option<(Instant, Parts)>>,
}

/// Bytes and files of each part.
type Parts = BTreeMap<&'static str, (u64, u64)>;

impl DiskUsage {
    pub fn of(dir: &Path) -> DiskUsage {
        DiskUsage { dir: dir.to_owned(), last: Mutex::default() }
    }

    pub fn measure(&self, page: &mut Page) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, parts) = match last.take_if(|(at, _)| at.elapsed() < DISK_READ_EVERY) {
            Some(known) => last.insert(known),
            None => {
                let mut parts = Parts::new();
                add_files(&self.dir, &self.dir, &mut parts);
                last.insert((Instant::now(), parts))
            }
        };
        for (part, (bytes, files)) in parts {
            page.whole_of(catalogue::DISK, &[("part", part)], *bytes);
            page.whole_of(catalogue::DISK_FILES, &[("part", part)], *files);
        }
        if let Some((free, size)) = disk_space(&self.dir) {
            page.whole(catalogue::DISK_FREE, free);
            page.whole(catalogue::DISK_SIZE, size);
        }
    }
}

/// Files come and go while they are counted: one that is gone does not count.
fn add_files(root: &Path, dir: &Path, parts: &mut Parts) {
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = file.path();
        match file.metadata() {
            Ok(found) if found.is_dir() => add_files(root, &path, parts),
            Ok(found) => {
                let (bytes, files) = parts.entry(part_of(path.strip_prefix(root).unwrap_or(&path))).or_default();
                *bytes += found.len();
                *files += 1;
            }
            Err(_) => {}
        }
    }
}

/// The part that a file belongs to, by its path in the data directory.
fn part_of(path: &Path) -> &'static str {
    let has = |name: &str| path.components().any(|component| component.as_os_str() == name);
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let parts = [
        (path.starts_with("log"), "log"),
        (path.starts_with("snapshots"), "snapshots"),
        (path.starts_with("state") && has("sled"), "sled"),
        (path.starts_with("state") && name.starts_with("bodies-"), "bodies"),
        (name.ends_with(".jsonl"), "sessions"),
    ];
    parts.into_iter().find(|(belongs, _)| *belongs).map_or("other", |(_, part)| part)
}

/// Adds what this process and its settings say about themselves.
pub fn measure_process(report: &Report, page: &mut Page) {
    for end in report.certificates() {
        let seconds = end.not_after_ms as f64 / 1000.0;
        page.seconds_of(catalogue::CERTIFICATE_EXPIRY, &[("port", end.port)], seconds);
    }
    if let Some(bytes) = report.resident_bytes() {
        page.whole(catalogue::RESIDENT_MEMORY, bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        page.whole(catalogue::OPEN_FILES, open.count().saturating_sub(1) as u64);
    }
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    page.whole_of(catalogue::BUILD, &[("version", env!("CARGO_PKG_VERSION")), ("profile", profile)], 1);
}

/// `None` where there is no /proc.
pub fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_data_directory_belongs_to_one_part() {
        for (path, part) in [
            ("log/00000001.log", "log"),
            ("snapshots/7.snap", "snapshots"),
            ("state/gen-1/sled/db", "sled"),
            ("state/gen-1/bodies-3", "bodies"),
            ("state/gen-1/flush.kv", "other"),
            ("identity", "other"),
            ("a-session.jsonl", "sessions"),
        ] {
            assert_eq!(part_of(Path::new(path)), part, "{path}");
        }
    }
}
