//! The history of a job.

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    extract::{AcceptsJson, JobPath, Query, Words, page_size},
    openapi::problems,
    problem::Problem,
};
use crate::{
    model::views::EventList,
    service::{EventQuery, Service},
};

problems!(ListProblems: InvalidCursor, JobNotFound, StoreUnreachable);

/// Which entries to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Kinds to show. An unknown one is refused with the list of them.
    #[serde(default)]
    #[param(value_type = Option<Vec<String>>, style = Form, explode = false, inline)]
    kind: Words<String>,
    /// How many at most.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<usize>,
    /// Where the page begins: `next` of the page before.
    after: Option<String>,
}

/// Show the history of a job
///
/// Newest first: what happened, when, and who did it, with what else is known of it. Entries are written in the transaction of
/// what they tell, where there is one, and kept for 30 days.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/events", operation_id = "listEvents", tag = "jobs",
    params(("job" = String, Path, description = "The job's name", example = "orders"), EventsQuery),
    responses((status = 200, description = "A page of the history", body = EventList), ListProblems),
)]
pub(super) async fn list_events(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
    Query(query): Query<EventsQuery>,
) -> Result<Json<EventList>, Problem> {
    let query = EventQuery {
        kinds: query.kind.0,
        limit: page_size(query.limit)?,
        after: query.after,
    };
    Ok(Json(service.events(&job, &query).await?))
}
