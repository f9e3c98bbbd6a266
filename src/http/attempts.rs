//! The runs of a job.

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    extract::{AcceptsJson, JobPath, Query, page_size},
    openapi::problems,
    problem::Problem,
};
use crate::{
    model::views::AttemptList,
    service::{AttemptQuery, Service},
};

problems!(ListProblems: InvalidCursor, JobNotFound, StoreUnreachable);

/// Which runs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AttemptsQuery {
    /// How many at most.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<usize>,
    /// Where the page begins: `next` of the page before.
    after: Option<String>,
}

/// List the runs of a job
///
/// Newest first, the one that runs included: why each began, how it ended and with what. The newest hundred are kept, and
/// twenty more of those with which a crash loop began.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/attempts", operation_id = "listAttempts", tag = "jobs",
    params(("job" = String, Path, description = "The job's name", example = "orders"), AttemptsQuery),
    responses((status = 200, description = "A page of runs", body = AttemptList), ListProblems),
)]
pub(super) async fn list_attempts(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
    Query(query): Query<AttemptsQuery>,
) -> Result<Json<AttemptList>, Problem> {
    let query = AttemptQuery {
        limit: page_size(query.limit)?,
        after: query.after,
    };
    Ok(Json(service.attempts(&job, &query).await?))
}
