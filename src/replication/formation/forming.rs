//! Owns: the time of a node before it has a cluster: it answers others at its peer port, meets them round by round, takes
//! the steps of `decide.rs`, and ends with a place in exactly one cluster, on disk.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Code;
use tracing::{info, warn};

use super::super::channels::Channels;
use super::super::identity::{self, IdentityError, random_id};
use super::super::listener::{self, Listener, PeerAccess};
use super::super::replica::StartError;
use super::decide::{Round, Step, Waiting, apply, decide};
use super::discovery::Discover;
use super::meeting::{Answer, Meeting, warn_about_clocks};
use super::record::{self, Record, Who};
use super::{rejoin, service};
use crate::proto::formation::{JoinRequest, JoinResponse};
use crate::sockets::Sockets;
use crate::storage::disk::Disk;

const ROUND_EVERY: Duration = Duration::from_millis(250);
/// The same nodes must answer in this many rounds before one of them proposes: a name may be resolved in parts.
const SETTLED_ROUNDS: usize = 3;
/// What a node waits for is logged when it changes, and again after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(30);
/// The lines that are not repeated before.
const REMEMBERED_MAX: usize = 8;
/// A member that is asked to take this node in asks others in turn.
const JOIN_MAX: Duration = Duration::from_secs(30);

/// What a node needs to find its cluster.
#[derive(Clone)]
pub struct FormSettings {
    pub data_dir: PathBuf,
    pub name: String,
    pub peer_listen: std::net::SocketAddr,
    /// Where peers reach this node; `peer_listen` if it is `None`.
    pub peer_advertise: Option<String>,
    pub access: PeerAccess,
    /// How many nodes found a cluster; `None` for a node that only joins.
    pub expect: Option<usize>,
    pub discover: Discover,
    /// A node that was removed sets its data aside and joins as a new one.
    pub rejoin: bool,
    pub disk: Arc<dyn Disk>,
    pub sockets: Arc<dyn Sockets>,
}

impl FormSettings {
    fn address(&self) -> String {
        self.peer_advertise.clone().unwrap_or_else(|| self.peer_listen.to_string())
    }

    fn channels(&self) -> Arc<Channels> {
        let tls = match &self.access {
            PeerAccess::Certificates(tls) => Some(tls.clone()),
            PeerAccess::ThisMachine | PeerAccess::Everybody => None,
        };
        Arc::new(Channels::new(self.sockets.clone(), tls, Handle::current()))
    }

    pub fn meeting(&self, instance: &str) -> Meeting {
        let own = Who { name: self.name.clone(), instance: instance.to_owned(), address: self.address() };
        Meeting { own, channels: self.channels() }
    }
}

/// Why a node cannot look for a cluster.
#[derive(Debug)]
pub enum FormError {
    DataDir { path: PathBuf, why: IdentityError },
    Listen(StartError),
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormError::DataDir { path, why } => write!(f, "data directory {}: {why}", path.display()),
            FormError::Listen(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for FormError {}

/// Returns the id of this node as soon as it has a place in a cluster. `waits` says what it waits for meanwhile.
pub async fn find_cluster(settings: &FormSettings, waits: &watch::Sender<String>) -> Result<u64, FormError> {
    let failed = |why: IdentityError| FormError::DataDir { path: settings.data_dir.clone(), why };
    let (disk, dir) = (&*settings.disk, settings.data_dir.as_path());
    disk.create_dir(dir).map_err(|error| failed(error.into()))?;
    let _hold = disk.lock(dir).map_err(|error| failed(error.into()))?;
    if let Some(known) = identity::peek(disk, dir).map_err(failed)? {
        if !settings.rejoin || !rejoin::was_removed(settings, &known).await {
            return Ok(known.node_id);
        }
        rejoin::set_aside(disk, dir, &known).map_err(failed)?;
    }
    let record = match record::read(disk, dir).map_err(failed)? {
        Some(record) => record,
        None => Record { name: settings.name.clone(), instance: random_id(), ..Record::default() },
    };
    let record = Record { name: settings.name.clone(), ..record };
    record::write(disk, dir, &record).map_err(failed)?;
    let bound = listener::bind(&*settings.sockets, settings.peer_listen, settings.access.clone()).await;
    let bound = bound.map_err(FormError::Listen)?;
    let forming = Forming {
        settings,
        meeting: settings.meeting(&record.instance),
        record: Arc::new(Mutex::new(record)),
        callers: Arc::default(),
        waits,
    };
    let service = service::Waiting {
        address: settings.address(),
        record: forming.record.clone(),
        callers: forming.callers.clone(),
    };
    let listener = Listener::serve_waiting(bound, service);
    let place = forming.run().await.map_err(failed);
    listener.close().await;
    place
}

struct Forming<'a> {
    settings: &'a FormSettings,
    meeting: Meeting,
    record: Arc<Mutex<Record>>,
    callers: Arc<Mutex<BTreeSet<String>>>,
    waits: &'a watch::Sender<String>,
}

impl Forming<'_> {
    async fn run(&self) -> Result<u64, IdentityError> {
        let mut said = Said::default();
        let (mut before, mut same_rounds) = (Vec::new(), 0);
        loop {
            let own = self.record.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(founding) = own.founding() {
                let node = founding.node(&own.instance).unwrap_or(1);
                identity::settle(&*self.settings.disk, &self.settings.data_dir, &founding.id, node, &own.instance)?;
                return Ok(node);
            }
            let (answers, unanswered) = self.meet_all(&mut said).await;
            let met: Vec<_> = answers.iter().map(|answer| answer.met.clone()).collect();
            let nodes: Vec<Who> = met.iter().map(|met| met.who.clone()).collect();
            same_rounds = if nodes == before { same_rounds + 1 } else { 0 };
            before = nodes;
            let (expect, address) = (self.settings.expect, &self.meeting.own.address);
            let (settled, fresh_id) = (same_rounds >= SETTLED_ROUNDS, random_id());
            let round = Round { own: &own, address, expect, met: &met, unanswered, settled, fresh_id: &fresh_id };
            let step = decide(&round);
            self.take(&step, &mut said)?;
            if let Step::Join { cluster_id } = &step
                && let Some(node) = self.join(&own, cluster_id, &answers, &mut said).await
            {
                identity::settle(&*self.settings.disk, &self.settings.data_dir, cluster_id, node, &own.instance)?;
                return Ok(node);
            }
            tokio::time::sleep(ROUND_EVERY).await;
        }
    }

    async fn meet_all(&self, said: &mut Said) -> (Vec<Answer>, usize) {
        let mut addresses = self.callers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match self.settings.discover.addresses().await {
            Ok(found) => addresses.extend(found),
            Err(why) => said.say(format!("discover: {why}"), self.waits),
        }
        let (answers, unanswered) = self.meeting.all(&addresses).await;
        if said.nothing_yet() {
            warn_about_clocks(&answers);
        }
        (answers, unanswered)
    }

    /// Makes a step durable before anybody hears of it.
    fn take(&self, step: &Step, said: &mut Said) -> Result<(), IdentityError> {
        match step {
            Step::Wait(waiting) => said.say(explain(waiting), self.waits),
            Step::Promise(founding) => {
                let names: Vec<&str> = founding.members.iter().map(|member| member.name.as_str()).collect();
                info!(cluster = founding.id, members = names.join(", "), "promising to found a cluster");
            }
            Step::Adopt => info!("all first members agree: the cluster exists"),
            Step::Freeze => info!("the promised cluster cannot be founded any more"),
            Step::Void => info!("the promised cluster is given up by all its members"),
            Step::Join { .. } => return Ok(()),
        }
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = record.clone();
        apply(&mut next, step);
        if next != *record {
            record::write(&*self.settings.disk, &self.settings.data_dir, &next)?;
            *record = next;
        }
        Ok(())
    }

    /// Asks the members of a cluster, one after the other, until one has taken this node in.
    async fn join(&self, own: &Record, cluster_id: &str, answers: &[Answer], said: &mut Said) -> Option<u64> {
        for answer in answers.iter().filter(|answer| answer.node != 0) {
            match ask_to_join(&self.meeting, &answer.at, 0).await {
                Ok(JoinResponse { cluster_id: theirs, node }) if theirs == cluster_id && node != 0 => {
                    info!(cluster = cluster_id, node, name = own.name, "a cluster took this node in");
                    return Some(node);
                }
                Ok(_) => {}
                Err(why) => said.say(format!("the cluster does not take this node in yet: {why}"), self.waits),
            }
        }
        None
    }
}

/// Why a member did not take a node in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTakenIn(pub String);

impl fmt::Display for NotTakenIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotTakenIn {}

/// Asks a member to take in the node of this meeting, or to note where it is.
pub async fn ask_to_join(meeting: &Meeting, at: &str, node: u64) -> Result<JoinResponse, NotTakenIn> {
    let mut client = meeting.channels.formation(at).map_err(|error| NotTakenIn(error.to_string()))?;
    let request = JoinRequest { who: Some(meeting.own.to_proto()), node, forwarded: false };
    match timeout(JOIN_MAX, client.join(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) if status.code() == Code::Unimplemented => {
            Err(NotTakenIn("it runs an older release".to_owned()))
        }
        Ok(Err(status)) => Err(NotTakenIn(status.message().to_owned())),
        Err(_) => Err(NotTakenIn(format!("no answer within {JOIN_MAX:?}"))),
    }
}

/// Repeats a line only after a while. Two that take turns, such as a name without an address and too few nodes, are
/// repeated no more often.
#[derive(Default)]
struct Said(Vec<(String, Instant)>);

impl Said {
    fn nothing_yet(&self) -> bool {
        self.0.is_empty()
    }

    fn say(&mut self, text: String, waits: &watch::Sender<String>) {
        if self.is_due(&text, Instant::now()) {
            warn!("{text}");
        }
        waits.send_if_modified(|last| {
            let other = *last != text;
            if other {
                *last = text;
            }
            other
        });
    }

    fn is_due(&mut self, text: &str, now: Instant) -> bool {
        if self.0.iter().any(|(said, at)| said == text && now.duration_since(*at) < REPEAT_AFTER) {
            return false;
        }
        self.0.retain(|(said, _)| said != text);
        if self.0.len() >= REMEMBERED_MAX {
            self.0.remove(0);
        }
        self.0.push((text.to_owned(), now));
        true
    }
}

fn explain(waiting: &Waiting) -> String {
    match waiting {
        Waiting::ForPromises(names) => {
            format!("waiting until these nodes agree to found the cluster: {}", names.join(", "))
        }
        Waiting::ForNodes { found, expect } => {
            format!("waiting for nodes: {found} of {expect} (bootstrap_expect) answer")
        }
        Waiting::ForProposal(name) => format!("waiting for {name}, which is first by name, to propose the cluster"),
        Waiting::ForCluster => {
            "waiting for a cluster to join; without bootstrap_expect this node founds none".to_owned()
        }
        Waiting::Settling => "waiting until the same nodes answer for a moment".to_owned(),
        Waiting::TwoClusters(ids) => format!(
            "members of {} clusters answer: {}. Nothing is joined: let discover name the nodes of one cluster",
            ids.len(),
            ids.join(", ")
        ),
        Waiting::SameName(twin) => format!(
            "another node at {} has the name {:?} too: give every node its own name (--name)",
            twin.address, twin.name
        ),
        Waiting::TooManyNodes { found, expect } => format!(
            "{found} empty nodes answer, enough for two clusters of {expect}: set bootstrap_expect to more than half of \
             the nodes, or start fewer of them at first"
        ),
        Waiting::MostUnanswered { found, unanswered } => format!(
            "{found} nodes answer and {unanswered} do not: a cluster may be among those, so none is founded without them"
        ),
        Waiting::OlderRelease(address) => {
            format!("the node at {address} runs an older release that cannot take nodes in: upgrade it first")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_take_turns_are_said_once_in_a_while() {
        let (mut said, begun) = (Said::default(), Instant::now());
        assert!(said.nothing_yet() && said.is_due("no address", begun) && said.is_due("too few nodes", begun));
        assert!(!said.is_due("no address", begun) && !said.is_due("too few nodes", begun));
        assert!(said.is_due("no address", begun + REPEAT_AFTER));
        (0..100).for_each(|line| assert!(said.is_due(&line.to_string(), begun)));
        assert_eq!(said.0.len(), REMEMBERED_MAX);
    }
}
