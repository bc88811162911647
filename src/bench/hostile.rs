//! Owns: `bench hostile`: what honest clients see while many connections do one hostile thing, one kind after the other and
//! then all kinds together; and what that costs in memory, elections and readiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::append::{Appends, append_when_due, make_sessions, session_names};
use super::args::{self, LoadArgs};
use super::bus_client::{Bus, Lanes};
use super::error::BenchError;
use super::hostile_clients::{Crowd, Kind, Outcome, Prey};
use super::http_client::Caller;
use super::meter::{Meter, Part};
use super::nodes::get;
use super::progress::progress;
use super::report::{Figure, Goal, Ratio, Report, System};
use super::systems::Systems;
use super::target::Target;
use super::text::{Messages, message, words};
use super::usage::Usage;
use super::window::{ANSWER_MAX, Sample};
use crate::node::descriptors::make_room;

/// The calls of one honest client per second.
const CALLS_PER_SECOND: u32 = 20;
/// How often memory is looked at, and how often each node is asked whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A probe waits no longer for its answer.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// What a crowd left behind is cleaned up in this time.
const SETTLE: Duration = Duration::from_secs(5);
/// The honest clients alone are measured for at least this long, before and after everything else.
const ALONE_MIN: Duration = Duration::from_secs(10);
/// A client that lost its connection comes again after this time.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const LARGE_PAGE_BYTES: usize = 8 << 20;
const MIB: f64 = (1 << 20) as f64;
/// What a node with default settings may hold for its clients: calls in flight, unread answers, arriving messages,
/// registrations, and bindings of clients that left (decision 0021).
const BOUND_MIB: f64 = (512 + 512 + 256 + 128 + 32) as f64;
const ALONE: &str = "alone";
const AFTERWARDS: &str = "alone afterwards";
const TOGETHER: &str = "all kinds together";

const EXAMPLES: &str = "\
Examples:
  session-manager bench hostile
  session-manager bench hostile --connections-of-each 200 --together-seconds 20
  session-manager bench hostile --kinds pages,streams --seconds 15 --json hostile.json

Honest clients append messages of 1 KiB, each 20 times per second with one call at a time, half of them over the bus and \
half over HTTP, spread over all nodes. A hostile client that is refused or closed comes again after one second, so a \
thousand of them open at most a thousand connections per second. Unread pages are left after 10 s, bindings after 10 s. \
Honest clients alone are measured before and after, and the lower p99 counts. The hostile clients have one thread here; \
the report says how much of a core it took, because it takes it from the nodes. \
The goal for memory is the sum of the bounds in the default settings, beyond what a node takes before.";

/// Measure honest clients beside thousands of hostile connections
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct HostileArgs {
    /// Number of honest clients
    #[arg(long, default_value_t = 12, value_parser = args::clients)]
    clients: usize,

    /// Number of hostile connections of each kind, over all nodes
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=2000))]
    connections_of_each: u16,

    /// Kinds of hostile connections [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,

    /// Seconds with all kinds together; 0: leave it out
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=3600))]
    together_seconds: u64,

    #[command(flatten)]
    pub load: LoadArgs,
}

/// One part of the measurement.
struct Beside {
    part: Part,
    crowd: Option<Outcome>,
    /// What the nodes used.
    used: Option<Usage>,
    /// The most memory that any node had, in bytes.
    resident: u64,
    elections: u64,
}

pub async fn run(args: &HostileArgs, systems: &Systems) -> Result<Report, BenchError> {
    let kinds = if args.kinds.is_empty() { Kind::ALL.to_vec() } else { args.kinds.clone() };
    let count = usize::from(args.connections_of_each);
    let sockets = kinds.len() * count + args.clients;
    if make_room(sockets) < sockets {
        return Err(BenchError::TooFewDescriptors { sockets });
    }
    let nodes = &systems.ours;
    let sessions = session_names(args.clients + 1);
    make_sessions(nodes, &sessions).await?;
    let large_session = sessions[args.clients].clone();
    append_large(&nodes.targets[0], &large_session).await?;
    let prey = Prey { targets: nodes.targets.clone(), peers: nodes.peers.clone(), large_session };

    let (meter, messages) = (Arc::new(Meter::default()), Arc::new(Messages::new()));
    let mut clients = JoinSet::new();
    let every = Duration::from_secs(1) / CALLS_PER_SECOND;
    for (client, session) in sessions.iter().take(args.clients).enumerate() {
        let honest = Honest {
            node: nodes.targets[client % nodes.targets.len()].clone(),
            over_http: client / nodes.targets.len() % 2 == 1,
            appends: Appends { sessions: vec![session.clone()], messages: messages.clone(), next: client * 31 },
            due: Instant::now() + every * client as u32 / args.clients as u32,
            every,
        };
        clients.spawn(honest.run(meter.clone()));
    }
    let probes = Arc::new(Probes::default());
    for node in &nodes.targets {
        clients.spawn(probes.clone().watch(node.clone(), meter.clone()));
    }
    let measured = parts(args, systems, &meter, &prey, &kinds).await;
    meter.end();
    while let Some(ended) = clients.join_next().await {
        ended?;
    }
    Ok(report(args, systems, measured?, &probes))
}

/// The honest clients alone, beside each kind, and beside all of them.
async fn parts(
    args: &HostileArgs,
    systems: &Systems,
    meter: &Meter,
    prey: &Prey,
    kinds: &[Kind],
) -> Result<Vec<Beside>, BenchError> {
    let seconds = Duration::from_secs_f64(args.load.seconds);
    let beside = async |name: &'static str, kinds: &[Kind], seconds: Duration| {
        progress(&format!("honest clients: {name}"));
        let crowd = match kinds {
            [] => None,
            kinds => Some(Crowd::start(kinds, usize::from(args.connections_of_each), prey)?),
        };
        let before = term(systems).await?;
        let used = systems.ours.processes.usage();
        let (part, resident) = meter.part(name, watch_memory(systems, seconds)).await?;
        let used = systems.ours.processes.usage_since(used);
        let crowd = match crowd {
            Some(crowd) => Some(crowd.end().await?),
            None => None,
        };
        let elections = term(systems).await?.saturating_sub(before);
        sleep(SETTLE).await;
        Ok::<_, BenchError>(Beside { part, crowd, used, resident, elections })
    };
    // The large message, which was appended for its page, is through by then.
    sleep(SETTLE).await;
    let mut measured = vec![beside(ALONE, &[], seconds.max(ALONE_MIN)).await?];
    for kind in kinds {
        measured.push(beside(kind.name(), &[*kind], seconds).await?);
    }
    if args.together_seconds > 0 {
        measured.push(beside(TOGETHER, kinds, Duration::from_secs(args.together_seconds)).await?);
    }
    measured.push(beside(AFTERWARDS, &[], seconds.max(ALONE_MIN)).await?);
    Ok(measured)
}

/// Waits, and returns the most memory that a node had meanwhile.
async fn watch_memory(systems: &Systems, time: Duration) -> Result<u64, BenchError> {
    let (begun, mut most) = (Instant::now(), 0);
    while begun.elapsed() < time {
        most = most.max(systems.ours.processes.resident().unwrap_or(0));
        sleep(LOOK_EVERY).await;
    }
    Ok(most)
}

/// The highest term of all nodes. Its growth counts the elections.
async fn term(systems: &Systems) -> Result<u64, BenchError> {
    let mut highest = 0;
    for node in &systems.ours.targets {
        let (_, page) = get(node, "/metrics").await?;
        let page = String::from_utf8_lossy(&page);
        let value = page.lines().find_map(|line| line.strip_prefix("session_manager_term ")?.parse::<f64>().ok());
        let unknown = || BenchError::UnexpectedAnswer { call: "GET /metrics", answer: "no term".to_owned() };
        highest = highest.max(value.ok_or_else(unknown)? as u64);
    }
    Ok(highest)
}

async fn append_large(node: &Target, session_id: &str) -> Result<(), BenchError> {
    let text = message(&words(0, LARGE_PAGE_BYTES));
    let append = format!(r#"{{"session_id":"{session_id}","message":{text}}}"#);
    Caller::connect(node).await?.call("session::append", append).await.map(drop)
}

/// One honest client.
struct Honest {
    node: Target,
    over_http: bool,
    appends: Appends,
    due: Instant,
    every: Duration,
}

enum Connection {
    Bus(Box<Bus>),
    Http(Caller),
}

impl Honest {
    /// One call at a time, each as soon as it is due and the one before it is answered. A lost connection is an error, and
    /// is opened again.
    async fn run(mut self, meter: Arc<Meter>) {
        let mut connection = None;
        while !meter.is_over() {
            let answered = match &mut connection {
                Some(connection) => self.call(connection).await,
                None => match self.connect().await {
                    Ok(fresh) => self.call(connection.insert(fresh)).await,
                    Err(error) => Err(error),
                },
            };
            match answered {
                Ok(took) => meter.done(took),
                Err(error) => {
                    meter.failed(&error.to_string());
                    connection = None;
                    sleep(AGAIN_AFTER).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Connection, BenchError> {
        Ok(match self.over_http {
            true => Connection::Http(Caller::connect(&self.node).await?),
            false => Connection::Bus(Box::new(Bus::connect(&self.node).await?)),
        })
    }

    async fn call(&mut self, connection: &mut Connection) -> Result<Duration, BenchError> {
        let (due, function) = (self.due, self.appends.function());
        // One that is late does not catch up.
        self.due = (due + self.every).max(Instant::now());
        match connection {
            Connection::Bus(bus) => {
                let append = append_when_due(bus, &mut self.appends, due).await?;
                match append.refusal {
                    None => Ok(append.took),
                    Some(why) => Err(BenchError::Refused { call: function.to_owned(), why }),
                }
            }
            Connection::Http(caller) => {
                sleep_until(due.into()).await;
                let mut body = String::with_capacity(1536);
                self.appends.body(0, &mut body);
                let sent = Instant::now();
                let silent = || BenchError::NoAnswer { address: self.node.address.clone(), limit: ANSWER_MAX };
                timeout(ANSWER_MAX, caller.call(function, body)).await.map_err(|_| silent())??;
                Ok(sent.elapsed())
            }
        }
    }
}

/// What `GET /readyz` said, asked as an orchestrator does: over a new connection each time.
#[derive(Default)]
struct Probes {
    asked: AtomicU64,
    failed: AtomicU64,
    slowest_us: AtomicU64,
}

impl Probes {
    async fn watch(self: Arc<Probes>, node: Target, meter: Arc<Meter>) {
        while !meter.is_over() {
            let asked = Instant::now();
            let is_ready = matches!(timeout(PROBE_MAX, get(&node, "/readyz")).await, Ok(Ok((200, _))));
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.failed.fetch_add(u64::from(!is_ready), Ordering::Relaxed);
            self.slowest_us.fetch_max(asked.elapsed().as_micros() as u64, Ordering::Relaxed);
            sleep(LOOK_EVERY).await;
        }
    }
}

fn report(args: &HostileArgs, systems: &Systems, measured: Vec<Beside>, probes: &Probes) -> Report {
    let mut report = Report { systems: systems.descriptions(), ..Report::default() };
    let mut ratio = |name: String, value: f64, goal: Goal| report.ratios.push(Ratio { name, value, goal });
    let alone_mib = measured.first().map_or(0.0, |alone| alone.resident as f64 / MIB);
    // A machine that is busy with something else makes this one larger, and everything else look better.
    let alone = measured.iter().filter(|beside| beside.crowd.is_none());
    let alone_p99 = alone.map(|alone| alone.part.timings.p99().as_secs_f64()).fold(f64::INFINITY, f64::min);
    let mut elections = 0;
    for Beside { part, crowd, used, resident, elections: held } in measured {
        let (gap, took, p99) = (part.gap.as_secs_f64() * 1e3, part.took.as_secs_f64(), part.timings.p99());
        elections += held;
        let name = match crowd {
            None => format!("{} honest clients {}", args.clients, part.name),
            Some(_) => format!("beside {} {}", args.connections_of_each, part.name),
        };
        if let Some(crowd) = &crowd {
            let times = p99.as_secs_f64() / alone_p99.max(f64::MIN_POSITIVE);
            ratio(format!("{name}: p99 / alone"), times, Goal::AtMost(3.0));
            ratio(format!("{name}: connections opened per second"), crowd.opened as f64 / took, Goal::None);
            ratio(
                format!("{name}: CPU of the hostile thread, % of a core"),
                crowd.cpu.as_secs_f64() / took * 1e2,
                Goal::None,
            );
        }
        // Unlike a time, it hardly depends on what else the machine does.
        if let Some(used) = used {
            ratio(format!("{name}: CPU of the nodes, % of a core"), used.cpu.as_secs_f64() / took * 1e2, Goal::None);
        }
        ratio(format!("{name}: longest time without an answer, ms"), gap, Goal::None);
        ratio(
            format!("{name}: most memory of a node, MiB"),
            resident as f64 / MIB,
            Goal::AtMost(alone_mib + BOUND_MIB),
        );
        report.figures.push(Figure::of(name, System::Ours, vec![Sample::of(part)]));
    }
    for (node, peak) in systems.ours.processes.each_resident_peak().into_iter().enumerate() {
        ratio(format!("peak memory of node {}, MiB", node + 1), peak as f64 / MIB, Goal::None);
    }
    ratio("elections".to_owned(), elections as f64, Goal::AtMost(0.0));
    let [asked, failed, slowest] =
        [&probes.asked, &probes.failed, &probes.slowest_us].map(|number| number.load(Ordering::Relaxed) as f64);
    ratio("GET /readyz asked".to_owned(), asked, Goal::None);
    ratio("GET /readyz not ready, or silent for 1 s".to_owned(), failed, Goal::AtMost(0.0));
    ratio("GET /readyz slowest answer, ms".to_owned(), slowest / 1e3, Goal::None);
    report
}
