//! What can be asked of the server, independent of HTTP.

mod comparison;
pub mod error;
mod queries;

use std::{sync::Arc, time::Duration};

use serde_json::Value;

pub use self::{
    error::{Result, ServiceError},
    queries::{
        Accepted, Caller, CheckpointQuery, CheckpointRef, JobFilter, JobMetrics, JobSort,
        OffsetsQuery, Only, OperationQuery, PartitionFilter, PartitionMetrics, Readiness,
        ReadinessCheck, SpecPrecondition,
    },
};
use crate::model::{
    ids::{JobName, OperationId},
    job::JobSpec,
    operation::Operation,
    start::{CheckpointRequest, StartRequest, StopRequest},
    views::{
        CheckpointList, CheckpointView, JobList, JobView, OffsetsView, OperationList, SpecApplied,
        StartPlanView, StartupModeView,
    },
};

/// Everything the HTTP layer may ask for. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {}

impl Service {
    /// Lists jobs from what was measured last; never waits for a broker.
    ///
    /// # Errors
    /// `invalid-cursor`; `store-unreachable` before the jobs were ever read.
    pub async fn list_jobs(&self, filter: &JobFilter) -> Result<JobList> {
        todo!()
    }

    /// Shows one job.
    ///
    /// # Errors
    /// `job-not-found`, `store-unreachable`.
    pub async fn job(&self, job: &JobName) -> Result<JobView> {
        todo!()
    }

    /// Shows a job's spec and its generation.
    ///
    /// # Errors
    /// `job-not-found`, `store-unreachable`.
    pub async fn spec(&self, job: &JobName) -> Result<(JobSpec, i64)> {
        todo!()
    }

    /// Creates or replaces a spec. The flag says whether the job was created; the operation is the start that
    /// `start_on_create` asked for.
    ///
    /// # Errors
    /// `unknown-member`, `invalid-spec` with every fault, `stale-generation`, `already-exists`, `group-id-taken`,
    /// `timestamp-in-future`, `store-unreachable`.
    pub async fn put_spec(
        &self,
        job: &JobName,
        document: &Value,
        precondition: SpecPrecondition,
        dry_run: bool,
        start_on_create: bool,
        caller: &Caller,
    ) -> Result<(SpecApplied, bool, Option<Operation>)> {
        todo!()
    }

    /// Changes a spec by a JSON merge patch (RFC 7396).
    ///
    /// # Errors
    /// As [`Service::put_spec`], and `job-not-found`.
    pub async fn patch_spec(
        &self,
        job: &JobName,
        patch: &Value,
        if_match: Option<i64>,
        dry_run: bool,
        caller: &Caller,
    ) -> Result<SpecApplied> {
        todo!()
    }

    /// Shows the startup mode and whether it counts.
    ///
    /// # Errors
    /// `job-not-found`, `store-unreachable`.
    pub async fn startup_mode(&self, job: &JobName) -> Result<StartupModeView> {
        todo!()
    }

    /// Changes the startup mode. With a checkpoint present the body must say what is meant (`apply`).
    ///
    /// # Errors
    /// `startup-mode-shadowed` with the choices, `stale-generation`, `timestamp-in-future`, `unknown-member`,
    /// `invalid-spec`, `job-not-found`, `store-unreachable`.
    pub async fn set_startup_mode(
        &self,
        job: &JobName,
        document: &Value,
        if_match: Option<i64>,
        dry_run: bool,
        caller: &Caller,
    ) -> Result<StartupModeView> {
        todo!()
    }

    /// Says where a start would begin, partition by partition; also the dry run of a start.
    ///
    /// # Errors
    /// `job-not-found`, `checkpoint-not-found`, `timestamp-in-future`, `kafka-unreachable`, `store-unreachable`.
    pub async fn start_plan(&self, job: &JobName, request: &StartRequest) -> Result<StartPlanView> {
        todo!()
    }

    /// Asks for a start.
    ///
    /// # Errors
    /// `job-running` when the job runs and the body names a position, `operation-in-progress`, `plan-stale`,
    /// `plan-expired`, `timestamp-in-future`, `job-not-found`, `idempotency-key-reused`, `store-unreachable`.
    pub async fn start(
        &self,
        job: &JobName,
        request: &StartRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        todo!()
    }

    /// Asks for a stop.
    ///
    /// # Errors
    /// `operation-in-progress`, `job-not-found`, `idempotency-key-reused`, `store-unreachable`.
    pub async fn stop(
        &self,
        job: &JobName,
        request: &StopRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        todo!()
    }

    /// Asks for a checkpoint.
    ///
    /// # Errors
    /// `job-not-running`, `job-not-found`, `idempotency-key-reused`, `store-unreachable`.
    pub async fn trigger_checkpoint(
        &self,
        job: &JobName,
        request: &CheckpointRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        todo!()
    }

    /// Lists checkpoints, newest first.
    ///
    /// # Errors
    /// `job-not-found`, `invalid-cursor`, `store-unreachable`.
    pub async fn checkpoints(
        &self,
        job: &JobName,
        query: &CheckpointQuery,
    ) -> Result<CheckpointList> {
        todo!()
    }

    /// Shows one checkpoint with its positions.
    ///
    /// # Errors
    /// `job-not-found`, `checkpoint-not-found`, `store-unreachable`.
    pub async fn checkpoint(&self, job: &JobName, which: CheckpointRef) -> Result<CheckpointView> {
        todo!()
    }

    /// Shows a job's offsets. Each source that does not answer leaves its numbers out.
    ///
    /// # Errors
    /// `job-not-found`; `store-unreachable` for a job that was never read.
    pub async fn offsets(&self, job: &JobName, query: &OffsetsQuery) -> Result<OffsetsView> {
        todo!()
    }

    /// Shows an operation.
    ///
    /// # Errors
    /// `operation-not-found`, `store-unreachable`.
    pub async fn operation(&self, id: &OperationId) -> Result<Operation> {
        todo!()
    }

    /// Waits until an operation has ended, or for as long as said, and shows it.
    ///
    /// # Errors
    /// `operation-not-found`, `store-unreachable`.
    pub async fn wait_for_operation(&self, id: &OperationId, wait: Duration) -> Result<Operation> {
        todo!()
    }

    /// Lists operations, newest first.
    ///
    /// # Errors
    /// `job-not-found`, `invalid-cursor`, `store-unreachable`.
    pub async fn operations(&self, query: &OperationQuery) -> Result<OperationList> {
        todo!()
    }

    /// Whether this server can take requests.
    pub async fn readiness(&self) -> Readiness {
        todo!()
    }

    /// The newest numbers of every job; never waits.
    #[must_use]
    pub fn metrics(&self) -> Vec<JobMetrics> {
        todo!()
    }
}
