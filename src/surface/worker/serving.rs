//! Owns: when this replica serves on its engine, from taking over to letting go.
//!
//! On a shared engine the first to register a function keeps it, the last to register a trigger type gets every
//! binding, and nobody is told: so only the leader registers anything, over a connection that lives as long as it leads.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::Sharing;
use super::claim::Claim;
use super::control::{Control, Presence, Serving};
use super::functions::Functions;
use super::ledger::{Ledger, Unsaid, attach_name};
use super::pump::Pump;
use super::sdk::Connection;
use super::subscribers::Subscribers;
use super::types::offered;
use crate::events::current::CurrentFeed;
use crate::events::deliver::Feed;
use crate::proposal::Undone;
use crate::proposal::cursor::Cursors;
use crate::surface::Service;

/// How long a new leader waits for the one before it to let go, as long as that one gives signs of life: what it has sent
/// may still arrive, and its last word may have to be repeated. One that died is gone already.
const HANDOVER_MAX: Duration = Duration::from_secs(30);
/// One that is silent for so long is frozen, and nobody waits for it: what it delivered last may come again.
const SIGN_OF_LIFE_MAX: Duration = Duration::from_secs(5);
/// How long a replica waits before it looks again whether the one before it has let go.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// How often the engine is asked who serves, beside whenever somebody comes or goes.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long the engine may take to repeat its bindings after a lost connection.
const REPEAT_MAX: Duration = Duration::from_secs(5);
/// How long calls under way may take once this replica no longer serves.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// How long a replica waits before it asks again how far the one before it came.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// A name that is taken may become free.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);

/// What a replica serves with.
pub struct Served {
    pub service: Arc<dyn Service>,
    pub feed: Arc<CurrentFeed>,
    pub leads: watch::Receiver<bool>,
    /// Told when the set of functions may have changed, or the data.
    pub refresh: Arc<Notify>,
    pub cursors: CursorsNow,
}

/// The cursors of the data that is served now, with its feed; `None` where it remembers nothing beyond this process.
pub type CursorsNow = Arc<dyn Fn() -> Option<(Arc<Feed>, Cursors)> + Send + Sync>;

/// A replica attached to an engine.
pub struct Attachment {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Attachment {
    pub fn start(control: Arc<Control>, served: Served) -> Attachment {
        let stop = CancellationToken::new();
        let replica = Replica { control, served, stop: stop.clone(), unsaid: None, claim: None };
        Attachment { stop, task: tokio::spawn(replica.run()) }
    }

    /// Lets go of everything: calls under way are answered first.
    pub async fn shutdown(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the engine's worker broke off");
        }
    }
}

struct Replica {
    control: Arc<Control>,
    served: Served,
    stop: CancellationToken,
    /// How far it came when it served last, if nobody was there to write it down.
    unsaid: Option<Unsaid>,
    /// What keeps the others from serving, until it is taken back.
    claim: Option<Claim>,
}

impl Replica {
    async fn run(mut self) {
        while self.my_turn().await {
            if self.control.settings.sharing == Sharing::Shared {
                self.take_over().await;
            }
            let Some(ledger) = self.take_ledger().await else { continue };
            // All of that may have taken long. Whoever registers without leading takes the events of the one that does.
            if !self.is_my_turn() {
                continue;
            }
            self.unsaid = None;
            let turn = Turn::begin(&self.control, &self.served, ledger);
            let refused = self.tend(turn).await;
            if refused {
                tokio::select! {
                    () = tokio::time::sleep(REFUSED_AGAIN) => {}
                    () = self.stop.cancelled() => break,
                }
            }
        }
        self.take_claim_back().await;
        self.control.close().await;
    }

    /// Waits until this replica is to serve. False: it never will.
    async fn my_turn(&mut self) -> bool {
        // Whoever serves instead waits for it.
        while self.claim.is_some() && !self.is_my_turn() && !self.stop.is_cancelled() {
            self.take_claim_back().await;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let own = self.control.settings.sharing == Sharing::Own;
        tokio::select! {
            leads = self.served.leads.wait_for(|leads| own || *leads) => leads.is_ok(),
            () = self.stop.cancelled() => false,
        }
    }

    /// Takes the claim back, if there is one, after the last word: whoever waits for the one is to find the other. Never
    /// broken off, since an order that is on its way must not meet the next claim.
    async fn take_claim_back(&mut self) {
        let Some(claim) = &self.claim else { return };
        let taken_back = async {
            if let (Some(unsaid), Some((feed, cursors))) = (&self.unsaid, (self.served.cursors)()) {
                unsaid.say(&feed, &cursors).await?;
            }
            claim.take_back().await
        };
        match taken_back.await {
            Ok(()) => (self.claim, self.unsaid) = (None, None),
            Err(error) => tracing::debug!(%error, "the claim to the engine is not taken back yet"),
        }
    }

    /// Waits until this replica is the only one that claims the engine, and nobody else serves on it any more, as long as
    /// it is its turn.
    async fn take_over(&mut self) {
        self.claim =
            (self.served.cursors)().and_then(|(feed, cursors)| Claim::new(&self.control.settings, feed, cursors));
        let alone = async {
            while let Some(claim) = &self.claim
                && !self.is_alone(claim).await
            {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let unserved = async {
            while !self.has_let_go().await {
                let _ = timeout(LOOK_AGAIN, self.control.workers_changed()).await;
            }
        };
        tokio::select! {
            _ = async { tokio::join!(alone, unserved) } => {}
            () = self.turn_is_over() => {}
            () = tokio::time::sleep(HANDOVER_MAX) => {
                tracing::warn!("the replica that served before does not let go; taking over");
            }
        }
    }

    /// The data was swapped: those that share the new one wait, and those that share the old one wait no longer.
    async fn move_claim(&mut self) {
        let feed = self.served.feed.read(Arc::clone);
        if self.claim.as_ref().is_some_and(|claim| claim.is_in(&feed)) {
            return;
        }
        if let Some(before) = self.claim.take()
            && let Err(error) = before.take_back().await
        {
            tracing::debug!(%error, "the claim was not taken back from data that was swapped out");
        }
        let Some((feed, cursors)) = (self.served.cursors)() else { return };
        self.claim = Claim::new(&self.control.settings, feed, cursors);
        if let Some(claim) = &self.claim
            && let Err(error) = claim.stake().await
        {
            tracing::debug!(%error, "the data that was swapped in is served without a claim");
        }
    }

    /// Whether this replica claims the engine, and no other does. Claims of those that are gone, or frozen, are struck.
    async fn is_alone(&self, claim: &Claim) -> bool {
        let others = match claim.stake().await {
            Ok(()) => claim.others().await,
            Err(Undone::Refused(refusal)) => {
                tracing::warn!(%refusal, "the engine cannot be claimed");
                return true;
            }
            Err(error) => Err(error),
        };
        let Ok(others) = others else { return false };
        let mut alone = true;
        for other in others {
            match self.control.presence(&other, SIGN_OF_LIFE_MAX).await {
                Presence::There => {
                    alone = false;
                    continue;
                }
                Presence::Gone => {}
                Presence::Silent => {
                    tracing::warn!(other, "a replica that claims the engine gives no sign of life; taking over");
                }
            }
            // For whoever comes next; nobody waits for it now.
            let claim = claim.clone();
            tokio::spawn(async move { claim.strike(&other).await });
        }
        alone
    }

    fn is_my_turn(&self) -> bool {
        let may = self.control.settings.sharing == Sharing::Own || *self.served.leads.borrow();
        may && !self.stop.is_cancelled()
    }

    /// Resolves when it is no longer this replica's turn.
    async fn turn_is_over(&self) {
        let own = self.control.settings.sharing == Sharing::Own;
        let mut leads = self.served.leads.clone();
        tokio::select! {
            _ = leads.wait_for(|leads| !own && !*leads) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Whether nobody else serves any more, or nobody who could say how far it came.
    async fn has_let_go(&self) -> bool {
        let owner = match self.control.serving().await {
            Ok(Serving::Nobody) => return true,
            Ok(Serving::Worker(owner) | Serving::InPart(owner)) => owner,
            // An engine that does not say so cannot be asked; one that does not answer may be asked again.
            Err(error) => return !error.is_silence(),
        };
        if owner == self.control.settings.name {
            return true;
        }
        let frozen = !self.control.answers(&owner, SIGN_OF_LIFE_MAX).await;
        if frozen {
            tracing::warn!(owner, "the replica that served before gives no sign of life; taking over");
        }
        frozen
    }

    /// Finds out how far whoever served before came, however long it takes. `None`: it is no longer this replica's turn.
    async fn take_ledger(&self) -> Option<Option<Arc<Ledger>>> {
        while self.is_my_turn() {
            let opened = tokio::select! {
                opened = open_ledger(&self.control, &self.served, self.unsaid.as_ref()) => opened,
                () = self.stop.cancelled() => return None,
            };
            match opened {
                Ok(ledger) => return Some(ledger),
                Err(error) => tracing::debug!(%error, "how far the engine's subscribers came cannot be read yet"),
            }
            tokio::select! {
                () = tokio::time::sleep(ASK_AGAIN) => {}
                () = self.stop.cancelled() => return None,
            }
        }
        None
    }

    /// Serves until it is no longer this replica's turn. True: the engine refused this worker.
    async fn tend(&mut self, mut turn: Turn) -> bool {
        tracing::info!(name = turn.connection.name(), sharing = %self.control.settings.sharing, "serving on the engine");
        let mut check = interval(CHECK_EVERY);
        let refused = loop {
            tokio::select! {
                _ = check.tick() => {}
                () = self.control.workers_changed() => {}
                () = self.served.refresh.notified() => {
                    turn.refresh(&self.control, &self.served).await;
                    self.move_claim().await;
                }
                changed = self.served.leads.changed() => if changed.is_err() { break false },
                () = self.stop.cancelled() => break false,
            }
            if !self.is_my_turn() {
                break false;
            }
            if let Some(why) = turn.connection.refused() {
                tracing::error!(why, "the engine refused this worker");
                break true;
            }
            // An engine that answers late must not keep this replica from letting go.
            tokio::select! {
                () = turn.look(&self.control) => {}
                () = self.turn_is_over() => {}
            }
        };
        self.unsaid = turn.say_goodbye().await;
        self.take_claim_back().await;
        turn.end().await;
        tracing::info!("no longer serving on the engine");
        refused
    }
}

/// One stretch of serving.
struct Turn {
    connection: Arc<Connection>,
    functions: Functions,
    subscribers: Arc<Subscribers>,
    /// Whether everything arrived.
    pump: JoinHandle<bool>,
    stop_pump: CancellationToken,
    /// Since when the engine has not handed over all bindings: from the beginning, or after the connection was lost.
    back_since: Option<Instant>,
    lost: bool,
    warned: bool,
}

impl Turn {
    /// Types first, so that bindings are in place before the first mutation can come.
    fn begin(control: &Control, served: &Served, ledger: Option<Arc<Ledger>>) -> Turn {
        let settings = &control.settings;
        let connection = Connection::open(&settings.url, &settings.name, settings.namespace.as_deref());
        let connection = Arc::new(connection);
        let pump = Pump::new(connection.clone());
        let subscribers = Subscribers::new(served.feed.clone(), pump.clone(), ledger);
        for offered in offered() {
            connection.offer(offered, subscribers.clone());
        }
        let mut functions = Functions::new(connection.clone(), served.service.clone());
        functions.refresh();
        let stop_pump = CancellationToken::new();
        let pump = tokio::spawn(pump.run(subscribers.clone(), stop_pump.clone()));
        let back_since = Some(Instant::now());
        Turn { connection, functions, subscribers, pump, stop_pump, back_since, lost: false, warned: false }
    }

    /// Other functions, perhaps over other data.
    async fn refresh(&mut self, control: &Control, served: &Served) {
        self.functions.refresh();
        let feed = served.feed.read(Arc::clone);
        if self.subscribers.ledger().is_some_and(|ledger| ledger.is_of(&feed)) {
            return;
        }
        let ledger = open_ledger(control, served, None).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "how far the engine's subscribers come is not remembered until somebody serves anew");
            None
        });
        // Those the new data remembers and the engine does not are forgotten in time.
        self.back_since.get_or_insert_with(Instant::now);
        if let Some(before) = self.subscribers.keep_in(ledger) {
            before.leave().await;
        }
    }

    /// Looks whether the engine still knows us as it should.
    async fn look(&mut self, control: &Control) {
        if !self.connection.is_connected() {
            if !self.lost {
                self.lost = true;
                self.back_since = None;
                self.subscribers.doubt();
            }
            return;
        }
        if std::mem::take(&mut self.lost) {
            self.back_since = Some(Instant::now());
        }
        if self.back_since.is_some_and(|since| since.elapsed() > REPEAT_MAX) {
            self.back_since = None;
            self.subscribers.sweep();
        }
        let mine = Serving::Worker(self.connection.name().to_owned());
        let mut serving = control.serving().await;
        if serving.as_ref().is_ok_and(|serving| *serving != mine) {
            // What we registered may still be on its way.
            self.connection.flush().await;
            serving = control.serving().await;
        }
        match serving {
            Ok(serving) if serving == mine => self.warned = false,
            Ok(serving) => {
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(?serving, "the engine does not route session::* to this replica; registering again");
                }
                self.functions.repeat();
            }
            Err(error) => tracing::debug!(%error, "the engine does not say who serves"),
        }
    }

    /// Events first: whoever comes next waits until nobody serves our functions, and then finds how far we came. Gives back
    /// what could not be written.
    async fn say_goodbye(&mut self) -> Option<Unsaid> {
        let released = self.subscribers.release();
        self.stop_pump.cancel();
        let arrived = (&mut self.pump).await.unwrap_or_else(|error| {
            tracing::error!(%error, "events to the engine broke off");
            false
        });
        let unsaid = match self.subscribers.ledger() {
            Some(ledger) => ledger.close(released.as_ref().filter(|_| arrived)).await,
            None => None,
        };
        self.functions.withdraw();
        self.connection.flush().await;
        unsaid
    }

    /// Calls under way are answered, then the connection is closed.
    async fn end(self) {
        self.functions.drained(DRAIN_MAX).await;
        self.connection.flush().await;
        self.connection.close().await;
    }
}

/// `None`: the data remembers nothing beyond this process.
async fn open_ledger(
    control: &Control,
    served: &Served,
    unsaid: Option<&Unsaid>,
) -> Result<Option<Arc<Ledger>>, Undone> {
    let Some((feed, cursors)) = (served.cursors)() else { return Ok(None) };
    match Ledger::open(feed, cursors, attach_name(&control.settings), unsaid).await {
        Ok(ledger) => Ok(Some(ledger)),
        Err(Undone::Refused(refusal)) => {
            tracing::warn!(%refusal, "how far the engine's subscribers come is not remembered");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
