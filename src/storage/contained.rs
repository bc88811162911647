//! Owns: work whose panic is an outcome. Sled asserts where it should answer; the process's panic hook asks here
//! before it ends the process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Does the work; `None` when it panicked.
pub fn contain<R>(work: impl FnOnce() -> R) -> Option<R> {
    let before = CONTAINED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(before);
    outcome.ok()
}

/// Whether a panic of this thread would be caught now.
pub fn is_contained() -> bool {
    CONTAINED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contained_panic_is_no_outcome_and_leaves_nothing_behind() {
        assert_eq!(contain(is_contained), Some(true));
        assert_eq!(contain(|| -> u8 { panic!("sled gave up") }), None);
        assert!(!is_contained());
    }
}
