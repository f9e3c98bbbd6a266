//! What happens to every request, outside of its handler.

use std::{any::Any, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{MatchedPath, Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::Authority},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;
use ulid::Ulid;

use super::{context::Context, problem::Problem, wait::LONGEST_WAIT};
use crate::model::{code::Code, reader::nearest};

/// Header with the request's id, on every answer.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("handover-request-id");

/// A handler that takes longer than this is cut off: longer than the longest wait that a caller may ask for, so that
/// only a fault of the server is ever cut.
const HANDLER_DEADLINE: Duration = Duration::from_secs(LONGEST_WAIT.as_secs() + 30);

/// Longest path and query taken, in bytes; the longest that means anything is far below.
const MAX_TARGET_BYTES: usize = 8 * 1024;

/// What a page of this server may do in a browser: everything comes from here, nothing may frame it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'";

/// The request's id, for whoever handles it.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub(super) String);

/// Puts everything of this module around `router`.
pub(super) fn wrap(router: Router, context: &Arc<Context>) -> Router {
    router
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(context), guard))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(context), answer))
}

async fn no_such_path(uri: Uri) -> Problem {
    Problem::new(
        Code::NotFound,
        format!("there is nothing at {}", uri.path()),
    )
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        format!("{} does not take {method}", uri.path()),
    )
}

#[expect(clippy::needless_pass_by_value, reason = "the layer hands it over")]
fn panicked(cause: Box<dyn Any + Send + 'static>) -> Response {
    let cause = cause
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| cause.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned());
    Problem::new(Code::Internal, format!("a handler panicked: {cause}")).into_response()
}

/// Names the request, writes its problem document if it has one, counts it and logs it.
async fn answer(State(context): State<Arc<Context>>, mut request: Request, next: Next) -> Response {
    let id = format!("rq_{}", Ulid::generate().to_string().to_ascii_lowercase());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("unmatched", MatchedPath::as_str)
        .to_owned();
    let span = tracing::info_span!(
        "request",
        request.id = id,
        http.method = %method,
        http.route = route,
        trace.id = trace_id(request.headers()),
        job.name = job_of(&path),
    );
    request.extensions_mut().insert(RequestId(id.clone()));
    async move {
        let started = tokio::time::Instant::now();
        let response = end_line(next.run(request).await).await;
        let response = finish(&context, response, &path, &id);
        log(&method, response.status(), started.elapsed());
        context.requests.count(&method, &route, response.status());
        response
    }
    .instrument(span)
    .await
}

/// Ends a JSON answer with a line feed: whoever reads it in a terminal gets the prompt on a line of its own.
async fn end_line(response: Response) -> Response {
    let is_json = |value: &HeaderValue| value.as_bytes().starts_with(b"application/json");
    let is_meant = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(is_json)
        && response.status() != StatusCode::NOT_MODIFIED;
    if !is_meant {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Every such answer was made in memory; reading it again takes no time and cannot fail.
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return Problem::new(Code::Internal, "an answer could not be written").into_response();
    };
    // To `HEAD` the length alone is told.
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let length = length.unwrap_or(bytes.len()) + 1;
    parts
        .headers
        .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if bytes.is_empty() {
        return Response::from_parts(parts, Body::empty());
    }
    let mut line = Vec::with_capacity(length);
    line.extend_from_slice(&bytes);
    line.push(b'\n');
    Response::from_parts(parts, Body::from(line))
}

fn finish(context: &Context, response: Response, path: &str, id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    let problem = parts
        .extensions
        .remove::<Problem>()
        .or_else(|| stray_problem(parts.status));
    let mut response = match problem {
        Some(problem) => {
            match problem.code() {
                code if code.status() == 500 => {
                    tracing::error!(%code, cause = problem.detail(), "request failed");
                }
                code if code.status() > 500 => {
                    tracing::warn!(%code, cause = problem.detail(), "request failed");
                }
                _ => {}
            }
            problem.render(context, path, id, parts.headers)
        }
        None => Response::from_parts(parts, body),
    };
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::try_from(id) {
        headers.insert(REQUEST_ID, id);
    }
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// A refusal that no code of ours made: an extractor of the framework answered by itself.
fn stray_problem(status: StatusCode) -> Option<Problem> {
    if status.as_u16() < 400 {
        return None;
    }
    let general = if status.is_client_error() {
        Code::InvalidRequest
    } else {
        Code::Internal
    };
    let code = Code::ALL
        .iter()
        .copied()
        .find(|code| code.status() == status.as_u16())
        .unwrap_or(general);
    Some(Problem::new(code, code.title()))
}

fn log(method: &Method, status: StatusCode, took: Duration) {
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let status = status.as_u16();
    if method.is_safe() {
        tracing::debug!(http.status = status, duration_ms, "request answered");
    } else {
        tracing::info!(http.status = status, duration_ms, "request answered");
    }
}

/// The trace id of a well-formed W3C `traceparent`; it only goes to the log.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = parent.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, length: usize| {
        text.len() == length
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let well_formed =
        is_hex(version, 2) && version != "ff" && is_hex(trace, 32) && is_hex(span, 16);
    (well_formed && trace.bytes().any(|byte| byte != b'0')).then_some(trace)
}

fn job_of(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/jobs/")?.split('/').next()
}

/// Refuses what no handler should see, and gives the handler a deadline.
async fn guard(State(context): State<Arc<Context>>, request: Request, next: Next) -> Response {
    if let Err(problem) = check(&context, &request) {
        return problem.into_response();
    }
    match tokio::time::timeout(HANDLER_DEADLINE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(
            Code::Internal,
            format!("no answer within {} s", HANDLER_DEADLINE.as_secs()),
        )
        .into_response(),
    }
}

fn check(context: &Context, request: &Request) -> Result<(), Problem> {
    let target_bytes = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if target_bytes > MAX_TARGET_BYTES {
        return Err(Problem::new(
            Code::InvalidRequest,
            format!("path and query are {target_bytes} bytes long, more than {MAX_TARGET_BYTES}"),
        ));
    }
    let host = check_host(context, request)?;
    if !request.method().is_safe() {
        check_origin(context, request.headers(), host)?;
        if context.read_only {
            return Err(Problem::new(
                Code::ReadOnlyServer,
                "server.read_only is set: nothing was changed",
            ));
        }
    }
    check_parameters(context, request)
}

fn check_host<'a>(context: &Context, request: &'a Request) -> Result<&'a str, Problem> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let host = named.next().and_then(|host| host.to_str().ok());
    let target = request.uri().authority().map(Authority::as_str);
    match host {
        Some(host)
            if named.next().is_none()
                && context.is_own_host(host)
                && target.is_none_or(|target| context.is_own_host(target)) =>
        {
            Ok(host)
        }
        _ => Err(Problem::new(
            Code::HostNotAllowed,
            match host {
                Some(host) => format!("this server is not '{host}'"),
                None => "the request has no Host header".to_owned(),
            },
        )),
    }
}

/// A page of another site can make a browser send requests here, but not hide where they come from.
fn check_origin(context: &Context, headers: &HeaderMap, host: &str) -> Result<(), Problem> {
    let refuse = |what: String| Err(Problem::new(Code::OriginNotAllowed, what));
    if headers
        .get("sec-fetch-site")
        .is_some_and(|site| site == "cross-site")
    {
        return refuse("a page of another site sent the request".to_owned());
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    match origin.to_str() {
        Ok(origin) if context.is_own_origin(origin, host) => Ok(()),
        Ok(origin) => refuse(format!("the request comes from '{origin}'")),
        Err(_) => refuse("the Origin header is not text".to_owned()),
    }
}

/// Refuses parameters that the route does not document: a misspelt `dry_run` must not execute for real.
fn check_parameters(context: &Context, request: &Request) -> Result<(), Problem> {
    let Some(route) = request.extensions().get::<MatchedPath>() else {
        return Ok(());
    };
    let Some(known) = context.query_parameters(route.as_str(), request.method()) else {
        return Ok(());
    };
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(request.uri())
        .map_err(|error| Problem::new(Code::InvalidRequest, error.body_text()))?
        .0;
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in &pairs {
        if !known.iter().any(|known| matches(known, name)) {
            return Err(unknown_parameter(name, known));
        }
        if seen.contains(&name.as_str()) {
            return Err(Problem::new(
                Code::InvalidRequest,
                format!("the parameter '{name}' is given twice"),
            ));
        }
        if value.contains('\0') {
            return Err(Problem::new(
                Code::InvalidRequest,
                format!("the parameter '{name}' holds a NUL character"),
            ));
        }
        seen.push(name);
    }
    Ok(())
}

/// `label.*` stands for all names that begin with `label.`.
fn matches(known: &str, name: &str) -> bool {
    match known.strip_suffix('*') {
        Some(prefix) => name.len() > prefix.len() && name.starts_with(prefix),
        None => known == name,
    }
}

fn unknown_parameter(name: &str, known: &[String]) -> Problem {
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = match nearest(name, &names) {
        Some(near) => format!("Did you mean '{near}'? Nothing was done."),
        None if names.is_empty() => "This call takes no parameters. Nothing was done.".to_owned(),
        None => format!("Known here: {}. Nothing was done.", names.join(", ")),
    };
    Problem::new(
        Code::UnknownParameter,
        format!("there is no parameter '{name}' here"),
    )
    .hint(hint)
}
