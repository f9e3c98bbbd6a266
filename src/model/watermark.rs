//! Event time: how a job knows how far the time that its records tell has come.
//!
//! A *watermark* of `t` says: no record with a time stamp at or below `t` is expected any more. It is a statement about the
//! records and not about the clock on the wall. See docs/event-time.md.

use std::{fmt, time::Duration};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::{
    duration::HumanDuration, job::Format, json_path::JsonPath, reader::ObjectReader,
    topic::TopicPartition,
};

/// The least time that counts as idle, and the least drift: a job looks at its watermarks four times a second.
const LEAST: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// The largest delay and drift, in days: what lies further apart is not one stream.
const MOST_DAYS: u32 = 365;

/// How the watermark of a job is made. A job without one keeps no event time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WatermarkSpec {
    /// How a partition's watermark follows from its time stamps.
    pub strategy: WatermarkStrategy,
    /// With `bounded-out-of-orderness`, which needs it: how far a time stamp may lie behind the greatest one that was seen of
    /// its partition without being late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_delay: Option<HumanDuration>,
    /// After how long without a record, while there is none to read, a partition is idle and the others go on without it.
    /// `null`: never; a quiet partition then holds the watermark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_after: Option<HumanDuration>,
    /// Where a record's time stamp is.
    #[serde(default)]
    #[schema(value_type = String, default = "record")]
    pub timestamp: TimestampSource,
    /// Holds partitions back whose event time is ahead of the others'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alignment: Option<WatermarkAlignment>,
}

/// How a partition's watermark follows from its time stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WatermarkStrategy {
    /// Time stamps grow within a partition: the greatest one less a millisecond (Flink's `forMonotonousTimestamps`).
    Monotonous,
    /// They are out of order by `max_delay` at most: that much less (Flink's `forBoundedOutOfOrderness`).
    BoundedOutOfOrderness,
}

/// Where a record's time stamp is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TimestampSource {
    /// In the record itself, as producer or broker stamped it.
    #[default]
    Record,
    /// In its value: a field of a JSON document, a whole number of milliseconds since 1970 or a text of RFC 3339.
    Field(JsonPath),
}

/// How far partitions may be ahead of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WatermarkAlignment {
    /// A partition whose watermark is further than this ahead of the least one of the whole job is not read until that has come
    /// to within half of it.
    pub max_drift: HumanDuration,
}

const RECORD: &str = "record";

impl fmt::Display for TimestampSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record => f.write_str(RECORD),
            Self::Field(path) => path.fmt(f),
        }
    }
}

impl Serialize for TimestampSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimestampSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == RECORD {
            return Ok(Self::Record);
        }
        if !text.starts_with('$') {
            return Err(serde::de::Error::custom(format!(
                "'{text}' is neither 'record' nor the path of a field, as in $.created_at"
            )));
        }
        let path = JsonPath::parse(&text).map_err(serde::de::Error::custom)?;
        Ok(Self::Field(path))
    }
}

impl WatermarkSpec {
    /// Reads the member of a spec. Faults are left with the reader; `None` if there is one without which it means nothing.
    pub(super) fn read(mut reader: ObjectReader<'_>, format: Option<Format>) -> Option<Self> {
        let strategy = reader.required("strategy", "monotonous or bounded-out-of-orderness");
        let max_delay: Option<HumanDuration> = reader.optional("max_delay");
        match strategy {
            Some(WatermarkStrategy::Monotonous) if max_delay.is_some() => {
                reader.fault(
                    "max_delay",
                    "is not for monotonous; use bounded-out-of-orderness, or leave it out",
                );
            }
            Some(WatermarkStrategy::BoundedOutOfOrderness) => {
                if reader.raw("max_delay").is_none() {
                    reader.fault(
                        "max_delay",
                        "is required by bounded-out-of-orderness: how far time stamps may be out of order, for example 5s",
                    );
                }
            }
            Some(WatermarkStrategy::Monotonous) | None => {}
        }
        if max_delay.is_some_and(|delay| delay.0 > DAY * MOST_DAYS) {
            reader.fault("max_delay", format!("must be at most {MOST_DAYS}d"));
        }
        let idle_after: Option<HumanDuration> = reader.optional("idle_after");
        if idle_after.is_some_and(|idle| !(LEAST..=DAY).contains(&idle.0)) {
            reader.fault("idle_after", "must lie between 1s and 1d");
        }
        let timestamp = reader.or("timestamp", TimestampSource::Record);
        let is_field = matches!(timestamp, TimestampSource::Field(_));
        if is_field && format.is_some_and(|format| format != Format::Json) {
            reader.fault(
                "timestamp",
                "the path of a field needs source.format json; or use record",
            );
        }
        let alignment = reader
            .object("alignment")
            .and_then(WatermarkAlignment::read);
        if alignment.is_some() && reader.raw("idle_after").is_none() {
            reader.fault(
                "idle_after",
                "is required with alignment: the first quiet partition would hold up all others for ever; for example 1m",
            );
        }
        reader.finish();
        Some(Self {
            strategy: strategy?,
            max_delay,
            idle_after,
            timestamp,
            alignment,
        })
    }

    /// How far the watermark lies behind the greatest time stamp, in milliseconds, the one that makes it exclusive left out.
    #[must_use]
    pub fn delay_ms(&self) -> i64 {
        self.max_delay.map_or(0, HumanDuration::as_millis)
    }
}

impl WatermarkAlignment {
    fn read(mut reader: ObjectReader<'_>) -> Option<Self> {
        let max_drift: Option<HumanDuration> = reader.required(
            "max_drift",
            "how far partitions may be ahead, for example 30s",
        );
        if max_drift.is_some_and(|drift| !(LEAST..=DAY * MOST_DAYS).contains(&drift.0)) {
            reader.fault("max_drift", format!("must lie between 1s and {MOST_DAYS}d"));
        }
        reader.finish();
        Some(Self {
            max_drift: max_drift?,
        })
    }
}

/// How far the event time of a partition has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PartitionWatermark {
    /// Its watermark: no record at or before this instant is expected any more. `null` until a record was seen in this run.
    pub timestamp: Option<DateTime<Utc>>,
    /// Whether it has had nothing to read for `idle_after`, and the others go on without it.
    pub idle: bool,
    /// Whether it is not read at the moment because it is further ahead than `alignment` allows.
    pub paused: bool,
    /// Records of this run that were late: at or before the job's watermark when they were given to the sink.
    pub late_records: u64,
}

/// How far the event time of a subtask has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SubtaskWatermark {
    /// Its number.
    pub subtask: u32,
    /// The least watermark of its active partitions; it never goes back. `null` while one of them is not known.
    pub timestamp: Option<DateTime<Utc>>,
    /// Whether none of its partitions is active.
    pub idle: bool,
}

/// How far the event time of a running job has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWatermark {
    /// The least watermark of all active partitions; it never goes back. `None` while one of them is not known.
    pub timestamp: Option<DateTime<Utc>>,
    /// Whether no partition is active: all are idle, or have come to their ends.
    pub idle: bool,
    /// The partition that is furthest behind, and so holds the watermark where it is.
    pub held_by: Option<TopicPartition>,
    /// Partitions that are idle.
    pub idle_partitions: usize,
    /// Partitions that are not read at the moment because they are too far ahead.
    pub paused_partitions: Vec<TopicPartition>,
    /// Records of this run that were late.
    pub late_records: u64,
    /// Each subtask.
    pub subtasks: Vec<SubtaskWatermark>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::FieldError;

    fn read(value: &Value, format: Format) -> Result<WatermarkSpec, Vec<FieldError>> {
        let mut errors = Vec::new();
        let reader = ObjectReader::open(value, "/watermark", &mut errors);
        let spec = WatermarkSpec::read(reader, Some(format));
        spec.filter(|_| errors.is_empty()).ok_or(errors)
    }

    #[test]
    fn what_is_read_can_be_sent_again() {
        for value in [
            json!({"strategy": "monotonous"}),
            json!({"strategy": "bounded-out-of-orderness", "max_delay": "0s", "timestamp": "record"}),
            json!({"strategy": "bounded-out-of-orderness", "max_delay": "5s", "idle_after": "1m",
                   "timestamp": "$.meta['created at']", "alignment": {"max_drift": "30s"}}),
        ] {
            let spec = read(&value, Format::Json).unwrap();
            let shown = serde_json::to_value(&spec).unwrap();
            assert_eq!(read(&shown, Format::Json), Ok(spec.clone()), "{value}");
            assert_eq!(
                serde_json::from_value::<WatermarkSpec>(shown).unwrap(),
                spec
            );
        }
        let spec = read(&json!({"strategy": "monotonous"}), Format::Bytes).unwrap();
        assert_eq!((spec.delay_ms(), spec.idle_after), (0, None));
        assert_eq!(spec.timestamp, TimestampSource::Record);
    }

    #[test]
    fn each_fault_is_named_with_what_to_do() {
        let bounded = |members: Value| {
            let mut value = json!({"strategy": "bounded-out-of-orderness", "max_delay": "5s", "idle_after": "1m"});
            let all = value.as_object_mut().unwrap();
            all.extend(members.as_object().unwrap().clone());
            value
        };
        for (value, pointer, word) in [
            (json!({}), "strategy", "monotonous or"),
            (json!({"strategy": "punctuated"}), "strategy", "unknown"),
            (
                json!({"strategy": "monotonous", "max_delay": "1s"}),
                "max_delay",
                "leave it out",
            ),
            (
                json!({"strategy": "bounded-out-of-orderness"}),
                "max_delay",
                "required",
            ),
            (bounded(json!({"max_delay": "366d"})), "max_delay", "365d"),
            (
                bounded(json!({"max_delay": "soon"})),
                "max_delay",
                "no duration",
            ),
            (bounded(json!({"idle_after": "10ms"})), "idle_after", "1s"),
            (
                bounded(json!({"timestamp": "created_at"})),
                "timestamp",
                "$.created_at",
            ),
            (
                bounded(json!({"timestamp": "$.a[*]"})),
                "timestamp",
                "several",
            ),
            (
                bounded(json!({"timestamp": "$.at"})),
                "timestamp",
                "source.format json",
            ),
            (
                bounded(json!({"alignment": {}})),
                "alignment/max_drift",
                "30s",
            ),
            (
                bounded(json!({"alignment": {"max_drift": "1ms"}})),
                "alignment/max_drift",
                "1s",
            ),
            (
                bounded(json!({"alignment": {"max_drift": "1m"}, "idle_after": null})),
                "idle_after",
                "for ever",
            ),
            (
                bounded(json!({"idle_afetr": "1m"})),
                "idle_afetr",
                "idle_after",
            ),
        ] {
            let errors = read(&value, Format::Bytes).unwrap_err();
            let named = errors.iter().any(|error| {
                error.pointer == format!("/watermark/{pointer}") && error.message.contains(word)
            });
            assert!(named, "{value}: {errors:?}");
        }
    }
}
