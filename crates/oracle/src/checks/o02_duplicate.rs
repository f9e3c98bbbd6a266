//! O2: no record is in the sink more often than the guarantee allows.
//!
//! Exactly once: as often as the job was told to read it, which is once unless an operator moved it back. At least once: a
//! record may come again only after the job went back, and it goes back only where a new life began, at most to the
//! position from which that life started.

use std::collections::{BTreeMap, HashSet};

use crate::{
    facts::Facts,
    run::{Checkpoint, Guarantee, Row},
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    match facts.run.plan.guarantee {
        Guarantee::AtLeastOnce => repeats_without_a_new_life(facts),
        Guarantee::ExactlyOnce | Guarantee::Counted => more_often_than_told(facts),
    }
}

fn more_often_than_told(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    for (partition, rows) in &facts.rows {
        let mut times: BTreeMap<u64, (usize, &Row)> = BTreeMap::new();
        for row in rows {
            times.entry(row.seq).or_insert((0, row)).0 += 1;
        }
        for (seq, (times, row)) in times {
            let told = facts.times_admitted(*partition, row.offset).max(1);
            tally.check(times <= told, || {
                let what = format!("is in the sink {times} times, last known at {}", row.place);
                Finding::of_record(*partition, seq, Some(row.offset), what)
            });
        }
    }
    tally
}

fn repeats_without_a_new_life(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let starts = starts(facts);
    for (partition, rows) in &facts.rows {
        let starts = starts.get(partition).map_or(&[][..], Vec::as_slice);
        let mut epoch = starts.first().map_or(0, |(first, _)| *first);
        let mut seen: HashSet<u64> = HashSet::new();
        let mut last = i64::MIN;
        let mut replaying = false;
        for row in rows {
            let is_of = |epoch: i64| row.life.is_none_or(|life| life.holds(epoch));
            if row.offset <= last || !is_of(epoch) {
                // The earliest epoch that explains it, so that the others are left for what comes. Whose life is known has the
                // start of that life only: one before it that repeated nothing explains nothing.
                let next = starts
                    .iter()
                    .find(|(next, start)| *next > epoch && is_of(*next) && *start <= row.offset);
                replaying = next.is_some();
                epoch = next.map_or(epoch, |(next, _)| *next);
            }
            last = row.offset;
            let first = seen.insert(row.seq);
            tally.check(first || replaying, || {
                let what = "came again, and no start of a new life explains it";
                Finding::of_record(*partition, row.seq, Some(row.offset), what)
            });
        }
    }
    tally
}

/// Where the job began to read each partition under each epoch, in the order of epochs.
fn starts(facts: &Facts<'_>) -> BTreeMap<i32, Vec<(i64, i64)>> {
    let mut starts: BTreeMap<i32, Vec<(i64, i64)>> = BTreeMap::new();
    let mut before: Option<&Checkpoint> = None;
    for row in facts.completed() {
        let is_first = before.is_none_or(|before| before.epoch != row.epoch);
        // A start stores where it begins.
        let start = before
            .filter(|_| is_first && row.kind != "start")
            .unwrap_or(row);
        for (partition, position) in &start.vector {
            let of_partition = starts.entry(*partition).or_default();
            // One that appears later under an epoch begins with the first checkpoint that has it.
            let is_new = of_partition
                .last()
                .is_none_or(|(epoch, _)| *epoch < row.epoch);
            if let Some(next_offset) = position.next_offset.filter(|_| is_new) {
                of_partition.push((row.epoch, next_offset));
            }
        }
        before = Some(row);
    }
    starts
}
