//! Owns: work that keeps a thread of a runtime for long, without stopping the other tasks of that thread.
//! Never: what the work is.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Computes for long, or waits for a disk or another thread. A worker of a runtime hands its other tasks to another
/// thread meanwhile.
pub fn block<R>(work: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        Ok(_) | Err(_) => work(),
    }
}
