//! O6: whoever reads the sink meanwhile sees a prefix: no gap that fills later, and nothing that goes away.
//!
//! A gap that never fills is a record that was aborted, or lost (O1); one that an aborted record fills is a phantom (O3).

use std::collections::BTreeMap;

use crate::{
    Ranges,
    facts::Facts,
    run::{Fate, Look},
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let mut partitions: BTreeMap<i32, Vec<(&Look, &Ranges)>> = BTreeMap::new();
    for look in &facts.looks {
        for (partition, seen) in &look.seen {
            tally.examine();
            partitions.entry(*partition).or_default().push((look, seen));
        }
    }
    for (partition, looks) in partitions {
        let rows = facts.rows.get(&partition).into_iter().flatten();
        let at_end: Ranges = rows.map(|row| row.seq).collect();
        report_vanished(facts, &mut tally, partition, &looks, &at_end);
        report_gaps(facts, &mut tally, partition, &looks, at_end);
    }
    tally
}

fn report_vanished(
    facts: &Facts<'_>,
    tally: &mut Tally,
    partition: i32,
    looks: &[(&Look, &Ranges)],
    at_end: &Ranges,
) {
    let later = looks.iter().skip(1).map(|(_, seen)| *seen).chain([at_end]);
    for ((look, seen), later) in looks.iter().zip(later) {
        for seq in seen.minus(later).numbers() {
            let what = format!(
                "was in the sink at {} us, and at the next look gone",
                look.at
            );
            let offset = offset(facts, partition, seq);
            tally.find(Finding::of_record(partition, seq, offset, what));
        }
    }
}

fn report_gaps(
    facts: &Facts<'_>,
    tally: &mut Tally,
    partition: i32,
    looks: &[(&Look, &Ranges)],
    at_end: Ranges,
) {
    let mut reported = Ranges::default();
    // Backwards, so that what comes later is known.
    let mut later = at_end;
    for (number, (look, seen)) in looks.iter().enumerate().rev() {
        if let Some(newest) = seen.last() {
            let filled_later = later.minus(seen).below(newest);
            for seq in filled_later.minus(&reported).numbers() {
                // What had been there before went away, which is reported as that.
                let was_there = looks[..number].iter().any(|(_, seen)| seen.contains(seq));
                if was_there || !is_gap(facts, partition, seq, newest) {
                    continue;
                }
                reported.insert(seq);
                let what = format!(
                    "was not in the sink when seq {newest} was, at {} us, and came later",
                    look.at
                );
                let offset = offset(facts, partition, seq);
                tally.find(Finding::of_record(partition, seq, offset, what));
            }
        }
        later = later.union(seen);
    }
}

/// Whether the record ought to have come before the other: it is real, and nobody moved the job in between.
fn is_gap(facts: &Facts<'_>, partition: i32, seq: u64, newest: u64) -> bool {
    let written = facts.written.get(&(partition, seq));
    let is_real = written.is_some_and(|written| !matches!(written.fate, Fate::Aborted | Fate::Bad));
    let segment = |seq| facts.segment(partition, offset(facts, partition, seq)?);
    is_real && segment(seq) == segment(newest)
}

fn offset(facts: &Facts<'_>, partition: i32, seq: u64) -> Option<i64> {
    let written = facts.written.get(&(partition, seq));
    written.and_then(|written| written.offset).or_else(|| {
        let rows = facts.rows.get(&partition)?;
        Some(rows.iter().find(|row| row.seq == seq)?.offset)
    })
}
