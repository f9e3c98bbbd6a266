//! O8: the positions of completed checkpoints never go back, and nobody but an operator decides a position anew.
//!
//! `position_id` names the checkpoint that decided a position from outside. A new one must be that of a start that the
//! driver of the run ordered, at the number that was announced, or leave out exactly the record that it named.

use std::collections::BTreeMap;

use crate::{
    facts::Facts,
    run::{Checkpoint, Position},
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let mut before: BTreeMap<i32, &Position> = BTreeMap::new();
    for row in facts.completed() {
        for (partition, position) in &row.vector {
            let Some(last) = before.insert(*partition, position) else {
                continue;
            };
            tally.examine();
            if let Some(what) = wrong(facts, row, *partition, last, position) {
                let finding = Finding::of_checkpoint(row.id, what);
                tally.find(finding.at(*partition, position.next_offset.unwrap_or(-1)));
            }
        }
    }
    tally
}

fn wrong(
    facts: &Facts<'_>,
    row: &Checkpoint,
    partition: i32,
    last: &Position,
    position: &Position,
) -> Option<String> {
    if last.position_id != position.position_id {
        let ordered = facts
            .moves
            .iter()
            .any(|moved| moved.to.get(&partition).copied() == position.next_offset);
        let decides = position.position_id == row.id;
        let by_start = row.kind == "start" && decides;
        let skips = position.next_offset.is_some_and(|next| {
            let is_behind = last.next_offset.is_none_or(|last| last < next);
            decides && is_behind && facts.skips.contains(&(partition, next - 1))
        });
        return (!skips && (!ordered || !by_start)).then(|| {
            format!(
                "was decided anew by checkpoint {} (before: {:?} by {}), and nobody ordered that",
                position.position_id, last.next_offset, last.position_id
            )
        });
    }
    if last.topic_id != position.topic_id {
        return Some("went on in another topic of the same name".to_owned());
    }
    let (Some(last), now) = (last.next_offset, position.next_offset) else {
        return None;
    };
    (now < Some(last)).then(|| format!("went back from {last}"))
}
