//! Owns: blocking on a thread of a runtime without stopping its other tasks.
//! Never: what it waits for.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Waits for a disk or another thread. A worker of a runtime hands its other tasks to another thread meanwhile.
pub fn block<R>(wait: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        Ok(_) | Err(_) => wait(),
    }
}
