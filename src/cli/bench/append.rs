//! Owns: `bench append`: durable, replicated writes of 1 KiB, by closed-loop clients that are spread over all nodes.

use std::sync::Arc;

use bytes::Bytes;
use clap::Args;

use super::args::{self, LoadArgs};
use super::bus::{Bus, Lanes};
use super::etcd::{self, Kv, Operations};
use super::report::{Figure, Goal, Report, System};
use super::systems::Systems;
use super::words::Messages;

const EXAMPLES: &str = "\
Examples:
  session-manager bench append
  session-manager bench append --clients 1,32,128 --seconds 10 --json append.json
  session-manager bench append --with-etcd
  session-manager bench append --node ws://10.0.0.1:49134 --node ws://10.0.0.2:49134 --node ws://10.0.0.3:49134

Every client appends messages of 1 KiB to a session of its own, one after the other, each acknowledged when a quorum has
it on disk. The first client talks to the leader, the next ones to the other nodes in turn. etcd gets the same bytes from
as many clients, a key for each message.";

/// Durable, replicated appends of 1 KiB
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct AppendArgs {
    /// Numbers of clients to run, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,32,128", value_parser = args::clients)]
    clients: Vec<usize>,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl AppendArgs {
    pub fn usual(load: LoadArgs) -> AppendArgs {
        AppendArgs { clients: vec![1, 32, 128], load }
    }
}

pub async fn run(args: &AppendArgs, systems: &Systems) -> Result<Report, String> {
    let messages = Arc::new(Messages::new());
    let mut report = Report { systems: systems.words(), ..Report::default() };
    for clients in args.clients.iter().copied() {
        let name = format!("append, {clients} clients");
        let (mut ours, mut peers) = (Vec::new(), Vec::new());
        // The systems take turns, so that a busy moment of the machine touches both.
        for round in 1..=systems.args.rounds {
            let what = |system: System| format!("{name}, {}, round {round}", system.name());
            let sessions = make_sessions(systems, clients).await?;
            let lanes = |clients: Vec<usize>| Appends {
                sessions: clients.iter().map(|client| sessions[*client].clone()).collect(),
                messages: messages.clone(),
                next: clients.first().copied().unwrap_or(0) * 31,
            };
            ours.push(systems.run_ours(&what(System::Ours), clients, lanes).await?);
            let puts = |client: usize| Puts { session: sessions[client].clone(), messages: messages.clone(), next: 0 };
            peers.extend(systems.run_etcd(&what(System::Etcd), clients, puts).await?);
        }
        report.figures.push(Figure::of(name.clone(), System::Ours, ours));
        if !peers.is_empty() {
            report.figures.push(Figure::of(name.clone(), System::Etcd, peers));
        }
        set_goals(&mut report, &name, clients);
    }
    Ok(report)
}

/// goals.md P1.
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

/// A session per client: transcripts are independent of each other, as conversations are.
async fn make_sessions(systems: &Systems, clients: usize) -> Result<Vec<String>, String> {
    let mut bus = Bus::connect(&systems.ours.addresses[0]).await?;
    let run = uuid::Uuid::new_v4().simple().to_string();
    let mut sessions = Vec::with_capacity(clients);
    for client in 0..clients {
        let session_id = format!("bench-{}-{client}", &run[..8]);
        bus.call("session::ensure", &format!(r#"{{"session_id":"{session_id}"}}"#)).await?;
        sessions.push(session_id);
    }
    Ok(sessions)
}

struct Appends {
    sessions: Vec<String>,
    messages: Arc<Messages>,
    next: usize,
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

    fn check(&mut self, _lane: usize, answer: &str) -> Result<(), String> {
        if answer.contains("\"entry_id\"") { Ok(()) } else { Err(format!("session::append answered {answer}")) }
    }
}

/// The peer's way of writing the same: a key per message.
struct Puts {
    session: String,
    messages: Arc<Messages>,
    next: usize,
}

impl Operations for Puts {
    async fn operate(&mut self, kv: &mut Kv) -> Result<(), String> {
        self.next += 1;
        let key = format!("{}/{:010}", self.session, self.next);
        etcd::put(kv, key, Bytes::copy_from_slice(self.messages.nth(self.next).as_bytes())).await
    }
}
