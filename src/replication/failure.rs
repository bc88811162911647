//! Owns: noticing that this member can go on no longer: consensus has stopped because of its log or because of a bug, or
//! entries cannot be applied.
//! Never: end the process; the node that started the member does.

use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::Fatal;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

use super::figures::Figures;
use super::replica::Raft;
use super::threads::ApplyFailure;
use crate::machine::refusal::Fault;

/// Watches one member until it is dropped.
pub struct Failure {
    /// The reason, as soon as there is one.
    pub why: watch::Receiver<Option<String>>,
    _task: AbortOnDropHandle<()>,
}

impl Failure {
    /// Counts the leaders on the way.
    pub fn watch(raft: Raft, figures: Arc<Figures>, apply: Option<ApplyFailure>) -> Failure {
        let (failure, why) = watch::channel(None);
        Failure { why, _task: AbortOnDropHandle::new(tokio::spawn(follow(raft, figures, apply, failure))) }
    }
}

async fn follow(
    raft: Raft,
    figures: Arc<Figures>,
    mut apply: Option<ApplyFailure>,
    failure: watch::Sender<Option<String>>,
) {
    // Server metrics change with leader, vote and membership only; the metrics with the reason change with every entry.
    // Both end with consensus.
    let (mut server_metrics, metrics) = (raft.server_metrics(), raft.metrics());
    let mut leader = None;
    loop {
        let (term, now) = {
            let metrics = server_metrics.borrow_watched();
            (metrics.vote.leader_id.term, metrics.current_leader)
        };
        if now.is_some() && leader != Some((term, now)) {
            leader = Some((term, now));
            figures.leader_changes.count();
        }
        let fault = tokio::select! {
            changed = server_metrics.changed() => match changed {
                Ok(()) => continue,
                Err(_) => break,
            },
            fault = applying(&mut apply) => fault,
        };
        error!(why = %fault, "an entry cannot be applied; this node must be restarted");
        failure.send_replace(Some(fault.to_string()));
        // Otherwise it would take part in the cluster for ever, and answer nobody.
        if let Err(error) = raft.shutdown().await {
            error!(%error, "consensus did not stop in order");
        }
        return;
    }
    let state = metrics.borrow_watched().running_state.clone();
    match state {
        Ok(()) | Err(Fatal::Stopped) => {}
        Err(fatal) => {
            error!(why = %fatal, "consensus has failed; this node must be restarted");
            failure.send_replace(Some(fatal.to_string()));
        }
    }
}

/// Never resolves while entries can be applied, nor after an orderly end.
async fn applying(failure: &mut Option<ApplyFailure>) -> Fault {
    if let Some(failure) = failure
        && let Ok(fault) = failure.await
    {
        return fault;
    }
    *failure = None;
    std::future::pending().await
}
