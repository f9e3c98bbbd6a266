//! What follows when a run ends without being asked to.

use super::{JobTask, LAST_PAUSE, Step};
use crate::{
    crash_point::CrashPoint,
    engine::{
        JobEnd,
        error::{ConsumerError, ErrorClass, JobError},
        ports::JobLease,
    },
    model::{
        code::Code,
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
    },
    service::monitor::refresh_checkpoint,
};

impl JobTask {
    pub(super) async fn run_ended(&mut self, end: JobEnd) {
        let finished = matches!(end, JobEnd::Finished(_));
        self.failed_run = !finished;
        self.forget_run();
        refresh_checkpoint(&self.core, &self.job).await;
        if self.run_since.elapsed() >= LAST_PAUSE {
            self.restarts = 0;
        }
        let error = match end {
            JobEnd::Failed(error) => error,
            JobEnd::Stopped(_) => {
                tracing::error!(job = %self.job.name, "the run ended without being asked to; it is started again");
                return self.start_later();
            }
            JobEnd::Finished(_) => return self.run_finished().await,
        };
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
                self.restart().await;
            }
            JobError::Sink(ref cause) if cause.class == ErrorClass::Infrastructure => {
                self.wait_for(Code::SinkError, &error.to_string());
                self.restart().await;
            }
            JobError::Decode { .. }
            | JobError::Consumer(_)
            | JobError::Sink(_)
            | JobError::Store(_)
            | JobError::Panicked { .. } => {
                let failure = error.failure(self.core.now());
                self.fail(failure).await;
            }
        }
    }

    /// A bounded run has come to its ends, its last checkpoint is stored and the group knows it.
    async fn run_finished(&mut self) {
        let Some(lease) = self.lease else {
            return self.start_later();
        };
        CrashPoint::BeforeStopSettled.reached();
        let finished = self
            .settle_as(&lease, JobState::Finished, None, false)
            .await;
        self.lease = None;
        match finished {
            Ok(state) => {
                tracing::info!(job = %self.job.name, "the bounded run has ended");
                // Whoever sees the state sees what belongs to it.
                refresh_checkpoint(&self.core, &self.job).await;
                self.core.refresh(&self.job).await;
                self.show_row(state, Some(DesiredState::Stopped), None);
                self.job.measure_anew();
            }
            // Whoever takes the job up finds all its ends reached, and finishes it again.
            Err(_) => self.start_later(),
        }
    }

    /// Begins again from the newest checkpoint, under a new epoch, after something outside was away.
    pub(super) async fn restart(&mut self) {
        self.show(JobState::Starting);
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

    pub(super) fn forget_run(&mut self) {
        self.run = None;
        self.sink = None;
        self.following.abort_all();
        let mut facts = self.job.shared();
        facts.run = None;
        facts.window.clear();
        facts.gone = None;
        facts.row.running = None;
        drop(facts);
        self.job.measure_anew();
    }
}
