//! Owns: counting failed logins per address, in bounded memory.
//! Never: refuse a caller whose credentials are right: others may share its address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Failures of one address within a window before it is told to slow down.
const FAILURES_MAX: u32 = 20;
const WINDOW_MS: i64 = 60_000;
/// Addresses that are remembered. Past it the oldest window is forgotten.
const ADDRESSES_MAX: usize = 1024;

pub struct FailedLogins {
    failures_max: u32,
    addresses: Mutex<HashMap<IpAddr, Window>>,
}

impl Default for FailedLogins {
    fn default() -> FailedLogins {
        FailedLogins::limited_to(FAILURES_MAX)
    }
}

struct Window {
    started_ms: i64,
    failures: u32,
}

impl FailedLogins {
    pub fn limited_to(failures_max: u32) -> FailedLogins {
        FailedLogins { failures_max, addresses: Mutex::default() }
    }

    /// Counts a failure. True when the address had too many of them.
    pub fn count(&self, from: IpAddr, now_ms: i64) -> bool {
        self.failed(from, now_ms).is_some()
    }

    /// Counts a failure. If the address had too many of them, returns how long it should wait, in milliseconds.
    pub fn failed(&self, from: IpAddr, now_ms: i64) -> Option<u64> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&from) {
            addresses.retain(|_, window| now_ms - window.started_ms < WINDOW_MS);
            let oldest = addresses.iter().min_by_key(|(_, window)| window.started_ms).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| addresses.len() >= ADDRESSES_MAX) {
                addresses.remove(&oldest);
            }
        }
        let window = addresses.entry(from).or_insert(Window { started_ms: now_ms, failures: 0 });
        if now_ms - window.started_ms >= WINDOW_MS {
            *window = Window { started_ms: now_ms, failures: 0 };
        }
        window.failures = window.failures.saturating_add(1);
        let left_ms = (window.started_ms + WINDOW_MS - now_ms).max(0);
        (window.failures > self.failures_max).then_some(left_ms as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_limited_for_a_minute_and_memory_is_bounded() {
        let logins = FailedLogins::default();
        let from = |n: u32| IpAddr::from(n.to_be_bytes());
        for _ in 0..FAILURES_MAX {
            assert!(!logins.count(from(1), 0));
        }
        assert!(logins.count(from(1), WINDOW_MS - 1));
        assert!(!logins.count(from(2), 0));
        assert!(!logins.count(from(1), WINDOW_MS));
        for n in 0..10 * ADDRESSES_MAX as u32 {
            logins.count(from(n), 5);
        }
        assert!(logins.addresses.lock().unwrap().len() <= ADDRESSES_MAX);
    }
}
