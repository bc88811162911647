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

#[derive(Default)]
pub struct FailedLogins(Mutex<HashMap<IpAddr, Window>>);

struct Window {
    started_ms: i64,
    failures: u32,
}

impl FailedLogins {
    /// Counts a failure. True when the address had too many of them.
    pub fn count(&self, from: IpAddr, now_ms: i64) -> bool {
        let mut addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        window.failures > FAILURES_MAX
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
        assert!(logins.0.lock().unwrap().len() <= ADDRESSES_MAX);
    }
}
