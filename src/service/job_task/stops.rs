//! How a run is ended: on request, with its server, or after it.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{
    CLAIM_DEADLINE, EndedRun, FIRST_PAUSE, JobTask, LAST_WORD, SETTLE_RESERVE, Step, Trouble,
    checkpoint_error, failed, note_step,
};
use crate::{
    crash_point::CrashPoint,
    engine::{
        JobEnd, JobHandle, StopOutcome,
        error::JobError,
        ports::{JobLease, Sink},
    },
    model::{
        attempt::AttemptOutcome,
        code::Code,
        job::OnCancel,
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
        operation::Operation,
        start::{StopCheckpoint, StopRequest},
        views::{CheckpointReport, Fence, StopReport},
    },
    service::{
        comparison::totals,
        error::ServiceError,
        jobs::compare_now,
        monitor::refresh_checkpoint,
        sink_progress::make_sink,
        stop_reports::{SinkEnd, claim},
        without_checkpoints::{last_commit, will_replay},
    },
    store::{JobRow, OperationOutcome},
};

impl JobTask {
    pub(super) async fn stop(&mut self, operation: &Operation, request: &StopRequest) {
        let before = self.job.state();
        let until = Instant::now() + request.timeout.0;
        let mut report = None;
        let mut blocked = None;
        // A job that has finished meanwhile stays so: there is nothing to stop.
        let mut state = if before == JobState::Finished {
            before
        } else {
            JobState::Stopped
        };
        if let Some(run) = self.run.clone() {
            let Some(ended) = self.end_run(run, operation, request, until).await else {
                return;
            };
            report = ended.report;
            blocked = ended.blocked;
            state = ended.state;
        }
        let report = match report {
            Some(report) => report,
            None => match self.report_without_run(operation, before, until).await {
                Some(report) => report,
                None => return,
            },
        };
        note_step(&self.core, operation, "the lease is released").await;
        self.failed_run = false;
        self.settle_stop(operation, &report, state, blocked.as_ref())
            .await;
    }

    /// Stops the run for an operation. `None`: it goes on or has failed, and the operation has ended with that.
    pub(super) async fn end_run(
        &mut self,
        run: JobHandle,
        operation: &Operation,
        request: &StopRequest,
        until: Instant,
    ) -> Option<EndedRun> {
        let mut ended = EndedRun {
            report: None,
            blocked: None,
            state: JobState::Stopped,
        };
        let mut how = AttemptOutcome::Stopped;
        self.show(JobState::Stopping);
        let step = if self.job.shared().spec().checkpointing().is_off() {
            "the sink is given time to have everything durable"
        } else {
            "the last checkpoint is being taken"
        };
        note_step(&self.core, operation, step).await;
        if let Some(lease) = self.lease {
            // For whoever reads the store; the stop itself does not depend on it.
            let noted = self.core.store.set_state(&lease, JobState::Stopping, None);
            drop(timeout(FIRST_PAUSE, noted).await);
        }
        match run.stop(request.checkpoint, request.timeout.0).await {
            Err(refused) => {
                self.go_on(operation, &refused.checkpoint).await;
                return None;
            }
            Ok(JobEnd::Stopped(outcome)) => {
                ended.report = Some(self.stop_report(&run, &outcome, until).await);
                let now = self.core.now();
                ended.blocked = outcome.blocked.as_ref().map(|error| error.failure(now));
            }
            Ok(JobEnd::Finished(outcome)) => {
                ended.report = Some(self.stop_report(&run, &outcome, until).await);
                ended.state = JobState::Finished;
                how = AttemptOutcome::Finished;
            }
            Ok(JobEnd::Failed(error)) => {
                self.failed_run = true;
                if matches!(error, JobError::Fenced) {
                    self.lease = None;
                }
                if request.checkpoint == StopCheckpoint::Required
                    && !matches!(error, JobError::Fenced)
                {
                    self.forget_run();
                    let failure = error.failure(self.core.now());
                    let outcome = AttemptOutcome::Failed;
                    self.note_end(outcome, Some(&failure)).await;
                    let refused = ServiceError::new(
                        Code::JobFailed,
                        format!(
                            "the job failed while it was being stopped: {}",
                            failure.summary
                        ),
                    )
                    .job(&self.job.name);
                    self.fail(failure).await;
                    self.finish(operation, &failed("the job failed", &refused))
                        .await;
                    return None;
                }
                tracing::warn!(job = %self.job.name, %error, "the run failed while it was being stopped");
                how = AttemptOutcome::Failed;
                ended.blocked = Some(error.failure(self.core.now()));
            }
        }
        self.keep_parked().await;
        self.forget_run();
        self.note_end(how, ended.blocked.as_ref()).await;
        // Whoever waits for the stop sees its last checkpoint in every view.
        refresh_checkpoint(&self.core, &self.job).await;
        Some(ended)
    }

    /// Ends a job whose run is over: the store's row, the lease and the operation in one transaction.
    pub(super) async fn settle_stop(
        &mut self,
        operation: &Operation,
        report: &StopReport,
        state: JobState,
        blocked: Option<&JobFailure>,
    ) {
        let row = self.job.row();
        let deletes =
            state == JobState::Stopped && row.spec.checkpoint.on_cancel == OnCancel::Delete;
        let mut report = report.clone();
        if deletes {
            // Whatever was said of the checkpoints holds no longer.
            report.will_replay = None;
            report.resume_from = SinkEnd::quiet(report.fence).resume_from(None, &row.spec);
        }
        let outcome = OperationOutcome::Succeeded {
            changed: true,
            step: "released".to_owned(),
            result: json!(report),
        };
        loop {
            let lease = match self.own_to_settle().await {
                Ok(lease) => lease,
                Err(Trouble::Refused(error)) => {
                    return self
                        .finish(operation, &failed("the lease is taken", &error))
                        .await;
                }
                Err(_) => return,
            };
            let core = Arc::clone(&self.core);
            let settled = self
                .settle(|| async {
                    let ended = Some((&operation.id, &outcome));
                    CrashPoint::BeforeStopSettled.reached();
                    let rests = if deletes {
                        core.store
                            .settle_canceled(&lease, (&operation.id, &outcome), blocked)
                            .await?
                    } else {
                        core.store
                            .settle_stopped(&lease, ended, state, blocked, false)
                            .await?
                    };
                    CrashPoint::StopSettled.reached();
                    Ok(rests)
                })
                .await;
            match settled {
                Ok(rests) => {
                    self.lease = None;
                    self.show_row(rests, Some(DesiredState::Stopped), None);
                    refresh_checkpoint(&self.core, &self.job).await;
                    self.core.refresh(&self.job).await;
                    self.core.announce(&operation.id);
                    self.job.measure_soon.notify_one();
                    return;
                }
                Err(Trouble::Fenced) => self.lease = None,
                Err(Trouble::Refused(error)) => {
                    return self
                        .finish(operation, &failed("the stop is stored", &error))
                        .await;
                }
                Err(Trouble::Away { .. } | Trouble::Interrupted) => return,
            }
        }
    }

    /// A required stop whose checkpoint failed: the job goes on.
    pub(super) async fn go_on(&mut self, operation: &Operation, checkpoint: &CheckpointReport) {
        self.show(JobState::Running);
        if let Some(lease) = self.lease
            && let Err(error) = self
                .core
                .store
                .set_state(&lease, JobState::Running, None)
                .await
        {
            tracing::debug!(job = %self.job.name, %error, "the state cannot be noted");
        }
        self.job.shared().row.desired_state = DesiredState::Running;
        let error = checkpoint_error(&self.job, checkpoint).hint(
            "The job goes on. Stop it with checkpoint best-effort or none to stop it in any case.",
        );
        self.finish(operation, &failed("the job goes on", &error))
            .await;
    }

    /// The lease that settles the end of a run: held, or taken again from a dead owner.
    pub(super) async fn own_to_settle(&mut self) -> Step<JobLease> {
        if let Some(lease) = self.lease {
            return Ok(lease);
        }
        let core = Arc::clone(&self.core);
        let uid = self.job.uid;
        let lease = self
            .settle(|| async {
                let incarnation = core.incarnation.borrow().clone();
                let Some(incarnation) = incarnation else {
                    return Err(Trouble::Interrupted);
                };
                let lease = core.store.take_lease(uid, &incarnation).await?;
                lease.ok_or_else(|| Trouble::Away {
                    code: Code::LeaseLost,
                    detail: "another live server holds the job".to_owned(),
                })
            })
            .await?;
        self.lease = Some(lease);
        self.lease_is_used = false;
        Ok(lease)
    }

    pub(super) async fn stop_report(
        &self,
        run: &JobHandle,
        outcome: &StopOutcome,
        until: Instant,
    ) -> StopReport {
        let completed = outcome
            .checkpoint
            .as_ref()
            .filter(|report| report.failure.is_none());
        let end = match (&self.sink, self.lease) {
            (Some(sink), _) if !sink.has_fence() => SinkEnd::quiet(Fence::None),
            // Without a checkpoint that covers everything only the sink knows what it kept. Its claim waits for a write that
            // was cut off half-way.
            (Some(sink), Some(lease)) if completed.is_none() => {
                self.claim(&**sink, &lease, until).await
            }
            (Some(_) | None, _) => SinkEnd::quiet(Fence::Closed),
        };
        // Whoever waits for the stop sees its last checkpoint in every view.
        refresh_checkpoint(&self.core, &self.job).await;
        let status = run.status();
        let facts = self.job.shared();
        let view = compare_now(&self.core, &self.job.name, &facts, Some(&status.partitions));
        let stored = facts.checkpoint.value.as_ref().and_then(Option::as_ref);
        let nothing = BTreeMap::new();
        // The store may be away: then the run's own words count.
        let newest = completed
            .map(|report| report.id)
            .or_else(|| status.last_checkpoint.as_ref().map(|last| last.id));
        let is_off = facts.spec().checkpointing().is_off();
        // The next start goes by the declared spec.
        let has_no_state = is_off || facts.row.spec.checkpointing().is_off();
        let newest = newest.filter(|_| !has_no_state);
        let newest = newest.map(|id| match stored.filter(|stored| stored.id == id) {
            Some(stored) => (id, &stored.positions),
            None => (id, &nothing),
        });
        let (checkpoint, commit) = match outcome.checkpoint.clone() {
            Some(report) if is_off => (None, Some(last_commit(&report))),
            report => (report, None),
        };
        let replayed = if has_no_state {
            will_replay(&facts.row.spec, commit.as_ref())
        } else {
            outcome.will_replay
        };
        StopReport {
            checkpoint,
            group_commit: commit,
            position_lag: totals(&view, true).position_lag,
            will_replay: end.will_replay(replayed),
            resume_from: end.resume_from(newest, &facts.row.spec),
            fence: end.fence,
            warnings: end.warnings(),
        }
    }

    /// The report of a stop that found no run: it died with its server, it never began, or it had failed. `None` when the
    /// stop is left to the next server.
    pub(super) async fn report_without_run(
        &mut self,
        operation: &Operation,
        before: JobState,
        until: Instant,
    ) -> Option<StopReport> {
        let row = self.job.row();
        let end = if row.running.is_some() && !self.failed_run {
            let lease = match self.own_to_settle().await {
                Ok(lease) => lease,
                Err(Trouble::Refused(error)) => {
                    let outcome = failed("the lease is taken", &error);
                    self.finish(operation, &outcome).await;
                    return None;
                }
                Err(_) => return None,
            };
            note_step(&self.core, operation, "the sink is claimed").await;
            self.claim_of_dead_owner(&row, &lease, until).await
        } else {
            SinkEnd::of_closed(&self.core, &row).await
        };
        if self.core.stopping.is_cancelled() {
            return None;
        }
        let newest = self.core.store.latest_checkpoint(self.job.uid).await;
        let newest = newest.ok().flatten();
        let newest = newest.filter(|_| !row.spec.checkpointing().is_off());
        let newest = newest.as_ref().map(|newest| (newest.id, &newest.positions));
        // A start that never came to consume gave nothing to its sink; of a run that died or failed nobody knows.
        let has_run = matches!(before, JobState::Failed | JobState::BackingOff);
        let never_began = !has_run && row.running.is_none() && !self.failed_run;
        Some(StopReport {
            checkpoint: None,
            group_commit: None,
            position_lag: None,
            will_replay: end.will_replay(never_began.then_some(0)),
            resume_from: end.resume_from(newest, &row.spec),
            fence: end.fence,
            warnings: end.warnings(),
        })
    }

    /// Keeps a dead owner away from the target that it wrote to, which need not be the one that the spec names now.
    pub(super) async fn claim_of_dead_owner(
        &self,
        row: &JobRow,
        lease: &JobLease,
        until: Instant,
    ) -> SinkEnd {
        let spec = row.running_spec();
        let sink = match self.core.install().await {
            Ok(install) => make_sink(&self.core, &spec.sink, &row.name, (install, row.uid)),
            Err(error) => Err(error),
        };
        match sink {
            Ok(sink) if sink.has_fence() => self.claim(&*sink, lease, until).await,
            Ok(_) => SinkEnd::quiet(Fence::None),
            Err(error) => SinkEnd::unknown(error.detail),
        }
    }

    pub(super) async fn claim(&self, sink: &dyn Sink, lease: &JobLease, until: Instant) -> SinkEnd {
        let left = until.saturating_duration_since(Instant::now());
        let claimed = tokio::select! {
            claimed = claim(sink, lease.epoch, left.max(LAST_WORD)) => SinkEnd::of_claim(claimed),
            () = self.core.stopping.cancelled() => SinkEnd::unknown("the server goes down".to_owned()),
        };
        if claimed.fence == Fence::Open {
            tracing::warn!(job = %self.job.name, "the sink is not claimed yet; the next start does it");
        }
        claimed
    }

    /// Ends what a dead owner left half-way, for a job that should not run.
    pub(super) async fn settle_leftovers(&mut self) {
        if self.own_to_settle().await.is_err() {
            return;
        }
        let Some(lease) = self.lease else {
            return;
        };
        let row = self.job.row();
        if row.running.is_some() {
            let until = Instant::now() + CLAIM_DEADLINE;
            self.claim_of_dead_owner(&row, &lease, until).await;
        }
        if self.core.stopping.is_cancelled() {
            return;
        }
        let settled = self.settle_as(&lease, JobState::Stopped, None, false).await;
        self.lease = None;
        if let Ok(state) = settled {
            self.show_row(state, Some(DesiredState::Stopped), None);
            self.core.refresh(&self.job).await;
        }
    }

    /// The server goes down: a last checkpoint, and the job starts again when a server comes up.
    pub(super) async fn shut_down(mut self) {
        let mut state = JobState::Stopped;
        if let Some(run) = self.run.clone() {
            let left = self.core.shutdown_time_left();
            let patience = left.saturating_sub(SETTLE_RESERVE).max(FIRST_PAUSE);
            self.show(JobState::Stopping);
            let stop = run.stop(StopCheckpoint::BestEffort, patience);
            // The stop keeps to its time; the outer limit is for a part that hangs.
            match timeout(left, stop).await {
                Ok(Ok(JobEnd::Failed(error))) => {
                    tracing::warn!(job = %self.job.name, %error, "the run failed while the server went down");
                }
                Ok(Ok(JobEnd::Finished(_))) => state = JobState::Finished,
                Ok(Ok(JobEnd::Stopped(_)) | Err(_)) => {}
                Err(_elapsed) => {
                    tracing::warn!(job = %self.job.name, "the run did not end in time");
                }
            }
            self.forget_run();
            let how = if state == JobState::Finished {
                AttemptOutcome::Finished
            } else {
                AttemptOutcome::ServerStopped
            };
            self.note_end(how, None).await;
        }
        let Some(lease) = self.lease else {
            return;
        };
        // The pause after a crash is not shortened by the server's own.
        if self.job.state() == JobState::BackingOff {
            state = JobState::BackingOff;
        }
        // A job that has come to its ends does not start again by itself.
        let keep_desired = state != JobState::Finished;
        let settled = self.settle_as(&lease, state, None, keep_desired).await;
        if settled.is_err() {
            tracing::warn!(job = %self.job.name, "the lease is left to run out");
        }
    }
}
