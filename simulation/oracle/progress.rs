//! The law of progress: after all faults were mended, every voter runs, answers, and applies the same entries as the
//! others.

use std::collections::BTreeMap;

use super::Findings;
use crate::history::{History, LifeEvent, Outcome, Sample};

pub fn check(history: &History) -> Findings {
    let mut findings = Findings::of("progress");
    let Some(healed) = history.healed else { return findings };
    for node in &history.voters {
        let last =
            history.lives.iter().rev().find(|life| life.node == *node && !matches!(life.what, LifeEvent::Leads(_)));
        if let Some(life) = last
            && life.what != LifeEvent::Started
        {
            findings.add(Some(life.at), format!("node {node} is down at the end: {:?}", life.what));
        }
        let answered = history.operations.iter().any(|operation| {
            operation.node == *node
                && operation.called > healed
                && matches!(operation.outcome, Outcome::Answered(_) | Outcome::Refused { .. })
        });
        findings.check(answered, Some(healed), || format!("node {node} answered no call after all faults were mended"));
    }
    if let Some(rested) = history.rested {
        let mut last: BTreeMap<u64, &Sample> = BTreeMap::new();
        for sample in
            history.samples.iter().filter(|sample| sample.at > rested && history.voters.contains(&sample.node))
        {
            last.insert(sample.node, sample);
        }
        let furthest = last.values().map(|sample| sample.applied.index).max();
        for (node, sample) in &last {
            findings.check(Some(sample.applied.index) == furthest, Some(sample.at), || {
                format!("node {node} applied entries up to {}, another node up to {furthest:?}", sample.applied.index)
            });
        }
    }
    findings
}
