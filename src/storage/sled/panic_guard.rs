//! Owns: catching panics of sled, which panics where it should return an error. The panic hook of the process ends the
//! process, unless `is_catching` says that the panic will be caught.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; `None` if it panicked.
pub fn catch_panic<R>(work: impl FnOnce() -> R) -> Option<R> {
    let before = CATCHING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(before);
    outcome.ok()
}

/// True while a panic of this thread would be caught.
pub fn is_catching() -> bool {
    CATCHING.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_gives_no_result_and_resets_the_flag() {
        assert_eq!(catch_panic(is_catching), Some(true));
        assert_eq!(catch_panic(|| -> u8 { panic!("sled gave up") }), None);
        assert!(!is_catching());
    }
}
