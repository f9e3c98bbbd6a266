//! What handlers take from a request. Each refuses with a [`Problem`], never with the framework's own words.

use axum::{
    extract::{FromRequestParts, Path},
    http::{HeaderMap, HeaderName, header, request::Parts},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use super::{middleware::RequestId, problem::Problem};
use crate::{
    model::{code::Code, ids::JobName},
    service::Caller,
};

/// Why somebody changes something, for the history; a `reason` in the body counts more.
const REASON: HeaderName = HeaderName::from_static("handover-reason");
const MAX_REASON_CHARS: usize = 1_000;
/// Tells a repetition from a new request.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_KEY_BYTES: usize = 128;

/// The largest page.
const MAX_LIMIT: usize = 500;
/// The page if nothing is said.
const DEFAULT_LIMIT: usize = 50;

/// The job of the path. A name that no job can have names no job.
#[derive(Debug)]
pub(super) struct JobPath(pub(super) JobName);

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = path_text(parts, state).await?;
        job_named(&name).map(Self)
    }
}

/// Reads the name of a job that must exist.
pub(super) fn job_named(name: &str) -> Result<JobName, Problem> {
    JobName::new(name).map_err(|error| {
        Problem::new(Code::JobNotFound, format!("there is no job '{name}'")).hint(error.message)
    })
}

/// The job of the path where it may be a new one.
#[derive(Debug)]
pub(super) struct NewJobPath(pub(super) JobName);

impl<S: Send + Sync> FromRequestParts<S> for NewJobPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = path_text(parts, state).await?;
        JobName::new(&name)
            .map(Self)
            .map_err(|error| Problem::new(Code::InvalidSpec, error.message))
    }
}

async fn path_text<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Problem> {
    Path::<String>::from_request_parts(parts, state)
        .await
        .map(|Path(text)| text)
        .map_err(|error| Problem::new(Code::NotFound, error.body_text()))
}

/// The query of a request. Unknown and repeated parameters were refused before (see `middleware`).
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        axum::extract::Query::<T>::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(query)| Self(query))
            .map_err(|error| {
                let text = error.body_text();
                let fault = text
                    .strip_prefix("Failed to deserialize query string: ")
                    .unwrap_or(&text);
                Problem::new(
                    Code::InvalidRequest,
                    format!("a query parameter cannot be read: {fault}"),
                )
            })
    }
}

/// Words that commas separate; any of them may be meant.
#[derive(Debug)]
pub(super) struct Words<T>(pub(super) Vec<T>);

impl<T> Default for Words<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Words<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.split(',')
            .map(|word| T::deserialize(serde_json::Value::String(word.to_owned())))
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

/// How many items a page holds.
pub(super) fn page_size(limit: Option<usize>) -> Result<usize, Problem> {
    match limit {
        None => Ok(DEFAULT_LIMIT),
        Some(limit) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
        Some(limit) => Err(Problem::new(
            Code::InvalidRequest,
            format!("limit={limit} is out of range: use 1 to {MAX_LIMIT}"),
        )),
    }
}

/// Who calls. This version listens on loopback only and asks nobody who they are; tokens will be read here.
#[derive(Debug)]
pub(super) struct CalledBy(pub(super) Caller);

impl<S: Send + Sync> FromRequestParts<S> for CalledBy {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(Caller {
            requested_by: "local".to_owned(),
            reason: reason(&parts.headers)?,
            request_id: parts
                .extensions
                .get::<RequestId>()
                .map(|id| id.0.clone())
                .unwrap_or_default(),
            idempotency_key: idempotency_key(&parts.headers)?,
        }))
    }
}

fn reason(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(REASON) else {
        return Ok(None);
    };
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) if text.chars().count() <= MAX_REASON_CHARS => Ok(Some(text.to_owned())),
        _ => Err(Problem::new(
            Code::InvalidRequest,
            format!("Handover-Reason must be UTF-8 text of at most {MAX_REASON_CHARS} characters"),
        )),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let visible = |text: &&str| {
        (1..=MAX_KEY_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let key = key.to_str().ok().filter(visible);
    match key {
        Some(key) if keys.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(Problem::new(
            Code::InvalidRequest,
            format!("Idempotency-Key must be one key of 1 to {MAX_KEY_BYTES} visible characters"),
        )),
    }
}

/// A caller who takes JSON. It is asked before anything is done: a change whose answer cannot be shown must not happen.
#[derive(Debug)]
pub(super) struct AcceptsJson;

impl<S: Send + Sync> FromRequestParts<S> for AcceptsJson {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if accepts(&parts.headers, "application/json") {
            return Ok(Self);
        }
        Err(Problem::new(
            Code::NotAcceptable,
            "the answer is application/json, which the Accept header excludes",
        ))
    }
}

/// Whether the `Accept` headers admit a media type (RFC 9110, 12.5.1): the most specific range decides, `q=0` excludes.
pub(super) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let mut ranges = ranges(headers).peekable();
    if ranges.peek().is_none() {
        return true;
    }
    let family = media_type.split_once('/').map_or("", |(family, _)| family);
    let specificity = |range: &str| match range.split_once('/') {
        Some(("*", "*")) => Some(0),
        Some((kind, "*")) if kind == family => Some(1),
        _ if range == media_type => Some(2),
        _ => None,
    };
    ranges
        .filter_map(|(range, quality)| Some((specificity(&range)?, quality)))
        .max_by_key(|(specificity, _)| *specificity)
        .is_some_and(|(_, quality)| quality > 0.0)
}

/// Whether the `Accept` headers name a media type itself.
pub(super) fn names(headers: &HeaderMap, media_type: &str) -> bool {
    ranges(headers).any(|(range, quality)| range == media_type && quality > 0.0)
}

fn ranges(headers: &HeaderMap) -> impl Iterator<Item = (String, f32)> {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().filter(|name| !name.is_empty())?;
            let quality = parts
                .find_map(|part| part.strip_prefix("q="))
                .and_then(|quality| quality.parse().ok())
                .unwrap_or(1.0);
            Some((name.to_ascii_lowercase(), quality))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT, value.parse().unwrap())])
    }

    #[test]
    fn the_most_specific_range_decides() {
        for (value, json) in [
            ("*/*", true),
            ("application/*", true),
            ("application/json", true),
            ("text/html, application/json;q=0.1", true),
            ("text/html", false),
            ("text/csv, */*;q=0", false),
            ("*/*, application/json;q=0", false),
        ] {
            assert_eq!(accepts(&accept(value), "application/json"), json, "{value}");
        }
        assert!(accepts(&HeaderMap::new(), "application/json"));
        assert!(!names(&accept("*/*"), "text/html"));
        assert!(names(&accept("text/html,*/*;q=0.8"), "text/html"));
    }

    #[test]
    fn an_idempotency_key_is_one_visible_word() {
        let with = |key: &str| HeaderMap::from_iter([(IDEMPOTENCY_KEY, key.parse().unwrap())]);
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
        assert_eq!(
            idempotency_key(&with("inc4711-1")).unwrap().as_deref(),
            Some("inc4711-1")
        );
        for bad in ["", "a b", &"x".repeat(129)] {
            assert!(idempotency_key(&with(bad)).is_err(), "{bad:?}");
        }
    }
}
