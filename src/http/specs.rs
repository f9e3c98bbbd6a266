//! The spec of a job: the declarative document that machines apply again and again.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    conditional::{Preconditions, entity_tag, is_current},
    extract::{AcceptsJson, CalledBy, JobPath, NewJobPath, Query},
    json_body::{JsonBody, PatchBody},
    openapi::problems,
    problem::{Problem, operation_path},
};
use crate::{
    model::{job::JobSpec, operation::Operation, views::SpecApplied},
    service::{Service, SpecPrecondition},
};

problems!(GetProblems: JobNotFound, StoreUnreachable);
problems!(PutProblems: UnknownMember, TimestampWithoutOffset, GroupIdTaken, StaleGeneration, AlreadyExists, InvalidSpec, TimestampInFuture, UnknownTopic, KafkaNotAuthorized, StoreUnreachable);
problems!(PatchProblems: UnknownMember, TimestampWithoutOffset, JobNotFound, GroupIdTaken, StaleGeneration, InvalidSpec, TimestampInFuture, UnknownTopic, KafkaNotAuthorized, StoreUnreachable);

/// Read the spec
///
/// With its defaults filled in. The `ETag` is the generation: send it as `If-Match` with a change.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/spec", operation_id = "getSpec", tag = "specs",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of the copy that the caller has"),
    ),
    responses(
        (status = 200, description = "The spec", body = JobSpec, headers(("ETag" = String, description = "The generation in quotes"))),
        (status = 304, description = "The caller's copy is the current one"),
        GetProblems
    ),
)]
pub(super) async fn get_spec(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (spec, generation) = service.spec(&job).await?;
    let tag = entity_tag(generation);
    let is_current = is_current(&headers, tag.to_str().unwrap_or_default())?;
    let mut response = if is_current {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Json(&spec).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag);
    // A copy may be kept as long as it is asked for each time whether it still holds.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PutQuery {
    /// Check everything, store nothing.
    #[serde(default)]
    #[param(required = false, default = false)]
    dry_run: bool,
    /// `on-create`: start the job if this call creates it. A job that exists is never started by its spec.
    #[param(inline)]
    start: Option<StartOnCreate>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum StartOnCreate {
    OnCreate,
}

/// What came of a spec that was sent.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SpecStored {
    #[serde(flatten)]
    applied: SpecApplied,
    /// The start that `start=on-create` asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Operation>,
}

/// Create or replace the spec
///
/// The same document again changes nothing and makes no new generation. What a running job cannot take over at once is
/// listed in `pending_fields` and counts from the next start on. Applying a spec never starts or stops a job that exists.
#[utoipa::path(
    put, path = "/api/v1/jobs/{job}/spec", operation_id = "putSpec", tag = "specs",
    params(
        ("job" = String, Path, description = "The job's name: up to 63 lower-case letters, digits and hyphens, a letter first", example = "orders"),
        PutQuery,
        ("If-Match" = Option<String>, Header, description = "Replace only this generation"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: create, but never replace"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(content = super::bodies::JobSpecDocument, description = "The whole spec; what is left out has its default", content_type = "application/json"),
    responses(
        (status = 200, description = "Replaced, unchanged, or checked only (`dry_run`)", body = SpecStored, headers(("ETag" = String, description = "The generation in quotes"))),
        (status = 201, description = "Created", body = SpecStored, headers(("ETag" = String, description = "The generation in quotes"))),
        PutProblems
    ),
)]
pub(super) async fn put_spec(
    State(service): State<Service>,
    _: AcceptsJson,
    CalledBy(caller): CalledBy,
    NewJobPath(job): NewJobPath,
    Query(query): Query<PutQuery>,
    preconditions: Preconditions,
    JsonBody(document): JsonBody,
) -> Result<Response, Problem> {
    let precondition = SpecPrecondition {
        if_match: preconditions.generation(&job, &service).await?,
        if_none_match_any: preconditions.must_be_new,
    };
    let start_on_create = query.start.is_some();
    let (applied, created, operation) = service
        .put_spec(
            &job,
            &document,
            precondition,
            query.dry_run,
            start_on_create,
            &caller,
        )
        .await?;
    let status = if created && !query.dry_run {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let location = match &operation {
        Some(operation) => Some(operation_path(operation)),
        None if status == StatusCode::CREATED => Some(format!("{}/jobs/{job}/spec", super::API)),
        None => None,
    };
    let tag = entity_tag(applied.generation);
    let stored = SpecStored { applied, operation };
    let mut response = (status, [(header::ETAG, tag)], Json(&stored)).into_response();
    if let Some(location) = location.and_then(|path| HeaderValue::try_from(path).ok()) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DryRunQuery {
    /// Check everything, store nothing.
    #[serde(default)]
    #[param(required = false, default = false)]
    pub(super) dry_run: bool,
}

/// Change a part of the spec
///
/// A JSON merge patch (RFC 7396): members that are there replace, `null` goes back to the default. A patch that changes what
/// kind of thing a member is (`restart.strategy`, `errors.on_bad_record.policy`, `startup_mode.mode`, `source.stop_at.mode`,
/// `sink.type`) replaces it as a whole: members of the old kind do not stay.
#[utoipa::path(
    patch, path = "/api/v1/jobs/{job}/spec", operation_id = "patchSpec", tag = "specs",
    params(
        ("job" = String, Path, description = "The job's name", example = "orders"),
        DryRunQuery,
        ("If-Match" = Option<String>, Header, description = "Change only this generation"),
        ("Handover-Reason" = Option<String>, Header, description = "Why, for the history"),
    ),
    request_body(
        content((Object = "application/merge-patch+json", example = json!({"checkpoint": {"timeout": "180s"}})), (Object = "application/json", example = json!({"checkpoint": {"timeout": "180s"}}))),
        description = "The members to change"
    ),
    responses((status = 200, description = "Changed, unchanged, or checked only (`dry_run`)", body = SpecApplied, headers(("ETag" = String, description = "The generation in quotes"))), PatchProblems),
)]
pub(super) async fn patch_spec(
    State(service): State<Service>,
    _: AcceptsJson,
    CalledBy(caller): CalledBy,
    JobPath(job): JobPath,
    Query(query): Query<DryRunQuery>,
    preconditions: Preconditions,
    PatchBody(patch): PatchBody,
) -> Result<Response, Problem> {
    let if_match = preconditions.for_existing(&job, &service).await?;
    let applied = service
        .patch_spec(&job, &patch, if_match, query.dry_run, &caller)
        .await?;
    let tag = entity_tag(applied.generation);
    Ok(([(header::ETAG, tag)], Json(&applied)).into_response())
}
