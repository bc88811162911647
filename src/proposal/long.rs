//! Owns: changes that take many commands, and due times. A proposer continues the fork it began; the leader frees what
//! deletes left, gives up forks that nobody continues, and fires what is due.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Adapter, AdapterError, Proposal};
use crate::events::stored::StoredFeed;
use crate::machine::apply::long::{LongWork, due};
use crate::machine::long::Steps;
use crate::machine::refusal::Refusal;
use crate::machine::scope::Scope;
use crate::machine::turn;
use crate::machine::{Answer, Command};
use crate::mint::Mint;
use crate::planted::{self, Bug};

/// The time between two looks for work that is due.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The longest pause between two commands of the same work.
const PAUSE_MAX: Duration = Duration::from_millis(50);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Continues a fork until it is a session, under the scope of its caller: the source may leave the scope meanwhile.
/// `propose` executes one command. While `others_write`, half of the time belongs to them. After the deadline the fork is
/// given up, so that nothing of it is left. `first` is the answer to `session::fork` itself.
pub async fn complete_fork<F: Future<Output = Result<Answer, AdapterError>>>(
    first: Result<Answer, AdapterError>,
    steps: Steps,
    scope: Option<Arc<Scope>>,
    deadline: Instant,
    others_write: impl Fn() -> bool,
    propose: impl Fn(Proposal) -> F,
) -> Result<Answer, AdapterError> {
    let mut answer = first;
    let mut begun = None;
    while let Ok(Answer::ForkBegun { source, fork }) = &answer {
        let (source, fork) = (source.clone(), fork.clone());
        begun = Some((source.clone(), fork.clone()));
        let began = Instant::now();
        answer = match Instant::now() < deadline {
            true => {
                let command = Command::Long(LongWork::ContinueFork { source, fork, records: steps.records });
                propose(Proposal { scope: scope.clone(), ..Proposal::new(command, deadline) }).await
            }
            false => Err(AdapterError::Unavailable(
                "the fork of a long session did not end before the deadline, so it is given up: raise call_timeout_ms"
                    .to_owned(),
            )),
        };
        if others_write() {
            tokio::time::sleep(began.elapsed().min(PAUSE_MAX)).await;
        }
    }
    if answer.is_err()
        && let Some((source, fork)) = begun
    {
        let give_up = Command::Long(LongWork::GiveUpFork { source, fork });
        if let Err(error) = propose(Proposal::new(give_up, Instant::now() + CALL_TIMEOUT)).await {
            tracing::debug!(%error, "a fork was not given up; the leader does so later");
        }
    }
    // Too many forks are under way, or this one was given up. That is no fault of the request: it may be sent again.
    match answer {
        Err(AdapterError::Refused(Refusal::RequestInvalid(why))) => Err(AdapterError::Unavailable(why)),
        answer => answer,
    }
}

/// The task that proposes what is due, on the leader.
pub struct Chores {
    pub adapter: Arc<dyn Adapter>,
    pub state: Arc<dyn StoredFeed>,
    /// Whether this node proposes.
    pub is_leader: Box<dyn Fn() -> bool + Send + Sync>,
    pub mint: Arc<dyn Mint>,
    pub steps: Steps,
}

impl Chores {
    /// Works until shutdown. A failed command is tried again at the next look.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = shutdown.cancelled() => return,
            }
            while let Some(took) = self.step().await {
                // Half of the time belongs to others.
                tokio::time::sleep(took.min(PAUSE_MAX)).await;
            }
        }
    }

    /// Proposes one command. Returns how long it took, or `None` if nothing is due or it failed.
    pub async fn step(&self) -> Option<Duration> {
        if !(self.is_leader)() {
            return None;
        }
        let now_ms = self.mint.stamp().at_ms;
        let mut found = Ok(None);
        self.state.read_view(&mut |view| {
            // What is over by the time of the state is over, although the clock of this node is behind.
            found = view.clock_ms().and_then(|clock_ms| {
                let now_ms = now_ms.max(clock_ms);
                match turn::due::next(view, now_ms)?.filter(|command| !is_forgotten(command, now_ms)) {
                    Some(command) => Ok(Some(command)),
                    None => due(view, now_ms, self.steps),
                }
            });
        });
        let command = match found {
            Ok(command) => command?,
            Err(fault) => {
                tracing::warn!(%fault, "the state cannot be read, so nothing is freed");
                return None;
            }
        };
        let began = Instant::now();
        match self.adapter.propose(Proposal::new(command, began + CALL_TIMEOUT)).await {
            Ok(_) => Some(began.elapsed()),
            Err(error) => {
                tracing::debug!(%error, "what is due was not proposed; retrying later");
                None
            }
        }
    }
}

/// The planted bug: what was due before this node led. An election takes longer than this.
fn is_forgotten(command: &Command, now_ms: i64) -> bool {
    const SOON_MS: i64 = 1_500;
    planted::has(Bug::ForgetOverdue) && turn::due::at_ms(command).is_some_and(|at_ms| now_ms - at_ms > SOON_MS)
}
