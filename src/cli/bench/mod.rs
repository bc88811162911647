//! `session-manager bench`: figures against goals, measured through public doors.
//!
//! Owns: one file per figure, and what they share: clients (`bus`, `http`), what is measured (`nodes`, `etcd`, `systems`), when
//! it counts (`window`), what it costs (`footprint`) and how it is told (`report`). Never: a shortcut past the doors.

mod append;
mod args;
mod bus;
mod chart;
mod cost;
mod etcd;
mod events;
mod figures;
mod footprint;
mod growth;
mod http;
mod load;
mod messages;
mod nodes;
mod progress;
mod report;
mod streaming;
mod systems;
mod window;
mod words;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::append::AppendArgs;
use self::args::LoadArgs;
use self::cost::CostArgs;
use self::events::EventsArgs;
use self::messages::MessagesArgs;
use self::progress::progress_done;
use self::report::{Goal, Ratio, Report};
use self::streaming::StreamingArgs;
use self::systems::Systems;
use super::serve::wait_for_signal;
use super::{EXIT_REFUSED, EXIT_UNUSABLE, fail};
use crate::observe::{LogFormat, start_logging};

const EXAMPLES: &str = "\
Examples:
  session-manager bench append
  session-manager bench append --clients 32 --seconds 10 --json -
  session-manager bench append --with-etcd
  session-manager bench messages --with-etcd
  session-manager bench streaming
  session-manager bench events --subscribers 1,100
  session-manager bench cost --with-etcd
  session-manager bench growth --json > growth.json
  session-manager bench all --with-etcd --json all.json --svg all.svg

Without --node it starts three nodes of this program in a temporary directory and ends them afterwards. Exits 1 when a
goal is missed, 2 when nothing could be measured. Use a release build, and a machine that does nothing else.";

/// Measure figures against their goals
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    figure: Measured,
}

#[derive(Debug, Subcommand)]
enum Measured {
    Append(AppendArgs),
    Messages(MessagesArgs),
    Streaming(StreamingArgs),
    Events(EventsArgs),
    Cost(CostArgs),
    Growth(growth::GrowthArgs),
    All(AllArgs),
}

/// Every figure, one after the other
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  session-manager bench all --with-etcd --json all.json --svg all.svg")]
struct AllArgs {
    #[command(flatten)]
    load: LoadArgs,
}

impl Measured {
    fn load(&self) -> Option<&LoadArgs> {
        match self {
            Measured::Append(args) => Some(&args.load),
            Measured::Messages(args) => Some(&args.load),
            Measured::Streaming(args) => Some(&args.load),
            Measured::Events(args) => Some(&args.load),
            Measured::Cost(args) => Some(&args.load),
            Measured::All(args) => Some(&args.load),
            Measured::Growth(_) => None,
        }
    }
}

pub fn run(args: BenchArgs) -> ExitCode {
    if let Err(error) = start_logging(LogFormat::Text, "warn") {
        return fail(EXIT_UNUSABLE, error);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_UNUSABLE, error),
    };
    runtime.block_on(async {
        match args.figure {
            Measured::Growth(args) => growth::run(args).await,
            figure => under_load(figure).await,
        }
    })
}

async fn under_load(figure: Measured) -> ExitCode {
    let Some(load) = figure.load().cloned() else { return ExitCode::from(EXIT_UNUSABLE) };
    // An interrupted run ends here, and takes what it started with it.
    let measured = tokio::select! {
        measured = measure(&figure, load.clone()) => measured,
        () = wait_for_signal() => Err("interrupted".to_owned()),
    };
    progress_done();
    match measured.and_then(|report| tell(&report, &load).map(|()| report)) {
        Ok(report) if report.pass() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(EXIT_REFUSED),
        Err(why) => fail(EXIT_UNUSABLE, why),
    }
}

async fn measure(figure: &Measured, load: LoadArgs) -> Result<Report, String> {
    let mut systems = Systems::start(load.clone()).await?;
    let report = match figure {
        Measured::Append(args) => append::run(args, &systems).await,
        Measured::Messages(args) => messages::run(args, &systems).await,
        Measured::Streaming(args) => streaming::run(args, &systems).await,
        Measured::Events(args) => events::run(args, &systems).await,
        Measured::Cost(args) => cost::run(args, &mut systems).await,
        Measured::All(_) => all(load, &mut systems).await,
        Measured::Growth(_) => Err("growth starts nodes of its own".to_owned()),
    };
    let report = report.map_err(|why| systems.ours.explain(why));
    systems.stop().await;
    report
}

async fn all(load: LoadArgs, systems: &mut Systems) -> Result<Report, String> {
    let mut report = append::run(&AppendArgs::usual(load.clone()), systems).await?;
    report.join(messages::run(&MessagesArgs::usual(load.clone()), systems).await?);
    report.join(streaming::run(&StreamingArgs::usual(load.clone()), systems).await?);
    report.join(events::run(&EventsArgs::usual(load.clone()), systems).await?);
    if systems.ours.are_ours() {
        report.join(cost::run(&CostArgs::usual(load), systems).await?);
    }
    for growth in growth::usual().await? {
        let name = format!("growth, {}: large / small", growth.name);
        report.ratios.push(Ratio { name, value: growth.ratio(), goal: Goal::AtMost(growth.ratio_max) });
    }
    Ok(report)
}

/// The table on stdout, or JSON there, or both in their places.
fn tell(report: &Report, load: &LoadArgs) -> Result<(), String> {
    let json = format!("{:#}", report.json());
    if let Some(path) = &load.svg {
        std::fs::write(path, chart::draw(report)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    match load.json.as_deref() {
        Some(path) if path == Path::new("-") => println!("{json}"),
        Some(path) => {
            print!("{}", report.table());
            std::fs::write(path, json + "\n").map_err(|error| format!("{}: {error}", path.display()))?;
        }
        None => print!("{}", report.table()),
    }
    Ok(())
}
