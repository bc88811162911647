//! The law of agreement: all nodes apply the same entry at an index; and at every applied index a node has the state
//! hash and the contents that the pure machine gets by applying the same log to an empty state.

use std::collections::BTreeMap;

use super::Findings;
use super::replay::Replay;
use crate::history::{Applied, History};

pub fn check(history: &History, replay: &Replay) -> Findings {
    let mut findings = Findings::of("agreement");
    let mut first: BTreeMap<u64, &Applied> = BTreeMap::new();
    for applied in &history.applied {
        let index = applied.entry.index();
        let known = *first.entry(index).or_insert(applied);
        findings.check(known.entry == applied.entry, Some(applied.noticed), || {
            format!(
                "entry {index} is {} on node {} and {} on node {}",
                known.entry.id, known.node, applied.entry.id, applied.node
            )
        });
    }
    for sample in &history.samples {
        let index = sample.applied.index;
        let Some((hash, sum)) = replay.states.get(&index) else {
            let words = format!("node {} applied entry {index}, which is in no log", sample.node);
            findings.add(Some(sample.at), words);
            continue;
        };
        findings.check(*hash == sample.state_hash, Some(sample.at), || {
            format!(
                "node {} (boot {}) has state {:032x} at entry {index}; replaying the log gives {hash:032x}",
                sample.node, sample.boot, sample.state_hash
            )
        });
        findings.check(sample.contents.is_none_or(|contents| contents == *sum), Some(sample.at), || {
            format!("node {} (boot {}) has another state at entry {index} than the log gives", sample.node, sample.boot)
        });
    }
    findings
}
