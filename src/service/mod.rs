//! What can be asked of the server, independent of HTTP.

mod after_stop;
mod attempts;
mod bounded;
mod checkpoints;
mod comparison;
mod connections;
mod core;
mod dead_letters;
mod deletions;
pub mod error;
mod events;
mod job_task;
mod jobs;
mod lease_keeper;
mod monitor;
mod next_steps;
mod offsets;
mod oldest_unread;
mod operations;
mod queries;
mod records;
mod recreated;
mod reset_offsets;
mod restart;
mod retention;
mod series;
#[cfg(test)]
mod simulation;
mod sink_look;
mod sink_progress;
mod skip;
mod specs;
mod stages;
mod start_plans;
mod startup_mode;
mod stop_reports;
mod supervisor;
mod without_checkpoints;

use std::{sync::Arc, time::Duration};

use serde_json::Value;

pub use self::{
    connections::{Clusters, Connections, JobsByConnection, NotReplaced, TargetChanges},
    core::Settings,
    error::{Result, ServiceError},
    queries::{
        Accepted, AttemptQuery, Caller, CheckpointQuery, CheckpointRef, EventQuery, JobFilter,
        JobMetrics, JobSort, OffsetsQuery, Only, OperationQuery, PartitionFilter, PartitionMetrics,
        Readiness, ReadinessCheck, RecordsQuery, SeriesQuery, SpecPrecondition,
    },
    series::{SERIES_COARSE, SERIES_FINE, SERIES_OF_PARTITION, SERIES_RECENT, SERIES_WINDOW},
};
use self::{core::Core, lease_keeper::InstanceLock};
use crate::model::{
    deletion::DeleteRequest,
    group_reset::ResetRequest,
    ids::{JobName, OperationId},
    job::JobSpec,
    operation::Operation,
    skip::SkipRequest,
    start::{CheckpointRequest, RestartRequest, StartRequest, StopRequest},
    views::{
        AttemptList, CheckpointList, CheckpointView, DeleteReport, EventList, JobList, JobView,
        OffsetsView, OperationList, RecordsView, ResetReport, SeriesView, SkipReport, SpecApplied,
        StartPlanView, StartupModeView,
    },
};
use crate::{
    engine::ports::{Clock, SinkFactory},
    store::Store,
};

/// Everything the HTTP layer may ask for. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    core: Arc<Core>,
}

/// What [`App`](crate::app::App) keeps of the services: their background work and their end.
pub struct Running {
    core: Arc<Core>,
    // Held until the server has ended.
    _lock: InstanceLock,
}

impl Running {
    /// Claims the instance id and renews the claim; ends with an error when it is lost.
    pub fn keep_lease(&self) -> impl Future<Output = Result<()>> + Send + 'static {
        lease_keeper::keep_lease(Arc::clone(&self.core))
    }

    /// Runs the jobs until the server goes down and the last of them has ended.
    pub fn supervise(&self) -> impl Future<Output = ()> + Send + 'static {
        supervisor::supervise(Arc::clone(&self.core))
    }

    /// The Kafka connections, to replace them.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections::new(Arc::clone(&self.core))
    }

    /// From now on nothing new is taken on and the jobs end.
    pub fn begin_shutdown(&self) {
        self.core.begin_shutdown();
    }

    /// How much of the shutdown's time is left.
    #[must_use]
    pub fn shutdown_time_left(&self) -> Duration {
        self.core.shutdown_time_left()
    }

    /// Lets the instance id go, so that another server can take the jobs at once.
    pub async fn release_instance(&self) {
        let incarnation = self.core.incarnation.borrow().clone();
        if let Some(incarnation) = incarnation
            && let Err(error) = self.core.store.release_instance(&incarnation).await
        {
            tracing::warn!(%error, "the instance id runs out by itself");
        }
    }
}

impl Service {
    /// Makes the services, and what runs them.
    ///
    /// # Errors
    /// `instance-id-in-use` when another process of this host runs under the instance id.
    pub fn new(
        store: Store,
        clusters: Clusters,
        sinks: Arc<dyn SinkFactory>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<(Self, Running)> {
        let lock = InstanceLock::take(&settings.lock_dir, &settings.instance)?;
        let core = Arc::new(Core::new(store, clusters, sinks, clock, settings));
        let service = Self {
            core: Arc::clone(&core),
        };
        Ok((service, Running { core, _lock: lock }))
    }

    /// Lists jobs from what was measured last; never waits for a broker.
    ///
    /// # Errors
    /// `invalid-cursor`; `store-unreachable` before the jobs were ever read.
    pub async fn list_jobs(&self, filter: &JobFilter) -> Result<JobList> {
        self.find_jobs(filter).await
    }

    /// Shows one job.
    ///
    /// # Errors
    /// `job-not-found`, `store-unreachable`.
    pub async fn job(&self, job: &JobName) -> Result<JobView> {
        self.show_job(job).await
    }

    /// Shows a job's spec and its generation.
    ///
    /// # Errors
    /// `job-not-found`, `store-unreachable`.
    pub async fn spec(&self, job: &JobName) -> Result<(JobSpec, i64)> {
        self.read_spec(job).await
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
        self.apply_spec(
            job,
            document,
            precondition,
            dry_run,
            start_on_create,
            caller,
        )
        .await
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
        self.merge_spec(job, patch, if_match, dry_run, caller).await
    }

    /// Shows the startup mode and whether it counts.
    ///
    /// # Errors
    /// `job-not-found`, `store-unreachable`.
    pub async fn startup_mode(&self, job: &JobName) -> Result<StartupModeView> {
        self.show_startup_mode(job).await
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
        self.change_startup_mode(job, document, if_match, dry_run, caller)
            .await
    }

    /// Calls off the start that was asked for ahead with `apply: next-start`: whichever it is, or only the one of this id.
    /// None there is no error.
    ///
    /// # Errors
    /// `operation-in-progress` (a start that may use it), `job-not-found`, `store-unreachable`.
    pub async fn cancel_next_start(
        &self,
        job: &JobName,
        only: Option<&str>,
        caller: &Caller,
    ) -> Result<StartupModeView> {
        self.call_off_next_start(job, only, caller).await
    }

    /// Says where a start would begin, partition by partition; also the dry run of a start.
    ///
    /// # Errors
    /// `job-not-found`, `checkpoint-not-found`, `timestamp-in-future`, `kafka-unreachable`, `store-unreachable`.
    pub async fn start_plan(&self, job: &JobName, request: &StartRequest) -> Result<StartPlanView> {
        self.show_start_plan(job, request).await
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
        self.ask_start(job, request, caller).await
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
        self.ask_stop(job, request, caller).await
    }

    /// Asks for the consumer group to be moved. The job itself is not moved by it.
    ///
    /// # Errors
    /// `job-running`, `job-not-stopped`, `operation-in-progress`, `idempotency-key-reused`, `timestamp-in-future`,
    /// `job-not-found`, `store-unreachable`. What is found out later fails the operation: `group-in-use`,
    /// `offset-out-of-range` and the other reasons of [`Service::reset_plan`].
    pub async fn reset_offsets(
        &self,
        job: &JobName,
        request: &ResetRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        self.ask_reset(job, request, caller).await
    }

    /// Says where a reset would move the group; moves nothing.
    ///
    /// # Errors
    /// `job-running`, `job-not-stopped`, `group-in-use`, `checkpoint-not-found`, `timestamp-in-future`, `job-not-found`,
    /// `store-unreachable`, what Kafka says, and with every partition that cannot go where it was sent:
    /// `offset-out-of-range`, `unknown-partition`, `unknown-topic`, `group-missing`, `no-leader`, `topic-recreated`.
    pub async fn reset_plan(&self, job: &JobName, request: &ResetRequest) -> Result<ResetReport> {
        self.plan_reset(job, request).await
    }

    /// Asks for a job to be deleted; `confirm` must be its name.
    ///
    /// # Errors
    /// `job-not-found`, `not-confirmed`, `job-running`, `operation-in-progress`, `store-unreachable`. With the group to be
    /// deleted the operation may fail with `group-in-use` or what Kafka says, and then nothing was deleted.
    pub async fn delete(
        &self,
        job: &JobName,
        request: DeleteRequest,
        confirm: Option<&str>,
        caller: &Caller,
    ) -> Result<Accepted> {
        self.ask_delete(job, request, confirm, caller).await
    }

    /// Says what a deletion would delete; deletes nothing.
    ///
    /// # Errors
    /// As [`Service::delete`], without `confirm` too.
    pub async fn delete_plan(
        &self,
        job: &JobName,
        request: DeleteRequest,
        confirm: Option<&str>,
    ) -> Result<DeleteReport> {
        self.plan_delete(job, request, confirm).await
    }

    /// Asks for a restart: a stop and a start as one operation.
    ///
    /// # Errors
    /// As [`Service::start`], and `plan-stale` at once for a plan that the stop's checkpoint would make stale.
    pub async fn restart(
        &self,
        job: &JobName,
        request: &RestartRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        self.ask_restart(job, request, caller).await
    }

    /// Asks to step over the record that a job failed at.
    ///
    /// # Errors
    /// `not-blocked-there`, `operation-in-progress`, `job-not-found`, `idempotency-key-reused`, `store-unreachable`.
    pub async fn skip(
        &self,
        job: &JobName,
        request: &SkipRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        self.ask_skip(job, request, caller).await
    }

    /// Says what a skip would do; the dry run of a skip.
    ///
    /// # Errors
    /// `not-blocked-there`, `start-blocked`, `unknown-partition`, `job-not-found`, `kafka-unreachable`, `kafka-timeout`,
    /// `sink-error`, `store-unreachable`.
    pub async fn skip_plan(&self, job: &JobName, request: &SkipRequest) -> Result<SkipReport> {
        self.plan_skip(job, request).await
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
        self.ask_checkpoint(job, request, caller).await
    }

    /// Lists the runs of a job, newest first.
    ///
    /// # Errors
    /// `job-not-found`, `invalid-cursor`, `store-unreachable`.
    pub async fn attempts(&self, job: &JobName, query: &AttemptQuery) -> Result<AttemptList> {
        self.find_attempts(job, query).await
    }

    /// Lists what happened to a job, newest first.
    ///
    /// # Errors
    /// `job-not-found`, `invalid-cursor`, `invalid-request` for a kind that does not exist, `store-unreachable`.
    pub async fn events(&self, job: &JobName, query: &EventQuery) -> Result<EventList> {
        self.find_events(job, query).await
    }

    /// Shows numbers of a job over time.
    ///
    /// # Errors
    /// `job-not-found`; `store-unreachable` for a job that was never read.
    pub async fn series(&self, job: &JobName, query: &SeriesQuery) -> Result<SeriesView> {
        self.show_series(job, query).await
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
        self.find_checkpoints(job, query).await
    }

    /// Shows one checkpoint with its positions.
    ///
    /// # Errors
    /// `job-not-found`, `checkpoint-not-found`, `store-unreachable`.
    pub async fn checkpoint(&self, job: &JobName, which: CheckpointRef) -> Result<CheckpointView> {
        self.show_checkpoint(job, which).await
    }

    /// Shows a job's offsets. Each source that does not answer leaves its numbers out.
    ///
    /// # Errors
    /// `job-not-found`; `store-unreachable` for a job that was never read.
    pub async fn offsets(&self, job: &JobName, query: &OffsetsQuery) -> Result<OffsetsView> {
        self.show_offsets(job, query).await
    }

    /// Shows records at an offset, and notes in the history who looked.
    ///
    /// # Errors
    /// `record-not-found` with the next existing offset, `offset-out-of-range`, `unknown-topic`, `job-not-found`,
    /// `kafka-unreachable`, `kafka-timeout`, `store-unreachable`.
    pub async fn records(
        &self,
        job: &JobName,
        query: &RecordsQuery,
        caller: &Caller,
    ) -> Result<RecordsView> {
        self.look_at_records(job, query, caller).await
    }

    /// Shows an operation.
    ///
    /// # Errors
    /// `operation-not-found`, `store-unreachable`.
    pub async fn operation(&self, id: &OperationId) -> Result<Operation> {
        self.read_operation(id).await
    }

    /// Waits until an operation has ended, or for as long as said, and shows it.
    ///
    /// # Errors
    /// `operation-not-found`, `store-unreachable`.
    pub async fn wait_for_operation(&self, id: &OperationId, wait: Duration) -> Result<Operation> {
        self.await_operation(id, wait).await
    }

    /// Lists operations, newest first.
    ///
    /// # Errors
    /// `job-not-found`, `invalid-cursor`, `store-unreachable`.
    pub async fn operations(&self, query: &OperationQuery) -> Result<OperationList> {
        self.find_operations(query).await
    }

    /// Whether this server can take requests.
    pub async fn readiness(&self) -> Readiness {
        self.check_readiness().await
    }

    /// The newest numbers of every job; never waits.
    #[must_use]
    pub fn metrics(&self) -> Vec<JobMetrics> {
        self.collect_metrics()
    }
}
