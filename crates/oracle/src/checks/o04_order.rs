//! O4: within a partition, records came for the first time in the order in which they were written.

use std::collections::{BTreeMap, HashSet};

use crate::{
    facts::Facts,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    for (partition, rows) in &facts.rows {
        let mut seen = HashSet::new();
        // After a move the order begins anew.
        let mut newest: BTreeMap<Option<usize>, u64> = BTreeMap::new();
        let ordered = rows.iter().filter(|row| row.order.is_some());
        for row in ordered.filter(|row| seen.insert(row.seq)) {
            let segment = facts.segment(*partition, row.offset);
            let newest = newest.entry(segment).or_insert(row.seq);
            tally.check(row.seq >= *newest, || {
                let what = format!("came after seq {newest}");
                Finding::of_record(*partition, row.seq, Some(row.offset), what)
            });
            *newest = row.seq.max(*newest);
        }
    }
    tally
}
