//! Owns: NATS JetStream as a system to compare with: a stream with as many copies as servers, and a small client of the
//! public protocol. A write is acknowledged when a quorum has it, in memory of the operating system.

use std::path::Path;
use std::process::Command;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::error::BenchError;
use super::peers::{Peer, PeerClient, Servers, data_dir, failed, spawn, until_serving};
use super::progress::progress;
use super::usage::Processes;
use crate::dev::Plan;

const COPIES_MAX: u16 = 5;

pub async fn start(program: &Path, count: u16, parent: &Path) -> Result<Peer, BenchError> {
    progress(&format!("starting {count} servers of NATS"));
    let data = data_dir("nats", parent)?;
    let plan = Plan::prepare(data.path(), Some(count), None)?;
    let routes: Vec<String> = plan.seats.iter().map(|seat| format!("nats://{}", seat.peer)).collect();
    let mut servers = Servers::default();
    for seat in &plan.seats {
        let config = data.path().join(format!("nats-{}.conf", seat.node));
        let cluster = format!("cluster {{ name: bench, listen: {}, routes: [{}] }}", seat.peer, routes.join(", "));
        let text = format!(
            "server_name: n{}\nlisten: {}\njetstream {{ store_dir: {:?} }}\n{}\n",
            seat.node,
            seat.client,
            seat.data_dir,
            if count > 1 { cluster } else { String::new() }
        );
        std::fs::write(&config, text).map_err(|why| BenchError::Output { file: config.clone(), why })?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&config);
        servers.0.push(spawn(&mut command, &config.with_extension("log"))?);
    }
    let processes = Processes::new(servers.0.iter().map(std::process::Child::id).collect());
    let addresses: Vec<String> = plan.seats.iter().map(|seat| seat.client.to_string()).collect();
    let copies = count.min(COPIES_MAX);
    let version = until_serving("nats", || async {
        let mut client = Client::connect(&addresses[0]).await?;
        let stream = format!(r#"{{"name":"bench","subjects":["bench.>"],"storage":"file","num_replicas":{copies}}}"#);
        let created = client.request("$JS.API.STREAM.CREATE.bench", &stream).await?;
        if created.contains("\"error\"") { Err(failed("nats", created)) } else { Ok(client.version) }
    })
    .await?;
    let description = format!("NATS JetStream {version}: {copies} copies, acknowledged before fsync");
    Ok(Peer { description, addresses, _servers: servers, processes, _data: data })
}

pub struct Client {
    stream: BufReader<TcpStream>,
    version: String,
    inbox: String,
    line: String,
}

impl Client {
    /// Publishes with a reply subject and waits for the reply.
    async fn request(&mut self, subject: &str, body: &str) -> Result<String, BenchError> {
        let frame = format!("PUB {subject} {} {}\r\n{body}\r\n", self.inbox, body.len());
        self.stream.write_all(frame.as_bytes()).await.map_err(|why| failed("nats", why))?;
        self.until("MSG ").await?;
        let len: usize = self.line.rsplit(' ').next().and_then(|len| len.trim().parse().ok()).unwrap_or(0);
        let mut reply = vec![0; len + 2];
        self.stream.read_exact(&mut reply).await.map_err(|why| failed("nats", why))?;
        reply.truncate(len);
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// Reads lines up to one with this start.
    async fn until(&mut self, start: &str) -> Result<(), BenchError> {
        loop {
            self.line.clear();
            let read = self.stream.read_line(&mut self.line).await.map_err(|why| failed("nats", why))?;
            if read == 0 || self.line.starts_with("-ERR") {
                return Err(failed("nats", if read == 0 { "the connection closed" } else { self.line.trim() }));
            }
            if self.line.starts_with(start) {
                return Ok(());
            }
            if self.line.starts_with("PING") {
                self.stream.write_all(b"PONG\r\n").await.map_err(|why| failed("nats", why))?;
            }
        }
    }
}

impl PeerClient for Client {
    async fn connect(address: &str) -> Result<Client, BenchError> {
        let refused = |why: std::io::Error| BenchError::Connect { address: address.to_owned(), why: why.to_string() };
        let stream = TcpStream::connect(address).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let inbox = format!("_INBOX.{}", uuid::Uuid::new_v4().simple());
        let mut client = Client { stream: BufReader::new(stream), version: String::new(), inbox, line: String::new() };
        client.until("INFO ").await?;
        let info: serde_json::Value = serde_json::from_str(&client.line[5..]).unwrap_or_default();
        client.version = info["version"].as_str().unwrap_or("?").to_owned();
        let hello = format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {} 1\r\nPING\r\n", client.inbox);
        client.stream.write_all(hello.as_bytes()).await.map_err(refused)?;
        client.until("PONG").await?;
        Ok(client)
    }

    async fn write(&mut self, session: &str, _number: usize, message: &str) -> Result<(), BenchError> {
        let answer = self.request(&format!("bench.{session}"), message).await?;
        if answer.contains("\"seq\"") { Ok(()) } else { Err(failed("nats publish", answer)) }
    }
}
