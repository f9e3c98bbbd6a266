//! O6: whoever reads the sink meanwhile sees a prefix: no gap that fills later, and nothing that goes away.
//!
//! A gap that never fills is a record that was aborted, or lost (O1); one that an aborted record fills is a phantom (O3).

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    facts::Facts,
    run::Fate,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    // The look in which a record was first seen; the end of the run counts as the last look.
    let mut first_seen: HashMap<(i32, u64), usize> = HashMap::new();
    let mut sets: Vec<HashSet<(i32, u64)>> = Vec::new();
    for (number, look) in facts.looks.iter().enumerate() {
        let set: HashSet<(i32, u64)> = expand(&look.seen).collect();
        for record in &set {
            first_seen.entry(*record).or_insert(number);
        }
        // Only the newest two are kept: memory stays bounded.
        if let Some(before) = sets.pop() {
            report_vanished(facts, &mut tally, &before, &set, look.at);
        }
        sets.push(set);
    }
    if let (Some(last), Some(look)) = (sets.pop(), facts.looks.last()) {
        report_vanished(facts, &mut tally, &last, &facts.present, look.at);
    }
    for record in &facts.present {
        first_seen.entry(*record).or_insert(facts.looks.len());
    }
    report_gaps(facts, &mut tally, &first_seen);
    tally
}

fn expand(seen: &BTreeMap<i32, Vec<(u64, u64)>>) -> impl Iterator<Item = (i32, u64)> {
    seen.iter().flat_map(|(partition, ranges)| {
        let seqs = ranges.iter().flat_map(|(from, to)| *from..=*to);
        seqs.map(|seq| (*partition, seq))
    })
}

fn report_vanished(
    facts: &Facts<'_>,
    tally: &mut Tally,
    before: &HashSet<(i32, u64)>,
    after: &HashSet<(i32, u64)>,
    at: u64,
) {
    let mut vanished: Vec<&(i32, u64)> = before.difference(after).collect();
    vanished.sort_unstable();
    for (partition, seq) in vanished {
        let what = format!("was in the sink and was gone at the look after, about {at} us");
        let offset = offset(facts, *partition, *seq);
        tally.find(Finding::of_record(*partition, *seq, offset, what));
    }
}

fn report_gaps(facts: &Facts<'_>, tally: &mut Tally, first_seen: &HashMap<(i32, u64), usize>) {
    let mut reported: HashSet<(i32, u64)> = HashSet::new();
    for (number, look) in facts.looks.iter().enumerate() {
        for (partition, ranges) in &look.seen {
            tally.examine();
            let Some((_, newest)) = ranges.last() else {
                continue;
            };
            let segment = offset(facts, *partition, *newest)
                .and_then(|offset| facts.segment(*partition, offset));
            for seq in gaps(ranges) {
                let record = (*partition, seq);
                let filled_later = first_seen.get(&record).is_some_and(|first| *first > number);
                if !filled_later || !is_real(facts, record) || reported.contains(&record) {
                    continue;
                }
                let offset = offset(facts, *partition, seq);
                let of_gap = offset.and_then(|offset| facts.segment(*partition, offset));
                if of_gap == segment {
                    reported.insert(record);
                    let what = format!(
                        "was not in the sink when seq {newest} was, at {} us, and came later",
                        look.at
                    );
                    tally.find(Finding::of_record(*partition, seq, offset, what));
                }
            }
        }
    }
}

fn is_real(facts: &Facts<'_>, record: (i32, u64)) -> bool {
    let written = facts.written.get(&record);
    written.is_some_and(|written| written.fate != Fate::Aborted)
}

/// The seqs below the last that are in no range.
fn gaps(ranges: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    let mut next = 0;
    ranges.iter().flat_map(move |(from, to)| {
        let gap = next..*from;
        next = to + 1;
        gap
    })
}

fn offset(facts: &Facts<'_>, partition: i32, seq: u64) -> Option<i64> {
    let written = facts.written.get(&(partition, seq));
    written.and_then(|written| written.offset).or_else(|| {
        let rows = facts.rows.get(&partition)?;
        Some(rows.iter().find(|row| row.seq == seq)?.offset)
    })
}
