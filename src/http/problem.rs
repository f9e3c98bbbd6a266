//! Problem documents (RFC 9457): the one shape of every refusal.
//!
//! A [`Problem`] travels as a response extension from wherever it arose to the outermost middleware, which knows the
//! request's id and path and writes the document.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::context::Context;
use crate::{
    model::{
        code::Code,
        field_error::FieldError,
        ids::JobName,
        operation::{Operation, OperationStatus},
        resolver::Blocker,
        views::NextStep,
    },
    service::ServiceError,
};

/// The media type of problem documents.
pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// How soon a failed operation that may be repeated as it is may be asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// A refusal on its way to the caller.
#[derive(Debug, Clone)]
pub(super) struct Problem(Box<ServiceError>);

impl Problem {
    /// A problem of this code; `detail` is one sentence about this case.
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(ServiceError::new(code, detail)))
    }

    /// Says what to do in this case.
    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self(Box::new(self.0.hint(hint)))
    }

    /// The faults of a body; `otherwise` is the code unless all of them are of one special kind.
    pub(super) fn faults(errors: Vec<FieldError>, otherwise: Code) -> Self {
        ServiceError::faults(errors, otherwise).into()
    }

    /// The problem that a failed operation is to a caller who waited for it.
    pub(super) fn of_operation(operation: &Operation) -> Self {
        let error = operation.error.as_ref().unwrap_or(&Value::Null);
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
        let code = match operation.status {
            OperationStatus::Canceled => Code::Superseded,
            OperationStatus::Queued
            | OperationStatus::Running
            | OperationStatus::Succeeded
            | OperationStatus::Failed => Code::Internal,
        };
        let code = text("code")
            .and_then(|word| Code::ALL.iter().copied().find(|code| code.as_str() == word))
            .unwrap_or(code);
        let detail = text("detail").unwrap_or_else(|| code.title().to_owned());
        let list = |name: &str| error.get(name).and_then(Value::as_array);
        let blockers: Vec<Blocker> = error
            .get("blockers")
            .and_then(|blockers| serde::Deserialize::deserialize(blockers).ok())
            .unwrap_or_default();
        let next: Vec<NextStep> = error
            .get("next")
            .and_then(|next| serde::Deserialize::deserialize(next).ok())
            .unwrap_or_default();
        let fault = |fault: &Value| {
            let text = |name: &str| fault.get(name).and_then(Value::as_str);
            let read = FieldError::new(text("pointer")?, text("message")?);
            Some(match text("statement") {
                Some(statement) => read.mended_by(statement),
                None => read,
            })
        };
        let faults = list("errors").into_iter().flatten().filter_map(fault);
        let retryable = error.get("retryable").and_then(Value::as_bool) == Some(true);
        let problem = ServiceError::new(code, detail)
            .job(&operation.job)
            .choices(list("choices").cloned().unwrap_or_default())
            .blockers(blockers)
            .next(next)
            .errors(faults.collect())
            .operation(operation.clone());
        Self(Box::new(ServiceError {
            hint: text("hint"),
            retry_after: retryable.then_some(ASK_AGAIN),
            ..problem
        }))
    }

    /// The code.
    pub(super) fn code(&self) -> Code {
        self.0.code
    }

    /// The sentence about this case, for the log.
    pub(super) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Writes the document. `headers` are those that the response already has (`Allow`, for instance).
    pub(super) fn render(
        &self,
        context: &Context,
        instance: &str,
        request_id: &str,
        headers: HeaderMap,
    ) -> Response {
        let document = ProblemDocument::new(self, context, instance, request_id);
        let mut body = serde_json::to_vec(&document).unwrap_or_default();
        body.push(b'\n');
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status();
        *response.headers_mut() = headers;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.remove(header::CONTENT_LENGTH);
        if let Some(after) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        let location = self
            .0
            .operation
            .as_ref()
            .and_then(|operation| HeaderValue::try_from(operation_path(operation)).ok());
        if let Some(location) = location {
            headers.insert(header::LOCATION, location);
        }
        response
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn retry_after(&self) -> Option<Duration> {
        let in_progress = self.0.code == Code::OperationInProgress;
        self.0
            .retry_after
            .or_else(|| in_progress.then_some(Duration::from_secs(1)))
    }
}

/// `Retry-After` counts whole seconds; too early would be a lie, so they are rounded up.
fn whole_seconds(after: Duration) -> u64 {
    after.as_millis().div_ceil(1000).try_into().unwrap_or(1)
}

/// Where an operation is found.
pub(super) fn operation_path(operation: &Operation) -> String {
    format!("{}/operations/{}", super::API, operation.id)
}

impl From<ServiceError> for Problem {
    fn from(mut error: ServiceError) -> Self {
        // The commonest fault of all has a code of its own, as long as it is the only one.
        let without_offset = |error: &FieldError| {
            error.pointer.ends_with("/timestamp") && error.message.contains("explicit offset")
        };
        if !error.errors.is_empty() && error.errors.iter().all(without_offset) {
            error.code = Code::TimestampWithoutOffset;
        }
        Self(Box::new(error))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// A problem document (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProblemDocument<'a> {
    /// Address of the page about the code.
    #[serde(rename = "type")]
    #[schema(examples("http://localhost:8080/problems/job-not-found"))]
    kind: String,
    /// What the code means.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// The code: compare this, not the texts.
    code: Code,
    /// One sentence about this case.
    detail: &'a str,
    /// What to do.
    hint: &'a str,
    /// Whether the same request can succeed later without anybody changing anything.
    retryable: bool,
    /// The request's path.
    instance: &'a str,
    /// The request's id; it stands in the server's log, too.
    request_id: &'a str,
    /// The job it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'a JobName>,
    /// The operation that failed or is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a Operation>,
    /// Every fault of the document that was sent.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
    /// Members to repeat the call with, one of them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<Object>)]
    choices: &'a [Value],
    /// What stands against a start.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    blockers: &'a [Blocker],
    /// The same as whole lines to copy, one for each way out.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    next: &'a [NextStep],
    /// When to ask again (as `Retry-After`, but in milliseconds).
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl<'a> ProblemDocument<'a> {
    fn new(
        problem: &'a Problem,
        context: &Context,
        instance: &'a str,
        request_id: &'a str,
    ) -> Self {
        let error = &*problem.0;
        let detail = if error.code == Code::Internal {
            // The cause is for the log: it may name what callers have no business to know.
            "the server made a mistake; its log has the cause under this request id"
        } else {
            &error.detail
        };
        Self {
            kind: context.problem_url(error.code),
            title: error.code.title(),
            status: problem.status().as_u16(),
            code: error.code,
            detail,
            hint: error.hint.as_deref().unwrap_or_else(|| error.code.remedy()),
            retryable: problem.retry_after().is_some(),
            instance,
            request_id,
            job: error.job.as_ref(),
            operation: error.operation.as_deref(),
            errors: &error.errors,
            choices: &error.choices,
            blockers: &error.blockers,
            next: &error.next,
            retry_after_ms: problem
                .retry_after()
                .map(|after| after.as_millis().try_into().unwrap_or(u64::MAX)),
        }
    }
}
