//! Checkpoints: trigger one, look at the history.

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    action::Action,
    bodies::CheckpointBody,
    extract::{AcceptsJson, JobPath, Query, Words, job_named, page_size},
    json_body::OptionalJsonBody,
    openapi::problems,
    problem::Problem,
    wait::WaitQuery,
};
use crate::{
    model::{
        checkpoint::{CheckpointKind, CheckpointStatus},
        code::Code,
        ids::CheckpointId,
        operation::Operation,
        start::CheckpointRequest,
        views::{CheckpointList, CheckpointView},
    },
    service::{CheckpointQuery, CheckpointRef, Service},
};

problems!(ListProblems: InvalidCursor, JobNotFound, StoreUnreachable);
problems!(GetProblems: JobNotFound, CheckpointNotFound, StoreUnreachable);
problems!(TriggerProblems: UnknownMember, JobNotFound, CheckpointsOff, JobNotRunning, Superseded, OwnerLost, JobFailed, LeaseLost, Panicked, IdempotencyKeyReused, CheckpointFailed, SinkError, StoreUnreachable, ShuttingDown, CheckpointTimeout);

/// Take a checkpoint
///
/// Success means stored in PostgreSQL; what became of the commit to the group stands beside it, because it may fail without
/// harm. One runs and at most one waits per job: a third request is given the one that waits.
#[utoipa::path(
    post, path = "/api/v1/jobs/{job}/checkpoints", operation_id = "triggerCheckpoint", tag = "checkpoints",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        WaitQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 128 visible characters: the same key and body again gives the operation of the first call, for 24 hours"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(content = Option<CheckpointBody>, description = "An empty body means `{}`", content_type = "application/json", example = json!({"timeout": "120s"})),
    responses(
        (status = 200, description = "With `wait`: completed", body = Operation, headers(("Idempotency-Replayed" = Option<String>, description = "`true` if the key named an operation that was there already"))),
        (status = 202, description = "Taken on; follow the operation", body = Operation, headers(("Location" = String, description = "The operation"), ("Idempotency-Replayed" = Option<String>, description = "`true` if the key named an operation that was there already"))),
        TriggerProblems
    ),
)]
pub(super) async fn trigger_checkpoint(
    action: Action,
    OptionalJsonBody(body): OptionalJsonBody,
) -> Result<Response, Problem> {
    let request = CheckpointRequest::read(&body)
        .map_err(|errors| Problem::faults(errors, Code::InvalidRequest))?;
    let taken_on = action
        .service
        .trigger_checkpoint(&action.job, &request, &action.caller)
        .await?;
    action.answer(taken_on).await
}

/// Which checkpoints to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct CheckpointsQuery {
    /// Statuses to show.
    #[serde(default)]
    #[param(value_type = Option<Vec<CheckpointStatus>>, style = Form, explode = false, inline)]
    status: Words<CheckpointStatus>,
    /// Kinds to show.
    #[serde(default)]
    #[param(value_type = Option<Vec<CheckpointKind>>, style = Form, explode = false, inline)]
    kind: Words<CheckpointKind>,
    /// Show the positions, too.
    #[serde(default)]
    #[param(required = false, default = false)]
    offsets: bool,
    /// How many at most.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<usize>,
    /// Where the page begins: `next` of the page before.
    after: Option<String>,
}

/// List the checkpoints
///
/// Newest first, failures included.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/checkpoints", operation_id = "listCheckpoints", tag = "checkpoints",
    params(("job" = String, Path, description = "The job's name", example = "orders"), CheckpointsQuery),
    responses((status = 200, description = "A page of checkpoints", body = CheckpointList), ListProblems),
)]
pub(super) async fn list_checkpoints(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
    Query(query): Query<CheckpointsQuery>,
) -> Result<Json<CheckpointList>, Problem> {
    let query = CheckpointQuery {
        statuses: query.status.0,
        kinds: query.kind.0,
        with_offsets: query.offsets,
        limit: page_size(query.limit)?,
        after: query.after,
    };
    Ok(Json(service.checkpoints(&job, &query).await?))
}

/// Show one checkpoint
///
/// With its positions and what its phases took.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/checkpoints/{checkpoint}", operation_id = "getCheckpoint", tag = "checkpoints",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        ("checkpoint" = String, Path, description = "Its number, or `latest`: the newest completed one that no start set aside", example = "latest"),
    ),
    responses((status = 200, description = "The checkpoint", body = CheckpointView), GetProblems),
)]
pub(super) async fn get_checkpoint(
    State(service): State<Service>,
    _: AcceptsJson,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
) -> Result<Json<CheckpointView>, Problem> {
    let Path((job, which)) =
        path.map_err(|error| Problem::new(Code::NotFound, error.body_text()))?;
    let job = job_named(&job)?;
    let which = match which.as_str() {
        "latest" => CheckpointRef::Latest,
        number => match number.parse() {
            Ok(number) => CheckpointRef::Id(CheckpointId(number)),
            Err(_) => {
                return Err(Problem::new(
                    Code::CheckpointNotFound,
                    format!("there is no checkpoint '{number}'"),
                )
                .hint("A checkpoint is named by its number, or 'latest'."));
            }
        },
    };
    Ok(Json(service.checkpoint(&job, which).await?))
}
