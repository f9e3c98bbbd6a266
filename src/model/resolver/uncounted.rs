//! What a start may write a second time and nobody can count: the sink was written to and has lost how far it had come.

use super::{
    PlannedPartition, ResolvedStart, StartInputs, blockers::list, decide::is_of_another_topic,
};
use crate::model::topic::TopicPartition;

/// Names the partitions of which a start reads again what the sink may hold beyond the checkpoint; `None` if there are none.
///
/// `replayed` counts up to the checkpoint alone, since nobody knows how far the sink has come behind it.
#[must_use]
pub fn uncounted(inputs: &StartInputs<'_>, resolved: &ResolvedStart) -> Option<String> {
    let (state, progress) = (inputs.state?, inputs.progress()?);
    let is_uncounted = |planned: &&PlannedPartition| {
        let partition = planned.topic_partition();
        let held = state.positions.get(&partition);
        let was_written = held.is_some_and(|held| {
            let known = inputs.facts.partitions.get(&partition);
            let is_recreated = known.is_some_and(|facts| is_of_another_topic(held, facts));
            let was_read = held.next_offset.is_some() && !is_recreated;
            was_read && state.had_output_since(held.position_id)
        });
        // What the log has got until now is all that can have been written.
        let reads = planned.start_at.is_some() && planned.to_read != Some(0);
        was_written && !progress.contains_key(&partition) && reads
    };
    let found = resolved.read_partitions().filter(is_uncounted);
    let names: Vec<TopicPartition> = found.map(PlannedPartition::topic_partition).collect();
    (!names.is_empty()).then(|| list(&names))
}
