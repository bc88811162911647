//! Owns: the law that replicas are the same: one entry per applied index, and one state hash at each.

use std::collections::BTreeMap;

use super::Broken;
use crate::history::History;

pub fn check(history: &History) -> Vec<Broken> {
    let broken = |at, words| Broken { oracle: "state_hash", words, at: Some(at) };
    let mut violations = Vec::new();
    let mut entries = BTreeMap::new();
    for applied in &history.applied {
        let (node, entry) = entries.entry(applied.entry.index()).or_insert((applied.node, &applied.entry));
        if **entry != applied.entry {
            let (index, other) = (applied.entry.index(), applied.node);
            let words = format!("nodes {node} and {other} applied different entries at {index}");
            violations.push(broken(applied.noticed, words));
        }
    }
    let mut hashes = BTreeMap::new();
    for sample in &history.samples {
        let index = sample.applied.index;
        let (node, hash) = hashes.entry(index).or_insert((sample.node, sample.state_hash));
        if *hash != sample.state_hash {
            let other = sample.node;
            let words = format!("nodes {node} and {other} have different states at {index}");
            violations.push(broken(sample.at, words));
        }
    }
    violations
}
