//! O7: checkpoint ids grow strictly over all lives of the job, an id has one row, what stands in it never changes, and its
//! status only goes forward.

use std::collections::{BTreeMap, HashSet};

use crate::{
    facts::Facts,
    run::{Checkpoint, Status},
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let mut known: BTreeMap<i64, &Checkpoint> = BTreeMap::new();
    for snapshot in &facts.snapshots {
        let newest = known.last_key_value().map(|(id, _)| *id);
        let mut here = HashSet::new();
        for row in &snapshot.rows {
            tally.examine();
            if !here.insert(row.id) {
                tally.find(Finding::of_checkpoint(row.id, "has two rows"));
                continue;
            }
            let what = match known.get(&row.id) {
                Some(before) => changed(before, row),
                None => newest
                    .filter(|newest| *newest >= row.id)
                    .map(|newest| format!("appeared after checkpoint {newest}")),
            };
            if let Some(what) = what {
                tally.find(Finding::of_checkpoint(row.id, what));
            }
        }
        known.extend(snapshot.rows.iter().map(|row| (row.id, row)));
    }
    tally
}

fn changed(before: &Checkpoint, now: &Checkpoint) -> Option<String> {
    if !may_follow(before.status, now.status) {
        return Some(format!("went from {:?} to {:?}", before.status, now.status));
    }
    let same = before.kind == now.kind && before.epoch == now.epoch && before.vector == now.vector;
    (!same).then(|| "was overwritten with other positions, kind or epoch".to_owned())
}

fn may_follow(before: Status, now: Status) -> bool {
    match before {
        Status::Prepared => true,
        Status::Uncertain => now != Status::Prepared,
        Status::Completed | Status::Failed | Status::Aborted => now == before,
    }
}
