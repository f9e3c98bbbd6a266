//! What follows when a run ends without being asked to.

use std::time::Duration;

use tokio::time::Instant;

use super::{JobTask, LAST_PAUSE, Step, Trouble};
use crate::{
    crash_point::CrashPoint,
    engine::{
        JobEnd,
        error::{ConsumerError, ErrorClass, JobError},
        ports::JobLease,
    },
    model::{
        attempt::{AttemptKind, AttemptOutcome},
        code::Code,
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
        restart::{CrashLoop, Decision},
    },
    service::{
        monitor::{refresh_bounded_run, refresh_checkpoint},
        without_checkpoints::LastRun,
    },
    store::{AttemptEnd, NeverBegun},
};

impl JobTask {
    pub(super) async fn run_ended(&mut self, end: JobEnd) {
        let finished = matches!(end, JobEnd::Finished(_));
        self.failed_run = !finished;
        self.keep_parked().await;
        let ran_for = self.run_since.elapsed();
        self.forget_run();
        refresh_checkpoint(&self.core, &self.job).await;
        if ran_for >= LAST_PAUSE {
            self.restarts = 0;
        }
        let error = match end {
            JobEnd::Failed(error) => error,
            JobEnd::Stopped(_) => JobError::Panicked {
                part: "job task".to_owned(),
                detail: "it ended without being asked to".to_owned(),
            },
            JobEnd::Finished(_) => return self.run_finished().await,
        };
        let failure = error.failure(self.core.now());
        match error {
            JobError::Fenced => {
                tracing::warn!(job = %self.job.name, "the lease was lost; it is taken again if nobody else holds it");
                self.lease = None;
                self.show(JobState::Starting);
                self.start_later();
            }
            JobError::Consumer(ConsumerError::Kafka(ref cause))
                if cause.class == ErrorClass::Infrastructure =>
            {
                self.wait_for(cause.code, &error.to_string());
                self.restart(&failure).await;
            }
            JobError::Sink(ref cause) if cause.class == ErrorClass::Infrastructure => {
                self.wait_for(Code::SinkError, &error.to_string());
                self.restart(&failure).await;
            }
            JobError::Decode { .. }
            | JobError::DeadLetter { .. }
            | JobError::Consumer(_)
            | JobError::Sink(_) => {
                self.note_end(AttemptOutcome::Failed, Some(&failure)).await;
                self.fail(failure).await;
            }
            JobError::Store(_) | JobError::Panicked { .. } => {
                self.crashed(failure, ran_for, None).await;
            }
        }
    }

    /// A bounded run has come to its ends, its last checkpoint is stored and the group knows it.
    pub(super) async fn run_finished(&mut self) {
        self.note_end(AttemptOutcome::Finished, None).await;
        let Some(lease) = self.lease else {
            return self.start_later();
        };
        // Whoever sees the state sees its last checkpoint.
        refresh_checkpoint(&self.core, &self.job).await;
        CrashPoint::BeforeStopSettled.reached();
        let finished = self
            .settle_as(&lease, JobState::Finished, None, false)
            .await;
        self.lease = None;
        match finished {
            Ok(state) => {
                tracing::info!(job = %self.job.name, "the bounded run has ended");
                refresh_bounded_run(&self.core, &self.job).await;
                self.show_row(state, Some(DesiredState::Stopped), None);
                self.core.refresh(&self.job).await;
                self.job.measure_anew();
            }
            // Whoever takes the job up finds all its ends reached, and finishes it again.
            Err(_) => self.start_later(),
        }
    }

    /// Begins again from the newest checkpoint, under a new epoch, after something outside was away.
    async fn restart(&mut self, cause: &JobFailure) {
        self.show(JobState::Starting);
        self.note_end(AttemptOutcome::Outage, Some(cause)).await;
        self.next_kind = AttemptKind::AfterOutage;
        if let Some(lease) = self.lease {
            let released = self.settle_as(&lease, JobState::Stopped, None, true).await;
            if released.is_ok() {
                self.lease = None;
            }
        }
        self.start_later();
    }

    /// Ends a run in the store: its state and the released lease in one transaction. A job that should run as before keeps
    /// its desired state.
    pub(super) async fn settle_as(
        &self,
        lease: &JobLease,
        state: JobState,
        failure: Option<&JobFailure>,
        keep_desired: bool,
    ) -> Step<JobState> {
        let store = &self.core.store;
        self.settle(|| async {
            Ok(store
                .settle_stopped(lease, None, state, failure, keep_desired)
                .await?)
        })
        .await
    }

    pub(super) async fn fail(&mut self, failure: JobFailure) {
        tracing::error!(job = %self.job.name, code = %failure.code, summary = failure.summary, "the job failed");
        self.show_row(JobState::Failed, None, Some(&failure));
        let Some(lease) = self.lease else {
            return;
        };
        let settled = self
            .settle_as(&lease, JobState::Failed, Some(&failure), true)
            .await;
        if settled.is_ok() {
            self.lease = None;
            self.core.refresh(&self.job).await;
        }
    }

    /// Nobody knows whether the next run would crash, too: the restart strategy decides. The lease is kept meanwhile, so no
    /// other server comes in between; the next run takes a new epoch.
    pub(super) async fn crashed(
        &mut self,
        mut failure: JobFailure,
        ran_for: Duration,
        never_begun: Option<NeverBegun>,
    ) {
        self.ran_for = Duration::ZERO;
        let (strategy, before) = {
            let facts = self.job.shared();
            (facts.row.spec.restart.clone(), facts.row.crash_loop.clone())
        };
        let dice = fastrand::f64();
        let (now, ended_at) = (self.core.now(), Instant::now());
        let (crash_loop, decision) =
            CrashLoop::after_crash(before, &strategy, &failure, ran_for, now, dice);
        let (records, bytes) = self.ended_run.take().unwrap_or_default();
        let end = AttemptEnd {
            outcome: AttemptOutcome::Crashed,
            cause: Some(failure.clone()),
            records,
            bytes,
            first_of_loop: crash_loop.failures.len() == 1,
        };
        // Before it is shown: what somebody has seen is not forgotten by a server that dies now.
        if let Some(lease) = self.lease {
            let store = &self.core.store;
            let noted = self
                .settle(|| async {
                    let never_begun = never_begun.as_ref();
                    Ok(store
                        .crashed(&lease, &crash_loop, &end, never_begun)
                        .await?)
                })
                .await;
            if matches!(noted, Err(Trouble::Fenced)) {
                self.lease = None;
            }
        }
        {
            let mut facts = self.job.shared();
            facts.counters.crashes += 1;
            facts.row.crash_loop = Some(crash_loop.clone());
        }
        if let Decision::RestartAfter(pause) = &decision {
            let (cause, restart) = (&failure.summary, crash_loop.restarts);
            tracing::error!(job = %self.job.name, cause, restart, ?pause, "the job crashed and is started again after a pause");
            self.start_at = ended_at + *pause;
            self.next_kind = AttemptKind::AfterCrash;
            self.show_row(JobState::BackingOff, None, None);
        }
        if let Decision::GiveUp(why) = decision {
            failure.summary = format!("{}; {why}", failure.summary);
            self.fail(failure).await;
        }
    }

    /// Notes how the run ended that was forgotten last. That another owner has it by now is found out by what comes after.
    pub(super) async fn note_end(&mut self, outcome: AttemptOutcome, cause: Option<&JobFailure>) {
        let (Some(lease), Some((records, bytes))) = (self.lease, self.ended_run.take()) else {
            return;
        };
        let end = AttemptEnd {
            outcome,
            cause: cause.cloned(),
            records,
            bytes,
            first_of_loop: false,
        };
        let store = &self.core.store;
        let noted = self
            .settle(|| async { Ok(store.end_attempt(&lease, &end).await?) })
            .await;
        if noted.is_err() {
            tracing::debug!(job = %self.job.name, "the end of the run is not noted");
        }
    }

    pub(super) fn forget_run(&mut self) {
        if let Some(run) = self.run.take() {
            let status = run.status();
            self.ended_run = Some((status.records, status.bytes));
            self.ran_for = self.run_since.elapsed();
            let mut facts = self.job.shared();
            let earlier = facts.last_run.take();
            facts.last_run = facts
                .spec()
                .checkpointing()
                .is_off()
                .then(|| LastRun::of(&status, earlier));
        }
        self.sink = None;
        self.following.abort_all();
        let mut facts = self.job.shared();
        facts.run = None;
        facts.window.clear();
        facts.row.running = None;
        drop(facts);
        self.job.measure_anew();
    }
}
