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
        waits_for_log: None,
        parked: parked.to_vec(),
    };
    let mut waits = Vec::new();
    let mut unknown_ends = 0;
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
        if left == Some(0) {
            continue;
        }
        // A log was measured before the position that is told now, and may only have grown.
        match partition.readable_end {
            Some(end) if stands_at >= Some(end) => waits.push(name),
            Some(_) => {}
            None => unknown_ends += 1,
        }
    }
    // One without a leader does not hide the others.
    let open = view.partitions - view.ended_partitions;
    view.waits_for_log = (unknown_ends < open || open == 0).then_some(waits);
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
        if let Some(names) = listed(self.waits_for_log.as_deref().unwrap_or_default()) {
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
    use crate::{
        model::{ids::CheckpointId, offset::Offset, stop_at::RunEnd},
        service::series::tests::unknown_partition,
    };

    /// The logs end at 5 as they were measured last, when the job had not read that far; its ends are at 9.
    #[test]
    fn what_waits_for_its_log_is_right_from_the_first_look_or_not_known() {
        let orders = |number| TopicPartition::new("orders", number);
        let at = |offset| Offset::new(offset);
        let run = BoundedRun {
            stop_at: StopAt::Latest,
            begun_by: CheckpointId(1),
            begun_at: chrono::DateTime::UNIX_EPOCH,
            finished_at: None,
            ends: [0, 1]
                .map(|number| {
                    let end = RunEnd {
                        stop_offset: at(9).unwrap(),
                        topic_id: None,
                    };
                    (orders(number), end)
                })
                .into(),
        };
        let shown = |logs: [Option<i64>; 2], positions: [i64; 2]| {
            let partitions = [0, 1].map(|number| PartitionOffsetsView {
                stop_offset: at(9),
                readable_end: logs[number].and_then(at),
                position: at(0),
                ..unknown_partition(i32::try_from(number).unwrap())
            });
            let live = [0, 1].map(|number| {
                let live = LivePartition {
                    subtask: 0,
                    position: at(positions[number]),
                    topic_id: None,
                    stop_offset: at(9),
                    reason: None,
                    watermark: None,
                };
                (orders(i32::try_from(number).unwrap()), live)
            });
            let (wish, live) = (StopAt::Latest, live.into());
            let view = bounded_view(Some(&wish), Some(&run), &partitions, Some(&live), &[]);
            view.unwrap().waits_for_log
        };
        assert_eq!(shown([None, None], [5, 5]), None);
        assert_eq!(shown([None, None], [9, 9]), Some(vec![]), "nothing is left");
        assert_eq!(shown([Some(5), Some(5)], [4, 5]), Some(vec![orders(1)]));
        assert_eq!(shown([Some(9), Some(9)], [5, 5]), Some(vec![]));
        // One without a leader does not hide the other.
        assert_eq!(shown([None, Some(5)], [5, 5]), Some(vec![orders(1)]));
        assert_eq!(shown([None, Some(5)], [5, 9]), None);
    }

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
            waits_for_log: None,
            parked: Vec::new(),
        };
        assert_eq!(
            view.progress(),
            "7 offsets to read up to its ends; 1 of 4 partitions have come to theirs"
        );
        view.remaining = Some(1);
        view.waits_for_log = Some(vec![orders(0), orders(1)]);
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
