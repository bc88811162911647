//! Owns: how many connections the process can hold without starving its own files.
//!
//! A node that runs out of descriptors cannot roll its log, so clients must never take the last ones.

/// Log segments, snapshots, the state's files, listeners, and room to open some more.
const OWN_FILES: usize = 256;

/// Makes room for `wanted` connections if the system lets us; returns how many there is room for.
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

/// Raises the soft limit of open files as far as needed and allowed. `None`: there is no such limit.
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
