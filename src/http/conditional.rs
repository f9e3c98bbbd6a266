//! `ETag`, `If-Match`, `If-None-Match`: the generation of a spec as a precondition.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
};

use super::problem::Problem;
use crate::{
    model::{code::Code, ids::JobName},
    service::Service,
};

/// The strong entity tag of a generation.
pub(super) fn entity_tag(generation: i64) -> HeaderValue {
    // Digits between quotes are a header value.
    HeaderValue::try_from(format!("\"{generation}\""))
        .unwrap_or(HeaderValue::from_static("\"unknown\""))
}

/// The `If-Match` of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum IfMatch {
    /// There is none.
    #[default]
    Absent,
    /// `*`: the job must exist.
    Exists,
    /// One of these generations. Tags that no generation has match nothing and are left out.
    OneOf(Vec<i64>),
}

/// The preconditions of a request that changes something.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Preconditions {
    if_match: IfMatch,
    /// `If-None-Match: *`: the job must not exist.
    pub(super) must_be_new: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Preconditions {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::read(&parts.headers)
    }
}

impl Preconditions {
    fn read(headers: &HeaderMap) -> Result<Self, Problem> {
        let must_be_new = match tags(headers, &header::IF_NONE_MATCH)?.as_deref() {
            None => false,
            Some([only]) if only == "*" => true,
            Some(_) => {
                return Err(Problem::new(
                    Code::InvalidRequest,
                    "a change takes If-None-Match: * only (create, but never replace)",
                ));
            }
        };
        let if_match = match tags(headers, &header::IF_MATCH)? {
            None => IfMatch::Absent,
            Some(tags) if tags.iter().any(|tag| tag == "*") => IfMatch::Exists,
            Some(tags) => IfMatch::OneOf(tags.iter().filter_map(|tag| generation(tag)).collect()),
        };
        if must_be_new && if_match != IfMatch::Absent {
            return Err(Problem::new(
                Code::InvalidRequest,
                "If-Match and If-None-Match: * contradict each other",
            ));
        }
        Ok(Self {
            if_match,
            must_be_new,
        })
    }

    /// The one generation that the job must have, for the service to check in its transaction.
    ///
    /// # Errors
    /// `stale-generation` if no generation can satisfy the precondition; what reading the spec ends with.
    pub(super) async fn generation(
        &self,
        job: &JobName,
        service: &Service,
    ) -> Result<Option<i64>, Problem> {
        let wanted = match &self.if_match {
            IfMatch::Absent => return Ok(None),
            IfMatch::OneOf(wanted) if wanted.len() == 1 => return Ok(wanted.first().copied()),
            IfMatch::OneOf(wanted) => Some(wanted),
            IfMatch::Exists => None,
        };
        let current = match service.spec(job).await {
            Ok((_, generation)) => generation,
            Err(error) if error.code == Code::JobNotFound => {
                return Err(Problem::new(
                    Code::StaleGeneration,
                    format!("there is no job {job}, so If-Match cannot hold"),
                ));
            }
            Err(error) => return Err(error.into()),
        };
        match wanted {
            Some(wanted) if !wanted.contains(&current) => Err(Problem::new(
                Code::StaleGeneration,
                format!("job {job} has generation {current}, which If-Match does not name"),
            )),
            Some(_) | None => Ok(Some(current)),
        }
    }

    /// As [`generation`](Self::generation), for calls that create nothing.
    ///
    /// # Errors
    /// `invalid-request` for `If-None-Match: *`, which could never hold.
    pub(super) async fn for_existing(
        &self,
        job: &JobName,
        service: &Service,
    ) -> Result<Option<i64>, Problem> {
        if self.must_be_new {
            return Err(Problem::new(
                Code::InvalidRequest,
                "this call creates nothing, so If-None-Match: * can never hold",
            ));
        }
        self.generation(job, service).await
    }
}

/// Whether the caller's copy is the current one (`304`). Weak comparison, as RFC 9110 13.1.2 wants it.
pub(super) fn is_current(headers: &HeaderMap, current: &str) -> Result<bool, Problem> {
    let tags = tags(headers, &header::IF_NONE_MATCH)?.unwrap_or_default();
    Ok(tags
        .iter()
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == current))
}

/// `"7"` as a number; weak tags never match in a precondition.
fn generation(tag: &str) -> Option<i64> {
    tag.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// The entity tags of a header; `None` without it.
fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Vec<String>>, Problem> {
    let mut found = None;
    for value in headers.get_all(name) {
        let malformed = || {
            Problem::new(
                Code::InvalidRequest,
                format!("{name} holds no entity tags: write for example {name}: \"7\""),
            )
        };
        let value = value.to_str().map_err(|_| malformed())?;
        for tag in value.split(',').map(str::trim) {
            let strong = tag.strip_prefix("W/").unwrap_or(tag);
            let quoted = strong.len() >= 2 && strong.starts_with('"') && strong.ends_with('"');
            if !quoted && tag != "*" {
                return Err(malformed());
            }
            found.get_or_insert_with(Vec::new).push(tag.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn if_match_names_generations() {
        for (value, expected) in [
            ("\"7\"", IfMatch::OneOf(vec![7])),
            ("\"7\", \"8\"", IfMatch::OneOf(vec![7, 8])),
            ("W/\"7\"", IfMatch::OneOf(vec![])),
            ("\"x\"", IfMatch::OneOf(vec![])),
            ("*", IfMatch::Exists),
        ] {
            let read = Preconditions::read(&headers(header::IF_MATCH, value)).unwrap();
            assert_eq!(read.if_match, expected, "{value}");
        }
        // A bare number is the mistake everybody makes once; ignoring it would overwrite somebody's change.
        assert!(Preconditions::read(&headers(header::IF_MATCH, "7")).is_err());
    }

    #[test]
    fn if_none_match_creates_or_saves_a_transfer() {
        let star = headers(header::IF_NONE_MATCH, "*");
        assert!(Preconditions::read(&star).unwrap().must_be_new);
        assert!(Preconditions::read(&headers(header::IF_NONE_MATCH, "\"7\"")).is_err());
        assert!(is_current(&headers(header::IF_NONE_MATCH, "W/\"7\""), "\"7\"").unwrap());
        assert!(!is_current(&headers(header::IF_NONE_MATCH, "\"6\""), "\"7\"").unwrap());
        assert!(!is_current(&HeaderMap::new(), "\"7\"").unwrap());
    }
}
