//! Owns: the number of connections that leaves enough file descriptors for the node itself. Without a free descriptor a
//! node cannot start a new log segment.

/// Descriptors for log segments, snapshots, state files and listeners, with a reserve.
const OWN_FILES: usize = 256;

/// Raises the descriptor limit for `wanted` connections, as far as the system allows. Returns the number of connections
/// that fit.
pub fn make_room(wanted: usize) -> usize {
    let Some(limit) = raise_limit(wanted + OWN_FILES) else { return wanted };
    let room = limit.saturating_sub(OWN_FILES).max(1).min(wanted);
    if room < wanted {
        tracing::warn!(
            wanted,
            room,
            "max_connections is lowered: the process may open {limit} files; raise it with ulimit -n"
        );
    }
    room
}

/// Raises the soft limit of open files as far as needed and allowed. `None` if there is no limit.
#[cfg(unix)]
fn raise_limit(needed: usize) -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = needed as u64;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current?;
    if current >= needed {
        return Some(current as usize);
    }
    let raised = limit.maximum.map_or(needed, |maximum| maximum.min(needed)).max(current);
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }) {
        Ok(()) => Some(raised as usize),
        Err(_) => Some(current as usize),
    }
}

#[cfg(not(unix))]
fn raise_limit(_needed: usize) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_never_more_room_than_wanted_nor_none_at_all() {
        assert_eq!(make_room(1), 1);
        let room = make_room(usize::MAX / 2);
        assert!(room >= 1);
    }
}
