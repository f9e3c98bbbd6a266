//! O1: every acknowledged record whose offset a completed checkpoint has left behind is in the sink. Where partitions are to
//! be read from their first record on, one that begins further on has lost what lies before.

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
        let begins_later = facts
            .first_read(partition)
            .is_some_and(|first| offset < first);
        let is_left_out = facts.run.plan.from_the_first && begins_later;
        if facts.is_covered(partition, offset) || is_left_out {
            tally.check(facts.present.contains(&(partition, seq)), || {
                Finding::of_record(partition, seq, Some(offset), "is not in the sink")
            });
        }
    }
    tally
}
