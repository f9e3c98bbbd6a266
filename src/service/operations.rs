//! Starts, stops and checkpoints as stored operations: asked for here, carried out by the job's task.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, timeout_at},
};

use super::{
    Service,
    core::JobEntry,
    error::{Result, ServiceError},
    next_steps::Curl,
    queries::{Accepted, Caller, OperationQuery},
    restart::outlives_a_stop,
    startup_mode::refuse_future_start,
    stop_reports::SinkEnd,
    without_checkpoints::{refuse_required, refuse_restore, refuse_trigger},
};
use crate::{
    model::{
        checkpoint::CheckpointKind,
        code::Code,
        ids::{JobName, OperationId},
        job_state::{DesiredState, JobState},
        operation::{Operation, OperationKind},
        start::{CheckpointRequest, StartRequest, StopCheckpoint, StopRequest},
        views::{OperationList, StopReport},
    },
    store::{
        CreateOperation, IdempotencyKey, NewOperation, OperationFilter, OperationOutcome,
        StoredPlan,
    },
};

/// How often an operation that is waited for is read again even if nobody says that it ended.
const POLL: Duration = Duration::from_secs(1);
/// When a caller who was refused because of another operation may ask again.
const BUSY_RETRY: Duration = Duration::from_secs(2);
/// Most items of a page.
const MAX_PAGE: usize = 500;

/// The end of a page: the items, and the cursor of the next page if there is one.
pub(crate) fn page<T>(
    mut items: Vec<T>,
    limit: usize,
    cursor: impl Fn(&T) -> String,
) -> (Vec<T>, Option<String>) {
    let next = if items.len() > limit {
        items.truncate(limit);
        items.last().map(cursor)
    } else {
        None
    };
    (items, next)
}

/// How many items a page has; one more is read to see whether there is another page.
pub(crate) fn page_size(limit: usize) -> (usize, u32) {
    let limit = limit.clamp(1, MAX_PAGE);
    (limit, u32::try_from(limit + 1).unwrap_or(u32::MAX))
}

/// The refusal of a cursor.
pub(crate) fn invalid_cursor() -> ServiceError {
    ServiceError::new(Code::InvalidCursor, "the cursor was not made for this list")
}

impl Service {
    pub(super) async fn ask_start(
        &self,
        name: &JobName,
        request: &StartRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        let core = &self.core;
        core.refuse_when_stopping()?;
        refuse_future_start(&request.from, core.now()).map_err(|error| error.job(name))?;
        let job = core.job(name).await?;
        core.refresh(&job).await;
        refuse_restore(name, &job.row().spec, &request.from)?;
        let plan = match &request.plan {
            Some(plan) => Some(self.usable_plan(name, plan).await?),
            None => None,
        };
        let new = self.new_operation(
            &job,
            OperationKind::Start,
            json!(request),
            request.reason.as_ref(),
            caller,
        );
        let (state, desired) = {
            let facts = job.shared();
            (facts.shown_state().0, facts.row.desired_state)
        };
        let active = matches!(state, JobState::Running | JobState::Starting)
            && desired == DesiredState::Running;
        if active && request.says_how_to_begin() {
            return Err(ServiceError::new(
                Code::JobRunning,
                format!(
                    "job {name} is {}; what the start says of how to begin would be ignored",
                    state.name()
                ),
            )
            .job(name)
            .hint(restart_instead(
                Curl::of(core, name),
                request,
                plan.as_ref(),
            )));
        }
        if active && state == JobState::Running {
            let outcome = already_running();
            let created = core.store.insert_finished_operation(&new, &outcome).await?;
            return accepted(name, created, None);
        }
        let created = core
            .store
            .create_operation(&new, Some(DesiredState::Running))
            .await?;
        // A bare start of a job that is being started waits for that start.
        let same = (!request.says_how_to_begin()).then_some(OperationKind::Start);
        let accepted = accepted(name, created, same)?;
        job.shared().row.desired_state = DesiredState::Running;
        job.wake.notify_one();
        Ok(accepted)
    }

    pub(super) async fn ask_stop(
        &self,
        name: &JobName,
        request: &StopRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        let core = &self.core;
        let job = core.job(name).await?;
        core.refresh(&job).await;
        refuse_required(name, job.shared().spec(), request.checkpoint)?;
        let mut new = self.new_operation(
            &job,
            OperationKind::Stop,
            json!(request),
            request.reason.as_ref(),
            caller,
        );
        let (state, desired) = {
            let facts = job.shared();
            (facts.shown_state().0, facts.row.desired_state)
        };
        if matches!(state, JobState::Stopped | JobState::Finished)
            && desired == DesiredState::Stopped
        {
            let outcome = OperationOutcome::Succeeded {
                changed: false,
                step: format!("the job was {} already", state.name()),
                result: json!(self.report_of_stopped(&job).await?),
            };
            let created = core.store.insert_finished_operation(&new, &outcome).await?;
            return accepted(name, created, None);
        }
        core.refuse_when_stopping()?;
        new.supersedes = vec![
            OperationKind::Start,
            OperationKind::Skip,
            OperationKind::Restart,
        ];
        // A required stop may be refused, and then the job goes on: only its end writes the desired state.
        let desired = match request.checkpoint {
            StopCheckpoint::Required => None,
            StopCheckpoint::BestEffort | StopCheckpoint::None => Some(DesiredState::Stopped),
        };
        let created = core.store.create_operation(&new, desired).await?;
        let accepted = accepted(name, created, Some(OperationKind::Stop))?;
        if !accepted.operation.status.is_final() {
            if desired.is_some() {
                job.shared().row.desired_state = DesiredState::Stopped;
            }
            job.stop_asked.send_replace(true);
            job.wake.notify_one();
        }
        Ok(accepted)
    }

    /// What a stop of a stopped job reports.
    async fn report_of_stopped(&self, job: &JobEntry) -> Result<StopReport> {
        let row = job.row();
        let end = SinkEnd::of_closed(&self.core, &row).await;
        let newest = self.core.store.latest_checkpoint(row.uid).await?;
        let is_off = row.spec.checkpointing().is_off();
        let newest = newest.filter(|_| !is_off);
        // The last checkpoint of a stop covers everything; of what came after another one nothing is known any more.
        let covers_all = newest
            .as_ref()
            .map_or(!is_off, |newest| newest.kind == CheckpointKind::Stop);
        let newest = newest.as_ref().map(|newest| (newest.id, &newest.positions));
        Ok(StopReport {
            checkpoint: None,
            group_commit: None,
            position_lag: None,
            will_replay: end.will_replay(covers_all.then_some(0)),
            resume_from: end.resume_from(newest, &row.spec),
            fence: end.fence,
            warnings: end.warnings(),
        })
    }

    pub(super) async fn ask_checkpoint(
        &self,
        name: &JobName,
        request: &CheckpointRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        let core = &self.core;
        core.refuse_when_stopping()?;
        let job = core.job(name).await?;
        refuse_trigger(name, job.shared().spec())?;
        if job.shared().run.is_none() {
            let state = job.state();
            return Err(ServiceError::new(
                Code::JobNotRunning,
                format!(
                    "job {name} is {}; only a running job takes checkpoints",
                    state.name()
                ),
            )
            .job(name));
        }
        let new = self.new_operation(
            &job,
            OperationKind::Checkpoint,
            json!(request),
            request.reason.as_ref(),
            caller,
        );
        let created = core.store.create_operation(&new, None).await?;
        let accepted = accepted(name, created, None)?;
        job.wake.notify_one();
        Ok(accepted)
    }

    pub(super) fn new_operation(
        &self,
        job: &JobEntry,
        kind: OperationKind,
        request: Value,
        reason: Option<&String>,
        caller: &Caller,
    ) -> NewOperation {
        let path = match kind {
            OperationKind::Start => "start",
            OperationKind::Stop => "stop",
            OperationKind::Checkpoint => "checkpoints",
            OperationKind::ResetOffsets => "reset-offsets",
            // Not used: a deletion takes no key, it can be repeated as it is.
            OperationKind::Delete => "delete",
            OperationKind::Skip => "skip",
            OperationKind::Restart => "restart",
        };
        let idempotency = caller.idempotency_key.as_ref().map(|key| IdempotencyKey {
            scope: format!("{} POST /jobs/{}/{path}", caller.requested_by, job.name),
            key: key.clone(),
            body_hash: hash(&request.to_string()),
        });
        NewOperation {
            id: self.core.new_operation_id(),
            job: job.uid,
            kind,
            request,
            requested_by: caller.requested_by.clone(),
            reason: reason.or(caller.reason.as_ref()).cloned(),
            request_id: Some(caller.request_id.clone()).filter(|id| !id.is_empty()),
            idempotency,
            supersedes: Vec::new(),
        }
    }

    pub(super) async fn read_operation(&self, id: &OperationId) -> Result<Operation> {
        let operation = self.core.store.operation(id).await?;
        operation.ok_or_else(|| {
            ServiceError::new(
                Code::OperationNotFound,
                format!("there is no operation {id}"),
            )
        })
    }

    pub(super) async fn await_operation(
        &self,
        id: &OperationId,
        wait: Duration,
    ) -> Result<Operation> {
        let deadline = Instant::now() + wait;
        let mut finished = self.core.finished.subscribe();
        loop {
            let operation = self.read_operation(id).await?;
            if operation.status.is_final() || Instant::now() >= deadline {
                return Ok(operation);
            }
            let poll_at = (Instant::now() + POLL).min(deadline);
            let named = async {
                loop {
                    match finished.recv().await {
                        Ok(ended) if ended != *id => {}
                        // Its end, or so many others that it may have been among them.
                        Ok(_) | Err(RecvError::Lagged(_)) => return,
                        Err(RecvError::Closed) => std::future::pending().await,
                    }
                }
            };
            // Either way the operation is read again.
            drop(timeout_at(poll_at, named).await);
        }
    }

    pub(super) async fn find_operations(&self, query: &OperationQuery) -> Result<OperationList> {
        let job = match &query.job {
            Some(name) => Some(self.core.job(name).await?.uid),
            None => None,
        };
        let (limit, read) = page_size(query.limit);
        let before = match &query.after {
            Some(cursor) if cursor.starts_with(OperationId::PREFIX) => {
                Some(OperationId::from_text(cursor))
            }
            Some(_) => return Err(invalid_cursor()),
            None => None,
        };
        let operations = self
            .core
            .store
            .operations(&OperationFilter {
                job,
                kinds: query.kinds.clone(),
                statuses: query.statuses.clone(),
                limit: read,
                before,
            })
            .await?;
        let (items, next) = page(operations, limit, |operation| operation.id.to_string());
        Ok(OperationList { items, next })
    }
}

impl super::core::Core {
    /// Nothing new is taken on while the server goes down.
    pub(super) fn refuse_when_stopping(&self) -> Result<()> {
        if self.stopping.is_cancelled() {
            return Err(ServiceError::new(
                Code::ShuttingDown,
                "the server is going down",
            ));
        }
        Ok(())
    }
}

/// The line for who wanted to start a job that runs. A plan that rests on a checkpoint would be refused by a restart, whose stop
/// takes another one: what it was made from is asked for anew.
fn restart_instead(curl: Curl<'_>, request: &StartRequest, plan: Option<&StoredPlan>) -> String {
    match plan.filter(|plan| !outlives_a_stop(plan)) {
        Some(plan) => {
            let line = curl.restart(given(&plan.request, false).as_ref());
            format!(
                "The plan rests on a checkpoint, and a stop takes another one. To stop it and begin by the same rules: {line}"
            )
        }
        None => {
            let line = curl.restart(given(request, true).as_ref());
            format!("To stop it and begin as it says: {line}")
        }
    }
}

/// The members that a start was given; `None` for a bare one.
fn given(request: &StartRequest, with_plan: bool) -> Option<Value> {
    let mut body = json!(request);
    body.as_object_mut()?.retain(|name, value| {
        !(value.is_null() || name == "from" && value == "auto" || name == "plan" && !with_plan)
    });
    body.as_object()
        .is_some_and(|members| !members.is_empty())
        .then_some(body)
}

/// The outcome of a start of a job that runs.
pub(crate) fn already_running() -> OperationOutcome {
    OperationOutcome::Succeeded {
        changed: false,
        step: "the job was running already".to_owned(),
        result: json!({"summary": "the job was running already"}),
    }
}

/// `same`: an open operation of this kind does what is asked for, so it is the answer.
pub(super) fn accepted(
    name: &JobName,
    created: CreateOperation,
    same: Option<OperationKind>,
) -> Result<Accepted> {
    match created {
        CreateOperation::Created(operation) | CreateOperation::Joined(operation) => Ok(Accepted {
            operation,
            replayed: false,
        }),
        CreateOperation::Replayed(operation) => Ok(Accepted {
            operation,
            replayed: true,
        }),
        CreateOperation::Busy(operation) if Some(operation.kind) == same => Ok(Accepted {
            operation,
            replayed: false,
        }),
        CreateOperation::Busy(operation) => Err(in_progress(name, operation)),
        CreateOperation::KeyReused => Err(ServiceError::new(
            Code::IdempotencyKeyReused,
            "the idempotency key was used for another body",
        )
        .job(name)),
    }
}

/// The refusal because of an operation that has not ended.
pub(super) fn in_progress(name: &JobName, operation: Operation) -> ServiceError {
    ServiceError::new(
        Code::OperationInProgress,
        format!("operation {} of job {name} is under way", operation.id),
    )
    .job(name)
    .operation(operation)
    .retry_after(BUSY_RETRY)
}

/// A hash that stays the same over versions of this program (FNV-1a, 64 bits): it tells bodies apart, nothing more.
pub(crate) fn hash(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_not_the_last_names_the_next() {
        let cursor = |item: &i32| item.to_string();
        assert_eq!(
            page(vec![5, 4, 3], 2, cursor),
            (vec![5, 4], Some("4".to_owned()))
        );
        assert_eq!(page(vec![5, 4], 2, cursor), (vec![5, 4], None));
        assert_eq!(page(Vec::new(), 2, cursor), (Vec::new(), None));
        assert_eq!(page_size(0), (1, 2));
        assert_eq!(page_size(9_999), (500, 501));
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // Test vectors of the FNV reference code.
        assert_eq!(hash(""), "cbf29ce484222325");
        assert_eq!(hash("a"), "af63dc4c8601ec8c");
        assert_eq!(hash("foobar"), "85944171f73967e8");
    }
}
