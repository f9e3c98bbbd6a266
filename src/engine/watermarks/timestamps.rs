//! Where a record's time stamp is found.

use std::fmt;

use chrono::DateTime;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::model::{
    json_path::{JsonPath, PathStep},
    record::ConsumerRecord,
    watermark::TimestampSource,
};

/// The end of the year 9999. What lies beyond was counted in another unit than milliseconds, and one such record would make
/// all that follow it late.
const MOST_MS: i64 = 253_402_300_799_999;

/// The time stamp of a record in milliseconds since 1970.
///
/// A tombstone has no fields and takes the record's own: to refuse it would make compacted topics unreadable.
///
/// # Errors
/// Why it has none.
pub(super) fn timestamp_of(
    source: &TimestampSource,
    record: &ConsumerRecord<'_>,
) -> Result<i64, String> {
    match (source, record.value) {
        (TimestampSource::Field(path), Some(value)) => of_field(path, value),
        (TimestampSource::Field(_), None) | (TimestampSource::Record, _) => {
            let stamp = record
                .timestamp_ms
                .ok_or_else(|| "the record has no time stamp".to_owned())?;
            in_range(stamp).map_err(|what| format!("the record's time stamp {stamp} {what}"))
        }
    }
}

fn in_range(stamp: i64) -> Result<i64, &'static str> {
    if stamp < 0 {
        return Err("lies before 1970");
    }
    if stamp > MOST_MS {
        return Err("lies beyond the year 9999: milliseconds are expected");
    }
    Ok(stamp)
}

fn of_field(path: &JsonPath, value: &[u8]) -> Result<i64, String> {
    // As the format `json` judges: RFC 8259 section 8.1 wants UTF-8.
    let text =
        std::str::from_utf8(value).map_err(|error| format!("the value is no JSON: {error}"))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let found = At(path.steps()).deserialize(&mut deserializer);
    let found = found.and_then(|found| deserializer.end().map(|()| found));
    match found.map_err(|error| format!("the value is no JSON: {error}"))? {
        Found::Nothing => Err(format!("the value has no time stamp: there is no {path}")),
        Found::Other(kind) => Err(format!(
            "the value has no time stamp: {path} is {kind}, not a whole number of milliseconds since 1970 or a text of RFC 3339"
        )),
        Found::Millis(stamp) => {
            in_range(stamp).map_err(|what| format!("the time stamp {stamp} at {path} {what}"))
        }
    }
}

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Millis(i64),
    Other(&'static str),
}

/// Reads a value, looks at what stands at the end of these steps, and passes over the rest.
#[derive(Clone, Copy)]
struct At<'p>(&'p [PathStep]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl At<'_> {
    /// A value that is no object and no array: the end of the path, or nothing to look into.
    fn leaf<E>(self, found: Found) -> Result<Found, E> {
        Ok(if self.0.is_empty() {
            found
        } else {
            Found::Nothing
        })
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        self.leaf(Found::Other("a boolean"))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Found, E> {
        self.leaf(Found::Millis(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Found, E> {
        self.leaf(Found::Millis(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Found, E> {
        // serde_json reads the whole number -0 as a floating one, the only one that keeps its sign.
        if number == 0.0 && number.is_sign_negative() {
            return self.leaf(Found::Millis(0));
        }
        self.leaf(Found::Other("a number with a fraction or an exponent"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        if !self.0.is_empty() {
            return Ok(Found::Nothing);
        }
        Ok(match DateTime::parse_from_rfc3339(text) {
            Ok(instant) => Found::Millis(instant.timestamp_millis()),
            Err(_) => Found::Other("another text"),
        })
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        self.leaf(Found::Other("null"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let Some((PathStep::Name(name), rest)) = self.0.split_first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return self.leaf(Found::Other("an object"));
        };
        let mut found = Found::Nothing;
        while let Some(is_it) = map.next_key_seed(Is(name))? {
            if is_it {
                // Where a document has a member twice the last one counts, as in PostgreSQL's jsonb.
                found = map.next_value_seed(At(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Found, A::Error> {
        let Some((PathStep::Index(index), rest)) = self.0.split_first() else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return self.leaf(Found::Other("an array"));
        };
        let mut place = 0;
        let mut found = Found::Nothing;
        loop {
            let is_there = if place == *index {
                let element = seq.next_element_seed(At(rest))?;
                found = element.unwrap_or(found);
                element.is_some()
            } else {
                seq.next_element::<IgnoredAny>()?.is_some()
            };
            if !is_there {
                return Ok(found);
            }
            place += 1;
        }
    }
}

/// Whether a member has this name.
struct Is<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(timestamp_ms: Option<i64>, value: Option<&[u8]>) -> ConsumerRecord<'_> {
        ConsumerRecord {
            record_offset: 0,
            timestamp_ms,
            key: None,
            value,
        }
    }

    fn field(path: &str) -> TimestampSource {
        TimestampSource::Field(JsonPath::parse(path).unwrap())
    }

    #[test]
    fn fields_are_milliseconds_or_text() {
        for (path, value, stamp) in [
            ("$.at", r#"{"at": 1700000000123}"#, 1_700_000_000_123),
            ("$.at", r#"{"at": 0}"#, 0),
            ("$.at", r#"{"at": -0}"#, 0),
            ("$.at", r#"{"at": "1970-01-01T00:00:01.5Z"}"#, 1_500),
            ("$.at", r#"{"at": "1970-01-01T01:00:01+01:00"}"#, 1_000),
            (
                "$.a[1].at",
                r#"{"b": {"at": 1}, "a": [{"at": 2}, {"x": [], "at": 3}, 4]}"#,
                3,
            ),
            ("$.at", r#"{"at": 1, "at": 2}"#, 2),
            ("$['a b']", r#"{"a\u0020b": 7}"#, 7),
            ("$", " 5 ", 5),
        ] {
            let found = timestamp_of(&field(path), &record(Some(9), Some(value.as_bytes())));
            assert_eq!(found, Ok(stamp), "{path} {value}");
        }
        assert_eq!(timestamp_of(&field("$.at"), &record(Some(9), None)), Ok(9));
    }

    #[test]
    fn what_is_no_time_stamp_says_what_it_is() {
        for (path, value, word) in [
            ("$.at", r#"{"to": 1}"#, "there is no $.at"),
            ("$.at", "[1]", "there is no $.at"),
            ("$.at.ms", r#"{"at": 5}"#, "there is no $.at.ms"),
            ("$[3]", "[1, 2]", "there is no $[3]"),
            ("$.at", r#"{"at": null}"#, "is null"),
            ("$.at", r#"{"at": true}"#, "is a boolean"),
            ("$.at", r#"{"at": 1.5}"#, "fraction"),
            ("$.at", r#"{"at": {"at": 5}}"#, "is an object"),
            ("$.at", r#"{"at": [5]}"#, "is an array"),
            ("$.at", r#"{"at": "yesterday"}"#, "is another text"),
            ("$.at", r#"{"at": "2026-01-01"}"#, "RFC 3339"),
            ("$.at", r#"{"at": -1}"#, "before 1970"),
            ("$.at", r#"{"at": "1969-12-31T23:59:59Z"}"#, "before 1970"),
            (
                "$.at",
                r#"{"at": 1700000000123456}"#,
                "milliseconds are expected",
            ),
            ("$.at", r#"{"at": 18446744073709551615}"#, "9999"),
            ("$.at", r#"{"at": 1} 2"#, "no JSON"),
            ("$.at", r#"{"at": 1, "b": tru}"#, "no JSON"),
            ("$.at", "", "no JSON"),
        ] {
            let found = timestamp_of(&field(path), &record(Some(9), Some(value.as_bytes())));
            let said = found.unwrap_err();
            assert!(said.contains(word), "{path} {value}: {said}");
        }
        let broken = timestamp_of(
            &field("$.at"),
            &record(Some(9), Some(b"{\"at\": 1, \"b\": \"\xff\"}")),
        );
        assert!(broken.unwrap_err().contains("no JSON"));
        for stamp in [None, Some(-1), Some(i64::MAX)] {
            let own = timestamp_of(&TimestampSource::Record, &record(stamp, Some(b"{}")));
            assert!(own.is_err(), "{stamp:?}");
        }
    }
}
