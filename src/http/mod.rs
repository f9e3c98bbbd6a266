//! The REST surface: every route on one screen, and what all of them have in common.
//!
//! A request passes `answer` (request id, problem documents, counters), then `guard` (host, origin, read-only, unknown
//! parameters, deadline), then its handler. A handler reads its input, makes one call of the [`Service`] and writes what
//! came back; what it refuses is a `Problem`, which `answer` turns into a document, so that no handler
//! needs to know the request's id or the server's address.
//!
//! The route and its documentation are one item ([`utoipa::path`]), and the parameters that a route takes are looked up
//! in the generated document: a parameter that is not documented is refused before the handler sees the request.

#![expect(
    unused_qualifications,
    reason = "the code that utoipa::path generates has them"
)]

mod action;
mod attempts;
mod bodies;
mod checkpoints;
mod conditional;
mod context;
mod csv;
mod delete_job;
mod documentation;
mod events;
mod extract;
mod health;
mod jobs;
mod json_body;
mod metrics;
mod middleware;
mod offsets;
mod openapi;
mod operations;
mod problem;
mod problem_pages;
mod records;
mod reset_offsets;
mod series;
mod serve;
mod skip;
mod specs;
mod start_stop;
mod startup_mode;
mod wait;
mod web_ui;

use std::sync::Arc;

use axum::{Router, extract::FromRef, routing::get};
use tokio_util::sync::CancellationToken;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::context::Context;
pub use self::{
    context::HttpOptions,
    openapi::openapi_json,
    serve::{ServeLimits, serve},
};
use crate::service::Service;

/// Prefix of every resource.
const API: &str = "/api/v1";

/// What handlers may take from the router.
#[derive(Clone)]
struct Api {
    service: Service,
    context: Arc<Context>,
}

impl FromRef<Api> for Service {
    fn from_ref(api: &Api) -> Self {
        api.service.clone()
    }
}

impl FromRef<Api> for Arc<Context> {
    fn from_ref(api: &Api) -> Self {
        Self::clone(&api.context)
    }
}

/// Builds the whole HTTP surface.
///
/// `shutdown` ends the waiting of `?wait=`: the calls answer with their operations as they stand, so that the server can
/// drain. Connections are the business of [`serve()`].
pub fn router(service: Service, options: &HttpOptions, shutdown: CancellationToken) -> Router {
    let (routes, document) = routes::<Api>().split_for_parts();
    let context = Arc::new(Context::new(options, &openapi::finish(document), shutdown));
    context.register_jobs(service.clone());
    let api = Api {
        service,
        context: Arc::clone(&context),
    };
    middleware::wrap(routes.merge(pages()).with_state(api), &context)
}

/// Every documented route.
fn routes<S>() -> OpenApiRouter<S>
where
    S: Clone + Send + Sync + 'static,
    Service: FromRef<S>,
    Arc<Context>: FromRef<S>,
{
    OpenApiRouter::with_openapi(openapi::skeleton())
        .routes(routes!(jobs::list_jobs))
        .routes(routes!(jobs::get_job, delete_job::delete_job))
        .routes(routes!(specs::get_spec, specs::put_spec, specs::patch_spec))
        .routes(routes!(
            startup_mode::get_startup_mode,
            startup_mode::set_startup_mode
        ))
        .routes(routes!(startup_mode::cancel_next_start))
        .routes(routes!(start_stop::get_start_plan))
        .routes(routes!(start_stop::start_job))
        .routes(routes!(start_stop::stop_job))
        .routes(routes!(start_stop::restart_job))
        .routes(routes!(skip::skip_record))
        .routes(routes!(records::look_at_records))
        .routes(routes!(
            checkpoints::list_checkpoints,
            checkpoints::trigger_checkpoint
        ))
        .routes(routes!(checkpoints::get_checkpoint))
        .routes(routes!(attempts::list_attempts))
        .routes(routes!(events::list_events))
        .routes(routes!(series::job_series))
        .routes(routes!(offsets::inspect_offsets))
        .routes(routes!(reset_offsets::reset_offsets))
        .routes(routes!(operations::list_operations))
        .routes(routes!(operations::get_operation))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::get_metrics))
        .routes(routes!(problem_pages::list_problems))
        .routes(routes!(problem_pages::get_problem))
}

/// What is made for browsers, and the document itself.
fn pages<S>() -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    Router::new()
        .route("/", get(web_ui::to_ui))
        .route("/ui", get(web_ui::to_ui))
        .route("/ui/", get(web_ui::index))
        .route("/ui/{*path}", get(web_ui::file))
        .route("/page.css", get(web_ui::stylesheet))
        .route("/openapi.json", get(openapi::document))
        .route("/docs", get(documentation::to_docs))
        .route("/docs/", get(documentation::index))
        .route("/docs/{*path}", get(documentation::file))
}

#[cfg(test)]
mod tests;
