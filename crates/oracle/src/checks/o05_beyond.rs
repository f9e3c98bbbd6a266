//! O5: an exactly-once sink has nothing that the job was not told to read: nothing at or after the final positions, and
//! nothing before the first ones.

use crate::{
    facts::Facts,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let ends = facts.final_vector();
    for (partition, rows) in &facts.rows {
        for row in rows {
            let admitted = facts.times_admitted(*partition, row.offset) > 0;
            tally.check(admitted, || {
                let what = match ends.get(partition) {
                    Some(end) => format!("is in the sink; the final position is {end}"),
                    None => "is in the sink; the partition has no position".to_owned(),
                };
                Finding::of_record(*partition, row.seq, Some(row.offset), what)
            });
        }
    }
    tally
}
