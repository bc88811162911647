//! Owns: `session-manager backup`: which node is asked, the file that is written, progress and the rate limit.
//! Never: the layout of the file (`storage/backup.rs`).

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::error::CliError;
use super::operator::OperatorArgs;
use super::{client_runtime, log_to_stderr};
use crate::access::credentials::now_ms;
use crate::access::tls::OperatorTls;
use crate::admin::survey::{NodeStatus, Survey};
use crate::admin::{Admin, Backup};
use crate::machine::toolpath::time;
use crate::observe::{CLIENT_LEVEL, LogFormat};
use crate::proto::admin::{BackupHead, Health, Role};
use crate::replication::new_cluster::{self, NewClusterError};
use crate::storage::backup::{BackupReader, BackupWriter, Head};

const ABOUT: &str = "\
Write the whole state of a cluster to one file, while the cluster serves.

The file holds every session, the kept events, and everything else that was written before the command began. A follower \
is asked, if there is one, so that the leader has no extra work. The file has a checksum over every byte; it is checked \
before it gets its name. `session-manager restore` makes a new cluster of it.";

const EXAMPLES: &str = "\
Examples:
  session-manager backup cluster.backup
  session-manager backup cluster.backup --peer 10.77.0.1:49135 --rate 20MiB
  session-manager backup /var/backups --keep 7             a file named after the time; the newest seven stay
  session-manager backup - | zstd > cluster.backup.zst
  session-manager backup cluster.backup --node 3 --local   what node 3 has, although no leader is there

Exit codes: 1 the backup failed, and FILE is not there or as before; 2 no node can be reached.";

/// A member on the same network answers within this time.
const STATUS_MAX: Duration = Duration::from_secs(5);
const SHOWN_EVERY: Duration = Duration::from_millis(200);
/// How often progress is printed when stderr is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Write the whole state of a cluster to a file, while it serves
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct BackupArgs {
    /// The file to write; - for standard output; a directory for a new file in it, named after the time
    #[arg(value_name = "FILE|DIR")]
    file: PathBuf,

    /// Delete all but so many of the newest backups in the directory, after a new one is there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,

    /// The node to ask [default: a healthy follower, or the leader if there is none]
    #[arg(long, value_name = "ID")]
    node: Option<u64>,

    /// Back up what the node has, even if it is behind or the cluster has no leader
    #[arg(long)]
    local: bool,

    /// The most bytes per second, such as 500KiB or 20MiB
    #[arg(long, value_name = "BYTES", value_parser = bytes_of)]
    rate: Option<u64>,

    /// Print nothing on stderr but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    operator: OperatorArgs,
}

pub fn run(mut args: BackupArgs) -> Result<ExitCode, CliError> {
    log_to_stderr(LogFormat::Text, CLIENT_LEVEL)?;
    let to_stdout = args.file == Path::new("-");
    let directory = args.file.is_dir().then(|| args.file.clone());
    if args.keep.is_some() && directory.is_none() {
        return Err(CliError::Operation("--keep: give a directory that exists instead of a file".to_owned()));
    }
    if let Some(directory) = &directory {
        args.file = directory.join(name_at(now_ms()));
    }
    if !to_stdout && !args.force && args.file.exists() {
        let why = format!("{}: the file exists; choose another name, or add --force", args.file.display());
        return Err(CliError::Operation(why));
    }
    client_runtime()?.block_on(async {
        let tls = args.operator.tls()?;
        let mut backup = ask(&args, tls.as_ref()).await?;
        let head = head_of(&backup.head);
        if to_stdout {
            let done = receive(&mut backup, &head, io::stdout().lock(), &args).await;
            done?.flush().map_err(|error| failed(&args.file, &error))?;
        } else {
            into_file(&mut backup, &head, &args).await?;
        }
        if let (Some(directory), Some(keep)) = (&directory, args.keep) {
            delete_all_but(directory, keep as usize).map_err(|error| failed(directory, &error))?;
        }
        say(&args, &format!("backed up cluster {} at entry {} from node {}", head.cluster_id, head.index, head.node));
        Ok(ExitCode::SUCCESS)
    })
}

const NAME: (&str, &str) = ("session-manager-", ".backup");

/// A name that sorts by time.
fn name_at(at_ms: i64) -> String {
    let digits: String = time::print(at_ms).chars().filter(char::is_ascii_digit).collect();
    format!("{}{digits}{}", NAME.0, NAME.1)
}

/// Deletes the oldest backups of a directory. Files with other names stay.
fn delete_all_but(directory: &Path, keep: usize) -> io::Result<()> {
    let is_backup = |name: &str| {
        let digits = name.strip_prefix(NAME.0).and_then(|rest| rest.strip_suffix(NAME.1));
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| is_backup(name)));
    }
    names.sort();
    let old = names.len().saturating_sub(keep);
    names[..old].iter().try_for_each(|name| std::fs::remove_file(directory.join(name)))
}

/// Connects to the node that is asked for the backup.
async fn ask(args: &BackupArgs, tls: Option<&OperatorTls>) -> Result<Backup, CliError> {
    let OperatorArgs { peer, cluster_id, .. } = &args.operator;
    let survey = Survey::take(tls, peer, cluster_id, STATUS_MAX).await?;
    let chosen = match args.node {
        Some(node) => survey.nodes.iter().find(|member| member.node == node),
        None => choose(&survey.nodes),
    };
    // A single node without a peer address of its own is asked at the address that was given.
    let (node, address) = match (chosen, args.node) {
        (Some(chosen), _) if !chosen.address.is_empty() => (chosen.node, chosen.address.as_str()),
        (Some(chosen), _) => (chosen.node, peer.as_str()),
        (None, Some(node)) => return Err(CliError::Operation(format!("--node {node}: no such member"))),
        (None, None) => return Err(CliError::BackupRefused("no member of the cluster answers".to_owned())),
    };
    say(args, &format!("node {node} at {address} writes a snapshot"));
    let mut admin = Admin::connect_over(tls, address, cluster_id, STATUS_MAX).await?;
    Ok(admin.backup(args.local).await?)
}

/// The follower that has applied most; the leader if there is no follower.
fn choose(nodes: &[NodeStatus]) -> Option<&NodeStatus> {
    let answers = |node: &&NodeStatus| node.own.is_ok();
    let rank = |node: &&NodeStatus| {
        let own = node.own.as_ref().ok();
        let follows = own.is_some_and(|own| own.role() == Role::Follower || own.role() == Role::Learner);
        (own.is_some_and(|own| own.health() == Health::Ok), follows, own.and_then(|own| own.applied))
    };
    nodes.iter().filter(answers).max_by_key(rank)
}

fn head_of(head: &BackupHead) -> Head {
    let BackupHead { cluster_id, node, index, state_hash, snapshot_bytes, taken_at_ms, version } = head.clone();
    Head { cluster_id, node, index, state_hash, taken_at_ms, version, snapshot_bytes }
}

/// Writes the file under another name, checks it, and gives it its name.
async fn into_file(backup: &mut Backup, head: &Head, args: &BackupArgs) -> Result<(), CliError> {
    let mut part = args.file.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let error = |error: io::Error| failed(&args.file, &error);
    let written = async {
        let out = BufWriter::new(File::create(&part).map_err(error)?);
        let out = receive(backup, head, out, args).await?;
        out.into_inner().map_err(|failure| error(failure.into_error()))?.sync_all().map_err(error)?;
        let reader = BackupReader::open(&part).map_err(NewClusterError::Backup)?;
        let contents = new_cluster::verify(reader, &part, &mut |_| {})?;
        say(args, &format!("{} sessions with {} entries, checked", contents.sessions, contents.entries));
        std::fs::rename(&part, &args.file).map_err(error)?;
        // The name is durable with its directory.
        match args.file.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            Some(dir) => crate::storage::files::sync_dir(dir).map_err(error),
            None => crate::storage::files::sync_dir(Path::new(".")).map_err(error),
        }
    };
    let written = written.await;
    if written.is_err() {
        // The error of the backup matters more than that of the clean-up.
        let _ = std::fs::remove_file(&part);
    }
    written
}

async fn receive<W: Write>(backup: &mut Backup, head: &Head, out: W, args: &BackupArgs) -> Result<W, CliError> {
    let error = |error: io::Error| failed(&args.file, &error);
    let mut writer = BackupWriter::begin(out, head).map_err(error)?;
    let mut pace = Pace { begun: Instant::now(), rate: args.rate, bytes: 0, of: head.snapshot_bytes, shown: None };
    while let Some(chunk) = backup.chunk().await? {
        writer.chunk(&chunk).map_err(error)?;
        pace.received(chunk.len() as u64, args.quiet).await;
    }
    pace.clear();
    writer.finish().map_err(error)
}

/// How far a transfer has come, and how fast it may go on.
struct Pace {
    begun: Instant,
    rate: Option<u64>,
    bytes: u64,
    of: u64,
    shown: Option<Instant>,
}

impl Pace {
    /// Waits as long as the rate demands. The node sends no more than is read.
    async fn received(&mut self, bytes: u64, quiet: bool) {
        self.bytes += bytes;
        let every = if io::stderr().is_terminal() { SHOWN_EVERY } else { PLAIN_EVERY };
        if !quiet && self.shown.unwrap_or(self.begun).elapsed() >= every {
            self.shown = Some(Instant::now());
            let per_second = self.bytes as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
            let (start, end) = if io::stderr().is_terminal() { ("\r\x1b[K", "") } else { ("", "\n") };
            let mib = |bytes: f64| bytes / f64::from(1 << 20);
            let (done, of, rate) = (mib(self.bytes as f64), mib(self.of as f64), mib(per_second));
            eprint!("{start}{done:.0} of {of:.0} MiB, {rate:.1} MiB/s{end}");
        }
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
            tokio::time::sleep(due.saturating_sub(self.begun.elapsed())).await;
        }
    }

    fn clear(&self) {
        if self.shown.is_some() && io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}

fn say(args: &BackupArgs, line: &str) {
    if !args.quiet {
        eprintln!("{line}");
    }
}

fn failed(file: &Path, error: &io::Error) -> CliError {
    CliError::BackupRefused(format!("{}: {error}; the backup is not complete", file.display()))
}

/// A number of bytes: `4096`, `500KiB`, `20MiB`, `1GiB`.
fn bytes_of(text: &str) -> Result<u64, String> {
    let wrong = || "write a number of bytes of at least 1, such as 4096, 500KiB or 20MiB".to_owned();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _other => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::AdminError;
    use crate::proto::admin::StatusResponse;

    #[test]
    fn a_rate_is_a_number_of_bytes() {
        assert_eq!(bytes_of("4096"), Ok(4096));
        assert_eq!(bytes_of("500KiB"), Ok(500 << 10));
        assert_eq!(bytes_of("20M"), Ok(20 << 20));
        for wrong in ["", "0", "MiB", "1.5MiB", "-1", "20 mb", "99999999999GiB"] {
            assert!(bytes_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_newest_backups_stay_and_other_files_too() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = [5, 3, 1, 4].into_iter().map(|day| name_at(day * 86_400_000)).collect();
        assert_eq!(names[2], "session-manager-19700102000000000.backup");
        for name in names.iter().map(String::as_str).chain(["session-manager-mine.backup", "notes"]) {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        delete_all_but(dir.path(), 2).unwrap();
        let exists = |name: &str| dir.path().join(name).exists();
        assert_eq!(names.iter().map(|name| exists(name)).collect::<Vec<_>>(), [true, false, false, true]);
        assert!(exists("session-manager-mine.backup") && exists("notes"));
        delete_all_but(dir.path(), 9).unwrap();
    }

    #[test]
    fn a_healthy_follower_is_asked_before_the_leader_and_before_one_that_is_behind() {
        let node = |node, role: Role, health: Health, applied| NodeStatus {
            node,
            name: String::new(),
            address: format!("a:{node}"),
            voter: true,
            lag: None,
            heard_ms: None,
            own: Ok(StatusResponse { role: role.into(), health: health.into(), applied, ..Default::default() }),
        };
        let leader = node(1, Role::Leader, Health::Ok, Some(9));
        let late = node(2, Role::Follower, Health::Ok, Some(5));
        let follower = node(3, Role::Follower, Health::Ok, Some(8));
        let sick = node(4, Role::Follower, Health::NoLeader, Some(9));
        let why = AdminError::Unavailable("x".to_owned());
        let silent = NodeStatus { own: Err(why), ..node(5, Role::Follower, Health::Ok, Some(9)) };
        let chosen = |nodes: &[NodeStatus]| choose(nodes).map(|node| node.node);
        assert_eq!(chosen(&[leader.clone(), late, follower, sick.clone(), silent.clone()]), Some(3));
        assert_eq!(chosen(&[leader, sick.clone(), silent.clone()]), Some(1));
        assert_eq!(chosen(&[sick, silent.clone()]), Some(4));
        assert_eq!(chosen(&[silent]), None);
    }
}
