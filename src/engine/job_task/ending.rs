//! The end of a bounded run.
//!
//! A partition has come to its end when its *position* has: the end may be a transaction's marker or a record that was
//! compacted away, and no record would ever tell (FLINK-34470). When all have, one more checkpoint is taken in which the sink
//! makes everything durable, and its commit to the group is awaited: it is the last one there will be, so nothing later
//! covers it (FLINK-20194).

use std::time::Duration;

use tokio::time::Instant;

use super::{JobTask, stopping::Stopping};
use crate::model::{
    checkpoint::{CheckpointKind, GroupCommitStatus},
    code::Code,
    topic::TopicPartition,
    views::CheckpointReport,
};

/// Between two attempts of the last commit to the group.
const COMMIT_AGAIN: Duration = Duration::from_secs(5);

impl JobTask {
    /// Begins the end of a bounded run once every partition has come to its own.
    pub(super) fn watch_ends(&mut self) {
        if self.stopping.is_some() || self.end.is_some() || !self.has_come_to_its_ends() {
            return;
        }
        tracing::info!("every partition has come to its end; the last checkpoint is taken");
        let timeout = self.run.spec.checkpoint.timeout.0;
        // Required: without it the run goes on, and tries again.
        self.begin_last_checkpoint(CheckpointKind::Stop, true, timeout, Vec::new());
        if let Some(stopping) = &mut self.stopping {
            stopping.finishes = true;
        }
        self.publish();
    }

    fn has_come_to_its_ends(&self) -> bool {
        self.run.ends.as_ref().is_some_and(|ends| {
            ends.iter().all(|(partition, end)| {
                let state = self.partitions.get(partition);
                let live = state.and_then(|state| state.live.as_ref());
                live.and_then(|live| live.get()) >= Some(*end) && !self.ends_elsewhere(partition)
            })
        })
    }

    /// Whether the start has parked a partition because another topic has the name of its own: then the end is a number of that
    /// one, and the position of the old one is neither before nor behind it.
    fn ends_elsewhere(&self, partition: &TopicPartition) -> bool {
        let parking = self.run.parked.get(partition);
        let is_replaced = parking.is_some_and(|parking| parking.replaced_by.is_some());
        is_replaced && self.replaced.contains_key(partition)
    }

    /// Whether the newest completed checkpoint has every partition at its end: then the run is finished, whoever ended it.
    pub(super) fn is_finished(&self) -> bool {
        self.run.ends.as_ref().is_some_and(|ends| {
            ends.iter().all(|(partition, end)| {
                self.last_offsets.get(partition) >= Some(end) && !self.ends_elsewhere(partition)
            })
        })
    }

    /// Whether a bounded run goes on after its last checkpoint: the sink refused a record at the barrier, and what it had not
    /// kept is read again.
    pub(super) fn reads_on(&mut self) -> bool {
        if self.is_finished() || self.unasked_end().is_none() {
            return false;
        }
        self.stopping = None;
        self.coordinator.set_periodic(true);
        self.apply_intake();
        self.publish();
        true
    }

    /// Whether the end of the run waits because its last commit failed and may succeed later. What the group refuses, and a
    /// stop that somebody asked for, are not waited for.
    pub(super) fn commits_again(&mut self, report: &CheckpointReport) -> bool {
        let has_failed = report.group_commit.status == GroupCommitStatus::Failed;
        if !has_failed || self.commit_was_refused {
            self.note_waiting(Code::CommitsFailing, None);
            return false;
        }
        let Some(stopping) = self.unasked_end() else {
            return false;
        };
        stopping.report = Some(report.clone());
        stopping.deadline = Instant::now() + COMMIT_AGAIN;
        let said = report.group_commit.error.clone().unwrap_or_default();
        let why =
            format!("everything is read; the last commit to the group is tried again: {said}");
        self.note_waiting(Code::CommitsFailing, Some(why));
        true
    }

    /// The end of a bounded run that nobody has asked to stop meanwhile.
    fn unasked_end(&mut self) -> Option<&mut Stopping> {
        let stopping = self.stopping.as_mut();
        stopping.filter(|stopping| stopping.finishes && stopping.refused.is_empty())
    }

    /// The time of a last checkpoint is over, and only its commit is open. True when it is waited for on.
    pub(super) fn waits_for_last_commit(&mut self, report: &CheckpointReport) -> bool {
        let Some(stopping) = self.unasked_end() else {
            return false;
        };
        stopping.deadline = Instant::now() + COMMIT_AGAIN;
        if !self.commits.is_busy() {
            let id = report.id;
            self.awaiting_commit
                .insert(id, (report.clone(), Vec::new()));
            self.offer_commit(id, self.last_offsets.clone());
        }
        true
    }
}
