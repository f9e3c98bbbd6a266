//! Stepping over one record that a job failed at.

use axum::{
    Json,
    response::{IntoResponse, Response},
};

use super::{
    action::Action, bodies::SkipBody, extract::Query, json_body::JsonBody, openapi::problems,
    problem::Problem, specs::DryRunQuery, wait::WaitQuery,
};
use crate::model::{code::Code, operation::Operation, skip::SkipRequest, views::SkipReport};

problems!(SkipProblems: UnknownMember, JobNotFound, CheckpointsOff, OperationInProgress, NotBlockedThere, StartBlocked, Superseded, OwnerLost, LeaseLost, UnknownPartition, UnknownTopic, KafkaError, KafkaNotAuthorized, SinkError, KafkaUnreachable, StoreUnreachable, ShuttingDown, KafkaTimeout);

/// Step over one record
///
/// A compare-and-set: only the record that the job failed at, only where the job stands exactly before it. Already behind it
/// succeeds with `"changed": false`; anything else is `not-blocked-there`. The new position is stored as a checkpoint of kind
/// `skip` before the answer, with the record's size and hash in the history. A job that should run then starts by itself.
#[utoipa::path(
    post, path = "/api/v1/jobs/{job}/skip", operation_id = "skipRecord", tag = "start and stop",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        WaitQuery, DryRunQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(content = SkipBody, description = "The record, as the job's failure names it", content_type = "application/json",
        example = json!({"topic": "orders", "partition": 3, "offset": 90412, "reason": "no JSON, ticket 88"})),
    responses(
        (status = 200, description = "With `wait`: left out. With `dry_run`: what would be done, nothing was", body = SkipAnswer),
        (status = 202, description = "Taken on; follow the operation", body = Operation, headers(("Location" = String, description = "The operation"))),
        SkipProblems
    ),
)]
pub(super) async fn skip_record(
    action: Action,
    Query(query): Query<DryRunQuery>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let request =
        SkipRequest::read(&body).map_err(|errors| Problem::faults(errors, Code::InvalidRequest))?;
    if query.dry_run {
        let report = action.service.skip_plan(&action.job, &request).await?;
        return Ok(Json(&report).into_response());
    }
    let taken_on = action
        .service
        .skip(&action.job, &request, &action.caller)
        .await?;
    action.answer(taken_on).await
}

/// What a skip answers with 200.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes the two shapes in the document")]
enum SkipAnswer {
    Operation(Operation),
    Report(SkipReport),
}
