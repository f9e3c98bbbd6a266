//! Where the time goes: the job task reads its subtasks' clocks.

use std::sync::Arc;

use tokio::time::Instant;

use super::{JobTask, Partition};
use crate::{
    engine::stages::{Reading, Unread},
    model::topic::TopicPartition,
};

impl JobTask {
    /// Reads what the subtasks have spent their time on since the last look.
    pub(super) fn account_time(&mut self) {
        let now = Instant::now();
        let mut unread = vec![Unread::Nothing; self.subtasks.len()];
        for (partition, state) in &self.partitions {
            if let Some(unread) = unread.get_mut(state.subtask as usize) {
                *unread = (*unread).max(self.unread(partition, state));
            }
        }
        let subtasks = self.subtasks.iter().zip(unread);
        let readings: Vec<Reading> = subtasks
            .map(|(subtask, unread)| {
                let view = &subtask.view;
                Reading::take(
                    &view.clock,
                    &view.blocked,
                    unread,
                    view.sink_is_flushing(),
                    now,
                )
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

    /// What there is to read that was there at the last look already. What is parked is not waited for.
    fn unread(&self, partition: &TopicPartition, state: &Partition) -> Unread {
        let position = state.live.as_ref().and_then(|live| live.get());
        let is_below = position
            .zip(state.seen_end)
            .is_some_and(|(at, end)| at < end);
        if !is_below || self.parked.contains_key(partition) {
            return Unread::Nothing;
        }
        if self.is_held_back(partition) {
            return Unread::HeldBack;
        }
        Unread::Records
    }
}
