//! Stops a job and starts it again, as one operation.
//!
//! That the job should run is never in question, so whatever happens in between (a crash, a start that is refused) ends with
//! the server starting it by itself from its newest checkpoint.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Asked, JobTask, STORED, Trouble, failed};
use crate::{
    model::{
        code::Code,
        job_state::{DesiredState, JobState},
        operation::Operation,
        start::{RestartRequest, StartRequest, StopRequest},
        views::StopReport,
    },
    service::error::ServiceError,
    store::OperationOutcome,
};

/// A restart as it is stored with its operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRestart {
    start: StartRequest,
    stop: StopRequest,
    /// What was asked of the job before: a start that is refused leaves it so.
    desired_before: DesiredState,
}

impl StoredRestart {
    pub(crate) fn new(request: &RestartRequest, desired_before: DesiredState) -> Self {
        Self {
            start: request.start.clone(),
            stop: request.stop.clone(),
            desired_before,
        }
    }

    /// Whether a request asks for the same; why it does is no difference.
    pub(crate) fn is_same(&self, request: &RestartRequest) -> bool {
        let start = StartRequest {
            reason: self.start.reason.clone(),
            ..request.start.clone()
        };
        self.start == start && self.stop == request.stop
    }
}

/// What a start is told when it is the second half of a restart.
pub(super) struct Restarting {
    pub(super) stop: Option<StopReport>,
    pub(super) desired_before: DesiredState,
}

impl JobTask {
    pub(super) async fn restart_job(&mut self, operation: Operation, request: &Value) {
        let stored = match StoredRestart::deserialize(request) {
            Ok(stored) => stored,
            // Another version wrote it. To start somewhere else instead would be worse than not to restart.
            Err(error) => {
                let detail = format!("the stored request is not known: {error}");
                let error = ServiceError::new(Code::InvalidRequest, detail).job(&self.job.name);
                let outcome = failed("the request is read", &error);
                return self.finish(&operation, &outcome).await;
            }
        };
        if let Some(run) = self.run.clone() {
            if operation.step == STORED {
                // The run is the one that this restart has begun; only its end was not noted.
                let outcome = OperationOutcome::Succeeded {
                    changed: true,
                    step: "the job runs".to_owned(),
                    result: json!({"summary": "the job runs again"}),
                };
                return self.finish(&operation, &outcome).await;
            }
            if !self.stop_for_restart(run, &operation, &stored.stop).await {
                return;
            }
        }
        let stop = self
            .stopped_for
            .take_if(|(id, _)| *id == operation.id)
            .and_then(|(_, report)| report);
        let asked = Asked {
            restarting: Some(Restarting {
                stop: stop.clone(),
                desired_before: stored.desired_before,
            }),
            operation,
            request: stored.start,
        };
        // In case the start has to be tried again.
        self.stopped_for = Some((asked.operation.id.clone(), stop));
        self.start(Some(&asked)).await;
    }

    /// Ends the run and gives its lease back: what begins again does so under a new epoch. False when there is nothing to
    /// go on with now.
    async fn stop_for_restart(
        &mut self,
        run: crate::engine::JobHandle,
        operation: &Operation,
        request: &StopRequest,
    ) -> bool {
        let until = Instant::now() + request.timeout.0;
        let Some(ended) = self.end_run(run, operation, request, until).await else {
            return false;
        };
        self.show(JobState::Starting);
        self.stopped_for = Some((operation.id.clone(), ended.report));
        let Some(lease) = self.lease else {
            return true;
        };
        let (state, blocked) = (JobState::Stopped, ended.blocked.as_ref());
        match self.settle_as(&lease, state, blocked, true).await {
            Ok(_) | Err(Trouble::Fenced) => {
                self.lease = None;
                true
            }
            Err(Trouble::Refused(error)) => {
                let outcome = failed("the stop is stored", &error);
                self.finish(operation, &outcome).await;
                false
            }
            // The server goes down; the next one takes it up.
            Err(Trouble::Away { .. } | Trouble::Interrupted) => false,
        }
    }
}

impl Asked {
    /// What a start that is refused leaves the job to be.
    pub(super) fn desired_if_refused(&self) -> DesiredState {
        self.restarting
            .as_ref()
            .map_or(DesiredState::Stopped, |restarting| {
                restarting.desired_before
            })
    }
}
