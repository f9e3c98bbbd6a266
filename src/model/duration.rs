//! Durations as people write them.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize, de::Visitor};
use utoipa::ToSchema;

/// A span of time written as a whole number and a unit: `250ms`, `30s`, `5m`, `2h`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, pattern = "^[0-9]+(ms|s|m|h|d)$", examples("30s"))]
pub struct HumanDuration(pub Duration);

const UNITS_MS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

impl HumanDuration {
    /// Reads the written form; `None` if it is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text.get(..digits)?.parse().ok()?;
        let unit = text.get(digits..)?;
        let (_, unit_ms) = UNITS_MS.iter().find(|(name, _)| *name == unit)?;
        Some(Self(Duration::from_millis(number.checked_mul(*unit_ms)?)))
    }

    /// Whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// The length in milliseconds.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let whole = UNITS_MS
            .iter()
            .find(|(_, unit_ms)| millis.is_multiple_of(u128::from(*unit_ms)) && millis > 0);
        match whole {
            Some((unit, unit_ms)) => write!(f, "{}{unit}", millis / u128::from(*unit_ms)),
            None => f.write_str("0s"),
        }
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Written)
    }
}

/// Reads the written form, and says how it looks when something else stands there.
struct Written;

impl Visitor<'_> for Written {
    type Value = HumanDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration as a text, for example \"250ms\", \"30s\", \"5m\", \"2h\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<HumanDuration, E> {
        HumanDuration::parse(text).ok_or_else(|| {
            E::custom(format!(
                "'{text}' is no duration: write for example 250ms, 30s, 5m, 2h"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_form_round_trips() {
        for text in ["250ms", "30s", "5m", "2h", "7d", "0s"] {
            assert_eq!(
                HumanDuration::parse(text)
                    .map(|read| read.to_string())
                    .as_deref(),
                Some(text)
            );
        }
        for bad in [
            "",
            "s",
            "5",
            "5 s",
            "-5s",
            "5y",
            "1.5s",
            "99999999999999999999s",
        ] {
            assert_eq!(HumanDuration::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_no_text_says_how_a_duration_is_written() {
        for value in [serde_json::json!(5), serde_json::json!({"s": 5})] {
            let error = serde_json::from_value::<HumanDuration>(value).unwrap_err();
            assert!(error.to_string().contains("\"30s\""), "{error}");
        }
    }
}
