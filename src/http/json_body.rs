//! Reads a JSON body strictly: the media type must say so, members must not be repeated, and what cannot be stored is
//! refused with its place.

use std::{fmt, time::Duration};

use axum::{
    body::to_bytes,
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{csv::CSV, problem::Problem};
use crate::model::code::Code;

/// The largest body.
pub(super) const MAX_BODY_BYTES: usize = 1 << 20;
/// How long a body may take to arrive.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// Deeper than any document of this API, shallow enough for every reader.
const MAX_DEPTH: usize = 32;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// A body that must be there.
#[derive(Debug)]
pub(super) struct JsonBody(pub(super) Value);

/// A body that means `{}` when it is empty.
#[derive(Debug)]
pub(super) struct OptionalJsonBody(pub(super) Value);

/// A JSON merge patch (RFC 7396).
#[derive(Debug)]
pub(super) struct PatchBody(pub(super) Value);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        required(request, &[JSON]).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequest<S> for PatchBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        required(request, &[MERGE_PATCH, JSON]).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequest<S> for OptionalJsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let body = read(request, &[JSON]).await?;
        Ok(Self(body.unwrap_or_else(|| Value::Object(Map::new()))))
    }
}

/// A body that must be there: JSON, or a table of offsets.
#[derive(Debug)]
pub(super) enum JsonOrCsv {
    Json(Value),
    Csv(String),
}

impl<S: Send + Sync> FromRequest<S> for JsonOrCsv {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_csv(request.headers()) {
            return required(request, &[JSON, CSV]).await.map(Self::Json);
        }
        let bytes = read_bytes(request, &[CSV]).await?.unwrap_or_default();
        let text = String::from_utf8(bytes).map_err(|error| {
            Problem::new(
                Code::InvalidRequest,
                format!("the table is not UTF-8: {error}"),
            )
        })?;
        Ok(Self::Csv(text))
    }
}

fn is_csv(headers: &HeaderMap) -> bool {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok()?.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case(CSV))
}

async fn required(request: Request, media_types: &[&str]) -> Result<Value, Problem> {
    read(request, media_types).await?.ok_or_else(|| {
        Problem::new(Code::InvalidJson, "the body is empty").hint("Send a JSON object.")
    })
}

async fn read(request: Request, media_types: &[&str]) -> Result<Option<Value>, Problem> {
    let bytes = read_bytes(request, media_types).await?;
    bytes.as_deref().map(parse).transpose()
}

async fn read_bytes(request: Request, media_types: &[&str]) -> Result<Option<Vec<u8>>, Problem> {
    let has_type = check_media_type(request.headers(), media_types)?;
    let length = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
        return Err(too_large());
    }
    let bytes = tokio::time::timeout(BODY_DEADLINE, to_bytes(request.into_body(), MAX_BODY_BYTES))
        .await
        .map_err(|_| {
            Problem::new(
                Code::RequestTimeout,
                format!(
                    "the body did not arrive within {} s",
                    BODY_DEADLINE.as_secs()
                ),
            )
        })?
        .map_err(|error| unreadable(&error))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if !has_type {
        return Err(wrong_media_type("without a Content-Type", media_types));
    }
    Ok(Some(bytes.into()))
}

fn too_large() -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        format!("the body is larger than {MAX_BODY_BYTES} bytes"),
    )
}

fn unreadable(error: &axum::Error) -> Problem {
    let over_the_limit = std::iter::successors(Some(error as &dyn std::error::Error), |error| {
        error.source()
    })
    .any(|error| error.to_string().contains("length limit exceeded"));
    if over_the_limit {
        return too_large();
    }
    Problem::new(
        Code::InvalidRequest,
        format!("the body could not be read: {error}"),
    )
}

/// Whether there is a media type; a wrong one is refused even for an empty body.
fn check_media_type(headers: &HeaderMap, media_types: &[&str]) -> Result<bool, Problem> {
    if headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|coding| coding != "identity")
    {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "compressed bodies are not taken",
        ));
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(false);
    };
    let value = value.to_str().unwrap_or_default();
    let mut parts = value.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
    let utf8 = parts
        .filter_map(|part| part.split_once('='))
        .filter(|(name, _)| name.eq_ignore_ascii_case("charset"))
        .all(|(_, charset)| charset.trim_matches('"').eq_ignore_ascii_case("utf-8"));
    if media_types.contains(&media_type.as_str()) && utf8 {
        return Ok(true);
    }
    Err(wrong_media_type(&format!("of type '{value}'"), media_types))
}

fn wrong_media_type(what: &str, media_types: &[&str]) -> Problem {
    let wanted = media_types.first().copied().unwrap_or(JSON);
    Problem::new(
        Code::UnsupportedMediaType,
        format!("the body is {what}, not {}", media_types.join(" or ")),
    )
    .hint(format!(
        "Send the header Content-Type: {wanted} (curl -d alone sends application/x-www-form-urlencoded: add -H 'Content-Type: {wanted}')."
    ))
}

/// Reads JSON text.
fn parse(bytes: &[u8]) -> Result<Value, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    Strict { depth: 0 }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| Problem::new(Code::InvalidJson, error.to_string()))
}

/// Builds a [`Value`] and refuses what `serde_json` lets pass: a repeated member (the last one would win silently), a
/// NUL character (PostgreSQL cannot store it), deep nesting.
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: Error>(&self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!(
                "nested deeper than {MAX_DEPTH} levels"
            )));
        }
        Ok(Self {
            depth: self.depth + 1,
        })
    }
}

fn storable<E: Error>(text: &str) -> Result<String, E> {
    if text.contains('\0') {
        return Err(E::custom("a string holds a NUL character"));
    }
    Ok(text.to_owned())
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is out of range"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        storable(value).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self.deeper()?)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let name = storable(&name)?;
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!(
                    "the member '{name}' is given twice"
                )));
            }
            let value = members.next_value_seed(self.deeper()?)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        let deep = "[".repeat(64) + &"]".repeat(64);
        for (text, part) in [
            ("{\"a\": 1,\n \"a\": 2}", "'a' is given twice at line 2"),
            ("{\"a\": 1e999}", "out of range"),
            ("{\"a\": \"\\ud800\"}", "hex escape"),
            ("{\"a\": \"x\\u0000\"}", "NUL"),
            ("\u{feff}{}", "column 1"),
            ("{\"a\": 1,}", "column 9"),
            ("{\"a\": NaN}", "column 7"),
            ("{} {}", "trailing"),
            (&deep, "nested deeper"),
        ] {
            let problem = parse(text.as_bytes()).unwrap_err();
            assert_eq!(problem.code(), Code::InvalidJson);
            assert!(
                problem.detail().contains(part),
                "{text}: {}",
                problem.detail()
            );
            assert!(problem.detail().contains("line"), "{}", problem.detail());
        }
        assert!(parse(b"\xff").is_err());
    }

    #[test]
    fn json_is_read_as_it_is() {
        let text = r#"{"z": [1, -2, 0.5, null, true, "ü"], "a": {"b": 18446744073709551615}}"#;
        let value = parse(text.as_bytes()).unwrap();
        assert_eq!(
            value,
            json!({"z": [1, -2, 0.5, null, true, "ü"], "a": {"b": u64::MAX}})
        );
    }
}
