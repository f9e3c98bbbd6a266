//! The startup mode: where a job without state begins, and the one call whose intent must be stated.

use axum::{
    Json,
    extract::State,
    http::{HeaderName, HeaderValue, header},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    bodies::StartupModeBody,
    conditional::{Preconditions, entity_tag},
    extract::{AcceptsJson, CalledBy, JobPath, Query},
    json_body::JsonBody,
    openapi::problems,
    problem::Problem,
    specs::DryRunQuery,
};
use crate::{model::views::StartupModeView, service::Service};

problems!(GetProblems: JobNotFound, StoreUnreachable);
problems!(SetProblems: UnknownMember, TimestampWithoutOffset, JobNotFound, StartupModeShadowed, StaleGeneration, InvalidSpec, TimestampInFuture, UnknownPartition, StoreUnreachable);

problems!(CancelProblems: JobNotFound, OperationInProgress, StoreUnreachable);

type Tagged = ([(HeaderName, HeaderValue); 1], Json<StartupModeView>);

fn tagged(view: StartupModeView) -> Tagged {
    ([(header::ETAG, entity_tag(view.generation))], Json(view))
}

/// Show the startup mode
///
/// And whether a start would use it: restored state wins over it. The `ETag` is the spec's generation, for `If-Match`; there
/// is no `304` here, because whether the mode is effective changes without a new generation.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/startup-mode", operation_id = "getStartupMode", tag = "startup mode",
    params(("job" = String, Path, description = "The job's name", example = "orders")),
    responses((status = 200, description = "The mode", body = StartupModeView, headers(("ETag" = String, description = "The spec's generation in quotes"))), GetProblems),
)]
pub(super) async fn get_startup_mode(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
) -> Result<Tagged, Problem> {
    Ok(tagged(service.startup_mode(&job).await?))
}

/// Set the startup mode
///
/// With a checkpoint present the call must say what is meant: `apply: next-start` makes the next start by an operator use
/// the mode, once, and sets the checkpoint aside; `apply: if-no-state` records it for a job without state. Without `apply`
/// the answer is 409 `startup-mode-shadowed` with the choices, and nothing is changed. A running job is never restarted.
#[utoipa::path(
    put, path = "/api/v1/jobs/{job}/startup-mode", operation_id = "setStartupMode", tag = "startup mode",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        DryRunQuery,
        ("If-Match" = Option<String>, Header, description = "Change only this generation of the spec"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(content = StartupModeBody, description = "The mode, and what is meant by it", content_type = "application/json",
        example = json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00", "apply": "next-start"})),
    responses((status = 200, description = "Set, unchanged, or checked only (`dry_run`)", body = StartupModeView, headers(("ETag" = String, description = "The spec's generation in quotes"))), SetProblems),
)]
pub(super) async fn set_startup_mode(
    State(service): State<Service>,
    _: AcceptsJson,
    CalledBy(caller): CalledBy,
    JobPath(job): JobPath,
    Query(query): Query<DryRunQuery>,
    preconditions: Preconditions,
    JsonBody(document): JsonBody,
) -> Result<Tagged, Problem> {
    let if_match = preconditions.for_existing(&job, &service).await?;
    let view = service
        .set_startup_mode(&job, &document, if_match, query.dry_run, &caller)
        .await?;
    Ok(tagged(view))
}

/// Which start is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct CancelQuery {
    /// Only this one, by the `id` of `pending_start`; another one that has replaced it stays.
    id: Option<String>,
}

/// Call off a start that was asked for ahead
///
/// What `apply: next-start` has left as `pending_start` is dropped, and the next start goes on from the checkpoint again.
/// `discarded` is what was dropped; where there is nothing (never asked for, used by a start, called off before, or another
/// one than `id`), `changed` is `false`. Refused while a start or restart is under way, because it may use it: stop it first.
#[utoipa::path(
    delete, path = "/api/v1/jobs/{job}/startup-mode/next-start", operation_id = "cancelNextStart", tag = "startup mode",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        CancelQuery,
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    responses((status = 200, description = "The mode as it counts now", body = StartupModeView, headers(("ETag" = String, description = "The spec's generation in quotes"))), CancelProblems),
)]
pub(super) async fn cancel_next_start(
    State(service): State<Service>,
    _: AcceptsJson,
    CalledBy(caller): CalledBy,
    JobPath(job): JobPath,
    Query(query): Query<CancelQuery>,
) -> Result<Tagged, Problem> {
    let view = service
        .cancel_next_start(&job, query.id.as_deref(), &caller)
        .await?;
    Ok(tagged(view))
}
