//! Owns: etcd as the system to compare with: its members (running, or started here) and a small client of its public
//! API. It gets the same bytes, the same closed loops and the same spread of clients over members as our nodes.

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

use super::error::BenchError;
use super::progress::progress;
use super::usage::{Processes, bytes_below, disk_bytes};
use super::window::{ANSWER_MAX, Clients, Sample, Tally, Window, measure};
use crate::dev::Plan;
use crate::proto::etcd::kv_client::KvClient;
use crate::proto::etcd::maintenance_client::MaintenanceClient;
use crate::proto::etcd::watch_client::WatchClient;
use crate::proto::etcd::{
    PutRequest, RangeRequest, StatusRequest, StatusResponse, WatchCreateRequest, WatchRequest, WatchResponse,
    watch_request,
};

/// Members usually elect a leader within two seconds.
const START_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(3);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Larger than any page that a benchmark reads.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

pub struct Etcd {
    /// `host:port`; the leader comes first.
    pub addresses: Vec<String>,
    pub processes: Processes,
    pub version: String,
    data_dirs: Vec<PathBuf>,
    members: Members,
    /// The command that starts each of our own members.
    commands: Vec<Command>,
    /// The client address of each of our own members, in the order of `commands`.
    seats: Vec<String>,
    _data: Option<TempDir>,
}

/// Member processes. Their data is temporary, so they are killed.
struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.0 {
            // Both fail only if the process has ended already.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

impl Etcd {
    /// Running members.
    pub async fn running(addresses: &[String]) -> Result<Etcd, BenchError> {
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

    /// Starts members with etcd's default settings and their data below `parent`.
    pub async fn start(count: u16, parent: &Path) -> Result<Etcd, BenchError> {
        progress(&format!("starting {count} members of etcd"));
        let data = tempfile::Builder::new().prefix("session-manager-bench-etcd-").tempdir_in(parent);
        let data = data.map_err(|why| BenchError::Directory { dir: parent.to_owned(), why })?;
        // The plan of a local cluster also provides free ports.
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
                Err(last) if begun.elapsed() > START_MAX => {
                    let (server, last) = ("etcd".to_owned(), Box::new(last));
                    return Err(BenchError::NotServing { server, limit: START_MAX, last });
                }
                Err(_) => tokio::time::sleep(RETRY_EVERY).await,
            }
        };
        let data_dirs = plan.seats.iter().map(|seat| seat.data_dir.clone()).collect();
        let seats = plan.seats.iter().map(|seat| seat.client.to_string()).collect();
        Ok(Etcd { addresses, processes, version, data_dirs, members, commands, seats, _data: Some(data) })
    }

    /// The disk space of the largest member.
    pub fn disk_bytes(&self) -> u64 {
        self.data_dirs.iter().map(|dir| disk_bytes(dir)).max().unwrap_or(0)
    }

    /// Stops or kills the last of our own members, and returns its address.
    pub fn end_last(&mut self, kill: bool) -> Result<String, BenchError> {
        let (member, seat) = self.members.0.last_mut().zip(self.seats.last()).ok_or(BenchError::ServersNotOurs)?;
        if kill || !request_stop(member.id()) {
            // This fails only if the process has ended already.
            let _ = member.kill();
        }
        let _ = member.wait();
        Ok(seat.clone())
    }

    pub fn start_last(&mut self) -> Result<(), BenchError> {
        let (Some(member), Some(command)) = (self.members.0.last_mut(), self.commands.last_mut()) else {
            return Ok(());
        };
        *member = spawn(command)?;
        Ok(())
    }

    /// The average bytes in the log of a member. `None` for running members, whose files are not accessible.
    pub fn log_bytes(&self) -> Option<u64> {
        let bytes: Vec<u64> = self.data_dirs.iter().filter_map(|dir| bytes_below(dir, ".wal").ok()).collect();
        (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() / bytes.len() as u64)
    }

    pub fn description(&self) -> String {
        format!("etcd {}: {} members, over gRPC", self.version, self.addresses.len())
    }

    /// A connection to the member at `place`, modulo the number of members.
    pub async fn channel(&self, place: usize) -> Result<Channel, BenchError> {
        connect(&self.addresses[place % self.addresses.len()]).await
    }

    /// Watches all keys that begin with `prefix`, from now on, over a new connection.
    pub async fn watch(&self, place: usize, prefix: &str) -> Result<Streaming<WatchResponse>, BenchError> {
        let failed = |status: Status| refused("watch", status.message());
        let create = WatchCreateRequest { key: prefix.to_owned().into(), range_end: after(prefix).into() };
        let request = WatchRequest { request: Some(watch_request::Request::CreateRequest(create)) };
        // Closing the stream of requests would end the watch, so it stays open.
        let requests = stream::once(ready(request)).chain(stream::pending());
        let mut client = WatchClient::new(self.channel(place).await?);
        let mut responses = client.watch(requests).await.map_err(failed)?.into_inner();
        match responses.message().await.map_err(failed)? {
            Some(first) if first.created && !first.canceled => Ok(responses),
            Some(first) => Err(refused("watch", &first.cancel_reason)),
            None => Err(refused("watch", "etcd ended the watch")),
        }
    }

    /// One round of closed loops, spread over `connections` as on our nodes.
    pub async fn run<O: Operations>(
        &self,
        workload: &str,
        (clients, connections): (usize, usize),
        seconds: f64,
        operations: impl Fn(usize) -> O,
    ) -> Result<Sample, BenchError> {
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
        measure(workload, window, tasks, &self.processes, seconds).await
    }
}

fn spawn(command: &mut Command) -> Result<Child, BenchError> {
    command.spawn().map_err(BenchError::EtcdSpawn)
}

/// Sends SIGTERM. False on systems without signals, where the process can only be killed.
fn request_stop(pid: u32) -> bool {
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

/// The operation that one client repeats.
pub trait Operations: Send + 'static {
    fn operate(&mut self, kv: &mut Kv) -> impl Future<Output = Result<(), BenchError>> + Send;
}

async fn closed_loop(mut kv: Kv, mut operations: impl Operations, window: Arc<Window>) -> Result<Tally, BenchError> {
    let mut tally = Tally::default();
    while !window.is_closed() {
        let sent = Instant::now();
        match timeout(ANSWER_MAX, operations.operate(&mut kv)).await {
            Ok(Ok(())) => tally.done(&window, sent.elapsed()),
            Ok(Err(error)) => tally.failed(&window, &error),
            Err(_) => return Err(BenchError::NoAnswer { address: "etcd".to_owned(), limit: ANSWER_MAX }),
        }
    }
    Ok(tally)
}

pub async fn put(kv: &mut Kv, key: String, value: Bytes) -> Result<(), BenchError> {
    let put = kv.put(PutRequest { key: key.into(), value }).await;
    put.map(drop).map_err(|status| refused("put", status.message()))
}

/// Reads the first `limit` keys that begin with `prefix`, linearizable. Returns their number and the bytes of their
/// values.
pub async fn range(kv: &mut Kv, prefix: &str, limit: i64) -> Result<(usize, usize), BenchError> {
    let request = RangeRequest { key: prefix.to_owned().into(), range_end: after(prefix).into(), limit };
    let found = kv.range(request).await.map_err(|status| refused("range", status.message()))?;
    let kvs = found.into_inner().kvs;
    Ok((kvs.len(), kvs.iter().map(|kv| kv.value.len()).sum()))
}

pub fn refused(operation: &str, why: &str) -> BenchError {
    BenchError::Refused { call: format!("etcd {operation}"), why: why.to_owned() }
}

/// The first key behind those that begin with `prefix`. The last byte of `prefix` must be below 0xff.
pub fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

pub async fn connect(address: &str) -> Result<Channel, BenchError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint =
        endpoint.map_err(|error| BenchError::EtcdAddress { address: address.to_owned(), why: error.to_string() })?;
    let endpoint = endpoint.connect_timeout(CONNECT_MAX).tcp_nodelay(true);
    let failed = |why: String| BenchError::Connect { address: format!("etcd at {address}"), why };
    endpoint.connect().await.map_err(|error| failed(error.to_string()))
}

async fn leader_first(mut addresses: Vec<String>) -> Result<(Vec<String>, String), BenchError> {
    let mut version = String::new();
    let mut leader = None;
    for (at, address) in addresses.iter().enumerate() {
        let status = status(address).await?;
        if status.leader == 0 {
            return Err(BenchError::EtcdNoLeader);
        }
        if status.header.is_some_and(|header| header.member_id == status.leader) {
            leader = Some(at);
        }
        version = status.version;
    }
    addresses.rotate_left(leader.unwrap_or(0));
    Ok((addresses, version))
}

async fn status(address: &str) -> Result<StatusResponse, BenchError> {
    let mut client = MaintenanceClient::new(connect(address).await?);
    match timeout(CONNECT_MAX, client.status(StatusRequest {})).await {
        Ok(Ok(status)) => Ok(status.into_inner()),
        Ok(Err(status)) => Err(refused("status", status.message())),
        Err(_) => Err(BenchError::NoAnswer { address: format!("etcd at {address}"), limit: CONNECT_MAX }),
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
