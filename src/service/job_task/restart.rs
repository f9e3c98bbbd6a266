//! Stops a job and starts it again, as one operation.
//!
//! That the job should run is never in question, so whatever happens in between (a crash, a start that is refused) ends with
//! the server starting it by itself from its newest checkpoint.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Asked, JobTask, STORED, Step, Trouble, failed,
    starts::{by_topic, failure_of},
};
use crate::{
    model::{
        code::Code,
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
        operation::Operation,
        start::{RestartRequest, StartRequest, StopRequest},
        startup_mode::OffsetsByTopic,
        views::{NextStep, StopReport},
    },
    service::{error::ServiceError, next_steps::Curl, restart::refuse_before_stop},
    store::OperationOutcome,
};

/// Most positions that a sentence names.
const POSITIONS_IN_WORDS: usize = 10;

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
            match self.decide_before_stop(&stored).await {
                Ok(()) => {}
                Err(Trouble::Refused(refused)) => {
                    return self.finish(&operation, &failed("refused", &refused)).await;
                }
                // A stop or a shutdown comes first, and the run is there as before.
                Err(_) => return,
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

    /// Refuses what the stop would not change. Asked again here, where the run is: the call may have come to another server,
    /// or have waited since.
    async fn decide_before_stop(&self, stored: &StoredRestart) -> Step<()> {
        let plan = match &stored.start.plan {
            // Without an answer it is read again after the stop.
            Some(id) => self.core.store.plan(id).await.ok().flatten(),
            None => None,
        };
        let asked = (&stored.start, &stored.stop);
        let decided = refuse_before_stop(&self.core, &self.job.name, asked, plan.as_ref());
        tokio::select! {
            decided = decided => decided.map_err(Trouble::Refused),
            () = self.interrupted() => Err(Trouble::Interrupted),
        }
    }

    /// What becomes of a job that was stopped for a restart whose start is refused: something has changed in between.
    ///
    /// It is started again by itself if that goes on where it was. Without a checkpoint that counts it would begin by the
    /// startup mode, and pass over what was unread or read all of it again: that is left to the operator.
    pub(super) async fn after_refused_restart(
        &self,
        asked: &Asked,
        error: &mut ServiceError,
    ) -> Step<Option<JobFailure>> {
        let Some(restarting) = &asked.restarting else {
            return Ok(None);
        };
        if restarting.desired_before == DesiredState::Stopped {
            return Ok(None);
        }
        let (store, uid) = (&self.core.store, self.job.uid);
        let newest = self
            .settle(|| async { Ok(store.latest_checkpoint(uid).await?) })
            .await?;
        let row = self.job.row();
        let is_off = row.spec.checkpointing().is_off();
        let told_the_group = restarting
            .stop
            .as_ref()
            .is_some_and(|stop| is_off && stop.will_replay == Some(0));
        let goes_on = match newest {
            Some(newest) if !is_off => Some(format!("from checkpoint {}", newest.id)),
            _ if told_the_group => Some("where the group stands".to_owned()),
            Some(_) | None => None,
        };
        if let Some(whence) = goes_on {
            error.detail.push_str(&format!(
                "; the job had been stopped by then: it is started again by itself, {whence}, and changes of the spec that waited for a start count"
            ));
            return Ok(None);
        }
        let stood = self
            .job
            .shared()
            .last_run
            .as_ref()
            .map(|run| by_topic(run.stood().clone()));
        let mode = row.spec.startup_mode.name();
        error.detail.push_str(&format!(
            "; the job had been stopped by then, and is not started again by itself: no checkpoint counts, and its startup mode ({mode}) would not go on where it stood{}",
            stood.as_ref().map(|stood| format!(" ({})", in_words(stood))).unwrap_or_default()
        ));
        if let Some(stood) = stood.filter(|stood| !stood.0.is_empty()) {
            let curl = Curl::of(&self.core, &row.name);
            let body = json!({"from": "specific-offsets", "offsets": stood});
            let mut next = std::mem::take(&mut error.next).into_vec();
            next.push(NextStep {
                why: "go on where it stood".to_owned(),
                curl: curl.start(Some(&body)),
            });
            error.next = next.into();
        }
        Ok(Some(failure_of(error, self.core.now())))
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

/// The first few positions of a run, for a sentence.
fn in_words(stood: &OffsetsByTopic) -> String {
    let all = stood.by_partition();
    let mut words: Vec<String> = all
        .iter()
        .take(POSITIONS_IN_WORDS)
        .map(|(partition, offset)| format!("{partition}: {offset}"))
        .collect();
    let more = all.len().saturating_sub(POSITIONS_IN_WORDS);
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words.join(", ")
}
