//! What was asked for, and what became of it.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    context::Context,
    extract::{AcceptsJson, Query, Words, job_named, page_size},
    openapi::problems,
    problem::Problem,
    wait::{Wait, WaitQuery, shown},
};
use crate::{
    model::{
        code::Code,
        ids::OperationId,
        operation::{Operation, OperationKind, OperationStatus},
        views::OperationList,
    },
    service::{OperationQuery, Service},
};

problems!(ListProblems: InvalidCursor, JobNotFound, StoreUnreachable);
problems!(GetProblems: OperationNotFound, StoreUnreachable);

/// Which operations to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OperationsQuery {
    /// Of which job.
    job: Option<String>,
    /// Kinds to show.
    #[serde(default)]
    #[param(value_type = Option<Vec<OperationKind>>, style = Form, explode = false, inline)]
    kind: Words<OperationKind>,
    /// Statuses to show.
    #[serde(default)]
    #[param(value_type = Option<Vec<OperationStatus>>, style = Form, explode = false, inline)]
    status: Words<OperationStatus>,
    /// How many at most.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<usize>,
    /// Where the page begins: `next` of the page before.
    after: Option<String>,
}

/// List the operations
///
/// Newest first; kept for 30 days, over restarts of the server.
#[utoipa::path(
    get, path = "/api/v1/operations", operation_id = "listOperations", tag = "operations",
    params(OperationsQuery),
    responses((status = 200, description = "A page of operations", body = OperationList), ListProblems),
)]
pub(super) async fn list_operations(
    State(service): State<Service>,
    _: AcceptsJson,
    Query(query): Query<OperationsQuery>,
) -> Result<Json<OperationList>, Problem> {
    let job = query.job.as_deref().map(job_named).transpose()?;
    let query = OperationQuery {
        job,
        kinds: query.kind.0,
        statuses: query.status.0,
        limit: page_size(query.limit)?,
        after: query.after,
    };
    Ok(Json(service.operations(&query).await?))
}

/// Show an operation
///
/// With `wait`, as soon as it has ended. Its outcome is in `status`; the answer is 200 for a failed one, too.
#[utoipa::path(
    get, path = "/api/v1/operations/{operation}", operation_id = "getOperation", tag = "operations",
    params(
        ("operation" = String, Path, description = "The operation's id", example = "op_01kbe7q2m8h4w1v5x9c3n6t0rz"),
        WaitQuery,
        ("Prefer" = Option<String>, Header, description = "`wait=30` means `?wait=30s`"),
    ),
    responses((status = 200, description = "The operation as it stands", body = Operation), GetProblems),
)]
pub(super) async fn get_operation(
    State(service): State<Service>,
    State(context): State<Arc<Context>>,
    _: AcceptsJson,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
    wait: Wait,
) -> Result<Response, Problem> {
    let Path(id) = path.map_err(|error| Problem::new(Code::NotFound, error.body_text()))?;
    if id.contains('\0') {
        return Err(Problem::new(
            Code::OperationNotFound,
            "an operation's id holds no NUL character",
        ));
    }
    shown(&OperationId::from_text(&id), wait, &service, &context).await
}
