//! Owns: what processes cost, as the system counts it (Linux: /proc; elsewhere nobody knows), and how many bytes lie in a
//! directory of log files.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// The processes of one system on this machine.
#[derive(Debug, Clone, Default)]
pub struct Processes(Vec<u32>);

/// What processes used, together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub cpu: Duration,
    /// Bytes that they made the system write to disks.
    pub disk_bytes: u64,
}

impl Processes {
    pub fn new(pids: Vec<u32>) -> Processes {
        Processes(pids)
    }

    pub fn me() -> Processes {
        Processes(vec![std::process::id()])
    }

    /// `None`: no process is known, or the system does not say.
    pub fn spent(&self) -> Option<Spent> {
        let mut sum = Spent::default();
        for pid in &self.0 {
            let one = spent(*pid)?;
            sum.cpu += one.cpu;
            sum.disk_bytes += one.disk_bytes;
        }
        (!self.0.is_empty()).then_some(sum)
    }

    /// The memory that the largest of them holds; `None`: no process is known, or the system does not say.
    pub fn resident(&self) -> Option<u64> {
        self.largest("VmRSS:")
    }

    /// The most that one of them ever held.
    pub fn resident_peak(&self) -> Option<u64> {
        self.largest("VmHWM:")
    }

    fn largest(&self, what: &str) -> Option<u64> {
        self.0.iter().filter_map(|pid| memory(*pid, what)).max()
    }

    pub fn spent_since(&self, before: Option<Spent>) -> Option<Spent> {
        let (now, before) = (self.spent()?, before?);
        let cpu = now.cpu.saturating_sub(before.cpu);
        Some(Spent { cpu, disk_bytes: now.disk_bytes.saturating_sub(before.disk_bytes) })
    }
}

#[cfg(target_os = "linux")]
fn spent(pid: u32) -> Option<Spent> {
    // 1. Processor time. The first field after the command's name, which may hold anything, is the third.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    let field = |number: usize| after_name.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let cpu = Duration::from_secs_f64(ticks as f64 / per_second as f64);
    // 2. Writes. Not readable for processes of other users, which then count none.
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
    Some(Spent { cpu, disk_bytes: written.unwrap_or(0) })
}

#[cfg(target_os = "linux")]
fn memory(pid: u32, what: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix(what))?;
    kibibytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

#[cfg(not(target_os = "linux"))]
fn memory(_pid: u32, _what: &str) -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
fn spent(_pid: u32) -> Option<Spent> {
    None
}

/// What everything below a directory takes on disk. A file that goes meanwhile takes nothing.
pub fn disk_bytes(dir: &Path) -> u64 {
    let Ok(found) = fs::read_dir(dir) else { return 0 };
    let one = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_bytes(&entry.path()),
        Ok(data) => allocated(&data),
        Err(_) => 0,
    };
    found.flatten().map(one).sum()
}

#[cfg(unix)]
fn allocated(data: &fs::Metadata) -> u64 {
    // Always in units of 512 bytes, whatever the disk's own blocks are.
    std::os::unix::fs::MetadataExt::blocks(data) * 512
}

#[cfg(not(unix))]
fn allocated(data: &fs::Metadata) -> u64 {
    data.len()
}

/// The bytes that the files with this ending hold. Zeros at the end of a file are room it took in advance.
pub fn bytes_below(dir: &Path, ending: &str) -> std::io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sum += bytes_below(&path, ending)?;
        } else if path.to_string_lossy().ends_with(ending) {
            sum += filled(&path)?;
        }
    }
    Ok(sum)
}

/// Where the last byte that is not zero ends.
fn filled(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let mut end = file.metadata()?.len();
    let mut block = vec![0; 64 << 10];
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        file.seek(SeekFrom::Start(start))?;
        let block = &mut block[..(end - start) as usize];
        file.read_exact(block)?;
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_taken_in_advance_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = vec![0u8; 200 << 10];
        bytes[1000] = 7;
        fs::create_dir(dir.path().join("deeper")).unwrap();
        fs::write(dir.path().join("deeper/1.log"), &bytes).unwrap();
        fs::write(dir.path().join("2.log"), [1, 2]).unwrap();
        fs::write(dir.path().join("3.other"), [1, 2]).unwrap();
        fs::write(dir.path().join("4.log"), [0; 9]).unwrap();
        assert_eq!(bytes_below(dir.path(), ".log").unwrap(), 1003);
        assert!(disk_bytes(dir.path()) > 0);
        assert_eq!(disk_bytes(&dir.path().join("missing")), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_cost_of_this_process_is_known_and_that_of_nobody_is_not() {
        let before = Processes::me().spent();
        assert!(before.is_some());
        assert!(Processes::me().spent_since(before).is_some());
        assert!(Processes::me().resident().is_some_and(|bytes| Some(bytes) <= Processes::me().resident_peak()));
        assert_eq!(Processes::default().resident(), None);
        assert_eq!(Processes::default().spent(), None);
        assert_eq!(Processes::new(vec![u32::MAX]).spent(), None);
    }
}
