//! The laws of elections: no election without a cause, and a lost leader is replaced in time, however slow the disks are.

use std::collections::BTreeMap;

use super::Findings;
use crate::history::{History, Life, LifeEvent, Moment};

/// A lost leader is replaced within this time, and ten syncs of the slowest disk.
const REPLACED_MS: u64 = 1_000;
const REPLACED_SYNCS: u64 = 10;

/// A node remembers a slow sync for a while after its disk is quick again.
const REMEMBERED_MS: u64 = 5_000;

/// Faults beside which a lost leader is replaced in time.
const HARMLESS: [&str; 6] = ["disk-slow", "disk-slow-all", "snapshot", "long-command", "client-cut", "crash-bridge"];

pub fn check(history: &History) -> Findings {
    let mut findings = Findings::of("elections");
    let (Some(up), Some(healed)) = (history.up, history.healed) else { return findings };
    if history.keeps_leader {
        for life in history.lives.iter().filter(|life| life.at > up && life.at < healed) {
            if let LifeEvent::Leads(term) = life.what {
                let words = format!("node {} became the leader of term {term} without a cause", life.node);
                findings.add(Some(life.at), words);
            }
        }
    }
    for lost in lost_leaders(history).filter(|lost| lost.at > up) {
        let within_ms = REPLACED_MS + REPLACED_SYNCS * slowest_sync_ms(history, lost.at);
        let until_ms = lost.at.at_ms + within_ms;
        if is_disturbed(history, lost, until_ms) {
            continue;
        }
        let replaced = history
            .lives
            .iter()
            .any(|life| life.at > lost.at && life.at.at_ms <= until_ms && matches!(life.what, LifeEvent::Leads(_)));
        findings.check(replaced, Some(lost.at), || {
            format!("no leader within {within_ms} ms after node {}, which led, was lost", lost.node)
        });
    }
    findings
}

/// The ends of nodes that led at that moment.
fn lost_leaders(history: &History) -> impl Iterator<Item = &Life> {
    let mut leader = None;
    history.lives.iter().filter(move |life| match life.what {
        LifeEvent::Leads(term) => {
            if leader.is_none_or(|(known, _)| term > known) {
                leader = Some((term, life.node));
            }
            false
        }
        LifeEvent::Crashed | LifeEvent::Ended(_) => {
            let led = leader.is_some_and(|(_, node)| node == life.node);
            if led {
                leader = None;
            }
            led
        }
        LifeEvent::Started | LifeEvent::Refused(_) => false,
    })
}

/// The slowest sync of any node at this moment, a while before and afterwards.
fn slowest_sync_ms(history: &History, at: Moment) -> u64 {
    let mut now: BTreeMap<u64, u64> = BTreeMap::new();
    let mut slowest = 0;
    for speed in &history.disk_speeds {
        let until_ms = at.at_ms + REPLACED_MS + REPLACED_SYNCS * slowest;
        if speed.at.at_ms + REMEMBERED_MS < at.at_ms {
            now.insert(speed.node, speed.sync_ms);
            continue;
        }
        slowest = slowest.max(now.values().copied().max().unwrap_or(0));
        if speed.at.at_ms <= until_ms {
            slowest = slowest.max(speed.sync_ms);
        }
    }
    slowest.max(now.values().copied().max().unwrap_or(0))
}

/// Whether something else than the loss keeps the others from electing a leader: another fault shortly before or in this
/// time, another node that ends, or too few nodes that run.
fn is_disturbed(history: &History, lost: &Life, until_ms: u64) -> bool {
    let near = |at: Moment| at.at_ms + REMEMBERED_MS >= lost.at.at_ms && at.at_ms <= until_ms;
    let own = |at: Moment| at.at_ms == lost.at.at_ms;
    let fault = |kind: &str| !HARMLESS.contains(&kind);
    let mut running: BTreeMap<u64, bool> = BTreeMap::new();
    for life in &history.lives {
        let ends = matches!(life.what, LifeEvent::Crashed | LifeEvent::Ended(_) | LifeEvent::Refused(_));
        if ends && life.node != lost.node && near(life.at) {
            return true;
        }
        if life.at <= lost.at && !matches!(life.what, LifeEvent::Leads(_)) {
            running.insert(life.node, !ends);
        }
    }
    let up = running.values().filter(|up| **up).count();
    up <= running.len() / 2 || history.faults.iter().any(|one| fault(one.kind) && near(one.at) && !own(one.at))
}
