//! Owns: etcd, measured beside us: its members (running ones, or three started here), and a small client of its public
//! API. The same bytes, the same closed loops, the same spread over members as ours.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::ready;
use futures::{StreamExt, stream};
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::footprint::{Processes, bytes_below, disk_bytes};
use super::progress::progress;
use super::window::{ANSWER_MAX, Clients, Sample, Tally, Window, measure};
use crate::cli::dev::plan::Plan;
use crate::proto::etcd::kv_client::KvClient;
use crate::proto::etcd::maintenance_client::MaintenanceClient;
use crate::proto::etcd::watch_client::WatchClient;
use crate::proto::etcd::{
    PutRequest, RangeRequest, StatusRequest, StatusResponse, WatchCreateRequest, WatchRequest, WatchResponse,
    watch_request,
};

/// Three members elect a leader within a second or two.
const START_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(100);
/// Larger than any page that is asked for.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

pub struct Etcd {
    /// `host:port`, the leader's first.
    pub addresses: Vec<String>,
    pub processes: Processes,
    pub version: String,
    data_dirs: Vec<PathBuf>,
    members: Members,
    /// How each of our own members is started.
    commands: Vec<Command>,
    seats: Vec<String>,
    _data: Option<TempDir>,
}

/// Member processes. They hold nothing that anybody needs, so they are killed.
struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.0 {
            // It may have ended by itself, which is as good.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

impl Etcd {
    /// Running members.
    pub async fn running(addresses: &[String]) -> Result<Etcd, String> {
        let (addresses, version) = leader_first(addresses.to_vec()).await?;
        Ok(Etcd {
            addresses,
            processes: Processes::default(),
            version,
            data_dirs: Vec::new(),
            members: Members(Vec::new()),
            commands: Vec::new(),
            seats: Vec::new(),
            _data: None,
        })
    }

    /// Members of our own, with etcd's own defaults and their data below `parent`.
    pub async fn start(count: u16, parent: &Path) -> Result<Etcd, String> {
        progress(&format!("starting {count} members of etcd"));
        let data = tempfile::Builder::new().prefix("session-manager-bench-etcd-").tempdir_in(parent);
        let data = data.map_err(|error| format!("a temporary directory in {}: {error}", parent.display()))?;
        // Ports are found the way ours are.
        let plan = Plan::prepare(data.path(), Some(count), None)?;
        let cluster: Vec<String> =
            plan.seats.iter().map(|seat| format!("m{}=http://{}", seat.node, seat.peer)).collect();
        let (mut members, mut commands) = (Members(Vec::new()), Vec::new());
        for seat in &plan.seats {
            let (client, peer) = (format!("http://{}", seat.client), format!("http://{}", seat.peer));
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("m{}", seat.node), "--data-dir"]).arg(&seat.data_dir);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
            command.args(["--logger", "zap", "--log-level", "error"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            members.0.push(spawn(&mut command)?);
            commands.push(command);
        }
        let processes = Processes::new(members.0.iter().map(Child::id).collect());
        let addresses = plan.seats.iter().map(|seat| seat.client.to_string()).collect::<Vec<_>>();
        let begun = Instant::now();
        let (addresses, version) = loop {
            match leader_first(addresses.clone()).await {
                Ok(found) => break found,
                Err(why) if begun.elapsed() > START_MAX => return Err(format!("etcd does not start: {why}")),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
        let data_dirs = plan.seats.iter().map(|seat| seat.data_dir.clone()).collect();
        let seats = plan.seats.iter().map(|seat| seat.client.to_string()).collect();
        Ok(Etcd { addresses, processes, version, data_dirs, members, commands, seats, _data: Some(data) })
    }

    /// What the largest member takes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.data_dirs.iter().map(|dir| disk_bytes(dir)).max().unwrap_or(0)
    }

    /// Ends the last of our own members, in order or by force, and answers where it was reached.
    pub fn end_last(&mut self, by_force: bool) -> Result<String, String> {
        let none = || "bench cost starts and kills members of etcd: it takes none that run already".to_owned();
        let (member, seat) = self.members.0.last_mut().zip(self.seats.last()).ok_or_else(none)?;
        if by_force || !ask_to_end(member.id()) {
            // It may have ended by itself, which is as good.
            let _ = member.kill();
        }
        let _ = member.wait();
        Ok(seat.clone())
    }

    pub fn start_last(&mut self) -> Result<(), String> {
        let (Some(member), Some(command)) = (self.members.0.last_mut(), self.commands.last_mut()) else {
            return Ok(());
        };
        *member = spawn(command)?;
        Ok(())
    }

    /// The bytes in the log of one member, averaged; `None` where the data is not ours to look at.
    pub fn log_bytes(&self) -> Option<u64> {
        let bytes: Vec<u64> = self.data_dirs.iter().filter_map(|dir| bytes_below(dir, ".wal").ok()).collect();
        (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() / bytes.len() as u64)
    }

    pub fn words(&self) -> String {
        format!("etcd {}: {} members, spoken to over gRPC", self.version, self.addresses.len())
    }

    /// A connection to the member at a place, counted round and round.
    pub async fn channel(&self, place: usize) -> Result<Channel, String> {
        connect(&self.addresses[place % self.addresses.len()]).await
    }

    /// Watches all keys that begin with `prefix`, over a connection of its own, from now on.
    pub async fn watch(&self, place: usize, prefix: &str) -> Result<Streaming<WatchResponse>, String> {
        let failed = |status: Status| format!("etcd watch: {}", status.message());
        let create = WatchCreateRequest { key: prefix.to_owned().into(), range_end: after(prefix).into() };
        let request = WatchRequest { request: Some(watch_request::Request::CreateRequest(create)) };
        // The stream of requests stays open: closing it would end the watch.
        let requests = stream::once(ready(request)).chain(stream::pending());
        let mut client = WatchClient::new(self.channel(place).await?);
        let mut responses = client.watch(requests).await.map_err(failed)?.into_inner();
        match responses.message().await.map_err(failed)? {
            Some(first) if first.created && !first.canceled => Ok(responses),
            Some(first) => Err(format!("etcd watch was refused: {}", first.cancel_reason)),
            None => Err("etcd ended a watch".to_owned()),
        }
    }

    /// One round of closed loops, spread over `connections` like ours are.
    pub async fn run<O: Operations>(
        &self,
        what: &str,
        (clients, connections): (usize, usize),
        seconds: f64,
        operations: impl Fn(usize) -> O,
    ) -> Result<Sample, String> {
        let window = Arc::new(Window::default());
        let mut channels = Vec::with_capacity(connections);
        for place in 0..connections {
            channels.push(self.channel(place).await?);
        }
        let mut tasks = Clients::new();
        for client in 0..clients {
            let channel = channels[client % connections].clone();
            tasks.spawn(closed_loop(kv(channel), operations(client), window.clone()));
        }
        measure(what, window, tasks, &self.processes, seconds).await
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|error| {
        format!("etcd cannot be started: {error}; install it (Debian: etcd-server), or name a running one with --etcd")
    })
}

/// Whether the process was told to end; systems without signals know only force.
fn ask_to_end(pid: u32) -> bool {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok())
    }
    #[cfg(not(unix))]
    {
        let _ = pid;
        false
    }
}

pub type Kv = KvClient<Channel>;

pub fn kv(channel: Channel) -> Kv {
    KvClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// What one client does again and again.
pub trait Operations: Send + 'static {
    fn operate(&mut self, kv: &mut Kv) -> impl Future<Output = Result<(), String>> + Send;
}

async fn closed_loop(mut kv: Kv, mut operations: impl Operations, window: Arc<Window>) -> Result<Tally, String> {
    let mut tally = Tally::default();
    while !window.is_closed() {
        let sent = Instant::now();
        match timeout(ANSWER_MAX, operations.operate(&mut kv)).await {
            Ok(Ok(())) => tally.done(&window, sent.elapsed()),
            Ok(Err(why)) => tally.failed(&window, || why),
            Err(_) => return Err(format!("etcd: no answer within {} s", ANSWER_MAX.as_secs())),
        }
    }
    Ok(tally)
}

pub async fn put(kv: &mut Kv, key: String, value: Bytes) -> Result<(), String> {
    let put = kv.put(PutRequest { key: key.into(), value }).await;
    put.map(|_| ()).map_err(|status| format!("etcd put: {}", status.message()))
}

/// The values of the first `limit` keys that begin with `prefix`, linearizable; how many, and their bytes.
pub async fn range(kv: &mut Kv, prefix: &str, limit: i64) -> Result<(usize, usize), String> {
    let request = RangeRequest { key: prefix.to_owned().into(), range_end: after(prefix).into(), limit };
    let found = kv.range(request).await.map_err(|status| format!("etcd range: {}", status.message()))?;
    let kvs = found.into_inner().kvs;
    Ok((kvs.len(), kvs.iter().map(|kv| kv.value.len()).sum()))
}

/// The first key past those that begin with `prefix`, which ends in a plain character.
pub fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

pub async fn connect(address: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|error| format!("--etcd {address}: {error}; give HOST:PORT"))?;
    let endpoint = endpoint.connect_timeout(CONNECT_MAX).tcp_nodelay(true);
    endpoint.connect().await.map_err(|error| format!("etcd at {address}: {error}; is it running there?"))
}

async fn leader_first(mut addresses: Vec<String>) -> Result<(Vec<String>, String), String> {
    let mut version = String::new();
    let mut leader = None;
    for (at, address) in addresses.iter().enumerate() {
        let status = status(address).await?;
        if status.leader == 0 {
            return Err("no leader yet".to_owned());
        }
        if status.header.is_some_and(|header| header.member_id == status.leader) {
            leader = Some(at);
        }
        version = status.version;
    }
    addresses.rotate_left(leader.unwrap_or(0));
    Ok((addresses, version))
}

async fn status(address: &str) -> Result<StatusResponse, String> {
    let mut client = MaintenanceClient::new(connect(address).await?);
    match timeout(CONNECT_MAX, client.status(StatusRequest {})).await {
        Ok(Ok(status)) => Ok(status.into_inner()),
        Ok(Err(status)) => Err(format!("etcd at {address}: {}", status.message())),
        Err(_) => Err(format!("etcd at {address}: no answer in time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        assert_eq!(after("s1/"), b"s10");
        assert!(b"s1/zzz".as_slice() < after("s1/").as_slice());
    }
}
