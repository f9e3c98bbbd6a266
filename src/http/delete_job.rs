//! Deleting a job.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{action::Action, extract::Query, openapi::problems, problem::Problem, wait::WaitQuery};
use crate::model::{
    deletion::{DeleteRequest, GroupFate},
    operation::Operation,
    views::DeleteReport,
};

problems!(DeleteProblems: JobNotFound, OperationInProgress, JobRunning, GroupInUse, LeaseLost, Superseded, InvalidSpec, NotConfirmed, KafkaError, KafkaNotAuthorized, SinkError, KafkaUnreachable, StoreUnreachable, ShuttingDown, KafkaTimeout);

/// What goes with the job.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteQuery {
    /// The job's name once more. Only a dry run may leave it out.
    confirm: Option<String>,
    /// Delete the checkpoints at once instead of after 30 days, and what the sink's target knows of the job's progress. What
    /// was written there stays.
    #[serde(default)]
    #[param(required = false, default = false)]
    purge: bool,
    /// What becomes of the consumer group. `delete` refuses the whole call while the group has live members or another job
    /// uses it.
    #[serde(default)]
    #[param(inline, required = false, default = "keep")]
    group: GroupFate,
    /// Check everything and show what would be deleted.
    #[serde(default)]
    #[param(required = false, default = false)]
    dry_run: bool,
}

/// Delete the job
///
/// A job that runs is refused: stop it first. The name is free at once, and a job of the same name that is made later is
/// another job: it inherits no checkpoint, no operation, no idempotency key, no plan and no start asked for ahead. The
/// consumer group stays unless `group=delete`. Operations and events stay readable for 30 days. Repeated, it answers 404.
#[utoipa::path(
    delete, path = "/api/v1/jobs/{job}", operation_id = "deleteJob", tag = "jobs",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        DeleteQuery, WaitQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    responses(
        (status = 200, description = "With `wait`: deleted. With `dry_run`: what would be deleted, nothing was", body = DeleteAnswer),
        (status = 202, description = "Taken on; follow the operation", body = Operation, headers(("Location" = String, description = "The operation"))),
        DeleteProblems
    ),
)]
pub(super) async fn delete_job(
    action: Action,
    Query(query): Query<DeleteQuery>,
) -> Result<Response, Problem> {
    let request = DeleteRequest {
        purge: query.purge,
        group: query.group,
    };
    let confirm = query.confirm.as_deref();
    if query.dry_run {
        let report = action
            .service
            .delete_plan(&action.job, request, confirm)
            .await?;
        return Ok(Json(&report).into_response());
    }
    let taken_on = action
        .service
        .delete(&action.job, request, confirm, &action.caller)
        .await?;
    action.answer(taken_on).await
}

/// What a deletion answers with 200.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes the two shapes in the document")]
enum DeleteAnswer {
    Operation(Operation),
    Plan(DeleteReport),
}
