//! Owns: which thread does what for one member. Consensus, its timers and the connections to peers have a thread of their
//! own, and so has apply. Calls of clients, queries and forwarded mutations run on the runtime that started the member.
//! However long one of them takes, heartbeats and votes do not wait for it.
//! Never: what runs there.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tracing::error;

use super::apply::Applier;
use crate::machine::refusal::Fault;

/// The time for blocking work (a snapshot that is being written) to notice that its node stops.
const BLOCKING_WORK_MAX: Duration = Duration::from_secs(5);

/// Work that waits for the apply thread, which are batches of entries mostly.
const APPLY_QUEUE: usize = 4;

pub struct Threads {
    consensus: Handle,
    clients: Handle,
    /// `None` if everything shares the runtime of the caller, and after the end.
    own: Mutex<Option<Own>>,
}

struct Own {
    runtime: Runtime,
    apply: Option<JoinHandle<()>>,
}

impl Threads {
    /// Threads of its own for a member, or the runtime of the caller for everything: a simulation has only one thread.
    pub fn start(own: bool) -> io::Result<Threads> {
        let clients = Handle::current();
        if !own {
            return Ok(Threads { consensus: clients.clone(), clients, own: Mutex::default() });
        }
        // One worker: consensus is one task that decides and some that move bytes.
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("consensus").enable_all().build()?;
        let consensus = runtime.handle().clone();
        Ok(Threads { consensus, clients, own: Mutex::new(Some(Own { runtime, apply: None })) })
    }

    pub fn consensus(&self) -> &Handle {
        &self.consensus
    }

    /// Where calls of clients and forwarded mutations run.
    pub fn clients(&self) -> &Handle {
        &self.clients
    }

    /// Runs a future on the thread of consensus.
    pub async fn on_consensus<R: Send + 'static>(
        &self,
        work: impl Future<Output = R> + Send + 'static,
    ) -> io::Result<R> {
        self.consensus.spawn(work).await.map_err(io::Error::other)
    }

    /// Gives apply its thread.
    pub fn apply_with(&self, applier: Applier, simulated: ApplyDelay) -> io::Result<ApplyThread> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = own.as_mut() else { return Ok(ApplyThread::here(applier, simulated)) };
        let (thread, handle) = ApplyThread::start(applier)?;
        own.apply = Some(handle);
        Ok(thread)
    }

    /// Waits until the threads have ended.
    pub async fn stop(self: Arc<Threads>) {
        if self.own.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return;
        }
        if let Err(error) = tokio::task::spawn_blocking(move || self.end()).await {
            error!(%error, "the threads of consensus did not end in order");
        }
    }

    /// Ends the threads and drops everything that runs there. Blocks, so never call it on a runtime.
    pub fn end(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Own { runtime, apply }) = own else { return };
        runtime.shutdown_timeout(BLOCKING_WORK_MAX);
        // The state machine is gone with the runtime, so the thread ends after the batch at hand.
        if apply.is_some_and(|apply| apply.join().is_err()) {
            error!("the thread that applies entries has failed");
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let own = self.own.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Own { runtime, apply: _ }) = own {
            runtime.shutdown_background();
        }
    }
}

type Work = Box<dyn FnOnce(&mut Applier) -> Result<(), Fault> + Send>;

/// How long the next work of a simulated apply thread takes. Zero outside of a simulation.
pub type ApplyDelay = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Resolves when work that nobody waits for has failed.
pub type ApplyFailure = oneshot::Receiver<Fault>;

/// The applier on its thread.
pub enum ApplyThread {
    Own(mpsc::Sender<Work>, Option<ApplyFailure>),
    /// On the thread of the caller, for a simulation.
    Here(Box<Applier>, ApplyDelay),
}

impl ApplyThread {
    pub fn here(applier: Applier, delay: ApplyDelay) -> ApplyThread {
        ApplyThread::Here(Box::new(applier), delay)
    }

    fn start(mut applier: Applier) -> io::Result<(ApplyThread, JoinHandle<()>)> {
        let (work, mut queue) = mpsc::channel::<Work>(APPLY_QUEUE);
        let (failed, failure) = oneshot::channel();
        let apply = move || {
            while let Some(work) = queue.blocking_recv() {
                if let Err(fault) = work(&mut applier) {
                    // Nothing is applied after it. The receiver is gone if the node stops already.
                    let _ = failed.send(fault);
                    return;
                }
            }
        };
        let handle = std::thread::Builder::new().name("apply".to_owned()).spawn(apply)?;
        Ok((ApplyThread::Own(work, Some(failure)), handle))
    }

    /// Tells of a failure of work that was begun. `None` if the caller that begins it waits for it.
    pub fn failure(&mut self) -> Option<ApplyFailure> {
        match self {
            ApplyThread::Own(_, failure) => failure.take(),
            ApplyThread::Here(..) => None,
        }
    }

    /// Begins work with the applier, after all work before. Waits only for a place in the queue: nothing on the thread of
    /// consensus needs to know when entries are applied, and so it is not woken for it.
    pub async fn begin(
        &mut self,
        work: impl FnOnce(&mut Applier) -> Result<(), Fault> + Send + 'static,
    ) -> io::Result<()> {
        match self {
            ApplyThread::Own(queue, _) => queue.send(Box::new(work)).await.map_err(|_| gone()),
            ApplyThread::Here(..) => self.run(work).await?.map_err(io::Error::other),
        }
    }

    /// Runs work with the applier, after all work before, and waits for its result.
    pub async fn run<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Applier) -> R + Send + 'static,
    ) -> io::Result<R> {
        match self {
            ApplyThread::Here(applier, delay) => {
                let delay = delay();
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                Ok(work(applier))
            }
            ApplyThread::Own(queue, _) => {
                let (reply, result) = oneshot::channel();
                let work: Work = Box::new(move |applier| {
                    // The receiver is gone if the node was stopped meanwhile.
                    let _ = reply.send(work(applier));
                    Ok(())
                });
                queue.send(work).await.map_err(|_| gone())?;
                result.await.map_err(|_| gone())
            }
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that applies entries has ended")
}
