//! What a record's value must be.

use crate::model::{job::Format, record::ConsumerRecord};

/// Judges values (Flink's `KafkaDeserializationSchema`, reduced to what a job without operators needs).
pub(super) trait DeserializationSchema: Send + Sync {
    /// Whether every value is good, so that records need not be looked at one by one.
    fn accepts_everything(&self) -> bool;

    /// Looks at one record. A tombstone is good in every format.
    ///
    /// # Errors
    /// What is wrong with the value.
    fn check(&self, record: &ConsumerRecord<'_>) -> Result<(), String>;
}

/// The schema of a format.
pub(super) fn schema_of(format: Format) -> Box<dyn DeserializationSchema> {
    match format {
        Format::Bytes => Box::new(Bytes),
        Format::Utf8 => Box::new(Utf8),
        Format::Json => Box::new(Json),
    }
}

struct Bytes;

impl DeserializationSchema for Bytes {
    fn accepts_everything(&self) -> bool {
        true
    }

    fn check(&self, _record: &ConsumerRecord<'_>) -> Result<(), String> {
        Ok(())
    }
}

struct Utf8;

impl DeserializationSchema for Utf8 {
    fn accepts_everything(&self) -> bool {
        false
    }

    fn check(&self, record: &ConsumerRecord<'_>) -> Result<(), String> {
        let Some(value) = record.value else {
            return Ok(());
        };
        match std::str::from_utf8(value) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the value is no UTF-8: {error}")),
        }
    }
}

struct Json;

impl DeserializationSchema for Json {
    fn accepts_everything(&self) -> bool {
        false
    }

    fn check(&self, record: &ConsumerRecord<'_>) -> Result<(), String> {
        let Some(value) = record.value else {
            return Ok(());
        };
        // RFC 8259 section 8.1: JSON is UTF-8. serde_json does not look into strings it ignores.
        let text =
            std::str::from_utf8(value).map_err(|error| format!("the value is no JSON: {error}"))?;
        // Validates without building anything.
        match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the value is no JSON: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: Option<&[u8]>) -> ConsumerRecord<'_> {
        ConsumerRecord {
            record_offset: 0,
            timestamp_ms: None,
            key: None,
            value,
        }
    }

    #[test]
    fn each_format_takes_what_it_names_and_every_format_takes_tombstones() {
        let rows: [(Format, &[u8], bool); 7] = [
            (Format::Bytes, &[0xff, 0xfe], true),
            (Format::Utf8, "größe".as_bytes(), true),
            (Format::Utf8, &[0xff, 0xfe], false),
            (Format::Json, br#"{"id": 1}"#, true),
            (Format::Json, b"{} {}", false),
            (Format::Json, b"", false),
            (Format::Json, &[b'"', 0xff, b'"'], false),
        ];
        for (format, value, good) in rows {
            let outcome = schema_of(format).check(&record(Some(value)));
            assert_eq!(outcome.is_ok(), good, "{format:?} {value:?}: {outcome:?}");
        }
        for format in [Format::Bytes, Format::Utf8, Format::Json] {
            assert_eq!(schema_of(format).check(&record(None)), Ok(()));
        }
    }
}
