//! Jobs: their spec, what they should do and what they do.

use chrono::{DateTime, Utc};

use super::{OperationOutcome, Result, Store};
use crate::{
    engine::ports::JobLease,
    model::{
        ids::{JobName, JobUid, LeaseEpoch, OperationId},
        job::JobSpec,
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
        start::PendingStart,
        startup_mode::StartupMode,
    },
};

/// A job as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Its identity.
    pub uid: JobUid,
    /// Its name.
    pub name: JobName,
    /// The spec as it was last put.
    pub spec: JobSpec,
    /// Counts the changes of the spec, from 1.
    pub generation: i64,
    /// What an operator asked for last.
    pub desired_state: DesiredState,
    /// What its owner said last that it does.
    pub state: JobState,
    /// Since when.
    pub state_since: DateTime<Utc>,
    /// Why it gave up.
    pub failure: Option<JobFailure>,
    /// A start that was asked for ahead of time.
    pub pending_start: Option<PendingStart>,
    /// The spec of the run; `None` unless a run has begun and not been settled.
    pub running: Option<RunningSpec>,
    /// The startup mode was changed while there was a checkpoint, and no start has used it since.
    pub startup_mode_shadowed: bool,
    /// Who holds the lease; `None` if nobody does.
    pub owner: Option<OwnerRow>,
    /// When it was first put.
    pub created_at: DateTime<Utc>,
}

/// The spec under which a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningSpec {
    /// Its generation.
    pub generation: i64,
    /// The spec.
    pub spec: JobSpec,
}

/// Who holds a job's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRow {
    /// Its instance id.
    pub instance: String,
    /// Under which epoch.
    pub epoch: LeaseEpoch,
    /// Whether that process has shown signs of life in time.
    pub live: bool,
}

/// What must hold for a spec to be put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecPrecondition {
    /// Nothing: create or replace.
    Any,
    /// There is no such job (`If-None-Match: *`).
    Absent,
    /// There is such a job (`If-Match: *`).
    Present,
    /// The job's generation is this one (`If-Match: "7"`).
    Generation(i64),
}

/// What became of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutSpec {
    /// The job is new.
    Created(JobRow),
    /// The spec was replaced.
    Replaced(JobRow),
    /// It was the same already.
    Unchanged(JobRow),
    /// The precondition names another generation than this one.
    Stale {
        /// The generation that is stored.
        generation: i64,
    },
    /// The precondition wants a new job.
    Exists,
    /// The precondition wants an existing job.
    Missing,
    /// Another job uses the consumer group on the same connection.
    GroupTaken {
        /// That job.
        job: JobName,
    },
}

/// What became of a startup mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetMode {
    /// Changed.
    Changed(JobRow),
    /// It was the same already.
    Unchanged(JobRow),
    /// The precondition names another generation than this one.
    Stale {
        /// The generation that is stored.
        generation: i64,
    },
}

impl Store {
    /// The job of this name.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn job(&self, _name: &JobName) -> Result<Option<JobRow>> {
        todo!()
    }

    /// The job of this identity, unless it was deleted.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn job_by_uid(&self, _job: JobUid) -> Result<Option<JobRow>> {
        todo!()
    }

    /// All jobs, by name.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn jobs(&self) -> Result<Vec<JobRow>> {
        todo!()
    }

    /// Creates a job or replaces its spec, if the precondition holds.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn put_spec(
        &self,
        _name: &JobName,
        _spec: &JobSpec,
        _precondition: &SpecPrecondition,
        _by: &str,
    ) -> Result<PutSpec> {
        todo!()
    }

    /// Changes the startup mode alone, if the spec has the generation given.
    ///
    /// # Errors
    /// `Refused` when there is no such job.
    pub async fn set_startup_mode(
        &self,
        _job: JobUid,
        _mode: &StartupMode,
        _if_match: Option<i64>,
        _by: &str,
    ) -> Result<SetMode> {
        todo!()
    }

    /// Keeps a one-shot start until an operator's start consumes it. The latest one wins; gives back the one it discarded.
    ///
    /// # Errors
    /// `Refused` when there is no such job.
    pub async fn set_pending_start(
        &self,
        _job: JobUid,
        _pending: &PendingStart,
    ) -> Result<Option<PendingStart>> {
        todo!()
    }

    /// Says what the job does now. Fenced.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn set_state(
        &self,
        _lease: &JobLease,
        _state: JobState,
        _failure: Option<&JobFailure>,
    ) -> Result<()> {
        todo!()
    }

    /// Ends a run: state, desired state, lease and operation in one transaction. Fenced; repeating it after an unknown
    /// outcome succeeds. With `keep_desired` the job starts again when a server comes up.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn settle_stopped(
        &self,
        _lease: &JobLease,
        _operation: Option<(&OperationId, &OperationOutcome)>,
        _state: JobState,
        _failure: Option<&JobFailure>,
        _keep_desired: bool,
    ) -> Result<()> {
        todo!()
    }

    /// Ends a start that was refused: the job is stopped, wants what it wanted before, and its lease is released. Fenced;
    /// repeating it after an unknown outcome succeeds.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn refuse_start(
        &self,
        _lease: &JobLease,
        _operation: Option<(&OperationId, &OperationOutcome)>,
        _desired: DesiredState,
    ) -> Result<()> {
        todo!()
    }
}
