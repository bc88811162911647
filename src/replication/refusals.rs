//! Owns: the log lines about connections that the peer port refused. A peer with a wrong clock or certificate tries again
//! several times a second.
//! Never: more than one line per address in a while.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::access::tls::depends_on_the_clock;

/// A refusal of the same address is logged again after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(30);
/// Addresses that are remembered. A cluster has far fewer nodes.
const ADDRESSES_MAX: usize = 64;

/// What was logged last, by address.
#[derive(Default)]
pub struct Refusals(Mutex<BTreeMap<IpAddr, Logged>>);

struct Logged {
    at: Instant,
    left_out: u64,
}

impl Refusals {
    pub fn note(&self, address: SocketAddr, error: &io::Error) {
        let Some(left_out) = self.admit(address.ip(), Instant::now()) else { return };
        if depends_on_the_clock(error) {
            warn!(%address, %error, left_out, "the peer port refused a connection: compare the clocks of both nodes");
        } else {
            warn!(%address, %error, left_out, "the peer port refused a connection");
        }
    }

    /// How many were left out before, if one more line may be written.
    fn admit(&self, address: IpAddr, now: Instant) -> Option<u64> {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = logged.get_mut(&address)
            && now.duration_since(before.at) < REPEAT_AFTER
        {
            before.left_out += 1;
            return None;
        }
        let left_out = logged.get(&address).map_or(0, |before| before.left_out);
        logged.retain(|_, before| now.duration_since(before.at) < REPEAT_AFTER);
        if logged.len() >= ADDRESSES_MAX {
            return None;
        }
        logged.insert(address, Logged { at: now, left_out: 0 });
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_for_each_address_in_a_while_and_the_others_are_counted() {
        let (refusals, begun) = (Refusals::default(), Instant::now());
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert_eq!(refusals.admit(address(1), begun), Some(0));
        assert_eq!(refusals.admit(address(1), begun), None);
        assert_eq!(refusals.admit(address(2), begun), Some(0), "another address has its own line");
        assert_eq!(refusals.admit(address(1), begun + REPEAT_AFTER), Some(1));
        let later = begun + 3 * REPEAT_AFTER;
        let admitted = (0..=255).filter(|last| refusals.admit(address(*last), later).is_some()).count();
        assert_eq!(admitted, ADDRESSES_MAX);
    }
}
