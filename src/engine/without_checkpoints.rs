//! A job without checkpoints, as the engine runs it: the same attempts, and nothing kept of them.
//!
//! Where a job with checkpoints stores one, this one only has the store say that the lease still holds. So a barrier still
//! goes to every subtask, each sink still makes everything durable before it answers, and only then the positions of all
//! answers go to the consumer group: never more than the sink has, and never by a former owner. Positions that are decided
//! while the job runs (of partitions that appear, of a record that is left out) take the same road, and are as good as the run.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{
    checkpoint_coordinator::Timing,
    error::StoreError,
    ports::{CheckpointStore, JobLease},
};
use crate::model::{
    checkpoint::{Checkpoint, CheckpointPhases, FailedCheckpoint, GroupCommit},
    commit_mode::CommitMode,
    event::HistoryEntry,
    ids::CheckpointId,
    job::JobSpec,
};

/// A store of checkpoints that keeps none.
pub(super) struct KeepsNone(Arc<dyn CheckpointStore>);

impl KeepsNone {
    /// The store that fits a spec.
    pub(super) fn unless_kept(
        spec: &JobSpec,
        store: Arc<dyn CheckpointStore>,
    ) -> Arc<dyn CheckpointStore> {
        if spec.checkpointing().is_off() {
            return Arc::new(Self(store));
        }
        store
    }
}

#[async_trait]
impl CheckpointStore for KeepsNone {
    async fn complete(&self, lease: &JobLease, _checkpoint: &Checkpoint) -> Result<(), StoreError> {
        self.0.hold(lease).await
    }

    async fn hold(&self, lease: &JobLease) -> Result<(), StoreError> {
        self.0.hold(lease).await
    }

    async fn record_failure(
        &self,
        _lease: &JobLease,
        _attempt: &FailedCheckpoint,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    async fn confirm(
        &self,
        lease: &JobLease,
        _id: CheckpointId,
        _at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.0.hold(lease).await
    }

    async fn record_outcome(
        &self,
        _lease: &JobLease,
        _id: CheckpointId,
        _phases: &CheckpointPhases,
        _group_commit: &GroupCommit,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    async fn note_events(
        &self,
        lease: &JobLease,
        entries: &[HistoryEntry],
    ) -> Result<(), StoreError> {
        self.0.note_events(lease, entries).await
    }

    /// What an earlier run with checkpoints has left stays as it is.
    async fn thin(&self, _lease: &JobLease) -> Result<(), StoreError> {
        Ok(())
    }
}

/// When a job makes attempts: on the interval of its checkpoints, or of its commits, or only when something asks for one.
pub(super) fn timing(spec: &JobSpec) -> Timing {
    let checkpoint = &spec.checkpoint;
    let interval: Option<Duration> = match spec.commit_mode() {
        CommitMode::KafkaPeriodic => Some(spec.source.commit_every().0),
        CommitMode::OnCheckpoints | CommitMode::Disabled => {
            checkpoint.interval.map(|interval| interval.0)
        }
    };
    Timing {
        interval,
        timeout: checkpoint.timeout.0,
        min_pause: checkpoint.min_pause.0,
    }
}
