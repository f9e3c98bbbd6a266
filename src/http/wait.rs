//! `?wait=30s`: turns an asynchronous call into a synchronous one.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    context::Context,
    extract::Query,
    problem::{Problem, operation_path},
};
use crate::{
    model::{
        code::Code,
        duration::HumanDuration,
        ids::OperationId,
        operation::{Operation, OperationStatus},
    },
    service::{Accepted, Service},
};

/// The longest wait.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(120);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// How long a caller waits for an operation: `?wait=30s`, or `Prefer: wait=30` (RFC 7240).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wait {
    duration: Option<Duration>,
    /// Whole seconds of the `Prefer` header that was honoured.
    preferred: Option<u64>,
}

/// The parameter of calls that can be waited for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// How long to wait for the operation's end, from `1s` to `120s`. `Prefer: wait=30` means the same. Dropping the
    /// connection never cancels the operation.
    #[param(example = "30s", pattern = "^[0-9]+(ms|s|m)$")]
    wait: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Wait {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(query) = Query::<WaitQuery>::from_request_parts(parts, state).await?;
        match query.wait {
            Some(text) => Self::read(&text),
            None => Ok(Self::preferred(&parts.headers)),
        }
    }
}

impl Wait {
    fn read(text: &str) -> Result<Self, Problem> {
        match HumanDuration::parse(text) {
            Some(HumanDuration(wait)) if (SHORTEST_WAIT..=LONGEST_WAIT).contains(&wait) => {
                Ok(Self {
                    duration: Some(wait),
                    preferred: None,
                })
            }
            _ => Err(Problem::new(
                Code::InvalidWait,
                format!(
                    "wait={text} is no duration from 1s to 120s; write it with its unit, such as wait=30s"
                ),
            )),
        }
    }

    /// A preference that cannot be honoured is ignored, as the standard says.
    fn preferred(headers: &HeaderMap) -> Self {
        let seconds = headers
            .get_all("prefer")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split([',', ';']))
            .filter_map(|preference| preference.trim().strip_prefix("wait=")?.parse::<u64>().ok())
            .find(|seconds| {
                (SHORTEST_WAIT..=LONGEST_WAIT).contains(&Duration::from_secs(*seconds))
            });
        Self {
            duration: seconds.map(Duration::from_secs),
            preferred: seconds,
        }
    }

    /// Waits for an operation, as long as was asked for and the server stays up.
    async fn follow(
        self,
        id: &OperationId,
        service: &Service,
        context: &Context,
    ) -> Result<Option<Operation>, Problem> {
        let Some(wait) = self.duration else {
            return Ok(None);
        };
        tokio::select! {
            operation = service.wait_for_operation(id, wait) => Ok(Some(operation?)),
            () = context.shutdown.cancelled() => Ok(None),
        }
    }

    fn acknowledge(self, response: &mut Response) {
        let applied = self
            .preferred
            .and_then(|seconds| HeaderValue::try_from(format!("wait={seconds}")).ok());
        if let Some(applied) = applied {
            response.headers_mut().insert("preference-applied", applied);
        }
    }
}

/// Answers for an operation that was taken on: `202`, or its outcome to a caller who waited long enough.
pub(super) async fn accepted(
    accepted: Accepted,
    wait: Wait,
    service: &Service,
    context: &Arc<Context>,
) -> Result<Response, Problem> {
    let Accepted {
        operation,
        replayed,
    } = accepted;
    let followed = wait.follow(&operation.id, service, context).await?;
    let waited = followed.is_some();
    let operation = followed.unwrap_or(operation);
    let mut response = match operation.status {
        OperationStatus::Failed | OperationStatus::Canceled if waited => {
            Problem::of_operation(&operation).into_response()
        }
        OperationStatus::Succeeded if waited => (StatusCode::OK, Json(&operation)).into_response(),
        OperationStatus::Queued
        | OperationStatus::Running
        | OperationStatus::Succeeded
        | OperationStatus::Failed
        | OperationStatus::Canceled => (StatusCode::ACCEPTED, Json(&operation)).into_response(),
    };
    wait.acknowledge(&mut response);
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(operation_path(&operation)) {
        headers.insert(header::LOCATION, location);
    }
    if replayed {
        headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Answers with an operation as it stands, after waiting for its end if that was asked for.
pub(super) async fn shown(
    id: &OperationId,
    wait: Wait,
    service: &Service,
    context: &Arc<Context>,
) -> Result<Response, Problem> {
    let operation = match wait.follow(id, service, context).await? {
        Some(operation) => operation,
        None => service.operation(id).await?,
    };
    let mut response = Json(&operation).into_response();
    wait.acknowledge(&mut response);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lies_between_one_second_and_two_minutes() {
        for (text, seconds) in [("1s", 1), ("30s", 30), ("2m", 120), ("1500ms", 1)] {
            let wait = Wait::read(text).unwrap();
            assert_eq!(wait.duration.map(|wait| wait.as_secs()), Some(seconds));
        }
        for bad in ["", "30", "0s", "999ms", "121s", "1h", "-1s", "true"] {
            assert_eq!(
                Wait::read(bad).unwrap_err().code(),
                Code::InvalidWait,
                "{bad}"
            );
        }
    }

    #[test]
    fn a_preference_counts_only_in_range() {
        let prefer = |value: &str| {
            HeaderMap::from_iter([("prefer".parse().unwrap(), value.parse().unwrap())])
        };
        for (value, seconds) in [
            ("wait=30", Some(30)),
            ("respond-async, wait=5", Some(5)),
            ("wait=0", None),
            ("wait=1000", None),
            ("return=minimal", None),
        ] {
            assert_eq!(
                Wait::preferred(&prefer(value)).preferred,
                seconds,
                "{value}"
            );
        }
    }
}
