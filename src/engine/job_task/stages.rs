//! Where the time goes: the job task reads its subtasks' clocks.

use std::sync::Arc;

use tokio::time::Instant;

use super::{JobTask, Partition};
use crate::{engine::stages::Reading, model::topic::TopicPartition};

impl JobTask {
    /// Reads what the subtasks have spent their time on since the last look.
    pub(super) fn account_time(&mut self) {
        let now = Instant::now();
        let mut unread = vec![false; self.subtasks.len()];
        for (partition, state) in &self.partitions {
            if let Some(unread) = unread.get_mut(state.subtask as usize) {
                *unread = *unread || self.has_unread(partition, state);
            }
        }
        let subtasks = self.subtasks.iter().zip(unread);
        let readings: Vec<Reading> = subtasks
            .map(|(subtask, unread)| {
                Reading::take(&subtask.view.clock, &subtask.view.blocked, unread, now)
            })
            .collect();
        self.stage_log.add(&readings, now);
        self.stages = Arc::new(self.stage_log.report(now, self.run.clock.now()));
        // Only now: that there were records below these ends is not known of the time before.
        for (partition, end) in self
            .newly_seen_ends
            .take()
            .iter()
            .flat_map(|ends| ends.iter())
        {
            if let Some(state) = self.partitions.get_mut(partition) {
                state.seen_end = Some(*end);
            }
        }
    }

    /// Whether there is something to read that was there at the last look already. What is parked, or held back because it is
    /// ahead of the others, is not waited for.
    fn has_unread(&self, partition: &TopicPartition, state: &Partition) -> bool {
        let position = state.live.as_ref().and_then(|live| live.get());
        let is_below = position
            .zip(state.seen_end)
            .is_some_and(|(at, end)| at < end);
        is_below && !self.parked.contains_key(partition) && !self.is_held_back(partition)
    }
}
