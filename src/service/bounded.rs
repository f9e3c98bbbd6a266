//! How far a bounded run has come. Pure.

use std::collections::BTreeMap;

use crate::model::{
    job_status::LivePartition,
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
    live: Option<&BTreeMap<TopicPartition, LivePartition>>,
    parked: &[TopicPartition],
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
        parked: parked.to_vec(),
    };
    for partition in partitions {
        let Some(end) = partition.stop_offset else {
            continue;
        };
        view.partitions += 1;
        let measured = partition.position.or(partition.checkpointed);
        // What is left needs no end of a log, so it is told as of now, like what is parked.
        let name = TopicPartition::new(partition.topic.as_str(), partition.partition);
        let now = live.and_then(|live| live.get(&name)?.position);
        let stands_at = now.or(measured);
        let left = stands_at.map(|position| end.distance_from(position).max(0));
        view.remaining = view.remaining.zip(left).map(|(sum, left)| sum + left);
        view.ended_partitions += usize::from(left == Some(0));
        let has_read_all = measured >= partition.readable_end && partition.readable_end.is_some();
        if left.is_some_and(|left| left > 0) && has_read_all {
            view.waits_for_log.push(name);
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
        if let Some(names) = listed(&self.waits_for_log) {
            text.push_str(&format!(
                "; {names}: everything readable is read, and the log does not reach the stop offset yet"
            ));
        }
        if let Some(names) = listed(&self.parked) {
            text.push_str(&format!(
                "; {names} parked: the run does not end until it goes on"
            ));
        }
        text
    }
}

/// The first of some partitions, and how many there are besides.
fn listed(partitions: &[TopicPartition]) -> Option<String> {
    let first = partitions.first()?;
    Some(match partitions.len() {
        1 => first.to_string(),
        number => format!("{first} and {} more", number - 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_run_from_ending_is_told() {
        let orders = |number| TopicPartition::new("orders", number);
        let mut view = BoundedView {
            stop_at: StopAt::Latest,
            begun_by: None,
            begun_at: None,
            finished_at: None,
            partitions: 4,
            ended_partitions: 1,
            remaining: Some(7),
            waits_for_log: Vec::new(),
            parked: Vec::new(),
        };
        assert_eq!(
            view.progress(),
            "7 offsets to read up to its ends; 1 of 4 partitions have come to theirs"
        );
        view.remaining = Some(1);
        view.waits_for_log = vec![orders(0), orders(1)];
        view.parked = vec![orders(3)];
        assert_eq!(
            view.progress(),
            "1 offset to read up to its ends; 1 of 4 partitions have come to theirs; orders/0 and 1 more: everything readable is read, and the log does not reach the stop offset yet; orders/3 parked: the run does not end until it goes on"
        );
        view.remaining = None;
        assert!(
            view.progress()
                .starts_with("how much is left is not known yet")
        );
    }
}
