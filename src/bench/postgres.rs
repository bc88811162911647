//! Owns: PostgreSQL as a system to compare with: a primary with a synchronous standby, and a small client of the public
//! protocol. A write is acknowledged when both have it on disk.

use std::path::Path;
use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::error::BenchError;
use super::peers::{Peer, PeerClient, Servers, data_dir, failed, spawn, until_serving};
use super::progress::progress;
use super::usage::Processes;
use crate::dev::Plan;

const USER: &str = "bench";
/// More than all clients together.
const CONNECTIONS_MAX: usize = 800;

pub async fn start(program: &Path, parent: &Path) -> Result<Peer, BenchError> {
    progress("starting PostgreSQL with a standby");
    let data = data_dir("postgres", parent)?;
    let plan = Plan::prepare(data.path(), Some(2), None)?;
    let [primary, standby] = plan.seats.as_slice() else { return Err(BenchError::ServersNotOurs) };
    let account = Account::of_servers(data.path())?;
    let bin = program.parent().unwrap_or(Path::new(""));
    let dirs = [data.path().join("primary"), data.path().join("standby")];

    let mut init = account.command(&bin.join("initdb"));
    init.args(["--auth=trust", "--username", USER, "--no-sync", "--encoding=UTF8", "--pgdata"]).arg(&dirs[0]);
    run(&mut init)?;
    let settings = format!(
        "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = {CONNECTIONS_MAX}\n\
         synchronous_commit = on\nsynchronous_standby_names = '*'\nshared_buffers = 128MB\n"
    );
    let config = dirs[0].join("postgresql.auto.conf");
    std::fs::write(&config, settings).map_err(|why| BenchError::Output { file: config.clone(), why })?;

    let mut servers = Servers::default();
    let serve = |dir: &Path, port: u16| {
        let mut command = account.command(program);
        command.arg("-D").arg(dir).args(["-p", &port.to_string()]);
        spawn(&mut command, &dir.with_extension("log"))
    };
    servers.0.push(serve(&dirs[0], primary.client.port())?);
    let address = primary.client.to_string();
    until_serving("postgres", || Client::open(&address)).await?;
    let mut copy = account.command(&bin.join("pg_basebackup"));
    copy.args(["--host=127.0.0.1", "--port", &primary.client.port().to_string(), "--username", USER]);
    copy.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync", "--pgdata"]);
    run(copy.arg(&dirs[1]))?;
    servers.0.push(serve(&dirs[1], standby.client.port())?);
    // This waits for the standby, as every later write does.
    let version = until_serving("postgres", || async {
        let mut client = Client::open(&address).await?;
        client.simple("CREATE TABLE IF NOT EXISTS entries (id text PRIMARY KEY, message text NOT NULL)").await?;
        Ok(client.version)
    })
    .await?;
    let processes = Processes::families(servers.0.iter().map(std::process::Child::id).collect());
    let description = format!("PostgreSQL {version}: a synchronous standby, acknowledged after fsync on both");
    Ok(Peer { description, addresses: vec![address], _servers: servers, processes, _data: data })
}

fn run(command: &mut Command) -> Result<(), BenchError> {
    let what = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|why| failed(&what, why))?;
    if done.status.success() { Ok(()) } else { Err(failed(&what, String::from_utf8_lossy(&done.stderr).trim())) }
}

/// The user that the servers run as. PostgreSQL refuses to run as root, so root starts it as `postgres`.
struct Account(Option<(u32, u32)>);

impl Account {
    #[cfg(unix)]
    fn of_servers(data: &Path) -> Result<Account, BenchError> {
        use std::os::unix::fs::{PermissionsExt, chown};
        if !rustix::process::geteuid().is_root() {
            return Ok(Account(None));
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|user| user[0] == "postgres");
        let number = |at: usize| fields.as_ref()?.get(at)?.parse().ok();
        let (Some(user), Some(group)) = (number(2), number(3)) else {
            return Err(failed("postgres", "it does not run as root, and there is no user postgres to run it as"));
        };
        let prepared = std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o755));
        let prepared = prepared.and_then(|()| chown(data, Some(user), Some(group)));
        prepared.map_err(|why| BenchError::Directory { dir: data.to_owned(), why })?;
        Ok(Account(Some((user, group))))
    }

    #[cfg(not(unix))]
    fn of_servers(_data: &Path) -> Result<Account, BenchError> {
        Ok(Account(None))
    }

    fn command(&self, program: &Path) -> Command {
        #[allow(unused_mut)]
        let mut command = Command::new(program);
        #[cfg(unix)]
        if let Some((user, group)) = self.0 {
            std::os::unix::process::CommandExt::gid(&mut command, group);
            std::os::unix::process::CommandExt::uid(&mut command, user);
            command.current_dir("/");
        }
        command
    }
}

pub struct Client {
    stream: BufReader<TcpStream>,
    version: String,
}

impl Client {
    async fn open(address: &str) -> Result<Client, BenchError> {
        let refused = |why: std::io::Error| BenchError::Connect { address: address.to_owned(), why: why.to_string() };
        let stream = TcpStream::connect(address).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let mut client = Client { stream: BufReader::new(stream), version: String::new() };
        let words = format!("user\0{USER}\0database\0postgres\0\0");
        let mut hello = ((words.len() + 8) as u32).to_be_bytes().to_vec();
        hello.extend_from_slice(&196_608_u32.to_be_bytes());
        hello.extend_from_slice(words.as_bytes());
        client.send(&hello).await?;
        client.until_ready().await?;
        Ok(client)
    }

    async fn simple(&mut self, statement: &str) -> Result<(), BenchError> {
        let mut frame = Vec::new();
        message(&mut frame, b'Q', &[statement.as_bytes(), b"\0"]);
        self.send(&frame).await?;
        self.until_ready().await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(bytes).await.map_err(|why| failed("postgres", why))
    }

    /// Reads answers until the server is ready for the next statement.
    async fn until_ready(&mut self) -> Result<(), BenchError> {
        let mut outcome = Ok(());
        loop {
            let broken = |why| failed("postgres", why);
            let kind = self.stream.read_u8().await.map_err(broken)?;
            let len = self.stream.read_u32().await.map_err(broken)?.saturating_sub(4);
            let mut body = vec![0; len as usize];
            self.stream.read_exact(&mut body).await.map_err(broken)?;
            match kind {
                b'Z' => return outcome,
                b'E' => {
                    let why = String::from_utf8_lossy(&body).replace('\0', " ");
                    // Before the first statement, nothing follows an error.
                    if self.version.is_empty() {
                        return Err(failed("postgres", why));
                    }
                    outcome = Err(failed("postgres", why));
                }
                b'S' => {
                    if let Some(version) = String::from_utf8_lossy(&body).strip_prefix("server_version\0") {
                        self.version = version.split([' ', '\0']).next().unwrap_or_default().to_owned();
                    }
                }
                _other => {}
            }
        }
    }
}

/// Adds a message of the protocol: its kind, its length, its body.
fn message(out: &mut Vec<u8>, kind: u8, body: &[&[u8]]) {
    out.push(kind);
    let len: usize = body.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&(len as u32 + 4).to_be_bytes());
    body.iter().for_each(|part| out.extend_from_slice(part));
}

impl PeerClient for Client {
    async fn connect(address: &str) -> Result<Client, BenchError> {
        let mut client = Client::open(address).await?;
        let mut frame = Vec::new();
        message(&mut frame, b'P', &[b"put\0INSERT INTO entries (id, message) VALUES ($1, $2)\0", &[0, 0]]);
        message(&mut frame, b'S', &[]);
        client.send(&frame).await?;
        client.until_ready().await?;
        Ok(client)
    }

    async fn write(&mut self, session: &str, number: usize, text: &str) -> Result<(), BenchError> {
        // A second round writes with the same sessions, so the key also says when.
        let key = format!("{session}/{number}/{}", uuid::Uuid::new_v4().simple());
        let length = |text: &str| (text.len() as u32).to_be_bytes();
        let mut frame = Vec::with_capacity(text.len() + 256);
        let values: &[&[u8]] = &[&length(&key), key.as_bytes(), &length(text), text.as_bytes()];
        // Portal and statement; all parameters as text; two values; results as text.
        let bind: Vec<&[u8]> = [b"\0put\0".as_slice(), &[0, 0], &[0, 2]]
            .into_iter()
            .chain(values.iter().copied())
            .chain([[0, 0].as_slice()])
            .collect();
        message(&mut frame, b'B', &bind);
        message(&mut frame, b'E', &[b"\0", &[0, 0, 0, 0]]);
        message(&mut frame, b'S', &[]);
        self.send(&frame).await?;
        self.until_ready().await
    }
}
