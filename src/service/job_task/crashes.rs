//! A crash of the job's own task: a bug met while a start is worked out or a stop is settled.
//!
//! It counts like a crash of the run. The restart strategy says when it is tried again, `backing-off` shows why, and the
//! attempt is listed. What was asked for stays open meanwhile, so that a start goes where it was asked to go: the same
//! operation is taken up again after the pause. What the job does not need for running (a skip, a reset of the group, a
//! deletion) is not tried again by itself: its operation fails, and whoever asked knows.

use std::{any::Any, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::{JobTask, Work, failed, starts::kind_of};
use crate::{
    engine::{error::JobError, panic_text},
    model::{
        attempt::AttemptKind,
        code::Code,
        ids::OperationId,
        job_state::{DesiredState, JobState},
        operation::{Operation, OperationKind},
        start::StopCheckpoint,
    },
    service::error::ServiceError,
    store::NeverBegun,
};

/// How long a run that the task has left alone may take to end. One that does not can write no more under the next epoch.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);
/// The least pause after a crash, whatever the strategy says: what crashed may be the look at what there is to do.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// What the task is doing.
#[derive(Debug)]
pub(super) enum AtWork {
    /// It looks for what there is to do.
    Looking,
    /// A start.
    Start(AttemptKind, Option<Operation>),
    /// The end of a run, asked for or not.
    End(Option<Operation>),
    /// Something else that was asked for.
    Other(Operation),
}

impl AtWork {
    pub(super) fn on(work: &Work, next_kind: AttemptKind) -> Self {
        match work {
            Work::Shutdown | Work::Gone => Self::Looking,
            Work::AutoStart => Self::Start(next_kind, None),
            Work::Start(asked) => Self::Start(
                kind_of(Some(asked), next_kind),
                Some(asked.operation.clone()),
            ),
            Work::Restart(operation, _) => {
                Self::Start(AttemptKind::Restart, Some((**operation).clone()))
            }
            Work::Ended(_) | Work::Settle => Self::End(None),
            Work::Stop(operation, _) => Self::End(Some((**operation).clone())),
            Work::Skip(operation, _)
            | Work::ResetOffsets(operation, _)
            | Work::Delete(operation, _) => Self::Other((**operation).clone()),
        }
    }

    fn operation(&self) -> Option<&Operation> {
        match self {
            Self::Looking => None,
            Self::Start(_, operation) | Self::End(operation) => operation.as_ref(),
            Self::Other(operation) => Some(operation),
        }
    }

    fn words(&self) -> &'static str {
        match self {
            Self::Looking => "the task of the job",
            Self::Start(..) => "the start",
            Self::End(Some(_)) => "the stop",
            Self::End(None) => "the end of the run",
            Self::Other(operation) => match operation.kind {
                OperationKind::Skip => "the skip",
                OperationKind::ResetOffsets => "the reset of the group's offsets",
                OperationKind::Delete => "the deletion",
                OperationKind::Start
                | OperationKind::Stop
                | OperationKind::Restart
                | OperationKind::Checkpoint => "the operation",
            },
        }
    }
}

impl JobTask {
    /// Whether this operation crashed before.
    pub(super) fn crashed_before(&self, operation: &Operation) -> bool {
        self.crashed_operation.as_ref() == Some(&operation.id)
    }

    /// Whether this waits out a pause: the operation that crashed, or what the server does by itself.
    pub(super) fn waits_after_crash(&self, operation: Option<&OperationId>) -> bool {
        let is_it = operation.is_none() || self.crashed_operation.as_ref() == operation;
        is_it && self.next_kind == AttemptKind::AfterCrash && Instant::now() < self.start_at
    }

    pub(super) async fn task_crashed(&mut self, panic: Box<dyn Any + Send>) {
        let at_work = std::mem::replace(&mut self.at_work, AtWork::Looking);
        let error = JobError::Panicked {
            part: at_work.words().to_owned(),
            detail: panic_text(panic.as_ref()),
        };
        drop(panic);
        tracing::error!(job = %self.job.name, %error, "the task of the job crashed");
        let had_run = self.run.is_some();
        self.leave_run().await;
        if let AtWork::Other(operation) = &at_work {
            self.end_crashed(operation, &error.to_string()).await;
        }
        let should_run = self.job.row().desired_state == DesiredState::Running;
        let concerns_the_job = match &at_work {
            AtWork::Start(..) | AtWork::End(_) => true,
            AtWork::Looking | AtWork::Other(_) => had_run || should_run,
        };
        if concerns_the_job {
            self.count_crash(&at_work, &error).await;
        }
        if matches!(at_work, AtWork::Looking) {
            tokio::select! {
                () = sleep(LEAST_PAUSE) => {}
                () = self.core.stopping.cancelled() => {}
            }
        }
    }

    async fn count_crash(&mut self, at_work: &AtWork, error: &JobError) {
        self.take_lease_once().await;
        let operation = at_work.operation();
        let never_begun = match at_work {
            AtWork::Start(kind, operation) => Some(NeverBegun {
                kind: *kind,
                generation: self.job.row().generation,
                operation: operation.as_ref().map(|operation| operation.id.clone()),
            }),
            AtWork::Looking | AtWork::End(_) | AtWork::Other(_) => None,
        };
        if let AtWork::Start(_, Some(operation)) | AtWork::End(Some(operation)) = at_work
            && !self.crashed_before(operation)
        {
            // Whoever asked has seen what the job crashed of before: counting begins anew.
            self.job.shared().row.crash_loop = None;
        }
        // The next run takes an epoch of its own: whatever this one may have left behind can write no more.
        self.lease_is_used = true;
        self.crashed_operation = operation.map(|operation| operation.id.clone());
        let ran_for = std::mem::take(&mut self.ran_for);
        let failure = error.failure(self.core.now());
        self.crashed(failure, ran_for, never_begun).await;
        if self.job.state() != JobState::Failed {
            return;
        }
        self.crashed_operation = None;
        let cause = self.job.shared().row.failure.clone();
        let words = cause.map_or_else(|| error.to_string(), |cause| cause.summary);
        match at_work {
            AtWork::Start(_, Some(operation)) | AtWork::End(Some(operation)) => {
                self.end_crashed(operation, &words).await;
            }
            AtWork::Start(_, None) | AtWork::End(None) | AtWork::Looking | AtWork::Other(_) => {}
        }
    }

    /// Ends the run that the task was following.
    async fn leave_run(&mut self) {
        let Some(run) = self.run.clone() else {
            return;
        };
        // Whatever it answers, the next run begins under another epoch.
        drop(timeout(LEAVE_WITHIN, run.stop(StopCheckpoint::None, LEAVE_WITHIN)).await);
        self.forget_run();
        self.failed_run = true;
    }

    /// A crash is stored under the lease. Another live owner, or a store that is away, leaves it to this process's memory.
    async fn take_lease_once(&mut self) {
        if self.lease.is_some() {
            return;
        }
        let incarnation = self.core.incarnation.borrow().clone();
        let Some(incarnation) = incarnation else {
            return;
        };
        match self.core.store.take_lease(self.job.uid, &incarnation).await {
            Ok(lease) => self.lease = lease,
            Err(error) => {
                tracing::debug!(job = %self.job.name, %error, "the crash is not stored");
            }
        }
    }

    async fn end_crashed(&self, operation: &Operation, words: &str) {
        let error = ServiceError::new(Code::JobFailed, words.to_owned()).job(&self.job.name);
        self.finish(operation, &failed("it crashed", &error)).await;
    }
}
