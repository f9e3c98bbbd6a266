//! Moving a consumer group: what a caller may ask for, and the decision where each partition of the group goes.
//!
//! Only the group is moved. Where the job itself goes on is its checkpoint's business, and a start's.
//!
//! The decision is one pure function, [`decide`]. It is all or nothing: one partition that cannot go where it was sent is
//! named, and none is moved.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, FixedOffset, Utc};
use serde::Serialize;
use serde_json::Value;

use super::{
    code::Code,
    duration::HumanDuration,
    field_error::FieldError,
    ids::CheckpointId,
    job::Isolation,
    offset::{Offset, PartitionOffsets},
    reader::ObjectReader,
    resolver::{BrokerFacts, LogBounds, RestorableState},
    start::PartitionsByTopic,
    startup_mode::{OffsetsByTopic, read_timestamp},
    topic::{TopicId, TopicPartition},
};

/// Where a group goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum ResetTo {
    /// The first offset each log still holds.
    Earliest,
    /// The end of what the job can read.
    Latest,
    /// The first record at or after an instant; where there is none, the end.
    Timestamp {
        /// The instant.
        timestamp: DateTime<FixedOffset>,
    },
    /// The first record that is at most this old; where there is none, the end.
    Ago {
        /// How long ago.
        duration: HumanDuration,
    },
    /// The group's own offset, moved by a number of offsets (back when negative).
    Shift {
        /// How far.
        by: i64,
    },
    /// Given offsets; other partitions stay where they are.
    SpecificOffsets {
        /// Topic to partition to next offset to read.
        offsets: OffsetsByTopic,
    },
    /// A checkpoint's positions: the one named, or the newest completed one.
    Checkpoint {
        /// Its number.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<CheckpointId>,
    },
}

impl ResetTo {
    /// The word of `mode`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Earliest => "earliest",
            Self::Latest => "latest",
            Self::Timestamp { .. } => "timestamp",
            Self::Ago { .. } => "ago",
            Self::Shift { .. } => "shift",
            Self::SpecificOffsets { .. } => "specific-offsets",
            Self::Checkpoint { .. } => "checkpoint",
        }
    }

    /// The instant to look up, in milliseconds since 1970. `now` is the wall clock, for `ago`.
    #[must_use]
    pub fn instant(&self, now: DateTime<Utc>) -> Option<i64> {
        match self {
            Self::Timestamp { timestamp } => Some(timestamp.timestamp_millis()),
            Self::Ago { duration } => Some(
                now.timestamp_millis()
                    .saturating_sub(duration.as_millis())
                    .max(0),
            ),
            Self::Earliest
            | Self::Latest
            | Self::Shift { .. }
            | Self::SpecificOffsets { .. }
            | Self::Checkpoint { .. } => None,
        }
    }

    fn read(reader: &mut ObjectReader<'_>) -> Option<Self> {
        const WORDS: &str =
            "earliest, latest, timestamp, ago, shift, specific-offsets or checkpoint";
        let mode: Option<String> = reader.required("mode", &format!("one of {WORDS}"));
        let timestamp = read_timestamp(reader);
        let duration: Option<HumanDuration> = reader.optional("duration");
        let by: Option<i64> = reader.optional("by");
        let offsets: Option<OffsetsByTopic> = reader.optional("offsets");
        let id: Option<CheckpointId> = reader.optional("id");
        let mode = mode?;
        for (name, given, owner) in [
            ("timestamp", timestamp.is_some(), "timestamp"),
            ("duration", duration.is_some(), "ago"),
            ("by", by.is_some(), "shift"),
            ("offsets", offsets.is_some(), "specific-offsets"),
            ("id", id.is_some(), "checkpoint"),
        ] {
            if given && mode != owner {
                reader.fault(name, format!("belongs to mode {owner}, not to {mode}"));
            }
        }
        let mut need = |name: &'static str, given: bool, example: &str| {
            // A value of the wrong form was reported already.
            if !given && reader.raw(name).is_none() {
                reader.fault(name, format!("is required, for example {example}"));
            }
        };
        match mode.as_str() {
            "earliest" => Some(Self::Earliest),
            "latest" => Some(Self::Latest),
            "checkpoint" => Some(Self::Checkpoint { id }),
            "timestamp" => {
                need(
                    "timestamp",
                    timestamp.is_some(),
                    "2026-11-28T02:00:00+01:00",
                );
                Some(Self::Timestamp {
                    timestamp: timestamp?,
                })
            }
            "ago" => {
                need("duration", duration.is_some(), "2h");
                Some(Self::Ago {
                    duration: duration?,
                })
            }
            "shift" => {
                need("by", by.is_some(), "-1000");
                Some(Self::Shift { by: by? })
            }
            "specific-offsets" => {
                need("offsets", offsets.is_some(), "{\"orders\": {\"0\": 8540}}");
                let offsets = offsets?;
                if offsets.0.is_empty() || offsets.0.values().any(BTreeMap::is_empty) {
                    reader.fault("offsets", "names no partition");
                }
                Some(Self::SpecificOffsets { offsets })
            }
            other => {
                reader.fault("mode", format!("'{other}' is not known: use {WORDS}"));
                None
            }
        }
    }
}

/// The body of a reset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResetRequest {
    /// Where the group goes.
    pub to: ResetTo,
    /// Which partitions; `None` for all that the job reads.
    pub partitions: Option<PartitionsByTopic>,
    /// Whether a position outside of its log is taken to the nearest end instead of being refused.
    pub clamp: bool,
    /// Why, for the history.
    pub reason: Option<String>,
}

impl ResetRequest {
    /// Given offsets and nothing else, as they come from a table.
    #[must_use]
    pub fn to_offsets(offsets: OffsetsByTopic, clamp: bool) -> Self {
        Self {
            to: ResetTo::SpecificOffsets { offsets },
            partitions: None,
            clamp,
            reason: None,
        }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// All faults at once.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let request = Self::read_into(value, &mut errors);
        request.filter(|_| errors.is_empty()).ok_or(errors)
    }

    fn read_into(value: &Value, errors: &mut Vec<FieldError>) -> Option<Self> {
        let mut reader = ObjectReader::open(value, "", errors);
        if reader.raw("to").is_none() {
            reader.fault("to", "is required, for example {\"mode\": \"earliest\"}");
        }
        let to = reader.object("to").and_then(|mut members| {
            let to = ResetTo::read(&mut members);
            members.finish();
            to
        });
        let partitions: Option<PartitionsByTopic> = reader.optional("partitions");
        if partitions
            .as_ref()
            .is_some_and(|chosen| chosen.0.is_empty() || chosen.0.values().any(BTreeSet::is_empty))
        {
            reader.fault("partitions", "names no partition: leave it out to mean all");
        }
        if partitions.is_some() && matches!(to, Some(ResetTo::SpecificOffsets { .. })) {
            reader.fault(
                "partitions",
                "specific-offsets names its partitions itself: leave this member out",
            );
        }
        let clamp = reader.or("clamp", false);
        let reason = reader.optional("reason");
        reader.finish();
        Some(Self {
            to: to?,
            partitions,
            clamp,
            reason,
        })
    }

    /// The partitions that the caller named, with the pointers by which faults are told.
    fn named(&self) -> Option<BTreeMap<TopicPartition, String>> {
        let (partitions, parent): (Vec<TopicPartition>, &str) = match (&self.to, &self.partitions) {
            (ResetTo::SpecificOffsets { offsets }, _) => {
                (offsets.by_partition().into_keys().collect(), "/to/offsets")
            }
            (_, Some(partitions)) => (partitions.partitions().collect(), "/partitions"),
            (_, None) => return None,
        };
        let pointed = partitions.into_iter().map(|partition| {
            let pointer = format!("{parent}/{}/{}", partition.topic, partition.partition);
            (partition, pointer)
        });
        Some(pointed.collect())
    }
}

/// Where one partition of the group goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetMove {
    /// Where the group stands; `None` where it has no offset.
    pub from: Option<Offset>,
    /// Where it goes.
    pub to: Offset,
    /// The number that lay outside of the log, if `to` is the nearest end instead.
    pub asked: Option<i64>,
}

/// Where a group goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResetDecision {
    /// The partitions that are moved or stand there already.
    pub moves: BTreeMap<TopicPartition, ResetMove>,
    /// Partitions that the job reads and a checkpoint says nothing about.
    pub left_out: Vec<TopicPartition>,
}

impl ResetDecision {
    /// Whether any offset becomes another.
    #[must_use]
    pub fn changes_anything(&self) -> bool {
        self.moves.values().any(|to| to.from != Some(to.to))
    }

    /// The offsets as they are sent.
    #[must_use]
    pub fn offsets(&self) -> PartitionOffsets {
        let offsets = self.moves.iter();
        offsets
            .map(|(partition, to)| (partition.clone(), to.to))
            .collect()
    }
}

/// A partition that cannot go where it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetFault {
    /// What is wrong with it.
    pub code: Code,
    /// The partition or topic, and what is wrong with it.
    pub error: FieldError,
}

/// What a decision rests on.
#[derive(Debug, Clone, Copy)]
pub struct ResetInputs<'a> {
    /// What was asked for.
    pub request: &'a ResetRequest,
    /// Which records the job sees.
    pub isolation: Isolation,
    /// The checkpoint that `to` names.
    pub checkpoint: Option<&'a RestorableState>,
    /// Every partition that the job reads, with the group's offsets; `at_timestamp` where `to` has an instant.
    pub facts: &'a BrokerFacts,
}

/// Decides where each partition of a group goes.
///
/// # Errors
/// Every partition that cannot go where it was sent; nothing may be moved then.
pub fn decide(inputs: &ResetInputs<'_>) -> Result<ResetDecision, Vec<ResetFault>> {
    let mut decision = ResetDecision::default();
    let mut faults = Vec::new();
    let named = inputs.request.named();
    let is_named = named.is_some();
    let targets = match named {
        Some(named) => named,
        None => {
            faults.extend(inputs.facts.missing_topics.iter().map(|topic| ResetFault {
                code: Code::UnknownTopic,
                error: FieldError::new(
                    "/partitions",
                    format!("topic {topic} does not exist: name the partitions to move"),
                ),
            }));
            let all = inputs.facts.partitions.keys();
            all.map(|partition| (partition.clone(), "/partitions".to_owned()))
                .collect()
        }
    };
    for (partition, pointer) in targets {
        match inputs.move_of(&partition) {
            Ok(to) => {
                decision.moves.insert(partition, to);
            }
            // All partitions of the job were meant, and the checkpoint is older than this one.
            Err(Refusal::NotInCheckpoint(_)) if !is_named => decision.left_out.push(partition),
            Err(Refusal::NotInCheckpoint(why)) => {
                faults.push(fault(Code::UnknownPartition, &pointer, &partition, &why));
            }
            Err(Refusal::Fault(code, why)) => faults.push(fault(code, &pointer, &partition, &why)),
        }
    }
    if faults.is_empty() {
        Ok(decision)
    } else {
        Err(faults)
    }
}

fn fault(code: Code, pointer: &str, partition: &TopicPartition, why: &str) -> ResetFault {
    ResetFault {
        code,
        error: FieldError::new(pointer, format!("{partition}: {why}")),
    }
}

enum Refusal {
    NotInCheckpoint(String),
    Fault(Code, String),
}

impl ResetInputs<'_> {
    fn move_of(&self, partition: &TopicPartition) -> Result<ResetMove, Refusal> {
        let Some(facts) = self.facts.partitions.get(partition) else {
            return Err(Refusal::Fault(
                Code::UnknownPartition,
                "the job reads no such partition, or it does not exist".to_owned(),
            ));
        };
        let Some(bounds) = facts.bounds else {
            return Err(Refusal::Fault(
                Code::NoLeader,
                "it has no leader, so the ends of its log are not known".to_owned(),
            ));
        };
        // The ends were not asked for in one instant, so the end is held above the beginning.
        let end = bounds.readable_end(self.isolation).max(bounds.earliest);
        let number = match &self.request.to {
            ResetTo::Earliest => bounds.earliest.get(),
            ResetTo::Latest => end.get(),
            // A record that was written after the ends were asked for is not there yet.
            ResetTo::Timestamp { .. } | ResetTo::Ago { .. } => {
                facts.at_timestamp.map_or(end, |found| found.min(end)).get()
            }
            ResetTo::Shift { by } => match facts.group_offset {
                Some(offset) => offset.get().saturating_add(*by),
                None => {
                    return Err(Refusal::Fault(
                        Code::GroupMissing,
                        "the group has no offset that could be shifted".to_owned(),
                    ));
                }
            },
            ResetTo::SpecificOffsets { offsets } => match offsets.get(partition) {
                Some(offset) => offset.get(),
                None => {
                    return Err(Refusal::Fault(
                        Code::UnknownPartition,
                        "no offset is given".to_owned(),
                    ));
                }
            },
            ResetTo::Checkpoint { .. } => self.checkpointed(partition)?.get(),
        };
        let (to, asked) = self.held_against(number, bounds)?;
        Ok(ResetMove {
            from: facts.group_offset,
            to,
            asked,
        })
    }

    fn checkpointed(&self, partition: &TopicPartition) -> Result<Offset, Refusal> {
        let position = self
            .checkpoint
            .and_then(|checkpoint| checkpoint.positions.get(partition));
        let Some(position) = position else {
            return Err(Refusal::NotInCheckpoint(
                "the checkpoint does not hold it".to_owned(),
            ));
        };
        let now = self.facts.partitions.get(partition);
        let now = now.and_then(|facts| facts.topic_id.as_ref());
        if TopicId::differ(position.topic_id.as_ref(), now) {
            return Err(Refusal::Fault(
                Code::TopicRecreated,
                "the topic was deleted and created again since the checkpoint: its offsets mean other records now; choose to.mode earliest or latest".to_owned(),
            ));
        }
        position.next_offset.ok_or_else(|| {
            Refusal::NotInCheckpoint("its position was not known yet in the checkpoint".to_owned())
        })
    }

    fn held_against(
        &self,
        number: i64,
        bounds: LogBounds,
    ) -> Result<(Offset, Option<i64>), Refusal> {
        let (earliest, latest) = (bounds.earliest, bounds.latest.max(bounds.earliest));
        let inside = (earliest.get()..=latest.get()).contains(&number);
        if let Some(offset) = Offset::new(number).filter(|_| inside) {
            return Ok((offset, None));
        }
        if self.request.clamp {
            let nearest = if number < earliest.get() {
                earliest
            } else {
                latest
            };
            return Ok((nearest, Some(number)));
        }
        Err(Refusal::Fault(
            Code::OffsetOutOfRange,
            format!("{number} lies outside of the log, which goes from {earliest} to {latest}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{
        checkpoint::CheckpointPosition,
        resolver::{EndFacts, PartitionFacts},
        topic::TopicId,
    };

    fn offset(number: i64) -> Offset {
        Offset::new(number).unwrap()
    }

    fn orders(partition: i32) -> TopicPartition {
        TopicPartition::new("orders", partition)
    }

    /// Partitions 0 and 1 hold 10 to 100 with a stable end at 90; the group is at 50 in the first. Partition 2 has no leader.
    fn facts() -> BrokerFacts {
        let bounds = LogBounds {
            earliest: offset(10),
            last_stable: offset(90),
            latest: offset(100),
        };
        let led = |group_offset| PartitionFacts {
            topic_id: Some(TopicId("now".into())),
            bounds: Some(bounds),
            group_offset,
            at_timestamp: None,
        };
        BrokerFacts {
            by_pattern: false,
            partitions: BTreeMap::from([
                (orders(0), led(Some(offset(50)))),
                (orders(1), led(None)),
                (orders(2), PartitionFacts::default()),
            ]),
            missing_topics: Vec::new(),
            ends: EndFacts::default(),
        }
    }

    fn decided(body: &Value) -> Result<ResetDecision, Vec<ResetFault>> {
        decided_with(body, &facts(), None)
    }

    fn decided_with(
        body: &Value,
        facts: &BrokerFacts,
        checkpoint: Option<&RestorableState>,
    ) -> Result<ResetDecision, Vec<ResetFault>> {
        decide(&ResetInputs {
            request: &ResetRequest::read(body).unwrap(),
            isolation: Isolation::ReadCommitted,
            checkpoint,
            facts,
        })
    }

    fn led(to: &Value) -> Value {
        json!({"to": to, "partitions": {"orders": [0, 1]}})
    }

    fn targets(decision: &ResetDecision) -> Vec<i64> {
        decision.moves.values().map(|to| to.to.get()).collect()
    }

    #[test]
    fn each_mode_has_its_target() {
        let mut at_timestamp = facts();
        for (partition, found) in [(0, Some(offset(40))), (1, None)] {
            at_timestamp
                .partitions
                .get_mut(&orders(partition))
                .unwrap()
                .at_timestamp = found;
        }
        for (to, wanted) in [
            (json!({"mode": "earliest"}), [10, 10]),
            // What a reader of committed records can read, not the end of the log.
            (json!({"mode": "latest"}), [90, 90]),
            // Where no record is as young: the end.
            (
                json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00"}),
                [40, 90],
            ),
            (json!({"mode": "ago", "duration": "2h"}), [40, 90]),
        ] {
            let decision = decided_with(&led(&to), &at_timestamp, None).unwrap();
            assert_eq!(targets(&decision), wanted, "{to}");
        }
        let one = json!({"to": {"mode": "shift", "by": -7}, "partitions": {"orders": [0]}});
        let decision = decided(&one).unwrap();
        let only = &decision.moves[&orders(0)];
        assert_eq!((only.from, only.to), (Some(offset(50)), offset(43)));
        assert!(decision.changes_anything());
    }

    #[test]
    fn one_bad_partition_keeps_all_where_they_are_and_each_is_named() {
        let body = json!({"to": {"mode": "specific-offsets", "offsets": {
            "orders": {"0": 60, "1": 101, "2": 5, "7": 1}, "payments": {"0": 1}
        }}});
        let faults = decided(&body).unwrap_err();
        let told: Vec<(Code, &str)> = faults
            .iter()
            .map(|fault| (fault.code, fault.error.pointer.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (Code::OffsetOutOfRange, "/to/offsets/orders/1"),
                (Code::NoLeader, "/to/offsets/orders/2"),
                (Code::UnknownPartition, "/to/offsets/orders/7"),
                (Code::UnknownPartition, "/to/offsets/payments/0"),
            ]
        );
        assert!(faults[0].error.message.contains("from 10 to 100"));
    }

    #[test]
    fn a_position_outside_of_the_log_is_refused_or_clamped_and_said_to_be() {
        for (number, nearest) in [(9, 10), (0, 10), (101, 100)] {
            let mut body =
                json!({"to": {"mode": "specific-offsets", "offsets": {"orders": {"0": number}}}});
            assert_eq!(decided(&body).unwrap_err()[0].code, Code::OffsetOutOfRange);
            body["clamp"] = json!(true);
            let decision = decided(&body).unwrap();
            let to = &decision.moves[&orders(0)];
            assert_eq!((to.to, to.asked), (offset(nearest), Some(number)));
        }
        // Below zero it is no offset at all, but it has a nearest end.
        let body = json!({"to": {"mode": "shift", "by": -51}, "clamp": true, "partitions": {"orders": [0]}});
        let decision = decided(&body).unwrap();
        assert_eq!(decision.moves[&orders(0)].asked, Some(-1));
        // Both ends are positions.
        let body =
            json!({"to": {"mode": "specific-offsets", "offsets": {"orders": {"0": 10, "1": 100}}}});
        assert_eq!(targets(&decided(&body).unwrap()), [10, 100]);
    }

    #[test]
    fn a_group_without_an_offset_cannot_be_shifted() {
        let faults = decided(&led(&json!({"mode": "shift", "by": 1}))).unwrap_err();
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].code, Code::GroupMissing);
    }

    #[test]
    fn a_topic_that_is_gone_stands_against_all_but_not_against_others() {
        let mut facts = facts();
        facts.missing_topics.push("payments".to_owned());
        facts.partitions.remove(&orders(2));
        let all = json!({"to": {"mode": "earliest"}});
        let faults = decided_with(&all, &facts, None).unwrap_err();
        assert_eq!(faults[0].code, Code::UnknownTopic);
        let named = led(&json!({"mode": "earliest"}));
        assert_eq!(decided_with(&named, &facts, None).unwrap().moves.len(), 2);
    }

    #[test]
    fn a_checkpoint_moves_what_it_holds() {
        let mut facts = facts();
        facts.partitions.remove(&orders(2));
        let position = |topic_id: &str, next_offset| CheckpointPosition {
            next_offset,
            position_id: CheckpointId(1),
            topic_id: Some(TopicId(topic_id.into())),
        };
        let checkpoint = |position| RestorableState {
            id: CheckpointId(7),
            positions: BTreeMap::from([(orders(0), position)]),
            sink_identity: "log:stdout".to_owned(),
            newest_output: None,
        };
        let all = json!({"to": {"mode": "checkpoint"}});
        let held = checkpoint(position("now", Some(offset(77))));
        let decision = decided_with(&all, &facts, Some(&held)).unwrap();
        assert_eq!(targets(&decision), [77]);
        assert_eq!(decision.left_out, [orders(1)]);
        // Asked for by name, a partition that it does not hold is a fault.
        let named = led(&json!({"mode": "checkpoint", "id": 7}));
        let faults = decided_with(&named, &facts, Some(&held)).unwrap_err();
        assert_eq!(faults[0].error.pointer, "/partitions/orders/1");
        let recreated = checkpoint(position("then", Some(offset(77))));
        let faults = decided_with(&all, &facts, Some(&recreated)).unwrap_err();
        assert_eq!(faults[0].code, Code::TopicRecreated);
        // What is proposed is a member of this call.
        for words in [&faults[0].error.message, Code::TopicRecreated.remedy()] {
            assert!(words.contains("to.mode earliest or latest"), "{words}");
        }
    }

    #[test]
    fn a_group_that_stands_there_already_is_not_moved() {
        let body = json!({"to": {"mode": "specific-offsets", "offsets": {"orders": {"0": 50}}}});
        assert!(!decided(&body).unwrap().changes_anything());
        let body = json!({"to": {"mode": "specific-offsets", "offsets": {"orders": {"1": 50}}}});
        assert!(decided(&body).unwrap().changes_anything(), "it had none");
    }

    #[test]
    fn a_body_round_trips_through_the_store() {
        for value in [
            json!({"to": {"mode": "earliest"}}),
            json!({"to": {"mode": "latest"}, "clamp": true}),
            json!({"to": {"mode": "timestamp", "timestamp": "2026-11-28T02:00:00+01:00"}}),
            json!({"to": {"mode": "ago", "duration": "2h"}, "reason": "INC-4711"}),
            json!({"to": {"mode": "shift", "by": -1000}, "partitions": {"orders": [0, 2]}}),
            json!({"to": {"mode": "specific-offsets", "offsets": {"orders": {"0": 8540}}}}),
            json!({"to": {"mode": "checkpoint"}}),
            json!({"to": {"mode": "checkpoint", "id": 1790}}),
        ] {
            let request = ResetRequest::read(&value).unwrap();
            let stored = serde_json::to_value(&request).unwrap();
            assert_eq!(ResetRequest::read(&stored), Ok(request), "{value}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (value, pointer) in [
            (json!({}), "/to"),
            (json!({"to": "earliest"}), "/to"),
            (json!({"to": {}}), "/to/mode"),
            (json!({"to": {"mode": "newest"}}), "/to/mode"),
            (json!({"to": {"mode": "shift"}}), "/to/by"),
            (json!({"to": {"mode": "earliest", "by": 4}}), "/to/by"),
            (
                json!({"to": {"mode": "checkpoint", "checkpoint": 4}}),
                "/to/checkpoint",
            ),
            (
                json!({"to": {"mode": "specific-offsets", "offsets": {}}}),
                "/to/offsets",
            ),
            (
                json!({"to": {"mode": "earliest"}, "partitions": {}}),
                "/partitions",
            ),
            (
                json!({"to": {"mode": "earliest"}, "partitions": {"orders": []}}),
                "/partitions",
            ),
            (
                json!({"to": {"mode": "specific-offsets", "offsets": {"o": {"0": 1}}}, "partitions": {"o": [0]}}),
                "/partitions",
            ),
            (
                json!({"to": {"mode": "earliest"}, "target": "group"}),
                "/target",
            ),
            (
                json!({"to": {"mode": "timestamp", "timestamp": "2026-11-28T02:00:00"}}),
                "/to/timestamp",
            ),
        ] {
            let errors = ResetRequest::read(&value).unwrap_err();
            assert!(
                errors.iter().any(|error| error.pointer == pointer),
                "{value}: {errors:?}"
            );
        }
    }
}
