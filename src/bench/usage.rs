//! Owns: CPU time, memory and disk writes of processes (read from /proc, on Linux only), and the sizes of directories.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

/// The processes of one system on this machine.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    pids: Vec<u32>,
    /// Whether the children of the processes belong to them.
    families: bool,
}

/// The resources that some processes used, in total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Duration,
    /// Bytes that they wrote to disks.
    pub disk_bytes: u64,
}

impl Processes {
    pub fn new(pids: Vec<u32>) -> Processes {
        Processes { pids, families: false }
    }

    /// Processes that do their work in children, all of which are counted.
    pub fn families(pids: Vec<u32>) -> Processes {
        Processes { pids, families: true }
    }

    fn members(&self) -> Vec<u32> {
        let mut members = self.pids.clone();
        if self.families {
            members.extend(children_of(&self.pids));
        }
        members
    }

    pub fn this() -> Processes {
        Processes::new(vec![std::process::id()])
    }

    /// `None` without processes, or where the system does not provide the numbers.
    pub fn usage(&self) -> Option<Usage> {
        let mut sum = Usage::default();
        for pid in self.members() {
            let one = usage(pid)?;
            sum.cpu += one.cpu;
            sum.disk_bytes += one.disk_bytes;
        }
        (!self.pids.is_empty()).then_some(sum)
    }

    /// The resident memory of the largest process. `None` as for `usage`.
    pub fn resident(&self) -> Option<u64> {
        self.largest("VmRSS:")
    }

    /// The highest resident memory that any of the processes ever had.
    pub fn resident_peak(&self) -> Option<u64> {
        self.largest("VmHWM:")
    }

    /// The resident memory of each process, in their order.
    pub fn each_resident(&self) -> Vec<u64> {
        self.members().into_iter().map(|pid| memory(pid, "VmRSS:").unwrap_or(0)).collect()
    }

    /// The highest resident memory that each process ever had, in their order.
    pub fn each_resident_peak(&self) -> Vec<u64> {
        self.members().into_iter().map(|pid| memory(pid, "VmHWM:").unwrap_or(0)).collect()
    }

    fn largest(&self, what: &str) -> Option<u64> {
        self.members().into_iter().filter_map(|pid| memory(pid, what)).max()
    }

    pub fn usage_since(&self, before: Option<Usage>) -> Option<Usage> {
        let (now, before) = (self.usage()?, before?);
        let cpu = now.cpu.saturating_sub(before.cpu);
        Some(Usage { cpu, disk_bytes: now.disk_bytes.saturating_sub(before.disk_bytes) })
    }
}

#[cfg(target_os = "linux")]
fn usage(pid: u32) -> Option<Usage> {
    let cpu = cpu_time(&format!("/proc/{pid}/stat"))?;
    // The file cannot be read for processes of other users; those count as 0.
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
    Some(Usage { cpu, disk_bytes: written.unwrap_or(0) })
}

/// The CPU time of the calling thread.
#[cfg(target_os = "linux")]
pub fn cpu_of_this_thread() -> Option<Duration> {
    cpu_time("/proc/thread-self/stat")
}

#[cfg(not(target_os = "linux"))]
pub fn cpu_of_this_thread() -> Option<Duration> {
    None
}

/// The CPU time in a file as the kernel writes it for a process or a thread.
#[cfg(target_os = "linux")]
fn cpu_time(file: &str) -> Option<Duration> {
    // The second field is the command's name, which may contain spaces and parentheses; count from behind it.
    let stat = fs::read_to_string(file).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    let field = |number: usize| after_name.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Processes whose parent is one of these.
fn children_of(parents: &[u32]) -> Vec<u32> {
    let Ok(found) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = found.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parent.is_some_and(|parent| parents.contains(&parent))
    };
    pids.filter(is_child).collect()
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
fn usage(_pid: u32) -> Option<Usage> {
    None
}

/// The disk space of everything below a directory. A file that vanishes meanwhile counts as 0.
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
    // The unit is always 512 bytes, independent of the block size of the disk.
    std::os::unix::fs::MetadataExt::blocks(data) * 512
}

#[cfg(not(unix))]
fn allocated(data: &fs::Metadata) -> u64 {
    data.len()
}

/// The bytes in all files with this ending, without the trailing zeros of preallocated files.
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

/// The length of a file without trailing zeros: log files are preallocated.
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
    fn preallocated_space_does_not_count() {
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
    fn the_usage_of_this_process_is_known_and_that_of_no_process_is_not() {
        let before = Processes::this().usage();
        assert!(before.is_some());
        assert!(Processes::this().usage_since(before).is_some());
        assert!(Processes::this().resident().is_some_and(|bytes| Some(bytes) <= Processes::this().resident_peak()));
        assert_eq!(Processes::default().resident(), None);
        assert_eq!(Processes::default().usage(), None);
        assert_eq!(Processes::new(vec![u32::MAX]).usage(), None);
    }
}
