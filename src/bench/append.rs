//! Owns: `bench append`: durable, replicated writes of 1 KiB by closed-loop clients that are spread over all nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use tokio::time::sleep_until;

use super::args::{self, LoadArgs};
use super::bus_client::{Answer, Bus, Lanes, invoke};
use super::error::BenchError;
use super::etcd::{self, Kv, Operations};
use super::nodes::Nodes;
use super::report::{Goal, Report, System};
use super::systems::Systems;
use super::text::Messages;
use super::{nats, peers, postgres};

const EXAMPLES: &str = "\
Examples:
  session-manager bench append
  session-manager bench append --clients 1,32,128 --seconds 10 --json append.json
  session-manager bench append --with postgres,nats,etcd --svg append.svg
  session-manager bench append --node ws://10.0.0.1:49134 --node ws://10.0.0.2:49134 --node ws://10.0.0.3:49134

Every client appends messages of 1 KiB to its own session, one after the other. A message is acknowledged when a \
quorum has it on disk. The first client talks to the leader, the next ones to the other nodes in turn. etcd gets the \
same bytes from as many clients, one key per message. PostgreSQL gets one row and NATS one message of a stream for \
each; the report says when each of them acknowledges.";

/// Measure durable, replicated appends of 1 KiB
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct AppendArgs {
    /// Numbers of clients, measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,32,128", value_parser = args::clients)]
    clients: Vec<usize>,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl AppendArgs {
    pub fn defaults(load: LoadArgs) -> AppendArgs {
        AppendArgs { clients: vec![1, 32, 128], load }
    }
}

pub async fn run(args: &AppendArgs, systems: &Systems) -> Result<Report, BenchError> {
    let messages = Arc::new(Messages::new());
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    for clients in args.clients.iter().copied() {
        let name = format!("append, {clients} clients");
        let [mut ours, mut secure, mut etcd, mut postgres, mut nats] = [const { Vec::new() }; 5];
        // The systems take turns, so that other load on the machine affects both.
        for round in 1..=systems.args.rounds {
            let what = |system: System| format!("{name}, {}, round {round}", system.name());
            let sessions = session_names(clients);
            let lanes = |clients: Vec<usize>| Appends {
                sessions: clients.iter().map(|client| sessions[*client].clone()).collect(),
                messages: messages.clone(),
                next: clients.first().copied().unwrap_or(0) * 31,
            };
            for (system, nodes) in systems.own() {
                make_sessions(nodes, &sessions).await?;
                let sample = systems.run_ours(nodes, &what(system), clients, lanes).await?;
                if system == System::Secure { secure.push(sample) } else { ours.push(sample) }
            }
            let puts = |client: usize| Puts { session: sessions[client].clone(), messages: messages.clone(), next: 0 };
            etcd.extend(systems.run_etcd(&what(System::Etcd), clients, puts).await?);
            let seconds = systems.args.seconds;
            if let Some(peer) = &systems.postgres {
                let what = what(System::Postgres);
                postgres.push(peers::run::<postgres::Client>(peer, &what, seconds, &sessions, &messages).await?);
            }
            if let Some(peer) = &systems.nats {
                let what = what(System::Nats);
                nats.push(peers::run::<nats::Client>(peer, &what, seconds, &sessions, &messages).await?);
            }
        }
        report.add(&name, ours, etcd);
        report.add_peer(&name, System::Secure, secure);
        report.compare_tls(&name);
        report.add_peer(&name, System::Postgres, postgres);
        report.add_peer(&name, System::Nats, nats);
        set_goals(&mut report, &name, clients);
    }
    Ok(report)
}

/// The goals are those of goals.md P1.
fn set_goals(report: &mut Report, name: &str, clients: usize) {
    let rate = match clients {
        32 => Goal::AtLeast(2.0),
        128 => Goal::AtLeast(3.0),
        _other => Goal::None,
    };
    report.compare(name, "rate", |figure| figure.ops_per_s, rate);
    let median = if clients == 1 { Goal::AtMost(0.6) } else { Goal::None };
    report.compare(name, "p50", |figure| figure.p50_ms, median);
    report.compare(name, "server CPU per operation", |figure| figure.server_cpu_us.unwrap_or(f64::NAN), Goal::None);
}

/// One session per client, because conversations are independent of each other.
pub fn session_names(clients: usize) -> Vec<String> {
    let run = uuid::Uuid::new_v4().simple().to_string();
    (0..clients).map(|client| format!("bench-{}-{client}", &run[..8])).collect()
}

pub async fn make_sessions(nodes: &Nodes, sessions: &[String]) -> Result<(), BenchError> {
    let mut bus = Bus::connect(&nodes.targets[0]).await?;
    for session_id in sessions {
        bus.call("session::ensure", &format!(r#"{{"session_id":"{session_id}"}}"#)).await?;
    }
    Ok(())
}

pub struct Appends {
    pub sessions: Vec<String>,
    pub messages: Arc<Messages>,
    pub next: usize,
}

impl Lanes for Appends {
    fn function(&self) -> &'static str {
        "session::append"
    }

    fn count(&self) -> usize {
        self.sessions.len()
    }

    fn body(&mut self, lane: usize, out: &mut String) {
        self.next += 1;
        out.push_str(r#"{"session_id":""#);
        out.push_str(&self.sessions[lane]);
        out.push_str(r#"","message":"#);
        out.push_str(self.messages.nth(self.next));
        out.push('}');
    }

    fn check(&mut self, _lane: usize, answer: &str) -> Result<(), BenchError> {
        if answer.contains("\"entry_id\"") {
            return Ok(());
        }
        Err(BenchError::UnexpectedAnswer { call: "session::append", answer: answer.to_owned() })
    }
}

/// The same writes on etcd: one key per message.
struct Puts {
    session: String,
    messages: Arc<Messages>,
    next: usize,
}

impl Operations for Puts {
    async fn operate(&mut self, kv: &mut Kv) -> Result<(), BenchError> {
        self.next += 1;
        let key = format!("{}/{:010}", self.session, self.next);
        etcd::put(kv, key, Bytes::copy_from_slice(self.messages.nth(self.next).as_bytes())).await
    }
}

/// One append of a client that keeps to a rate.
pub struct Paced {
    pub sent: Instant,
    pub took: Duration,
    pub refusal: Option<String>,
}

/// Appends as soon as it is due, and waits for the answer.
pub async fn append_when_due(bus: &mut Bus, appends: &mut Appends, due: Instant) -> Result<Paced, BenchError> {
    sleep_until(due.into()).await;
    let mut body = String::with_capacity(1536);
    appends.body(0, &mut body);
    let sent = Instant::now();
    bus.feed(&invoke("0", appends.function(), &body));
    bus.flush().await?;
    loop {
        let frame = bus.next().await?;
        if let Some(answer) = Answer::of(&frame) {
            let refusal = answer.result.err().map(|why| why.to_owned());
            return Ok(Paced { sent, took: sent.elapsed(), refusal });
        }
    }
}
