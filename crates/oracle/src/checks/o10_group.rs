//! O10: the group's offset is always that of a completed checkpoint, never goes back unless an operator moved the job, and
//! ends at the newest checkpoint.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    facts::Facts,
    run::GroupSample,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let first_completed = facts.newest.iter().position(Option::is_some);
    let begins = first_completed.map_or(u64::MAX, |index| facts.snapshots[index].began);
    // What the group had before the job's first checkpoint is not the job's.
    let (foreign, own): (Vec<&GroupSample>, Vec<&GroupSample>) =
        facts.groups.iter().partition(|sample| sample.at <= begins);
    let foreign: HashSet<(i32, i64)> = foreign
        .iter()
        .flat_map(|sample| sample.offsets.iter().map(|(p, offset)| (*p, *offset)))
        .collect();
    let stored = stored(facts);
    let mut last: BTreeMap<i32, i64> = BTreeMap::new();
    for sample in &own {
        for (partition, offset) in &sample.offsets {
            tally.examine();
            let before = last.insert(*partition, *offset);
            let what = if foreign.contains(&(*partition, *offset)) {
                None
            } else {
                not_completed(facts, &stored, sample, *partition, *offset)
            };
            let what = what.or_else(|| went_back(facts, sample, *partition, *offset, before));
            if let Some(what) = what {
                let finding = Finding::new(format!("{what}, at {} us", sample.at));
                tally.find(finding.at(*partition, *offset));
            }
        }
    }
    converged(facts, &mut tally, own.last().copied());
    tally
}

/// By partition and offset the oldest completed checkpoint that has it.
type Stored = HashMap<(i32, i64), i64>;

fn stored(facts: &Facts<'_>) -> Stored {
    let mut stored = Stored::new();
    for row in facts.completed() {
        for (partition, position) in &row.vector {
            if let Some(offset) = position.next_offset {
                stored.entry((*partition, offset)).or_insert(row.id);
            }
        }
    }
    stored
}

fn not_completed(
    facts: &Facts<'_>,
    stored: &Stored,
    sample: &GroupSample,
    partition: i32,
    offset: i64,
) -> Option<String> {
    // Without a later look at the store nobody can say.
    let newest = facts.newest[facts.snapshot_after(sample.at)?]?;
    match stored.get(&(partition, offset)) {
        Some(id) if *id <= newest => None,
        Some(id) => Some(format!(
            "is the group's, ahead of every completed checkpoint: {newest} was newest, {id} has it"
        )),
        None => Some("is the group's, and no completed checkpoint has it".to_owned()),
    }
}

fn went_back(
    facts: &Facts<'_>,
    sample: &GroupSample,
    partition: i32,
    offset: i64,
    before: Option<i64>,
) -> Option<String> {
    let before = before.filter(|before| *before > offset)?;
    let ordered = facts.moves.iter().any(|moved| {
        moved.at <= sample.at && moved.to.get(&partition).is_some_and(|to| *to <= offset)
    });
    (!ordered).then(|| format!("is the group's, which went back from {before}"))
}

fn converged(facts: &Facts<'_>, tally: &mut Tally, last: Option<&GroupSample>) {
    let newest = facts.newest.last().copied().flatten();
    let stored = facts.newest.iter().position(|id| *id == newest);
    let stored = stored.map_or(u64::MAX, |index| facts.snapshots[index].at);
    let Some(last) = last.filter(|sample| sample.began >= stored) else {
        tally.find(Finding::new(
            "nobody asked for the group after the last checkpoint was stored",
        ));
        return;
    };
    for (partition, end) in facts.final_vector() {
        let found = last.offsets.get(&partition).copied();
        tally.check(found == Some(end), || {
            let what = format!("is the last checkpoint's, and the group stayed at {found:?}");
            Finding::new(what).at(partition, end)
        });
    }
}
