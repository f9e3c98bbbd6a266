//! O1: every acknowledged record whose offset a completed checkpoint has left behind is in the sink.

use crate::{
    facts::Facts,
    run::Fate,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let acked = facts
        .run
        .journal
        .iter()
        .filter(|written| written.fate == Fate::Acked);
    for written in acked {
        let (partition, seq) = (written.p, written.seq);
        let Some(offset) = written.offset else {
            continue;
        };
        if facts.is_covered(partition, offset) {
            tally.check(facts.present.contains(&(partition, seq)), || {
                Finding::of_record(partition, seq, Some(offset), "is not in the sink")
            });
        }
    }
    tally
}
