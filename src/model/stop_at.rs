//! Where a bounded job ends: the wish in the spec, and the numbers that a start made of it.
//!
//! A job with `stop_at` reads every partition up to an end and is then `finished`. The wish is resolved once, by the start
//! that begins the run, and kept as numbers: a restart in the middle ends at the same place, however far the logs have grown
//! meanwhile. (Flink's bounded sources lost their ends in a restore and never finished: FLINK-33466, FLINK-31006.)

use std::collections::BTreeMap;

use chrono::{DateTime, FixedOffset, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    field_error::FieldError,
    ids::CheckpointId,
    offset::{Offset, PartitionOffsets},
    reader::ObjectReader,
    startup_mode::{OffsetsByTopic, read_timestamp},
    topic::{TopicId, TopicPartition},
};

/// Where a bounded job ends (the `bounded` modes of Flink's Kafka source). An end is an offset like any other: the next
/// record, the first one that is not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum StopAt {
    /// The end of what can be read of each log at the moment of the start.
    Latest,
    /// The first record at or after an instant; where there is none, as `latest`.
    Timestamp {
        /// The instant, RFC 3339 with an explicit offset.
        timestamp: DateTime<FixedOffset>,
    },
    /// Given offsets, the first that are not read; every partition must be named. One beyond the log's end is waited for.
    SpecificOffsets {
        /// Topic to partition to offset.
        offsets: OffsetsByTopic,
    },
    /// The group's committed offsets at the moment of the start; a partition without one stands against the start. Only with
    /// `commit_to_group: off`: the job's own commits would overwrite the ends.
    GroupOffsets,
}

impl StopAt {
    /// The mode's word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Timestamp { .. } => "timestamp",
            Self::SpecificOffsets { .. } => "specific-offsets",
            Self::GroupOffsets => "group-offsets",
        }
    }

    /// Reads the object that stands at `pointer`.
    pub fn from_json(value: &Value, pointer: &str, errors: &mut Vec<FieldError>) -> Option<Self> {
        let mut reader = ObjectReader::open(value, pointer, errors);
        let stop_at = Self::read(&mut reader);
        reader.finish();
        stop_at
    }

    fn read(reader: &mut ObjectReader<'_>) -> Option<Self> {
        let mode: Option<String> = reader.required(
            "mode",
            "one of latest, timestamp, specific-offsets, group-offsets",
        );
        let timestamp = read_timestamp(reader);
        let offsets: Option<OffsetsByTopic> = reader.optional("offsets");
        let mode = mode?;
        if mode != "timestamp" && timestamp.is_some() {
            reader.fault(
                "timestamp",
                format!("belongs to mode timestamp, not to {mode}"),
            );
        }
        if mode != "specific-offsets" && offsets.is_some() {
            reader.fault(
                "offsets",
                format!("belongs to mode specific-offsets, not to {mode}"),
            );
        }
        match mode.as_str() {
            "latest" => Some(Self::Latest),
            "group-offsets" => Some(Self::GroupOffsets),
            "timestamp" => {
                if timestamp.is_none() && reader.raw("timestamp").is_none() {
                    reader.fault(
                        "timestamp",
                        "is required: an instant such as 2026-11-28T02:00:00+01:00",
                    );
                }
                Some(Self::Timestamp {
                    timestamp: timestamp?,
                })
            }
            "specific-offsets" => {
                let gives_none = offsets.as_ref().is_none_or(OffsetsByTopic::gives_none);
                // One of the wrong kind was reported when it was read.
                if gives_none && (offsets.is_some() || reader.raw("offsets").is_none()) {
                    reader.fault(
                        "offsets",
                        "is required for every partition: {\"<topic>\": {\"<partition>\": <first offset that is not read>}}",
                    );
                }
                Some(Self::SpecificOffsets { offsets: offsets? })
            }
            other => {
                reader.fault(
                    "mode",
                    format!("'{other}' is no place to stop at: use latest, timestamp, specific-offsets or group-offsets"),
                );
                None
            }
        }
    }
}

/// A bounded run as it is stored: the wish and its numbers. There is one for a job at most, and the next start with other
/// ends replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundedRun {
    /// The wish that the ends were resolved from. A spec that wishes something else begins another run.
    pub stop_at: StopAt,
    /// The `start` checkpoint with which the ends were stored first.
    pub begun_by: CheckpointId,
    /// When that was.
    pub begun_at: DateTime<Utc>,
    /// When the job came to be `finished` with it.
    pub finished_at: Option<DateTime<Utc>>,
    /// Where each partition ends.
    pub ends: BTreeMap<TopicPartition, RunEnd>,
}

/// Where a partition of a bounded run ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// The first offset that is not read.
    pub stop_offset: Offset,
    /// The topic's id then; `None` if the broker has none. In a topic of another id the number means nothing.
    pub topic_id: Option<TopicId>,
}

impl BoundedRun {
    /// The ends as plain offsets.
    #[must_use]
    pub fn stop_offsets(&self) -> PartitionOffsets {
        self.ends
            .iter()
            .map(|(partition, end)| (partition.clone(), end.stop_offset))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<StopAt, Vec<FieldError>> {
        let mut errors = Vec::new();
        let stop_at = StopAt::from_json(value, "/source/stop_at", &mut errors);
        stop_at.filter(|_| errors.is_empty()).ok_or(errors)
    }

    #[test]
    fn every_mode_round_trips() {
        for value in [
            json!({"mode": "latest"}),
            json!({"mode": "group-offsets"}),
            json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00"}),
            json!({"mode": "specific-offsets", "offsets": {"orders": {"0": 8540, "3": 0}}}),
        ] {
            let stop_at = read(&value).unwrap();
            assert_eq!(serde_json::to_value(&stop_at).unwrap(), value);
            // As the store reads it back, from text.
            assert_eq!(
                serde_json::from_str::<StopAt>(&value.to_string()).unwrap(),
                stop_at
            );
        }
    }

    #[test]
    fn faults_name_the_member_and_the_remedy() {
        for (value, member, part) in [
            (json!({}), "mode", "required"),
            (json!({"mode": "earliest"}), "mode", "latest"),
            (json!({"mode": "timestamp"}), "timestamp", "required"),
            (
                json!({"mode": "latest", "timestamp": "2026-11-28T02:00:00Z"}),
                "timestamp",
                "belongs to mode timestamp",
            ),
            (
                json!({"mode": "specific-offsets"}),
                "offsets",
                "every partition",
            ),
            (
                json!({"mode": "specific-offsets", "offsets": {"o": {}}}),
                "offsets",
                "every partition",
            ),
            (
                json!({"mode": "group-offsets", "offsets": {"o": {"0": 1}}}),
                "offsets",
                "belongs to mode specific-offsets",
            ),
            (json!({"mode": "latest", "offset": 1}), "offset", "offsets"),
        ] {
            let errors = read(&value).unwrap_err();
            let pointer = format!("/source/stop_at/{member}");
            let found = errors
                .iter()
                .any(|error| error.pointer == pointer && error.message.contains(part));
            assert!(found, "{value}: {errors:?}");
        }
    }
}
