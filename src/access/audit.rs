//! Owns: the audit lines: refused logins and refused calls, as structured log lines with the target `audit`, at most
//! some per second.
//! Never: a credential or a body.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::credentials::now_ms;
use super::identity::Identity;

/// A client that is refused may try again at once, and must not fill the disk with log lines.
const LINES_PER_SECOND_MAX: u64 = 20;

#[derive(Default)]
struct Rate {
    second: AtomicI64,
    lines: AtomicU64,
    suppressed: AtomicU64,
}

static RATE: Rate = Rate { second: AtomicI64::new(0), lines: AtomicU64::new(0), suppressed: AtomicU64::new(0) };

impl Rate {
    /// How many lines were left out since the last one. `None`: leave this one out too.
    fn admit(&self, second: i64) -> Option<u64> {
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.lines.store(0, Ordering::Relaxed);
        }
        if self.lines.fetch_add(1, Ordering::Relaxed) >= LINES_PER_SECOND_MAX {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}

/// A caller was not let in.
pub fn refused_login(from: impl fmt::Display, door: &str, why: impl fmt::Display) {
    if let Some(suppressed) = RATE.admit(now_ms() / 1000) {
        tracing::warn!(target: "audit", %from, door, outcome = "login refused", %why, suppressed, "audit");
    }
}

/// A caller may not do what it asked for.
pub fn refused_call(identity: &Identity, door: impl fmt::Debug, function: &str) {
    if let Some(suppressed) = RATE.admit(now_ms() / 1000) {
        let Identity { name, role, tenant, user, .. } = identity;
        let (tenant, user) = (tenant.as_deref(), user.as_deref());
        tracing::warn!(
            target: "audit", caller = %name, %role, tenant, user, ?door, function, outcome = "refused", suppressed,
            "audit"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_second_and_those_left_out_are_counted() {
        let rate = Rate::default();
        let admitted = (0..100).filter(|_| rate.admit(1).is_some()).count() as u64;
        assert_eq!(admitted, LINES_PER_SECOND_MAX);
        assert_eq!(rate.admit(2), Some(100 - LINES_PER_SECOND_MAX));
        assert_eq!(rate.admit(2), Some(0));
    }
}
