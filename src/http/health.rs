//! Whether the process lives, and whether it should be given requests.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{extract::Query, openapi::problems, problem::Problem};
use crate::{
    model::code::Code,
    service::{ReadinessCheck, Service},
};

problems!(ReadyProblems: NotReady);

/// Whether the process lives
///
/// Answers while the runtime makes progress; depends on nothing outside.
#[utoipa::path(
    get, path = "/livez", operation_id = "livez", tag = "server",
    responses((status = 200, description = "It lives", body = String, content_type = "text/plain")),
)]
pub(super) async fn livez() -> Response {
    ([(header::CONTENT_TYPE, "text/plain")], "ok\n").into_response()
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadyQuery {
    /// List the checks; needs no value.
    #[param(allow_reserved, example = "")]
    verbose: Option<String>,
}

/// Whether the server should be given requests.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ready {
    /// Always `true`: a server that is not ready answers with a problem document.
    ready: bool,
    /// The checks, with `verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<Vec<Check>>,
}

/// One check.
#[derive(Debug, Serialize, ToSchema)]
struct Check {
    /// What is checked.
    name: &'static str,
    /// Whether it holds.
    ok: bool,
    /// One sentence.
    detail: String,
}

/// Whether the server should be given requests
///
/// PostgreSQL answers, its schema is the one this version knows, and the server is not going down. Neither Kafka nor the
/// health of jobs matters here: one broken topic must not take the whole API out of a load balancer.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "server",
    params(ReadyQuery),
    responses((status = 200, description = "Ready", body = Ready), ReadyProblems),
)]
pub(super) async fn readyz(
    State(service): State<Service>,
    Query(query): Query<ReadyQuery>,
) -> Result<Json<Ready>, Problem> {
    let readiness = service.readiness().await;
    if !readiness.ready {
        let told = |check: &ReadinessCheck| format!("{}: {}", check.name, check.detail);
        let failing: Vec<String> = readiness
            .checks
            .iter()
            .filter(|check| !check.ok || query.verbose.is_some())
            .map(told)
            .collect();
        return Err(Problem::new(Code::NotReady, failing.join("; ")));
    }
    let checks = query.verbose.map(|_| {
        readiness
            .checks
            .into_iter()
            .map(|ReadinessCheck { name, ok, detail }| Check { name, ok, detail })
            .collect()
    });
    Ok(Json(Ready {
        ready: true,
        checks,
    }))
}
