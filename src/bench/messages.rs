//! Owns: `bench messages`: linearizable reads of transcript pages by closed-loop clients that are spread over all
//! nodes.

use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use serde_json::Value;

use super::args::{self, LoadArgs};
use super::bus_client::{Bus, Lanes};
use super::error::BenchError;
use super::etcd::{self, Kv, Operations, kv};
use super::progress::progress;
use super::report::{Goal, Report, System};
use super::systems::Systems;
use super::text::{MESSAGE_BYTES, Messages, SplitMix};

/// Entries of a page, and of a transcript.
const PAGE: usize = 100;
/// Number of transcripts. Each read picks one at random.
const TRANSCRIPTS: usize = 32;

const EXAMPLES: &str = "\
Examples:
  session-manager bench messages
  session-manager bench messages --with-etcd --seconds 10
  session-manager bench messages --clients 1,32 --door http --json -

Every client reads pages of 100 messages of 1 KiB from 32 transcripts, one page after the other. Reads are \
linearizable: a page contains every message that was acknowledged before the read started. etcd reads ranges of 100 \
keys with the same bytes.";

/// Measure linearizable reads of pages of 100 messages
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct MessagesArgs {
    /// Numbers of clients, measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "32", value_parser = args::clients)]
    clients: Vec<usize>,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl MessagesArgs {
    pub fn defaults(load: LoadArgs) -> MessagesArgs {
        MessagesArgs { clients: vec![32], load }
    }
}

pub async fn run(args: &MessagesArgs, systems: &Systems) -> Result<Report, BenchError> {
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    let run = uuid::Uuid::new_v4().simple().to_string();
    let transcripts: Vec<String> = (0..TRANSCRIPTS).map(|nth| format!("bench-{}-{nth}", &run[..8])).collect();
    let transcripts = Arc::new(transcripts);
    fill(systems, &transcripts).await?;
    for clients in args.clients.iter().copied() {
        let name = format!("messages, pages of {PAGE}, {clients} clients");
        let [mut ours, mut secure, mut etcd] = [const { Vec::new() }; 3];
        for round in 1..=systems.args.rounds {
            let what = |system: System| format!("{name}, {}, round {round}", system.name());
            let lanes = |clients: Vec<usize>| Pages {
                transcripts: transcripts.clone(),
                random: SplitMix(clients.first().copied().unwrap_or(0) as u64),
                count: clients.len(),
                parsed: false,
            };
            for (system, nodes) in systems.own() {
                let sample = systems.run_ours(nodes, &what(system), clients, lanes).await?;
                if system == System::Secure { secure.push(sample) } else { ours.push(sample) }
            }
            let ranges = |client: usize| Ranges { transcripts: transcripts.clone(), random: SplitMix(client as u64) };
            etcd.extend(systems.run_etcd(&what(System::Etcd), clients, ranges).await?);
        }
        report.add(&name, ours, etcd);
        report.add_peer(&name, System::Secure, secure);
        report.compare_tls(&name);
        // The goal is that of goals.md P3.
        let rate = if clients == 32 { Goal::AtLeast(3.0) } else { Goal::None };
        report.compare(&name, "rate", |figure| figure.ops_per_s, rate);
        report.compare(
            &name,
            "server CPU per operation",
            |figure| figure.server_cpu_us.unwrap_or(f64::NAN),
            Goal::None,
        );
    }
    Ok(report)
}

/// Writes the same transcripts to all systems.
async fn fill(systems: &Systems, transcripts: &[String]) -> Result<(), BenchError> {
    let messages = Messages::new();
    for (nth, session_id) in transcripts.iter().enumerate() {
        progress(&format!("writing transcripts: {nth} of {TRANSCRIPTS}"));
        let batch: Vec<&str> = (0..PAGE).map(|entry| messages.nth(nth * PAGE + entry)).collect();
        let body = format!(r#"{{"session_id":"{session_id}","messages":[{}]}}"#, batch.join(","));
        for (_, nodes) in systems.own() {
            let mut bus = Bus::connect(&nodes.targets[0]).await?;
            bus.call("session::ensure", &format!(r#"{{"session_id":"{session_id}"}}"#)).await?;
            bus.call("session::append-many", &body).await?;
        }
        let Some(etcd) = &systems.etcd else { continue };
        let mut kv = kv(etcd.channel(0).await?);
        for (entry, message) in batch.into_iter().enumerate() {
            let key = format!("{session_id}/{entry:010}");
            etcd::put(&mut kv, key, Bytes::copy_from_slice(message.as_bytes())).await?;
        }
    }
    Ok(())
}

struct Pages {
    transcripts: Arc<Vec<String>>,
    random: SplitMix,
    count: usize,
    /// Only the first answer is parsed. Later ones are checked by their length and their start.
    parsed: bool,
}

impl Lanes for Pages {
    fn function(&self) -> &'static str {
        "session::messages"
    }

    fn count(&self) -> usize {
        self.count
    }

    fn body(&mut self, _lane: usize, out: &mut String) {
        out.push_str(r#"{"session_id":""#);
        out.push_str(&self.transcripts[self.random.below(TRANSCRIPTS)]);
        out.push_str(r#"","limit":100}"#);
    }

    fn check(&mut self, _lane: usize, answer: &str) -> Result<(), BenchError> {
        if answer.len() < PAGE * MESSAGE_BYTES || !answer.starts_with(r#"{"messages":["#) {
            return Err(unexpected(format!("{} bytes", answer.len())));
        }
        if !self.parsed {
            // `answer` reaches to the end of the frame; only its first JSON value is the page.
            let mut values = serde_json::Deserializer::from_str(answer).into_iter::<Value>();
            let page = values.next().and_then(Result::ok).unwrap_or_default();
            if page["messages"].as_array().is_none_or(|messages| messages.len() != PAGE) {
                return Err(unexpected(format!("not a page of {PAGE} messages")));
            }
            self.parsed = true;
        }
        Ok(())
    }
}

fn unexpected(answer: String) -> BenchError {
    BenchError::UnexpectedAnswer { call: "session::messages", answer }
}

struct Ranges {
    transcripts: Arc<Vec<String>>,
    random: SplitMix,
}

impl Operations for Ranges {
    async fn operate(&mut self, kv: &mut Kv) -> Result<(), BenchError> {
        let prefix = format!("{}/", self.transcripts[self.random.below(TRANSCRIPTS)]);
        match etcd::range(kv, &prefix, PAGE as i64).await? {
            (PAGE, bytes) if bytes == PAGE * MESSAGE_BYTES => Ok(()),
            (keys, bytes) => Err(BenchError::UnexpectedAnswer {
                call: "etcd range",
                answer: format!("{keys} keys of {bytes} bytes"),
            }),
        }
    }
}
