//! Checkpoints and their positions.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{Result, Store};
use crate::{
    engine::ports::{CheckpointStore, JobLease},
    model::{
        checkpoint::{
            Checkpoint, CheckpointFailure, CheckpointKind, CheckpointPhases, CheckpointPosition,
            CheckpointStatus, FailedCheckpoint, GroupCommit,
        },
        ids::{CheckpointId, JobUid, LeaseEpoch},
        job::JobSpec,
        topic::TopicPartition,
    },
};

/// A checkpoint as it is stored: completed or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Its number.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// `Completed` or `Failed`.
    pub status: CheckpointStatus,
    /// The lease under which it was taken.
    pub epoch: LeaseEpoch,
    /// When it was triggered.
    pub started_at: DateTime<Utc>,
    /// When it completed or failed.
    pub ended_at: DateTime<Utc>,
    /// When its positions were last found unchanged; `None` for a failed one.
    pub confirmed_at: Option<DateTime<Utc>>,
    /// What the phases took.
    pub phases: CheckpointPhases,
    /// Why it failed.
    pub failure: Option<CheckpointFailure>,
    /// Its commit to the group.
    pub group_commit: GroupCommit,
    /// Whether a later start set it aside.
    pub superseded: bool,
    /// Whether any record reached the sink since the checkpoint before.
    pub has_output: bool,
    /// Which target the sink wrote to; empty for a failed one.
    pub sink_identity: String,
    /// The positions; empty for a failed one and where they were not asked for.
    pub positions: BTreeMap<TopicPartition, CheckpointPosition>,
}

/// What a start leaves in the store besides its checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRecord {
    /// Generation of the spec that runs now.
    pub generation: i64,
    /// That spec.
    pub spec: JobSpec,
    /// Id of the one-shot start that this start used up.
    pub consumed_pending: Option<String>,
    /// Whether the start leaves the older checkpoints aside.
    pub set_aside: bool,
}

/// Which checkpoints are wanted, newest first.
#[derive(Debug, Clone, Default)]
pub struct CheckpointFilter {
    /// Of these statuses; empty for all.
    pub statuses: Vec<CheckpointStatus>,
    /// Of these kinds; empty for all.
    pub kinds: Vec<CheckpointKind>,
    /// At most this many.
    pub limit: u32,
    /// Only older ones than this.
    pub before: Option<CheckpointId>,
    /// Whether the positions are read too.
    pub with_positions: bool,
}

impl Store {
    /// The number that the job's next checkpoint has: one more than the largest stored, failed ones included.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn next_checkpoint_id(&self, _job: JobUid) -> Result<CheckpointId> {
        todo!()
    }

    /// Stores the `start` checkpoint and everything that becomes true with it. Fenced; repeating it after an unknown outcome
    /// succeeds.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn store_start(
        &self,
        _lease: &JobLease,
        _checkpoint: &Checkpoint,
        _record: &StartRecord,
    ) -> Result<()> {
        todo!()
    }

    /// The checkpoint that a start resumes from: the newest completed one that was not set aside, with positions.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn latest_checkpoint(&self, _job: JobUid) -> Result<Option<StoredCheckpoint>> {
        todo!()
    }

    /// One checkpoint, with positions.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn checkpoint(
        &self,
        _job: JobUid,
        _id: CheckpointId,
    ) -> Result<Option<StoredCheckpoint>> {
        todo!()
    }

    /// Checkpoints, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn checkpoints(
        &self,
        _job: JobUid,
        _filter: &CheckpointFilter,
    ) -> Result<Vec<StoredCheckpoint>> {
        todo!()
    }
}

#[async_trait]
impl CheckpointStore for Store {
    async fn complete(&self, _lease: &JobLease, _checkpoint: &Checkpoint) -> Result<()> {
        todo!()
    }

    async fn record_failure(&self, _lease: &JobLease, _attempt: &FailedCheckpoint) -> Result<()> {
        todo!()
    }

    async fn confirm(
        &self,
        _lease: &JobLease,
        _id: CheckpointId,
        _at: DateTime<Utc>,
    ) -> Result<()> {
        todo!()
    }

    async fn record_group_commit(
        &self,
        _lease: &JobLease,
        _id: CheckpointId,
        _outcome: &GroupCommit,
        _duration: Duration,
    ) -> Result<()> {
        todo!()
    }

    async fn thin(&self, _lease: &JobLease) -> Result<()> {
        todo!()
    }
}
