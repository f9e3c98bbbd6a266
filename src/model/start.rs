//! What a caller may say about where a start begins.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, FixedOffset, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    duration::HumanDuration,
    field_error::FieldError,
    ids::{CheckpointId, PlanId},
    job::PositionPolicy,
    reader::ObjectReader,
    startup_mode::{OffsetsByTopic, StartupMode, read_timestamp},
    topic::TopicPartition,
};

/// From where a start begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum StartFrom {
    /// A pending one-shot start if there is one, else the newest completed checkpoint, else the startup mode.
    Auto,
    /// A checkpoint: the one named, or the newest completed one.
    Checkpoint {
        /// Its number; `null` for the newest.
        checkpoint: Option<CheckpointId>,
    },
    /// The first offset each log still holds.
    Earliest,
    /// The end of each log, fixed as a number.
    Latest,
    /// The first record at or after an instant.
    Timestamp {
        /// The instant.
        timestamp: DateTime<FixedOffset>,
    },
    /// The first record that is at most this old.
    Ago {
        /// How long ago.
        duration: HumanDuration,
    },
    /// Given offsets; other partitions use the group's offset.
    SpecificOffsets {
        /// Topic to partition to next offset to read.
        offsets: OffsetsByTopic,
    },
    /// The group's committed offsets.
    GroupOffsets,
    /// The position that `auto` would take, moved by a number of offsets (back when negative), then held against the log.
    Shift {
        /// How far.
        by: i64,
    },
}

impl StartFrom {
    /// The word of `from`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Checkpoint { .. } => "checkpoint",
            Self::Earliest => "earliest",
            Self::Latest => "latest",
            Self::Timestamp { .. } => "timestamp",
            Self::Ago { .. } => "ago",
            Self::SpecificOffsets { .. } => "specific-offsets",
            Self::GroupOffsets => "group-offsets",
            Self::Shift { .. } => "shift",
        }
    }

    /// The one-shot start that means the same as a startup mode.
    #[must_use]
    pub fn from_mode(mode: &StartupMode) -> Self {
        match mode {
            StartupMode::GroupOffsets => Self::GroupOffsets,
            StartupMode::Earliest => Self::Earliest,
            StartupMode::Latest => Self::Latest,
            StartupMode::Timestamp { timestamp } => Self::Timestamp {
                timestamp: *timestamp,
            },
            StartupMode::SpecificOffsets { offsets } => Self::SpecificOffsets {
                offsets: offsets.clone(),
            },
        }
    }

    /// The startup mode that means the same; `None` for what no mode says.
    #[must_use]
    pub fn as_mode(&self) -> Option<StartupMode> {
        match self {
            Self::GroupOffsets => Some(StartupMode::GroupOffsets),
            Self::Earliest => Some(StartupMode::Earliest),
            Self::Latest => Some(StartupMode::Latest),
            Self::Timestamp { timestamp } => Some(StartupMode::Timestamp {
                timestamp: *timestamp,
            }),
            Self::SpecificOffsets { offsets } => Some(StartupMode::SpecificOffsets {
                offsets: offsets.clone(),
            }),
            Self::Auto | Self::Checkpoint { .. } | Self::Ago { .. } | Self::Shift { .. } => None,
        }
    }
}

/// What a start does about partitions that were read and do not exist any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PartitionGonePolicy {
    /// Their positions stay, for the day on which the same topic comes back.
    Keep,
    /// Their positions are dropped. A topic that comes back all the same is a new one, and is read from its first record.
    Forget,
}

/// A start that was asked for ahead of time (`apply: next-start`): the next operator's start uses it, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingStart {
    /// Names this intent, so that only the one that was read is cleared.
    pub id: String,
    /// From where.
    #[serde(flatten)]
    pub from: StartFrom,
    /// Which partitions it moves; `null` for all. The others keep their checkpointed positions.
    pub partitions: Option<PartitionsByTopic>,
    /// Who asked.
    pub requested_by: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// Partitions as people write them: topic to partition numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = BTreeMap<String, Vec<i32>>)]
pub struct PartitionsByTopic(pub BTreeMap<String, BTreeSet<i32>>);

impl PartitionsByTopic {
    /// Whether a partition is meant.
    #[must_use]
    pub fn contains(&self, partition: &TopicPartition) -> bool {
        self.0
            .get(&*partition.topic)
            .is_some_and(|numbers| numbers.contains(&partition.partition))
    }

    /// Each partition meant.
    pub fn partitions(&self) -> impl Iterator<Item = TopicPartition> {
        self.0.iter().flat_map(|(topic, numbers)| {
            numbers
                .iter()
                .map(|number| TopicPartition::new(topic.as_str(), *number))
        })
    }
}

/// The body of a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartRequest {
    /// From where; `auto` if nothing is said.
    #[serde(flatten)]
    pub from: StartFrom,
    /// Which partitions `from` moves; `null` for all. The others keep their checkpointed positions.
    pub partitions: Option<PartitionsByTopic>,
    /// A plan that was looked at: the start uses exactly its numbers or fails with `plan-stale`.
    pub plan: Option<PlanId>,
    /// Overrides the spec's `on_out_of_range` for this start.
    pub on_out_of_range: Option<PositionPolicy>,
    /// Overrides the spec's `on_missing_group_offset` for this start.
    pub on_missing_group_offset: Option<PositionPolicy>,
    /// Overrides the spec's `on_topic_recreated` for this start.
    pub on_topic_recreated: Option<PositionPolicy>,
    /// What becomes of the positions of partitions that do not exist any more; `keep` if nothing is said.
    #[serde(default)]
    pub on_partition_gone: Option<PartitionGonePolicy>,
    /// Why, for the history.
    pub reason: Option<String>,
}

impl StartRequest {
    /// A bare start.
    #[must_use]
    pub fn auto() -> Self {
        Self {
            from: StartFrom::Auto,
            partitions: None,
            plan: None,
            on_out_of_range: None,
            on_missing_group_offset: None,
            on_topic_recreated: None,
            on_partition_gone: None,
            reason: None,
        }
    }

    /// Whether the body says anything of where or how to begin; a start of a running job that does is refused instead of being
    /// a no-op, since nothing of it would be done.
    #[must_use]
    pub fn says_how_to_begin(&self) -> bool {
        let bare = Self {
            reason: self.reason.clone(),
            ..Self::auto()
        };
        *self != bare
    }

    /// Reads a body.
    ///
    /// # Errors
    /// All faults at once.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(value, "", &mut errors);
        let request = Self::read_from(&mut reader);
        reader.finish();
        request.filter(|_| errors.is_empty()).ok_or(errors)
    }

    fn read_from(reader: &mut ObjectReader<'_>) -> Option<Self> {
        let from = read_from(reader);
        let partitions: Option<PartitionsByTopic> = reader.optional("partitions");
        if partitions
            .as_ref()
            .is_some_and(|chosen| chosen.0.is_empty() || chosen.0.values().any(BTreeSet::is_empty))
        {
            // Also for one topic of several: an empty list may be meant as "all of it" as well as "none of it".
            reader.fault("partitions", "names no partition: leave it out to mean all");
        }
        let plan: Option<PlanId> = reader.optional("plan");
        let request = Self {
            from: from?,
            partitions,
            plan,
            on_out_of_range: reader.optional("on_out_of_range"),
            on_missing_group_offset: reader.optional("on_missing_group_offset"),
            on_topic_recreated: reader.optional("on_topic_recreated"),
            on_partition_gone: reader.optional("on_partition_gone"),
            reason: reader.optional("reason"),
        };
        if request.plan.is_some()
            && (request.from != StartFrom::Auto || request.partitions.is_some())
        {
            reader.fault(
                "plan",
                "a plan says where to begin: leave out 'from' and 'partitions', or the plan",
            );
        }
        if request.from == StartFrom::Auto && request.partitions.is_some() {
            reader.fault("partitions", "say with 'from' where these partitions begin");
        }
        if let (StartFrom::SpecificOffsets { offsets }, Some(partitions)) =
            (&request.from, &request.partitions)
        {
            // An offset that is given and not used would be a position that silently is not taken.
            for unused in offsets.by_partition().keys() {
                if !partitions.contains(unused) {
                    reader.fault(
                        "offsets",
                        format!("gives an offset for {unused}, which 'partitions' leaves out"),
                    );
                }
            }
        }
        Some(request)
    }
}

fn read_from(reader: &mut ObjectReader<'_>) -> Option<StartFrom> {
    const WORDS: &str = "auto, checkpoint, earliest, latest, timestamp, ago, specific-offsets, group-offsets or shift";
    let from: String = reader.or("from", "auto".to_owned());
    let checkpoint: Option<CheckpointId> = reader.optional("checkpoint");
    let timestamp = read_timestamp(reader);
    let duration: Option<HumanDuration> = reader.optional("duration");
    let offsets: Option<OffsetsByTopic> = reader.optional("offsets");
    let by: Option<i64> = reader.optional("by");
    for (name, given, owner) in [
        ("checkpoint", checkpoint.is_some(), "checkpoint"),
        ("timestamp", timestamp.is_some(), "timestamp"),
        ("duration", duration.is_some(), "ago"),
        ("offsets", offsets.is_some(), "specific-offsets"),
        ("by", by.is_some(), "shift"),
    ] {
        if given && from != owner {
            reader.fault(
                name,
                format!("belongs to \"from\": \"{owner}\", not to \"{from}\""),
            );
        }
    }
    let mut need = |name: &'static str, given: bool, example: &str| {
        // A value of the wrong form was reported already.
        if !given && reader.raw(name).is_none() {
            reader.fault(name, format!("is required, for example {example}"));
        }
    };
    match from.as_str() {
        "auto" => Some(StartFrom::Auto),
        "checkpoint" => Some(StartFrom::Checkpoint { checkpoint }),
        "earliest" => Some(StartFrom::Earliest),
        "latest" => Some(StartFrom::Latest),
        "group-offsets" => Some(StartFrom::GroupOffsets),
        "timestamp" => {
            need(
                "timestamp",
                timestamp.is_some(),
                "2026-11-28T02:00:00+01:00",
            );
            Some(StartFrom::Timestamp {
                timestamp: timestamp?,
            })
        }
        "ago" => {
            need("duration", duration.is_some(), "2h");
            Some(StartFrom::Ago {
                duration: duration?,
            })
        }
        "specific-offsets" => {
            need("offsets", offsets.is_some(), "{\"orders\": {\"0\": 8540}}");
            OffsetsByTopic::refuse_empty(offsets.as_ref(), reader);
            Some(StartFrom::SpecificOffsets { offsets: offsets? })
        }
        "shift" => {
            need("by", by.is_some(), "-1000");
            Some(StartFrom::Shift { by: by? })
        }
        other => {
            reader.fault("from", format!("'{other}' is not known: use {WORDS}"));
            None
        }
    }
}

/// How a stop treats the last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StopCheckpoint {
    /// Without the checkpoint there is no stop: the job goes on.
    Required,
    /// Stop in any case; the result says what a start will read again.
    BestEffort,
    /// Stop now.
    None,
}

/// The body of a stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopRequest {
    /// How the last checkpoint is treated; `best-effort` if nothing is said.
    pub checkpoint: StopCheckpoint,
    /// How long the checkpoint and its commit to the group may take; 30 s if nothing is said. Closing the clients may
    /// take some seconds more when a broker is away.
    pub timeout: HumanDuration,
    /// Why, for the history.
    pub reason: Option<String>,
}

impl StopRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// All faults at once.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(value, "", &mut errors);
        let request = Self {
            reason: reader.optional("reason"),
            ..Self::read_from(&mut reader)
        };
        reader.finish();
        if errors.is_empty() {
            Ok(request)
        } else {
            Err(errors)
        }
    }

    fn read_from(reader: &mut ObjectReader<'_>) -> Self {
        let request = Self {
            checkpoint: reader.or("checkpoint", StopCheckpoint::BestEffort),
            timeout: reader.or("timeout", HumanDuration::from_secs(30)),
            reason: None,
        };
        if request.timeout.as_millis() > 600_000 || request.timeout.as_millis() < 1 {
            reader.fault("timeout", "must lie between 1ms and 10m");
        }
        request
    }
}

/// The body of a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestartRequest {
    /// Where it begins again.
    #[serde(flatten)]
    pub start: StartRequest,
    /// How it stops before.
    pub stop: StopRequest,
}

impl RestartRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// All faults at once.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(value, "", &mut errors);
        let start = StartRequest::read_from(&mut reader);
        let stop = match reader.object("stop") {
            Some(mut stop) => {
                let request = StopRequest::read_from(&mut stop);
                stop.finish();
                request
            }
            None => StopRequest {
                checkpoint: StopCheckpoint::BestEffort,
                timeout: HumanDuration::from_secs(30),
                reason: None,
            },
        };
        reader.finish();
        match start {
            Some(start) if errors.is_empty() => Ok(Self { start, stop }),
            _ => Err(errors),
        }
    }
}

/// The body of a manual checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointRequest {
    /// How long the attempt may take; the spec's `checkpoint.timeout` if nothing is said.
    pub timeout: Option<HumanDuration>,
    /// Why, for the history.
    pub reason: Option<String>,
}

impl CheckpointRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// All faults at once.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(value, "", &mut errors);
        let request = Self {
            timeout: reader.optional("timeout"),
            reason: reader.optional("reason"),
        };
        if request
            .timeout
            .is_some_and(|timeout| timeout.as_millis() > 86_400_000 || timeout.as_millis() < 1)
        {
            reader.fault("timeout", "must lie between 1ms and 1d");
        }
        reader.finish();
        if errors.is_empty() {
            Ok(request)
        } else {
            Err(errors)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_start_body_round_trips() {
        for value in [
            json!({}),
            json!({"from": "checkpoint", "checkpoint": 1790}),
            json!({"from": "checkpoint"}),
            json!({"from": "earliest", "partitions": {"orders": [0, 2]}}),
            json!({"from": "ago", "duration": "2h"}),
            json!({"from": "specific-offsets", "offsets": {"orders": {"0": 8540, "11": 0}}}),
            json!({"from": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00"}),
            json!({"from": "group-offsets"}),
            json!({"from": "shift", "by": -1000, "reason": "INC-4711"}),
            json!({"from": "specific-offsets", "offsets": {"orders": {"0": 8540}}}),
            json!({"plan": "pl_x", "on_out_of_range": "earliest"}),
        ] {
            let request = StartRequest::read(&value).unwrap();
            let again: StartRequest =
                serde_json::from_value(serde_json::to_value(&request).unwrap()).unwrap();
            assert_eq!(again, request, "{value}");
        }
    }

    #[test]
    fn a_restart_is_a_start_and_says_how_to_stop() {
        let value = json!({
            "from": "checkpoint", "checkpoint": 7, "reason": "INC-4711",
            "stop": {"checkpoint": "required", "timeout": "60s"},
        });
        let request = RestartRequest::read(&value).unwrap();
        assert_eq!(request.stop.checkpoint, StopCheckpoint::Required);
        let start = json!({"from": "checkpoint", "checkpoint": 7, "reason": "INC-4711"});
        assert_eq!(request.start, StartRequest::read(&start).unwrap());
        let stored: RestartRequest = serde_json::from_value(json!(request)).unwrap();
        assert_eq!(stored, request);
        let bare = RestartRequest::read(&json!({})).unwrap();
        assert_eq!(bare.start, StartRequest::auto());
        assert_eq!(bare.stop, StopRequest::read(&json!({})).unwrap());
        for (value, pointer) in [
            (json!({"from": "shift"}), "/by"),
            (json!({"stop": {"timeout": "1h"}}), "/stop/timeout"),
            (json!({"stop": {"reason": "x"}}), "/stop/reason"),
            (json!({"timeout": "30s"}), "/timeout"),
        ] {
            let errors = RestartRequest::read(&value).unwrap_err();
            assert!(
                errors.iter().any(|error| error.pointer == pointer),
                "{value}: {errors:?}"
            );
        }
    }

    #[test]
    fn a_pending_start_survives_the_store() {
        let pending = PendingStart {
            id: "one".to_owned(),
            from: StartFrom::SpecificOffsets {
                offsets: serde_json::from_value(json!({"orders": {"0": 8540}})).unwrap(),
            },
            partitions: Some(serde_json::from_value(json!({"orders": [0, 2]})).unwrap()),
            requested_by: "somebody".to_owned(),
            at: DateTime::UNIX_EPOCH,
        };
        let text = serde_json::to_string(&pending).unwrap();
        assert_eq!(
            serde_json::from_str::<PendingStart>(&text).unwrap(),
            pending
        );
    }

    #[test]
    fn contradictions_are_refused() {
        for (value, pointer) in [
            (json!({"from": "earliest", "plan": "pl_x"}), "/plan"),
            (json!({"from": "earliest", "by": 4}), "/by"),
            (json!({"from": "shift"}), "/by"),
            (json!({"from": "somewhere"}), "/from"),
            (json!({"partitions": {"orders": [1]}}), "/partitions"),
            (json!({"from": "latest", "partitions": {}}), "/partitions"),
            (
                json!({"from": "latest", "partitions": {"orders": [1], "payments": []}}),
                "/partitions",
            ),
            (
                json!({"from": "specific-offsets", "offsets": {}}),
                "/offsets",
            ),
            (
                json!({"from": "specific-offsets", "offsets": {"o": {"0": 1, "1": 2}}, "partitions": {"o": [0, 2]}}),
                "/offsets",
            ),
            (json!({"form": "latest"}), "/form"),
        ] {
            let errors = StartRequest::read(&value).unwrap_err();
            assert!(
                errors.iter().any(|error| error.pointer == pointer),
                "{value}: {errors:?}"
            );
        }
        assert!(StopRequest::read(&json!({"checkpoint": "maybe"})).is_err());
        assert!(CheckpointRequest::read(&json!({"timout": "3s"})).unwrap_err()[0].unknown_member);
    }
}
