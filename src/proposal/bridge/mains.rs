//! Owns: which main a bridge is attached to: dialling them in order, learning who answers, following its feed, noticing
//! its loss and turning to the next; and calls at whichever main that is, repeated within their time.
//! Never: what a call says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::follow::Follower;
use super::introduce::{self, Introduction, Kind, Stranger};
use super::line::{CallFailure, Dial, Line};
use crate::machine::refusal::Refusal;
use crate::proposal::Undone;

/// A main that cannot be reached is dialled again after this time, and after twice as long each round up to the most.
const DIAL_AGAIN: Duration = Duration::from_millis(50);
const DIAL_AGAIN_MAX: Duration = Duration::from_secs(1);

/// A call that came to nothing is sent again after this time.
const CALL_AGAIN: Duration = Duration::from_millis(50);

/// A main as the configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The key it stands under, for the words of an error.
    pub key: String,
    pub url: String,
    /// The url as it may be logged.
    pub shown: String,
}

/// What a bridge is started with.
#[derive(Debug, Clone)]
pub struct BridgeSettings {
    /// At least one.
    pub mains: Vec<Address>,
    /// How long one call may take, attempts at other mains included.
    pub timeout: Duration,
    /// This process, as it introduces itself to bridges.
    pub instance: String,
}

/// The main that is attached now.
pub struct Main {
    at: usize,
    line: Arc<dyn Line>,
    introduction: Option<(Introduction, Instant)>,
    /// A call waits longer than it should: is anybody there?
    suspect: Notify,
}

impl Main {
    /// The main's clock, in milliseconds since the epoch.
    pub fn now_ms(&self) -> Option<i64> {
        let (introduction, heard) = self.introduction.as_ref()?;
        Some(introduction.now_ms.saturating_add(i64::try_from(heard.elapsed().as_millis()).unwrap_or(i64::MAX)))
    }
}

pub struct Mains {
    settings: BridgeSettings,
    dial: Arc<dyn Dial>,
    kind: Kind,
    follower: Arc<Follower>,
    current: watch::Sender<Option<Arc<Main>>>,
    /// Why nobody is attached.
    trouble: Mutex<String>,
    closed: CancellationToken,
}

/// Whether a call changes something, and so whether its silence leaves a doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    None,
    Some,
}

impl Mains {
    /// Attaches to the first main that answers. An error names every key and what is wrong with it.
    pub async fn open(
        settings: BridgeSettings,
        dial: Arc<dyn Dial>,
        follower: Arc<Follower>,
    ) -> Result<Arc<Mains>, String> {
        let mut refused = Vec::new();
        for (at, address) in settings.mains.iter().enumerate() {
            match meet(&settings, &*dial, address, None).await {
                Ok((line, kind, introduction)) => {
                    follower.begin(introduction.as_ref().map(|(introduction, _)| introduction))?;
                    let mains = Arc::new(Mains {
                        dial,
                        kind,
                        follower,
                        current: watch::Sender::new(None),
                        trouble: Mutex::default(),
                        closed: CancellationToken::new(),
                        settings,
                    });
                    mains.attach(Main { at, line, introduction, suspect: Notify::new() })?;
                    tokio::spawn(mains.clone().keep());
                    return Ok(mains);
                }
                Err(Stranger::Itself) => return Err(said(address, &Stranger::Itself)),
                Err(stranger) => refused.push(said(address, &stranger)),
            }
        }
        Err(refused.join("; "))
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Why the main cannot be used at the moment, if so.
    pub fn trouble(&self) -> Option<String> {
        self.current.borrow().is_none().then(|| self.unreachable())
    }

    pub fn close(&self) {
        self.closed.cancel();
        self.detach("the bridge is closed");
    }

    /// How long a call that comes now may take.
    pub fn deadline(&self, deadline: Instant) -> Instant {
        deadline.min(Instant::now() + self.settings.timeout)
    }

    /// The main that is attached, as soon as there is one.
    pub async fn attached(&self, deadline: Instant) -> Result<Arc<Main>, Undone> {
        let mut current = self.current.subscribe();
        let there = tokio::time::timeout_at(deadline.into(), current.wait_for(Option::is_some)).await;
        match there {
            Ok(Ok(main)) => main.clone().ok_or_else(|| Undone::Unavailable(self.unreachable())),
            Ok(Err(_)) | Err(_) => Err(Undone::Unavailable(self.unreachable())),
        }
    }

    /// Calls a function at whichever main is attached, again and again until it is answered or the deadline is there.
    /// Whatever has an effect must be safe to repeat.
    pub async fn call(
        &self,
        function_id: &str,
        body: &Value,
        effect: Effect,
        deadline: Instant,
    ) -> Result<Value, Undone> {
        let mut doubt = false;
        loop {
            let failed = |why: String| match doubt && effect == Effect::Some {
                true => Undone::OutcomeUnknown(why),
                false => Undone::Unavailable(why),
            };
            let main = match self.attached(deadline).await {
                Err(Undone::Unavailable(why)) => return Err(failed(why)),
                main => main?,
            };
            let why = match self.attempt(&main, function_id, body.clone(), deadline).await {
                Ok(answer) => return Ok(answer),
                Err(CallFailure::Answered(words)) => match refusal(&words) {
                    Some(refused) => return Err(refused),
                    None => {
                        let words = words.strip_prefix("session/storage: ").unwrap_or(&words).to_owned();
                        let (why, unknown) = match words.strip_prefix("outcome unknown: ") {
                            Some(why) => (why.to_owned(), true),
                            None => (words, false),
                        };
                        doubt |= unknown;
                        why
                    }
                },
                Err(CallFailure::Unanswered(why)) => {
                    doubt = true;
                    why
                }
                Err(CallFailure::NotSent(why)) => why,
                Err(failure @ CallFailure::NoSuchFunction) => {
                    // Whoever served it is gone from this bus; another bus may have it.
                    main.line.hang_up();
                    format!("{function_id}: {failure}")
                }
            };
            if Instant::now() + CALL_AGAIN >= deadline {
                // Its time is used up here; the next call may be luckier elsewhere.
                if self.settings.mains.len() > 1 {
                    main.line.hang_up();
                }
                let why = format!("the main at {} did not carry it out: {why}", self.settings.mains[main.at].shown);
                return Err(match doubt && effect == Effect::Some {
                    true => Undone::OutcomeUnknown(why),
                    false => Undone::Unavailable(why),
                });
            }
            tokio::time::sleep(CALL_AGAIN).await;
        }
    }

    async fn attempt(
        &self,
        main: &Main,
        function_id: &str,
        body: Value,
        deadline: Instant,
    ) -> Result<Value, CallFailure> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut call = main.line.call(function_id, body, left);
        tokio::select! {
            answer = &mut call => return answer,
            () = tokio::time::sleep(self.patience()) => main.suspect.notify_one(),
        }
        call.await
    }

    /// How long a main may be silent before it is asked whether it is there, and how long it has to say so.
    fn patience(&self) -> Duration {
        self.settings.timeout / 4
    }

    /// Stays attached until the end.
    async fn keep(self: Arc<Self>) {
        while !self.closed.is_cancelled() {
            let main = self.current.borrow().clone();
            let next = match main {
                Some(main) => {
                    let why = tokio::select! {
                        why = self.watch(&main) => why,
                        () = self.closed.cancelled() => return,
                    };
                    let address = &self.settings.mains[main.at];
                    warn!(url = address.shown, why, "the main is lost");
                    self.detach(&format!("{}: {why}", address.shown));
                    main.line.hang_up();
                    main.at + 1
                }
                None => 0,
            };
            tokio::select! {
                () = self.attach_again(next) => {}
                () = self.closed.cancelled() => return,
            }
        }
    }

    /// Returns when the main is lost, with the reason.
    async fn watch(&self, main: &Main) -> String {
        // What the main had told of its feed when it was asked the time before.
        let mut told = None;
        loop {
            tokio::select! {
                () = main.line.lost() => return "the connection is lost".to_owned(),
                () = main.suspect.notified() => {}
                () = tokio::time::sleep(self.settings.timeout) => {}
            }
            let asked = introduce::ask(&*main.line, None, self.patience()).await;
            let introduction = match (asked, &self.kind) {
                (Ok((kind, introduction)), expected) if kind == *expected => introduction,
                (Ok(_), _) => return "somebody else answers there now".to_owned(),
                (Err(stranger), _) => return stranger.to_string(),
            };
            if self.follower.is_behind(told.as_deref()) {
                return "its feed does not arrive any more".to_owned();
            }
            told = introduction.and_then(|introduction| introduction.position);
        }
    }

    /// Dials the mains from the given one on, round and round, until one of them is the one this bridge belongs to.
    async fn attach_again(&self, first: usize) {
        let count = self.settings.mains.len();
        let mut pause = DIAL_AGAIN;
        loop {
            let mut refused = Vec::new();
            for at in (0..count).map(|step| (first + step) % count) {
                let address = &self.settings.mains[at];
                let after = self.follower.resume_after();
                let met = meet(&self.settings, &*self.dial, address, after.as_deref()).await;
                let attached = match met {
                    Ok((line, kind, introduction)) if kind == self.kind => {
                        self.attach(Main { at, line, introduction, suspect: Notify::new() })
                    }
                    Ok((line, ..)) => {
                        line.hang_up();
                        Err("it is not the main this bridge was started with; restart the bridge to change".to_owned())
                    }
                    Err(stranger) => Err(stranger.to_string()),
                };
                match attached {
                    Ok(()) => return,
                    Err(why) => refused.push(format!("{}: {why}", address.shown)),
                }
            }
            *lock(&self.trouble) = refused.join("; ");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(DIAL_AGAIN_MAX);
        }
    }

    /// Follows the main's feed and lets calls go to it.
    fn attach(&self, main: Main) -> Result<(), String> {
        let introduction = main.introduction.as_ref().map(|(introduction, _)| introduction);
        let after = self.follower.resume_from(introduction)?;
        let follower = self.follower.clone();
        let hear = Arc::new(move |envelope, sidecar| follower.hear(envelope, sidecar));
        main.line.follow(after.as_deref(), hear)?;
        info!(url = self.settings.mains[main.at].shown, after, "attached to the main");
        self.current.send_replace(Some(Arc::new(main)));
        Ok(())
    }

    fn detach(&self, why: &str) {
        *lock(&self.trouble) = why.to_owned();
        if let Some(main) = self.current.send_replace(None) {
            main.line.hang_up();
        }
    }

    fn unreachable(&self) -> String {
        format!("the main cannot be reached: {}", lock(&self.trouble))
    }
}

/// Dials a main and learns who it is.
async fn meet(
    settings: &BridgeSettings,
    dial: &dyn Dial,
    address: &Address,
    after: Option<&str>,
) -> Result<(Arc<dyn Line>, Kind, Option<(Introduction, Instant)>), Stranger> {
    let line = dial.dial(&address.url, settings.timeout).await.map_err(Stranger::Silent)?;
    let asked = introduce::ask(&*line, after, settings.timeout).await;
    match asked {
        Ok((_, Some(introduction))) if introduction.instance == settings.instance => {
            line.hang_up();
            Err(Stranger::Itself)
        }
        Ok((kind, introduction)) => Ok((line, kind, introduction.map(|found| (found, Instant::now())))),
        Err(stranger) => {
            line.hang_up();
            Err(stranger)
        }
    }
}

fn said(address: &Address, stranger: &Stranger) -> String {
    format!("{}: {}: {stranger}", address.key, address.shown)
}

/// What a main's machine refused. Anything else may go better next time.
fn refusal(words: &str) -> Option<Undone> {
    let (code, message) = words.split_once(": ")?;
    let code = Refusal::CODES.into_iter().find(|known| *known == code)?;
    Some(Undone::RefusedThere { code, message: message.to_owned() })
}

/// The data behind these locks is never left half changed by a panic, so a poisoned lock is still good.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
