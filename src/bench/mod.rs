//! `session-manager bench`: measurements compared with goals, taken through the public ports of the nodes.
//!
//! Owns: one file per measurement (`append`, `messages`, `streaming`, `events`, `cost`, `growth`, `neighbours`,
//! `greedy`, `overload`, `hostile`) and what they share: clients (`bus_client`, `http_client`), the measured systems
//! (`nodes`, `target`, `etcd`, `peers`, `postgres`, `nats`, `systems`), the measured time (`window`, `meter`), resource
//! usage (`usage`) and the result (`report`, `chart`).
//! Never: access to a node that other clients do not have.

mod append;
mod args;
mod bus_client;
mod chart;
mod cost;
mod error;
mod etcd;
mod events;
mod figures;
mod fill;
mod greedy;
mod growth;
mod hostile;
mod hostile_clients;
mod http_client;
mod messages;
mod meter;
mod nats;
mod neighbours;
mod nodes;
mod overload;
mod scraped;
mod peers;
mod postgres;
mod progress;
mod report;
mod streaming;
mod systems;
mod target;
mod text;
mod usage;
mod web_socket;
mod window;

use std::path::Path;

use clap::{Args, Subcommand};

pub use self::error::BenchError;

use self::append::AppendArgs;
use self::args::LoadArgs;
use self::cost::CostArgs;
use self::events::EventsArgs;
use self::greedy::GreedyArgs;
use self::growth::GrowthArgs;
use self::hostile::HostileArgs;
use self::messages::MessagesArgs;
use self::neighbours::NeighboursArgs;
use self::overload::OverloadArgs;
use self::progress::progress_done;
use self::report::{Goal, Ratio, Report};
use self::streaming::StreamingArgs;
use self::systems::Systems;

const ABOUT: &str = "\
Measure this machine and compare the figures with their goals, and with etcd if asked.

Without --node three nodes of this program are started with temporary data and stopped afterwards. Use a release build \
and an otherwise idle machine.";

const EXAMPLES: &str = "\
Examples:
  session-manager bench append                                 appends per second and latency
  session-manager bench append --clients 32 --seconds 10 --json -
  session-manager bench append --with postgres,nats,etcd --svg append.svg
  session-manager bench append --with-tls                      what TLS costs
  session-manager bench messages --with etcd                   page reads, compared with etcd
  session-manager bench streaming                              bytes replicated while a reply grows
  session-manager bench events --subscribers 1,100             time from a write to its event
  session-manager bench cost                                   memory, disk and restart of a large store
  session-manager bench neighbours                             writers beside a client that works on a long session
  session-manager bench greedy                                 modest clients beside one that asks for much
  session-manager bench overload --seconds 60                  ten times the clients that are served well
  session-manager bench hostile                                honest clients beside thousands of hostile connections
  session-manager bench growth --json > growth.json            page time in a small and a large store
  session-manager bench all --with-etcd --json all.json --svg all.svg

Exit codes: 1 a goal is missed; 2 nothing could be measured.";

/// Measure figures and compare them with their goals
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one value in a process")]
enum Measurement {
    #[command(flatten)]
    UnderLoad(Box<UnderLoad>),
    Growth(GrowthArgs),
}

/// The measurements on a cluster under load. They share `LoadArgs`.
#[derive(Debug, Subcommand)]
enum UnderLoad {
    Append(AppendArgs),
    Messages(MessagesArgs),
    Streaming(StreamingArgs),
    Events(EventsArgs),
    Cost(CostArgs),
    Neighbours(NeighboursArgs),
    Greedy(GreedyArgs),
    Overload(OverloadArgs),
    Hostile(HostileArgs),
    All(AllArgs),
}

/// Run every measurement, one after the other
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  session-manager bench all --with-etcd --json all.json --svg all.svg")]
struct AllArgs {
    #[command(flatten)]
    load: LoadArgs,
}

impl UnderLoad {
    fn load(&self) -> &LoadArgs {
        match self {
            UnderLoad::Append(args) => &args.load,
            UnderLoad::Messages(args) => &args.load,
            UnderLoad::Streaming(args) => &args.load,
            UnderLoad::Events(args) => &args.load,
            UnderLoad::Cost(args) => &args.load,
            UnderLoad::Neighbours(args) => &args.load,
            UnderLoad::Greedy(args) => &args.load,
            UnderLoad::Overload(args) => &args.load,
            UnderLoad::Hostile(args) => &args.load,
            UnderLoad::All(args) => &args.load,
        }
    }
}

/// Measures and prints the result. True if all goals are met. Dropping the future stops the servers that it started.
pub async fn run(args: BenchArgs) -> Result<bool, BenchError> {
    let measurement = match args.measurement {
        Measurement::Growth(args) => return growth::run(args).await,
        Measurement::UnderLoad(measurement) => measurement,
    };
    let load = measurement.load().clone();
    // Boxed, because the futures of all measurements together nest too deeply for the compiler.
    let measured = Box::pin(measure(&measurement, load.clone())).await;
    progress_done();
    let report = measured?;
    print(&report, &load)?;
    Ok(report.pass())
}

async fn measure(measurement: &UnderLoad, load: LoadArgs) -> Result<Report, BenchError> {
    let settings = if matches!(measurement, UnderLoad::Neighbours(_)) { neighbours::SETTINGS } else { "" };
    let mut systems = Systems::start(load.clone(), settings).await?;
    let report = match measurement {
        UnderLoad::Append(args) => append::run(args, &systems).await,
        UnderLoad::Messages(args) => messages::run(args, &systems).await,
        UnderLoad::Streaming(args) => streaming::run(args, &systems).await,
        UnderLoad::Events(args) => events::run(args, &systems).await,
        UnderLoad::Cost(args) => cost::run(args, &mut systems).await,
        UnderLoad::Neighbours(args) => neighbours::run(args, &systems).await,
        UnderLoad::Greedy(args) => greedy::run(args, &systems).await,
        UnderLoad::Overload(args) => overload::run(args, &systems).await,
        UnderLoad::Hostile(args) => hostile::run(args, &systems).await,
        UnderLoad::All(_) => all(load, &mut systems).await,
    };
    let report = report.map_err(|error| systems.ours.explain(error));
    systems.stop().await;
    report
}

async fn all(load: LoadArgs, systems: &mut Systems) -> Result<Report, BenchError> {
    let mut report = append::run(&AppendArgs::defaults(load.clone()), systems).await?;
    report.join(messages::run(&MessagesArgs::defaults(load.clone()), systems).await?);
    report.join(streaming::run(&StreamingArgs::defaults(load.clone()), systems).await?);
    report.join(events::run(&EventsArgs::defaults(load.clone()), systems).await?);
    if systems.ours.are_ours() {
        report.join(cost::run(&CostArgs::defaults(load), systems).await?);
    }
    for growth in growth::defaults().await? {
        let name = format!("growth, {}: large / small", growth.name);
        report.ratios.push(Ratio { name, value: growth.ratio(), goal: Goal::AtMost(growth.ratio_max) });
    }
    Ok(report)
}

/// Prints the table or, with `--json -`, JSON. Writes the files that the arguments name.
fn print(report: &Report, load: &LoadArgs) -> Result<(), BenchError> {
    let json = format!("{:#}", report.json());
    if let Some(path) = &load.svg {
        write(path, &chart::draw(report))?;
    }
    match load.json.as_deref() {
        Some(path) if path == Path::new("-") => println!("{json}"),
        Some(path) => {
            print!("{}", report.table());
            write(path, &(json + "\n"))?;
        }
        None => print!("{}", report.table()),
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(file, text).map_err(|why| BenchError::Output { file: file.to_owned(), why })
}
