//! Where a job without state begins: Flink's five startup modes.

use std::collections::BTreeMap;

use chrono::{DateTime, FixedOffset};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    field_error::FieldError,
    offset::{Offset, PartitionOffsets},
    reader::ObjectReader,
    topic::TopicPartition,
};

/// Where partitions begin when the job has no checkpoint (Flink's `StartupMode`).
///
/// With a checkpoint the mode is not consulted: restored state wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum StartupMode {
    /// The group's committed offsets; a partition without one follows `on_missing_group_offset`.
    GroupOffsets,
    /// The first offset each log still holds.
    Earliest,
    /// The end of each log at the moment of the start, fixed as a number.
    Latest,
    /// The first record at or after an instant; where there is none, the end of the log at the moment of the start.
    Timestamp {
        /// The instant, RFC 3339 with an explicit offset.
        timestamp: DateTime<FixedOffset>,
    },
    /// Given offsets (next record to read); partitions not named use the group's offset.
    SpecificOffsets {
        /// Topic to partition to offset.
        offsets: OffsetsByTopic,
    },
}

impl StartupMode {
    /// The mode's word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::GroupOffsets => "group-offsets",
            Self::Earliest => "earliest",
            Self::Latest => "latest",
            Self::Timestamp { .. } => "timestamp",
            Self::SpecificOffsets { .. } => "specific-offsets",
        }
    }

    /// Reads a mode whose members stand in `reader` beside others (as in `PUT startup-mode`).
    ///
    /// Faults are left with the reader; `None` then.
    pub fn read(reader: &mut ObjectReader<'_>) -> Option<Self> {
        let mode: Option<String> = reader.required(
            "mode",
            "one of group-offsets, earliest, latest, timestamp, specific-offsets",
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
            "group-offsets" => Some(Self::GroupOffsets),
            "earliest" => Some(Self::Earliest),
            "latest" => Some(Self::Latest),
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
                if offsets.is_none() && reader.raw("offsets").is_none() {
                    reader.fault(
                        "offsets",
                        "is required: {\"<topic>\": {\"<partition>\": <next offset to read>}}",
                    );
                }
                OffsetsByTopic::refuse_empty(offsets.as_ref(), reader);
                Some(Self::SpecificOffsets { offsets: offsets? })
            }
            other => {
                reader.fault(
                    "mode",
                    format!("'{other}' is no startup mode: use group-offsets, earliest, latest, timestamp or specific-offsets"),
                );
                None
            }
        }
    }

    /// Reads a mode that is an object of its own, standing at `pointer`.
    pub fn from_json(value: &Value, pointer: &str, errors: &mut Vec<FieldError>) -> Option<Self> {
        let mut reader = ObjectReader::open(value, pointer, errors);
        let mode = Self::read(&mut reader);
        reader.finish();
        mode
    }
}

/// Reads the member `timestamp`: RFC 3339 with an explicit offset, because "02:00" means different things on a laptop and
/// on a server.
pub fn read_timestamp(reader: &mut ObjectReader<'_>) -> Option<DateTime<FixedOffset>> {
    let text: String = reader.optional("timestamp")?;
    match DateTime::parse_from_rfc3339(&text) {
        Ok(instant) if instant.timestamp_millis() >= 0 => Some(instant),
        Ok(_) => {
            reader.fault("timestamp", "lies before 1970, where Kafka has no records");
            None
        }
        Err(_) => {
            reader.fault(
                "timestamp",
                format!("'{text}' is no instant with an explicit offset: write for example 2026-11-28T02:00:00+01:00 or 2026-11-28T01:00:00Z"),
            );
            None
        }
    }
}

/// Offsets as people write them: topic to partition number to next offset to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = BTreeMap<String, BTreeMap<String, i64>>)]
pub struct OffsetsByTopic(pub BTreeMap<String, BTreeMap<i32, Offset>>);

impl<'de> Deserialize<'de> for OffsetsByTopic {
    /// Reads the partition numbers as text. Inside of tagged or flattened types (a startup mode, a start) serde buffers the
    /// document, and from the buffer it does not take `"0"` for a number.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written: BTreeMap<String, BTreeMap<String, Offset>> =
            BTreeMap::deserialize(deserializer)?;
        let mut read = Self::default();
        for (topic, offsets) in written {
            let by_number = read.0.entry(topic).or_default();
            for (text, offset) in offsets {
                let number = text.parse().ok().filter(|number: &i32| {
                    // "00" beside "0" would be two offsets for one partition.
                    *number >= 0 && number.to_string() == text
                });
                let Some(number) = number else {
                    return Err(serde::de::Error::custom(format!(
                        "'{text}' is no partition number"
                    )));
                };
                by_number.insert(number, offset);
            }
        }
        Ok(read)
    }
}

impl OffsetsByTopic {
    /// The offset given for a partition.
    #[must_use]
    pub fn get(&self, partition: &TopicPartition) -> Option<Offset> {
        let by_number = self.0.get(&*partition.topic)?;
        by_number.get(&partition.partition).copied()
    }

    /// Reports a map without any offset: it would mean the group's offsets for every partition, under another name.
    pub(super) fn refuse_empty(offsets: Option<&Self>, reader: &mut ObjectReader<'_>) {
        if offsets.is_some_and(Self::gives_none) {
            reader.fault(
                "offsets",
                "gives no offset: use group-offsets to begin at the group's offsets",
            );
        }
    }

    /// Whether it names no partition, however many topics.
    pub(super) fn gives_none(&self) -> bool {
        self.0.values().all(BTreeMap::is_empty)
    }

    /// The same by partition.
    #[must_use]
    pub fn by_partition(&self) -> PartitionOffsets {
        let mut flat = PartitionOffsets::new();
        for (topic, partitions) in &self.0 {
            for (partition, offset) in partitions {
                flat.insert(TopicPartition::new(topic.as_str(), *partition), *offset);
            }
        }
        flat
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<StartupMode, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mode = StartupMode::from_json(value, "/startup_mode", &mut errors);
        mode.filter(|_| errors.is_empty()).ok_or(errors)
    }

    #[test]
    fn every_mode_round_trips() {
        for value in [
            json!({"mode": "group-offsets"}),
            json!({"mode": "earliest"}),
            json!({"mode": "latest"}),
            json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00"}),
            json!({"mode": "specific-offsets", "offsets": {"orders": {"0": 8540, "3": 0}}}),
        ] {
            let mode = read(&value).unwrap();
            assert_eq!(serde_json::to_value(&mode).unwrap(), value);
            // As the store reads it back, buffered and from text.
            assert_eq!(
                serde_json::from_value::<StartupMode>(value.clone()).unwrap(),
                mode
            );
            assert_eq!(
                serde_json::from_str::<StartupMode>(&value.to_string()).unwrap(),
                mode
            );
        }
    }

    #[test]
    fn faults_name_the_member_and_the_remedy() {
        for (value, pointer, part) in [
            (json!({}), "/startup_mode/mode", "required"),
            (json!({"mode": "newest"}), "/startup_mode/mode", "latest"),
            (
                json!({"mode": "timestamp"}),
                "/startup_mode/timestamp",
                "required",
            ),
            (
                json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00"}),
                "/startup_mode/timestamp",
                "explicit offset",
            ),
            (
                json!({"mode": "timestamp", "timestamp": "1969-11-28T02:00:00Z"}),
                "/startup_mode/timestamp",
                "1970",
            ),
            (
                json!({"mode": "earliest", "offsets": {}}),
                "/startup_mode/offsets",
                "specific-offsets",
            ),
            (
                json!({"mode": "specific-offsets", "offsets": {"o": {"0": -1}}}),
                "/startup_mode/offsets",
                "-1 is no offset",
            ),
            (
                json!({"mode": "specific-offsets", "offsets": {"o": {"00": 1}}}),
                "/startup_mode/offsets",
                "no partition number",
            ),
            (
                json!({"mode": "specific-offsets", "offsets": {"o": {"-1": 1}}}),
                "/startup_mode/offsets",
                "no partition number",
            ),
            (
                json!({"mode": "specific-offsets", "offsets": {"o": {}}}),
                "/startup_mode/offsets",
                "group-offsets",
            ),
            (
                json!({"mode": "earliest", "timstamp": 1}),
                "/startup_mode/timstamp",
                "'timestamp'",
            ),
            (json!("earliest"), "/startup_mode", "object"),
        ] {
            let errors = read(&value).unwrap_err();
            let found = errors
                .iter()
                .any(|error| error.pointer == pointer && error.message.contains(part));
            assert!(found, "{value}: {errors:?}");
        }
    }
}
