//! O3: nothing is in the sink that was never written, was aborted, or is not what was written.

use crate::{
    facts::Facts,
    run::{Fate, Row},
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    for row in &facts.run.rows {
        tally.examine();
        if let Some(what) = wrong(facts, row) {
            tally.find(Finding::of_record(row.p, row.seq, Some(row.offset), what));
        }
    }
    tally
}

fn wrong(facts: &Facts<'_>, row: &Row) -> Option<String> {
    if row.run != facts.run.plan.run {
        return Some(format!("belongs to run {:?}", row.run));
    }
    let Some(written) = facts.written.get(&(row.p, row.seq)) else {
        return Some("was never written".to_owned());
    };
    if written.fate == Fate::Aborted {
        return Some("belongs to an aborted transaction".to_owned());
    }
    if written.fate == Fate::Bad {
        return Some("cannot be processed, and is there all the same".to_owned());
    }
    if written.hash != row.hash {
        return Some(format!(
            "has a value with fingerprint {}, written was {}",
            row.hash, written.hash
        ));
    }
    match written.offset {
        Some(offset) if offset != row.offset => Some(format!("was written at offset {offset}")),
        _ => None,
    }
}
