//! The jobs: the list, and one of them.

use axum::{
    Json,
    extract::{Query as AnyQuery, State},
    http::Uri,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    extract::{AcceptsJson, JobPath, Query, Words, page_size},
    openapi::problems,
    problem::Problem,
};
use crate::{
    model::{
        code::Code,
        health::HealthStatus,
        job_state::JobState,
        views::{JobList, JobView},
    },
    service::{JobFilter, JobSort, Service},
};

problems!(ListProblems: InvalidCursor, StoreUnreachable);
problems!(JobProblems: JobNotFound, StoreUnreachable);

/// Which jobs to list. Commas mean "or", separate parameters mean "and".
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct JobsQuery {
    /// States to show.
    #[serde(default)]
    #[param(value_type = Option<Vec<JobState>>, style = Form, explode = false, inline)]
    state: Words<JobState>,
    /// Verdicts to show.
    #[serde(default)]
    #[param(value_type = Option<Vec<HealthStatus>>, style = Form, explode = false, inline)]
    health: Words<HealthStatus>,
    /// Kafka connections to show.
    #[serde(default)]
    #[param(value_type = Option<Vec<String>>, style = Form, explode = false)]
    connection: Words<String>,
    /// What the name contains.
    q: Option<String>,
    /// In which order; a minus means the largest first, unknown ones last.
    #[serde(default)]
    #[param(inline)]
    sort: Sort,
    /// How many at most.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<usize>,
    /// Where the page begins: `next` of the page before.
    after: Option<String>,
}

/// In which order jobs are listed.
#[derive(Debug, Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
enum Sort {
    #[default]
    #[serde(rename = "name")]
    Name,
    #[serde(rename = "-checkpoint_lag")]
    CheckpointLag,
    #[serde(rename = "-group_lag")]
    GroupLag,
    #[serde(rename = "-age")]
    Age,
}

/// List the jobs
///
/// Each with its state, its health and its lags as they were measured last; this call never waits for a broker.
#[utoipa::path(
    get, path = "/api/v1/jobs", operation_id = "listJobs", tag = "jobs",
    params(
        JobsQuery,
        ("label.*" = Option<String>, Query, description = "A label that must be there, with the values it may have: `label.team=payments,orders`. May be given for several labels."),
    ),
    responses((status = 200, description = "A page of jobs, by name if nothing else is said", body = JobList), ListProblems),
)]
pub(super) async fn list_jobs(
    State(service): State<Service>,
    _: AcceptsJson,
    Query(query): Query<JobsQuery>,
    uri: Uri,
) -> Result<Json<JobList>, Problem> {
    let filter = JobFilter {
        states: query.state.0,
        health: query.health.0,
        connections: query.connection.0,
        labels: labels(&uri)?,
        name_contains: query.q,
        sort: match query.sort {
            Sort::Name => JobSort::Name,
            Sort::CheckpointLag => JobSort::CheckpointLag,
            Sort::GroupLag => JobSort::GroupLag,
            Sort::Age => JobSort::Age,
        },
        limit: page_size(query.limit)?,
        after: query.after,
    };
    Ok(Json(service.list_jobs(&filter).await?))
}

/// The parameters `label.<name>=<value>,<value>`.
fn labels(uri: &Uri) -> Result<Vec<(String, Vec<String>)>, Problem> {
    let AnyQuery(pairs) = AnyQuery::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| Problem::new(Code::InvalidRequest, error.body_text()))?;
    let label = |(name, values): (String, String)| {
        let name = name.strip_prefix("label.")?.to_owned();
        Some((name, values.split(',').map(str::to_owned).collect()))
    };
    Ok(pairs.into_iter().filter_map(label).collect())
}

/// Show one job
///
/// Begins with `summary`, one sentence, and `next`, what makes sense to do now; everything below is evidence.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}", operation_id = "getJob", tag = "jobs",
    params(("job" = String, Path, description = "The job's name", example = "orders")),
    responses((status = 200, description = "The job", body = JobView), JobProblems),
)]
pub(super) async fn get_job(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
) -> Result<Json<JobView>, Problem> {
    Ok(Json(service.job(&job).await?))
}
