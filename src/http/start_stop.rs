//! Starting and stopping a job, and the plan of a start.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};

use super::{
    action::Action,
    bodies::{RestartBody, StartBody, StopBody},
    extract::{AcceptsJson, JobPath, Query},
    json_body::OptionalJsonBody,
    openapi::problems,
    problem::Problem,
    specs::DryRunQuery,
    wait::WaitQuery,
};
use crate::{
    model::{
        code::Code,
        operation::Operation,
        start::{RestartRequest, StartRequest, StopRequest},
        views::StartPlanView,
    },
    service::Service,
};

problems!(PlanProblems: JobNotFound, CheckpointNotFound, TimestampInFuture, UnknownPartition, UnknownTopic, KafkaError, KafkaNotAuthorized, KafkaUnreachable, StoreUnreachable, KafkaTimeout);
problems!(StartProblems: UnknownMember, TimestampWithoutOffset, JobNotFound, CheckpointsOff, CheckpointNotFound, OperationInProgress, JobRunning, StartBlocked, PlanStale, PlanExpired, Superseded, OwnerLost, JobFailed, LeaseLost, Panicked, OffsetOutOfRange, TimestampInFuture, UnknownPartition, UnknownTopic, KafkaError, KafkaNotAuthorized, SinkError, KafkaUnreachable, StoreUnreachable, ShuttingDown, KafkaTimeout);
problems!(StopProblems: UnknownMember, JobNotFound, CheckpointsOff, OperationInProgress, Superseded, OwnerLost, JobFailed, LeaseLost, Panicked, CheckpointFailed, SinkError, SinkOutcomeUnknown, StoreUnreachable, ShuttingDown, CheckpointTimeout, StopTimeout);
problems!(RestartProblems: UnknownMember, TimestampWithoutOffset, JobNotFound, CheckpointsOff, CheckpointNotFound, OperationInProgress, StartBlocked, PlanStale, PlanExpired, Superseded, OwnerLost, JobFailed, LeaseLost, Panicked, OffsetOutOfRange, TimestampInFuture, UnknownPartition, UnknownTopic, KafkaError, KafkaNotAuthorized, CheckpointFailed, SinkError, KafkaUnreachable, StoreUnreachable, ShuttingDown, CheckpointTimeout, KafkaTimeout);

/// Show where a start would begin
///
/// Partition by partition, and why, with the records that would be read again, passed over, or are gone. Pass the plan's id
/// to a start to have exactly these numbers. For other beginnings: `POST start?dry_run=true` with a body.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/start-plan", operation_id = "getStartPlan", tag = "start and stop",
    params(("job" = String, Path, description = "The job's name", example = "orders")),
    responses((status = 200, description = "The plan", body = StartPlanView), PlanProblems),
)]
pub(super) async fn get_start_plan(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
) -> Result<Json<StartPlanView>, Problem> {
    Ok(Json(service.start_plan(&job, &StartRequest::auto()).await?))
}

/// Start the job
///
/// From its newest checkpoint, or as `from` says. The positions are stored before the first record is fetched. Starting a
/// job that runs succeeds with `"changed": false`, unless the body says anything of how to begin (409 `job-running`).
#[utoipa::path(
    post, path = "/api/v1/jobs/{job}/start", operation_id = "startJob", tag = "start and stop",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        WaitQuery, DryRunQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(content = Option<StartBody>, description = "Where to begin; an empty body means `{}`", content_type = "application/json",
        examples(("bare" = (value = json!({}))), ("replay" = (value = json!({"from": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00", "reason": "INC-4711"}))), ("as planned" = (value = json!({"plan": "pl_01kbe7q2m8h4w1v5x9c3n6t0rz"}))))),
    responses(
        (status = 200, description = "With `wait`: started. With `dry_run`: the plan, nothing was started", body = StartAnswer),
        (status = 202, description = "Taken on; follow the operation", body = Operation, headers(("Location" = String, description = "The operation"))),
        StartProblems
    ),
)]
pub(super) async fn start_job(
    action: Action,
    Query(query): Query<DryRunQuery>,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    let request = StartRequest::read(&body)
        .map_err(|errors| Problem::faults(errors, Code::InvalidRequest))?;
    if query.dry_run {
        let plan = action.service.start_plan(&action.job, &request).await?;
        return Ok(Json(&plan).into_response());
    }
    let taken_on = action
        .service
        .start(&action.job, &request, &action.caller)
        .await?;
    action.answer(taken_on).await
}

/// What a start answers with 200.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes the two shapes in the document")]
enum StartAnswer {
    Operation(Operation),
    Plan(StartPlanView),
}

/// Stop the job
///
/// With a last checkpoint. When the operation has succeeded, nothing of the job can write any more, and its result says
/// what a start will read again. Stopping a stopped job succeeds with `"changed": false`.
#[utoipa::path(
    post, path = "/api/v1/jobs/{job}/stop", operation_id = "stopJob", tag = "start and stop",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        WaitQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(content = Option<StopBody>, description = "How to stop; an empty body means `{}`", content_type = "application/json",
        examples(("bare" = (value = json!({}))), ("only with a checkpoint" = (value = json!({"checkpoint": "required", "timeout": "60s"}))))),
    responses(
        (status = 200, description = "With `wait`: stopped", body = Operation),
        (status = 202, description = "Taken on; follow the operation", body = Operation, headers(("Location" = String, description = "The operation"))),
        StopProblems
    ),
)]
pub(super) async fn stop_job(
    action: Action,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    let request =
        StopRequest::read(&body).map_err(|errors| Problem::faults(errors, Code::InvalidRequest))?;
    let taken_on = action
        .service
        .stop(&action.job, &request, &action.caller)
        .await?;
    action.answer(taken_on).await
}

/// Restart the job
///
/// Stops and starts as one operation: with a last checkpoint, then from it or as `from` says. Changes of the spec that wait
/// for a start count from then on. A job that does not run is started. A restart that is under way is joined by a second one
/// that asks for the same.
///
/// The start is decided against where the run stands before anything is stopped: one that would be refused (`start-blocked`,
/// `checkpoint-not-found`, `plan-stale` ...) is refused at once, and neither the run nor its spec is touched. If a `required`
/// checkpoint fails, the job was not stopped at all. A job that did not run is left as it was.
///
/// Only what changes between the decision and the stop can still refuse the start after it. Then the operation fails, its
/// `detail` says that the job had been stopped, and the server starts it again by itself from the checkpoint of the stop, with the
/// changes of the spec that waited for a start. A job without checkpoints, whose startup mode would not go on where it
/// stood, is left `failed` instead, and `next` has the line that goes on there.
#[utoipa::path(
    post, path = "/api/v1/jobs/{job}/restart", operation_id = "restartJob", tag = "start and stop",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        WaitQuery, DryRunQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(content = Option<RestartBody>, description = "Where to begin and how to stop; an empty body means `{}`", content_type = "application/json",
        examples(("bare" = (value = json!({}))), ("replay" = (value = json!({"from": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00", "stop": {"checkpoint": "required"}, "reason": "INC-4711"}))))),
    responses(
        (status = 200, description = "With `wait`: restarted. With `dry_run`: the plan of the start as of now, nothing was stopped", body = StartAnswer),
        (status = 202, description = "Taken on; follow the operation", body = Operation, headers(("Location" = String, description = "The operation"))),
        RestartProblems
    ),
)]
pub(super) async fn restart_job(
    action: Action,
    Query(query): Query<DryRunQuery>,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    let request = RestartRequest::read(&body)
        .map_err(|errors| Problem::faults(errors, Code::InvalidRequest))?;
    if query.dry_run {
        let plan = action
            .service
            .start_plan(&action.job, &request.start)
            .await?;
        return Ok(Json(&plan).into_response());
    }
    let taken_on = action
        .service
        .restart(&action.job, &request, &action.caller)
        .await?;
    action.answer(taken_on).await
}
