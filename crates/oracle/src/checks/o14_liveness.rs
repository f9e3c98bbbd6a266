//! O14: soon after the last fault has healed and the writer is done, a completed checkpoint covers every record. A bounded run
//! covers what lies before its ends, and stands exactly there.

use std::collections::BTreeMap;

use crate::{
    facts::Facts,
    run::Fate,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let Some(quiet) = facts.quiet() else {
        return tally;
    };
    let deadline = quiet + facts.run.plan.liveness_ms * 1_000;
    for (partition, end) in &facts.run.plan.ends {
        let stands = facts.final_vector().get(partition).copied();
        tally.check(stands == Some(*end), || {
            let what = format!("is where the run was to end, and it ended at {stands:?}");
            Finding::new(what).at(*partition, *end)
        });
    }
    for (partition, end) in ends(facts) {
        let covered = covered_at(facts, partition, end);
        tally.check(covered.is_some_and(|at| at <= deadline), || {
            let what = match covered {
                Some(at) => format!(
                    "was covered by a checkpoint {} ms after the last fault had healed",
                    at.saturating_sub(quiet) / 1_000
                ),
                None => format!(
                    "was never covered by a checkpoint; the job came to {:?}",
                    facts.final_vector().get(&partition)
                ),
            };
            Finding::new(what).at(partition, end)
        });
    }
    tally
}

/// Behind the last acknowledged record of each partition.
fn ends(facts: &Facts<'_>) -> BTreeMap<i32, i64> {
    let mut ends: BTreeMap<i32, i64> = BTreeMap::new();
    for written in &facts.run.journal {
        if let (Fate::Acked | Fate::Bad, Some(offset)) = (written.fate, written.offset) {
            let bound = facts.run.plan.ends.get(&written.p).copied();
            let end = ends.entry(written.p).or_default();
            *end = (*end).max(offset + 1).min(bound.unwrap_or(i64::MAX));
        }
    }
    ends
}

/// When the checkpoint that still counts at the end of the run was seen.
fn covered_at(facts: &Facts<'_>, partition: i32, end: i64) -> Option<u64> {
    let mut covered = None;
    for (snapshot, newest) in facts.snapshots.iter().zip(&facts.newest) {
        let row = newest.and_then(|id| facts.checkpoints.get(&id));
        let position = row.and_then(|row| row.vector.get(&partition)?.next_offset);
        let there = position.is_some_and(|position| position >= end);
        covered = match covered {
            Some(at) if there => Some(at),
            _ => there.then_some(snapshot.at),
        };
    }
    covered
}
