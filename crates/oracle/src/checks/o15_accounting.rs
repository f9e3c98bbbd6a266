//! O15: what the counters say went in came out, was skipped, was put elsewhere or is still under way, and it is as many as
//! the topic has between the two positions.

use crate::{
    facts::Facts,
    run::{Counters, Fate},
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    for counters in &facts.counters {
        tally.examine();
        if let Some(what) = wrong(facts, counters) {
            let finding = Finding::new(format!("{what}, at {} us", counters.at));
            tally.find(Finding {
                partition: counters
                    .to
                    .keys()
                    .next()
                    .copied()
                    .filter(|_| counters.to.len() == 1),
                ..finding
            });
        }
    }
    tally
}

fn wrong(facts: &Facts<'_>, counters: &Counters) -> Option<String> {
    let Counters {
        records_in,
        out,
        skipped,
        dead_lettered,
        in_flight,
        ..
    } = counters;
    let told = out + skipped + dead_lettered + in_flight;
    if told != *records_in {
        return Some(format!(
            "{records_in} records in, but {out} out, {skipped} skipped, {dead_lettered} put elsewhere, {in_flight} under way"
        ));
    }
    let (least, most) = between(facts, counters);
    let right = (least..=most).contains(records_in);
    (!right).then(|| {
        format!(
            "{records_in} records in, but the topic has {least} to {most} between {:?} and {:?}",
            counters.from, counters.to
        )
    })
}

/// How many readable records there are between the positions: without and with those of which nobody knows.
fn between(facts: &Facts<'_>, counters: &Counters) -> (u64, u64) {
    let (mut least, mut most) = (0, 0);
    for written in &facts.run.journal {
        let (from, to) = (counters.from.get(&written.p), counters.to.get(&written.p));
        let (Some(from), Some(to)) = (from, to) else {
            continue;
        };
        let inside = written
            .offset
            .is_none_or(|offset| (*from..*to).contains(&offset));
        match written.fate {
            Fate::Acked if inside => {
                least += 1;
                most += 1;
            }
            Fate::Info if inside => most += 1,
            Fate::Acked | Fate::Info | Fate::Aborted | Fate::Bad => {}
        }
    }
    (least, most)
}
