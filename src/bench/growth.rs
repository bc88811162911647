//! Owns: `bench growth`: the time of one page in a small store and in a large one. It must not grow with the store.

use std::net::SocketAddr;
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use super::error::BenchError;
use super::figures::{Growth, TABLE_HEAD, Timings};
use super::fill::{build_sessions, build_transcript, cursor_after};
use super::http_client::Caller;
use super::progress::{progress, progress_done};
use super::target::Target;
use crate::node::{Node, NodeSettings};

/// The goals are those of goals.md P4.
const MESSAGES_RATIO_MAX: f64 = 1.5;
const LIST_RATIO_MAX: f64 = 2.0;

const MESSAGES_PAGE: usize = 100;
const LIST_PAGE: usize = 50;

/// Rounds that are not counted, while caches fill and connections settle.
const WARM_UP_ROUNDS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  session-manager bench growth
  session-manager bench growth --sessions 20000 --entries 10000 --rounds 50

Starts two nodes with temporary data, fills one with few and one with many sessions, and reads the same pages from \
both in turn. Exits 1 if a goal is missed.";

/// Measure the time of a page in a small and in a large store
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GrowthArgs {
    /// Number of sessions in the large store; the small one has 1,000
    #[arg(long, default_value_t = 200_000)]
    sessions: usize,

    /// Number of entries in the large transcript; the small one has 100
    #[arg(long, default_value_t = 100_000)]
    entries: usize,

    /// How often each page is read from each store
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

/// A node with a filled store. Its data is deleted with it.
struct Filled {
    node: Node,
    address: SocketAddr,
    transcript: String,
    _data: tempfile::TempDir,
}

/// The requests for one page in both stores.
struct Page {
    function: &'static str,
    small: String,
    large: String,
    growth: Growth,
}

/// Measures and prints. True if all goals are met.
pub async fn run(args: GrowthArgs) -> Result<bool, BenchError> {
    let large = Size { sessions: args.sessions.max(SMALL.sessions), entries: args.entries.max(SMALL.entries) };
    let measured = measure(large, args.rounds.max(1)).await;
    progress_done();
    let figures = measured?;
    print(&figures, large, args.rounds, args.json);
    Ok(figures.iter().all(Growth::pass))
}

/// Measures with the default sizes, for `bench all`.
pub async fn defaults() -> Result<Vec<Growth>, BenchError> {
    measure(Size { sessions: 200_000, entries: 100_000 }, 300).await
}

async fn measure(size: Size, rounds: usize) -> Result<Vec<Growth>, BenchError> {
    let small = fill(SMALL).await?;
    let large = fill(size).await?;
    let mut pages = list_pages();
    pages.extend(messages_pages(&small, &large, size.entries).await?);

    let mut ask_small = Caller::connect(&Target::plain(small.address)).await?;
    let mut ask_large = Caller::connect(&Target::plain(large.address)).await?;
    for round in 0..WARM_UP_ROUNDS + rounds {
        progress(&format!("round {round} of {}", WARM_UP_ROUNDS + rounds));
        for page in &mut pages {
            // The stores take turns within a round, so that other load on the machine affects both.
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

async fn timed(caller: &mut Caller, function: &str, body: &str) -> Result<std::time::Duration, BenchError> {
    let body = body.to_owned();
    let asked = Instant::now();
    caller.call(function, body).await?;
    Ok(asked.elapsed())
}

async fn fill(size: Size) -> Result<Filled, BenchError> {
    let data = tempfile::tempdir().map_err(|why| BenchError::Directory { dir: std::env::temp_dir(), why })?;
    let settings = NodeSettings::on_free_port(data.path());
    let node = Node::start(settings).await?;
    let address = node.local_addr();
    let built = async {
        build_sessions(address, size.sessions).await?;
        build_transcript(address, size.entries).await
    };
    match built.await {
        Ok(transcript) => Ok(Filled { node, address, transcript, _data: data }),
        Err(error) => {
            // The node must close its files before `data` deletes them.
            node.shutdown().await;
            Err(error)
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

async fn messages_pages(small: &Filled, large: &Filled, entries: usize) -> Result<Vec<Page>, BenchError> {
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
