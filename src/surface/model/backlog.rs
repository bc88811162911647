//! Owns: where a stream of a session's events begins.

use std::collections::BTreeMap;

use super::follow::Streamed;

/// Events that a client gets which does not say what it has.
const LAST_EVENTS: u64 = 100;

/// What a stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The first event that is kept.
    pub oldest: u64,
    /// The last event; 0 if there is none.
    pub last: u64,
}

/// Where a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    pub after: u64,
    /// Events after the client's last one are gone; this is the oldest that is there.
    pub compacted: Option<u64>,
}

/// `seen`: the last event that the client has. A number that the stream has not reached counts as none.
pub fn begin(seen: Option<u64>, edge: Edge) -> Begin {
    match seen.filter(|seen| *seen <= edge.last) {
        Some(seen) if seen + 1 < edge.oldest => Begin { after: edge.oldest - 1, compacted: Some(edge.oldest) },
        Some(seen) => Begin { after: seen, compacted: None },
        None => {
            let after = edge.last.saturating_sub(LAST_EVENTS).max(edge.oldest.saturating_sub(1));
            Begin { after, compacted: None }
        }
    }
}

/// Where the stream of an adapter begins that does not say what it has: adapters post first and connect then, and take the
/// first end of a turn for theirs. So it begins with the message of the oldest unfinished turn, else of the last turn.
pub fn begin_of_adapter(events: &[Streamed], edge: Edge) -> u64 {
    let mut turns: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    for event in events {
        let Some(correlation) = event.correlation.as_deref() else { continue };
        let (_, has_ended) = turns.entry(correlation).or_insert((event.id, false));
        *has_ended |= event.kind == "agent_end";
    }
    let unfinished = turns.values().filter(|(_, has_ended)| !has_ended).map(|(begun, _)| *begun).min();
    let last = turns.values().map(|(begun, _)| *begun).max();
    unfinished.or(last).map_or(edge.last, |begun| begun.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, kind: &str, correlation: Option<&str>) -> Streamed {
        let correlation = correlation.map(str::to_owned);
        Streamed { id, kind: kind.to_owned(), correlation, text: String::new() }
    }

    #[test]
    fn a_client_goes_on_after_what_it_has() {
        let edge = Edge { oldest: 51, last: 300 };
        for (seen, after, compacted) in [
            (Some(299), 299, None),
            (Some(300), 300, None),
            (Some(50), 50, None),
            (Some(49), 50, Some(51)),
            (Some(0), 50, Some(51)),
            (Some(301), 200, None),
            (Some(u64::MAX), 200, None),
            (None, 200, None),
        ] {
            assert_eq!(begin(seen, edge), Begin { after, compacted }, "{seen:?}");
        }
        let fresh = Edge { oldest: 1, last: 0 };
        assert_eq!(begin(None, fresh), Begin { after: 0, compacted: None });
        assert_eq!(begin(Some(0), fresh), Begin { after: 0, compacted: None });
        assert_eq!(begin(None, Edge { oldest: 51, last: 60 }).after, 50);
    }

    #[test]
    fn an_adapter_gets_no_end_of_an_old_turn() {
        let edge = Edge { oldest: 1, last: 6 };
        let mut events = vec![
            event(1, "user_message", Some("a")),
            event(2, "agent_end", Some("a")),
            event(3, "user_message", Some("b")),
            event(4, "user_message", Some("c")),
        ];
        assert_eq!(begin_of_adapter(&events, edge), 2);
        events.push(event(5, "agent_end", Some("b")));
        assert_eq!(begin_of_adapter(&events, edge), 3);
        events.push(event(6, "agent_end", Some("c")));
        assert_eq!(begin_of_adapter(&events, edge), 3);
        assert_eq!(begin_of_adapter(&[event(6, "user_message", None)], edge), 6);
    }
}
