//! Moving a job's consumer group.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    action::Action, bodies::ResetBody, csv, extract::Query, json_body::JsonOrCsv,
    openapi::problems, problem::Problem, specs::DryRunQuery, wait::WaitQuery,
};
use crate::model::{
    code::Code, group_reset::ResetRequest, operation::Operation, views::ResetReport,
};

problems!(ResetProblems: UnknownMember, TimestampWithoutOffset, JobNotFound, CheckpointNotFound, OperationInProgress, JobRunning, JobNotStopped, GroupInUse, GroupMissing, NoLeader, TopicRecreated, OwnerLost, Superseded, LeaseLost, OffsetOutOfRange, TimestampInFuture, UnknownPartition, UnknownTopic, IdempotencyKeyReused, KafkaError, KafkaNotAuthorized, KafkaUnreachable, StoreUnreachable, ShuttingDown, KafkaTimeout);

/// How a table is taken.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TableQuery {
    /// With a table (`text/csv`): whether an offset outside of its log is taken to the nearest end. In JSON it is a member of
    /// the body.
    clamp: Option<bool>,
}

/// Move the consumer group
///
/// The group alone, for a stopped job: what other tools show, and where a start with `from: group-offsets` begins. The job
/// itself goes on from its checkpoint as before; to move it, start it with `from`. All or nothing: a partition that cannot go
/// where it is sent is named, and none is moved. A group with live members is not touched. `dry_run` shows where each
/// partition would go.
///
/// `text/csv` with lines `topic,partition,offset` means mode `specific-offsets`; it is the form of
/// `kafka-consumer-groups --export` and `--from-file`, and of `GET offsets` with `Accept: text/csv`.
#[utoipa::path(
    post, path = "/api/v1/jobs/{job}/reset-offsets", operation_id = "resetOffsets", tag = "offsets",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        WaitQuery, DryRunQuery, TableQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body again gives the operation of the first call"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(
        content((ResetBody = "application/json", example = json!({"to": {"mode": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00"}, "partitions": {"orders": [0, 1]}, "reason": "INC-4711"})), (String = "text/csv", example = json!("orders,0,8540\norders,1,7001\n"))),
        description = "Where the group goes"
    ),
    responses(
        (status = 200, description = "With `wait`: moved. With `dry_run`: where it would go, nothing was moved", body = ResetAnswer),
        (status = 202, description = "Taken on; follow the operation", body = Operation, headers(("Location" = String, description = "The operation"))),
        ResetProblems
    ),
)]
pub(super) async fn reset_offsets(
    action: Action,
    Query(query): Query<DryRunQuery>,
    Query(table): Query<TableQuery>,
    body: JsonOrCsv,
) -> Result<Response, Problem> {
    let request = read(&body, table.clamp)?;
    if query.dry_run {
        let report = action.service.reset_plan(&action.job, &request).await?;
        return Ok(Json(&report).into_response());
    }
    let taken_on = action
        .service
        .reset_offsets(&action.job, &request, &action.caller)
        .await?;
    action.answer(taken_on).await
}

fn read(body: &JsonOrCsv, clamp: Option<bool>) -> Result<ResetRequest, Problem> {
    match (body, clamp) {
        (JsonOrCsv::Json(_), Some(_)) => Err(Problem::new(
            Code::InvalidRequest,
            "the parameter clamp belongs to a table; in JSON it is a member of the body",
        )),
        (JsonOrCsv::Json(body), None) => {
            ResetRequest::read(body).map_err(|errors| Problem::faults(errors, Code::InvalidRequest))
        }
        (JsonOrCsv::Csv(table), clamp) => csv::read(table)
            .map(|offsets| ResetRequest::to_offsets(offsets, clamp == Some(true)))
            .map_err(|errors| Problem::faults(errors, Code::InvalidRequest)),
    }
}

/// What a reset answers with 200.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes the two shapes in the document")]
enum ResetAnswer {
    Operation(Operation),
    Plan(ResetReport),
}
