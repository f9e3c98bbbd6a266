//! What a start would find after a stop that has not been made yet.
//!
//! A restart is decided before anything is stopped, against where its run stands now: the stop's own checkpoint will hold
//! these positions, its sink will have written the records before them, and the group will be told, where the job tells it.
//! What stands against the start then would stand against it after the stop, too.

use super::{core::JobFacts, start_plans::StartState};
use crate::model::{
    commit_mode::CommitMode,
    offset::PartitionOffsets,
    resolver::{BrokerFacts, ProgressFacts, RestorableState, SinkFacts},
    start::{StopCheckpoint, StopRequest},
};

/// Where a run stands, and what its stop will keep of that.
#[derive(Debug, Clone)]
pub(crate) struct AfterStop {
    positions: PartitionOffsets,
    /// Whether the stop takes a checkpoint.
    checkpoint: bool,
    /// Whether the group is told the positions.
    commits: bool,
}

impl AfterStop {
    /// What this stop of the run will bring about; `None` without a run.
    pub(crate) fn of(facts: &JobFacts, stop: &StopRequest) -> Option<Self> {
        let status = facts.status()?;
        let spec = facts.spec();
        let reached = status.partitions.iter();
        let positions =
            reached.filter_map(|(partition, live)| Some((partition.clone(), live.position?)));
        let is_last_word = stop.checkpoint != StopCheckpoint::None;
        Some(Self {
            positions: positions.collect(),
            checkpoint: is_last_word && !spec.checkpointing().is_off(),
            commits: is_last_word && spec.commit_mode() != CommitMode::Disabled,
        })
    }

    /// The sink at the positions of the stop, where it speaks of the same run of positions as the checkpoint and is not
    /// behind it already. Before [`Self::state`]: it is compared with the checkpoint as it is stored.
    pub(crate) fn sink(&self, sink: SinkFacts, state: &StartState) -> SinkFacts {
        let Some(stored) = state
            .newest
            .as_ref()
            .filter(|stored| !sink.is_other_than(Some(stored)))
        else {
            return sink;
        };
        let ProgressFacts::Kept(progress) = &sink.progress else {
            return sink;
        };
        let mut progress = progress.clone();
        for (partition, held) in &mut progress {
            let (Some(known), Some(live)) = (
                stored.positions.get(partition),
                self.positions.get(partition),
            ) else {
                continue;
            };
            let is_behind = known
                .next_offset
                .is_some_and(|known| held.next_offset < known);
            if known.position_id == held.position_id && !is_behind {
                held.next_offset = held.next_offset.max(*live);
            }
        }
        SinkFacts {
            progress: ProgressFacts::Kept(progress),
            ..sink
        }
    }

    /// The checkpoints as the stop leaves them: its own is the newest one.
    pub(crate) fn state(&self, mut state: StartState) -> StartState {
        if self.checkpoint {
            for stored in [&mut state.newest, &mut state.left].into_iter().flatten() {
                self.advance(stored);
            }
        }
        state
    }

    fn advance(&self, stored: &mut RestorableState) {
        stored.id = stored.id.next();
        for (partition, position) in &mut stored.positions {
            if let Some(live) = self.positions.get(partition) {
                position.next_offset = Some(*live);
            }
        }
    }

    /// The group as the stop leaves it.
    pub(crate) fn group(&self, facts: &mut BrokerFacts) {
        if !self.commits {
            return;
        }
        for (partition, known) in &mut facts.partitions {
            if let Some(live) = self.positions.get(partition) {
                known.group_offset = Some(*live);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        checkpoint::CheckpointPosition,
        ids::CheckpointId,
        offset::Offset,
        resolver::{PartitionFacts, SinkPosition},
        topic::TopicPartition,
    };

    fn at(offset: i64) -> Offset {
        Offset::new(offset).unwrap()
    }

    fn partition(number: i32) -> TopicPartition {
        TopicPartition::new("orders", number)
    }

    fn after(checkpoint: bool, commits: bool) -> AfterStop {
        AfterStop {
            positions: [(partition(0), at(80)), (partition(1), at(80))].into(),
            checkpoint,
            commits,
        }
    }

    fn stored() -> StartState {
        let position = |offset| CheckpointPosition {
            next_offset: Some(at(offset)),
            position_id: CheckpointId(3),
            topic_id: None,
        };
        let positions = [(partition(0), position(50)), (partition(1), position(60))];
        StartState {
            newest: Some(RestorableState {
                id: CheckpointId(9),
                positions: positions.into(),
                sink_identity: "orders-db".to_owned(),
                newest_output: None,
            }),
            ..StartState::default()
        }
    }

    #[test]
    fn the_stop_takes_a_checkpoint_where_the_run_stands() {
        let newest = after(true, false).state(stored()).newest.unwrap();
        assert_eq!(newest.id, CheckpointId(10));
        assert_eq!(newest.positions[&partition(1)].next_offset, Some(at(80)));
        let kept = after(false, false).state(stored()).newest.unwrap();
        assert_eq!(kept.positions[&partition(1)].next_offset, Some(at(60)));
    }

    #[test]
    fn a_sink_that_is_behind_its_checkpoint_stays_so() {
        let held = |offset| SinkPosition {
            next_offset: at(offset),
            position_id: CheckpointId(3),
        };
        let progress = [(partition(0), held(55)), (partition(1), held(59))];
        let sink = SinkFacts {
            identity: "orders-db".to_owned(),
            progress: ProgressFacts::Kept(progress.into()),
        };
        let sink = after(true, false).sink(sink, &stored());
        let ProgressFacts::Kept(progress) = sink.progress else {
            panic!("{sink:?}");
        };
        assert_eq!(progress[&partition(0)].next_offset, at(80));
        assert_eq!(progress[&partition(1)].next_offset, at(59));
    }

    #[test]
    fn the_group_is_told_only_by_a_job_that_tells_it() {
        for (commits, expected) in [(true, Some(at(80))), (false, None)] {
            let mut facts = BrokerFacts::default();
            facts
                .partitions
                .insert(partition(0), PartitionFacts::default());
            after(true, commits).group(&mut facts);
            assert_eq!(facts.partitions[&partition(0)].group_offset, expected);
        }
    }
}
