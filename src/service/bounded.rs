//! How far a bounded run has come. Pure.

use crate::model::{
    stop_at::{BoundedRun, StopAt},
    topic::TopicPartition,
    views::{BoundedView, PartitionOffsetsView},
};

/// The run as it is shown; `None` for a job that is not bounded. A run that was begun with another wish than the spec's is
/// not the one that the next start goes on with, and is not shown.
pub(crate) fn bounded_view(
    stop_at: Option<&StopAt>,
    run: Option<&BoundedRun>,
    partitions: &[PartitionOffsetsView],
) -> Option<BoundedView> {
    let stop_at = stop_at?;
    let run = run.filter(|run| run.stop_at == *stop_at);
    let mut view = BoundedView {
        stop_at: stop_at.clone(),
        begun_by: run.map(|run| run.begun_by),
        begun_at: run.map(|run| run.begun_at),
        finished_at: run.and_then(|run| run.finished_at),
        partitions: 0,
        ended_partitions: 0,
        remaining: run.map(|_| 0),
        waits_for_log: Vec::new(),
    };
    for partition in partitions {
        let Some(end) = partition.stop_offset else {
            continue;
        };
        view.partitions += 1;
        let stands_at = partition.position.or(partition.checkpointed);
        let left = stands_at.map(|position| end.distance_from(position).max(0));
        view.remaining = view.remaining.zip(left).map(|(sum, left)| sum + left);
        view.ended_partitions += usize::from(left == Some(0));
        let has_read_all = stands_at >= partition.readable_end && partition.readable_end.is_some();
        if left.is_some_and(|left| left > 0) && has_read_all {
            view.waits_for_log.push(TopicPartition::new(
                partition.topic.as_str(),
                partition.partition,
            ));
        }
    }
    Some(view)
}

impl BoundedView {
    /// How far it has come, as a part of a sentence.
    pub(crate) fn progress(&self) -> String {
        let left = match self.remaining {
            Some(1) => "1 offset to read up to its ends".to_owned(),
            Some(left) => format!("{left} offsets to read up to its ends"),
            None => "how much is left is not known yet".to_owned(),
        };
        let mut text = format!(
            "{left}; {} of {} partitions have come to theirs",
            self.ended_partitions, self.partitions
        );
        if let Some(first) = self.waits_for_log.first() {
            let more = match self.waits_for_log.len() {
                1 => String::new(),
                number => format!(" and {} more", number - 1),
            };
            text.push_str(&format!(
                "; {first}{more}: everything readable is read, and the log does not reach the stop offset yet"
            ));
        }
        text
    }
}
