//! Owns: `bench growth`. What a page costs in a small store against a large one: a page must cost its page.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use super::figures::{Growth, TABLE_HEAD, Timings};
use super::http::Caller;
use super::load::{build_sessions, build_transcript, cursor_after};
use super::progress::{progress, progress_done};
use crate::cli::{EXIT_REFUSED, EXIT_UNUSABLE, fail};
use crate::node::{Node, NodeSettings};

/// goals.md P4.
const MESSAGES_RATIO_MAX: f64 = 1.5;
const LIST_RATIO_MAX: f64 = 2.0;

const MESSAGES_PAGE: usize = 100;
const LIST_PAGE: usize = 50;

/// Rounds whose timings are thrown away: caches fill, connections settle.
const WARM_UP_ROUNDS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  session-manager bench growth
  session-manager bench growth --sessions 20000 --entries 10000 --rounds 50

Starts two nodes in temporary directories, one small and one large, fills them over HTTP and asks both the same pages
in turn. Prints a table, or JSON with --json, and exits 1 when a goal is missed.";

/// What a page costs in a small store against a large one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GrowthArgs {
    /// Sessions in the large store; the small one has 1,000
    #[arg(long, default_value_t = 200_000)]
    sessions: usize,

    /// Entries of the large transcript; the small one has 100
    #[arg(long, default_value_t = 100_000)]
    entries: usize,

    /// How often each page is asked of each store
    #[arg(long, default_value_t = 300)]
    rounds: usize,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

const SMALL: Size = Size { sessions: 1_000, entries: 100 };

#[derive(Debug, Clone, Copy)]
struct Size {
    sessions: usize,
    entries: usize,
}

/// A node with a filled store. Its data goes with it.
struct Filled {
    node: Node,
    address: SocketAddr,
    transcript: String,
    _data: tempfile::TempDir,
}

/// One page, as it is asked of each store.
struct Page {
    function: &'static str,
    small: String,
    large: String,
    growth: Growth,
}

pub async fn run(args: GrowthArgs) -> ExitCode {
    let large = Size { sessions: args.sessions.max(SMALL.sessions), entries: args.entries.max(SMALL.entries) };
    match measure(large, args.rounds.max(1)).await {
        Ok(figures) => {
            progress_done();
            print(&figures, large, args.rounds, args.json);
            if figures.iter().all(Growth::pass) { ExitCode::SUCCESS } else { ExitCode::from(EXIT_REFUSED) }
        }
        Err(why) => {
            progress_done();
            fail(EXIT_UNUSABLE, why)
        }
    }
}

/// The figure at its usual size, as part of all.
pub async fn usual() -> Result<Vec<Growth>, String> {
    measure(Size { sessions: 200_000, entries: 100_000 }, 300).await
}

async fn measure(size: Size, rounds: usize) -> Result<Vec<Growth>, String> {
    let small = fill(SMALL).await?;
    let large = fill(size).await?;
    let mut pages = list_pages();
    pages.extend(messages_pages(&small, &large, size.entries).await?);

    let mut ask_small = Caller::connect(&small.address.to_string()).await?;
    let mut ask_large = Caller::connect(&large.address.to_string()).await?;
    for round in 0..WARM_UP_ROUNDS + rounds {
        progress(&format!("round {round} of {}", WARM_UP_ROUNDS + rounds));
        for page in &mut pages {
            // The stores take turns within a round, so that a busy moment of the machine touches both.
            let in_small = timed(&mut ask_small, page.function, &page.small).await?;
            let in_large = timed(&mut ask_large, page.function, &page.large).await?;
            if round >= WARM_UP_ROUNDS {
                page.growth.small.push(in_small);
                page.growth.large.push(in_large);
            }
        }
    }
    small.node.shutdown().await;
    large.node.shutdown().await;
    Ok(pages.into_iter().map(|page| page.growth).collect())
}

async fn timed(caller: &mut Caller, function: &str, body: &str) -> Result<std::time::Duration, String> {
    let body = body.to_owned();
    let asked = Instant::now();
    caller.call(function, body).await?;
    Ok(asked.elapsed())
}

async fn fill(size: Size) -> Result<Filled, String> {
    let data = tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let settings = NodeSettings::on_free_port(data.path());
    let node = Node::start(settings).await.map_err(|error| error.to_string())?;
    let address = node.local_addr();
    let built = async {
        build_sessions(address, size.sessions).await?;
        build_transcript(address, size.entries).await
    };
    match built.await {
        Ok(transcript) => Ok(Filled { node, address, transcript, _data: data }),
        Err(why) => {
            // Its files go with `data`: it must have let go of them by then.
            node.shutdown().await;
            Err(why)
        }
    }
}

fn list_pages() -> Vec<Page> {
    let filters = [
        ("no filter", json!({})),
        ("status", json!({ "status": "working" })),
        ("metadata", json!({ "metadata": { "owner": "u_1" } })),
        ("status and metadata", json!({ "status": "working", "metadata": { "owner": "u_1" } })),
    ];
    let mut pages = Vec::new();
    for order in ["updated_desc", "created_asc", "created_desc"] {
        for (filter, request) in &filters {
            let mut request = request.clone();
            request["order"] = json!(order);
            request["limit"] = json!(LIST_PAGE);
            let body = request.to_string();
            pages.push(Page {
                function: "session::list",
                small: body.clone(),
                large: body,
                growth: growth(format!("list({LIST_PAGE}) {order}, {filter}"), LIST_RATIO_MAX),
            });
        }
    }
    pages
}

async fn messages_pages(small: &Filled, large: &Filled, entries: usize) -> Result<Vec<Page>, String> {
    let places = [("first", 0), ("middle", entries / 2), ("last", entries.saturating_sub(MESSAGES_PAGE))];
    let mut pages = Vec::new();
    for (place, after) in places {
        progress(&format!("finding the {place} page"));
        let cursor = cursor_after(large.address, &large.transcript, after).await?;
        pages.push(Page {
            function: "session::messages",
            small: page_of(&small.transcript, None).to_string(),
            large: page_of(&large.transcript, cursor).to_string(),
            growth: growth(format!("messages({MESSAGES_PAGE}), {place} page"), MESSAGES_RATIO_MAX),
        });
    }
    Ok(pages)
}

fn page_of(session_id: &str, cursor: Option<String>) -> Value {
    json!({ "session_id": session_id, "limit": MESSAGES_PAGE, "cursor": cursor })
}

fn growth(name: String, ratio_max: f64) -> Growth {
    Growth { name, small: Timings::default(), large: Timings::default(), ratio_max }
}

fn print(figures: &[Growth], large: Size, rounds: usize, as_json: bool) {
    if as_json {
        let report = json!({
            "figure": "growth",
            "small": { "sessions": SMALL.sessions, "entries": SMALL.entries },
            "large": { "sessions": large.sessions, "entries": large.entries },
            "rounds": rounds,
            "cores": std::thread::available_parallelism().map_or(0, |cores| cores.get()),
            "debug_build": cfg!(debug_assertions),
            "pages": figures.iter().map(Growth::json).collect::<Vec<_>>(),
            "pass": figures.iter().all(Growth::pass),
        });
        println!("{report:#}");
        return;
    }
    println!("{TABLE_HEAD}");
    for figure in figures {
        println!("{}", figure.row());
    }
}
