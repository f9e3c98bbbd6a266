//! Where every partition begins, and why: the one function that decides it.
//!
//! The REST start plan, a start, a restart of the server and the recovery after a crash all call [`resolve_positions`] and
//! read the same answer, so a plan cannot promise what a start does not do. It is pure: state, intent and broker facts in,
//! numbers and reasons out. Nothing symbolic ("latest", "group offset") leaves it, so no checkpoint ever holds a
//! placeholder that could mean something else after a restart.
//!
//! The order of precedence, per partition:
//! 1. what the operator asked for this once (`from`, or a pending one-shot start), where it covers the partition;
//! 2. the checkpoint's position (and a sink's own progress, where the sink keeps one);
//! 3. with a checkpoint that does not hold the partition: the earliest record, whatever the startup mode, because records
//!    may have been written before the partition was noticed (FLIP-288);
//! 4. the startup mode.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    checkpoint::CheckpointPosition,
    code::Code,
    ids::CheckpointId,
    job::{Isolation, PositionPolicy},
    offset::{Offset, PartitionOffsets},
    start::{PartitionsByTopic, StartFrom},
    startup_mode::StartupMode,
    topic::{TopicId, TopicPartition},
};

/// The ends of a partition's log as the leader told them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogBounds {
    /// First offset still in the log.
    pub earliest: Offset,
    /// End of what a `read_committed` consumer may see (last stable offset).
    pub last_stable: Offset,
    /// End of the log (high watermark).
    pub latest: Offset,
}

impl LogBounds {
    /// Up to where a job of this isolation can read.
    #[must_use]
    pub fn readable_end(&self, isolation: Isolation) -> Offset {
        match isolation {
            Isolation::ReadCommitted => self.last_stable,
            Isolation::ReadUncommitted => self.latest,
        }
    }
}

/// What the brokers know of one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionFacts {
    /// The topic's id; `None` if the broker has none.
    pub topic_id: Option<TopicId>,
    /// The log's ends; `None` while the partition has no leader.
    pub bounds: Option<LogBounds>,
    /// The group's committed offset.
    pub group_offset: Option<Offset>,
    /// The first offset at or after the instant asked for; `None` if there is none or no instant was asked for.
    pub at_timestamp: Option<Offset>,
}

/// What the brokers know, as far as this start needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokerFacts {
    /// Every partition of the topics read.
    pub partitions: BTreeMap<TopicPartition, PartitionFacts>,
    /// Topics of the spec that do not exist.
    pub missing_topics: Vec<String>,
}

/// A checkpoint as the resolver needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestorableState {
    /// The checkpoint's number.
    pub id: CheckpointId,
    /// Its positions.
    pub positions: BTreeMap<TopicPartition, CheckpointPosition>,
}

/// How far a sink that keeps its own progress has come in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkPosition {
    /// Everything before is in the sink.
    pub next_offset: Offset,
    /// The checkpoint that last decided this partition's position from outside, as the sink knows it.
    pub position_id: CheckpointId,
}

/// What a sink found when it claimed its target; empty for sinks that keep no progress.
pub type SinkProgress = BTreeMap<TopicPartition, SinkPosition>;

/// The policies in force for this start: the spec's, or the caller's overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPolicies {
    /// For positions outside the log.
    pub on_out_of_range: PositionPolicy,
    /// For a group without an offset.
    pub on_missing_group_offset: PositionPolicy,
    /// For a topic with another id than the checkpoint's.
    pub on_topic_recreated: PositionPolicy,
}

/// Everything the decision depends on.
#[derive(Debug, Clone, Copy)]
pub struct StartInputs<'a> {
    /// The job's isolation: `latest` and `to_read` are measured to what it can read.
    pub isolation: Isolation,
    /// The startup mode of the spec.
    pub startup_mode: &'a StartupMode,
    /// The newest completed checkpoint.
    pub state: Option<&'a RestorableState>,
    /// The checkpoint that `from: checkpoint` names; `None` for the newest.
    pub chosen: Option<&'a RestorableState>,
    /// What the sink holds.
    pub sink: &'a SinkProgress,
    /// What was asked for this once.
    pub from: &'a StartFrom,
    /// Which partitions it covers; `None` for all.
    pub covered: Option<&'a PartitionsByTopic>,
    /// The policies.
    pub policies: StartPolicies,
    /// The brokers' answers.
    pub facts: &'a BrokerFacts,
}

/// Why a partition begins where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StartReason {
    /// Stored position, inside the log.
    Checkpoint,
    /// The sink holds more than the checkpoint says: its own progress counts.
    SinkProgress,
    /// The partition appeared after the checkpoint: earliest, whatever the startup mode.
    NewSinceCheckpoint,
    /// First offset of the log.
    StartupEarliest,
    /// End of the log.
    StartupLatest,
    /// First record at or after the instant.
    StartupTimestamp,
    /// The given offset.
    StartupSpecificOffset,
    /// The group's committed offset.
    StartupGroupOffset,
    /// The stored or default position, moved by the number given.
    Shift,
    /// No record at or after the instant: end of the log.
    TimestampPastEnd,
    /// Not in the map of offsets: the group's offset.
    SpecificMissingUsedGroup,
    /// The group has no offset: the policy decided, or blocks.
    GroupMissingUsedPolicy,
    /// The position lies before the log's beginning: the policy decided, or blocks.
    BelowEarliest,
    /// The position lies beyond the log's end: the policy decided, or blocks.
    BeyondLatest,
    /// The topic has another id than the checkpoint says: the policy decided, or blocks.
    TopicRecreated,
    /// The checkpoint holds it, the spec no longer reads it.
    NotSubscribedNow,
    /// It has no leader; its position is decided, and stored, before its first fetch.
    NoLeader,
}

/// One partition of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedPartition {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// Next record to read; `null` where a blocker, a missing leader or a dropped subscription leaves it open.
    pub start_at: Option<Offset>,
    /// Why.
    pub reason: StartReason,
    /// First offset of the log; `null` without a leader.
    pub earliest: Option<Offset>,
    /// Up to where the job can read; `null` without a leader.
    pub readable_end: Option<Offset>,
    /// Offsets from `start_at` to `readable_end`.
    pub to_read: Option<i64>,
    /// Offsets before the stored position that will be read again.
    pub replayed: i64,
    /// Unread offsets that will be passed over.
    pub skipped: i64,
    /// Unread offsets that the log no longer has.
    pub lost: i64,
    /// The topic's id.
    pub topic_id: Option<TopicId>,
    /// The checkpoint that decided this position, if it is not this start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position_id: Option<CheckpointId>,
}

impl PlannedPartition {
    /// The partition.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition::new(self.topic.as_str(), self.partition)
    }
}

/// What a plan rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StartBasis {
    /// A checkpoint's positions.
    Checkpoint,
    /// The startup mode: there is no checkpoint.
    StartupMode,
    /// What the caller asked for this once, for some or all partitions.
    OneShot,
}

/// Something that stands against a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blocker {
    /// What it is.
    pub code: Code,
    /// Where.
    pub partitions: Vec<TopicPartition>,
    /// One sentence with the numbers.
    pub summary: String,
    /// Members that a start may carry to decide it.
    #[schema(value_type = Vec<Object>)]
    pub choices: Vec<serde_json::Value>,
}

/// Something to know before a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// What it is.
    pub code: Code,
    /// One sentence.
    pub summary: String,
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResolvedStart {
    /// What it rests on.
    pub basis: StartBasis,
    /// The checkpoint it resumes from or sets aside.
    pub checkpoint: Option<CheckpointId>,
    /// One sentence.
    pub summary: String,
    /// Each partition, in order.
    pub partitions: Vec<PlannedPartition>,
    /// Sums over the partitions.
    pub totals: PlanTotals,
    /// What stands against it; a start is refused while there is one.
    pub blockers: Vec<Blocker>,
    /// What to know.
    pub warnings: Vec<Warning>,
}

/// Sums of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanTotals {
    /// Offsets to read until the end as it is now, over the partitions where it is known.
    pub to_read: i64,
    /// Offsets that will be read again.
    pub replayed: i64,
    /// Unread offsets that will be passed over.
    pub skipped: i64,
    /// Unread offsets that the log no longer has.
    pub lost: i64,
    /// Partitions whose beginning is open.
    pub undecided_partitions: usize,
}

impl ResolvedStart {
    /// Whether this start leaves a checkpoint aside that `auto` would have resumed from.
    #[must_use]
    pub fn sets_state_aside(&self) -> bool {
        self.basis == StartBasis::OneShot && self.checkpoint.is_some()
    }
}

/// What a start has to ask the group and the log for, besides the ends of the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededFacts {
    /// The group's committed offsets.
    pub group_offsets: bool,
    /// The first offsets at or after this instant, in milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
}

/// Says which facts a start needs, so that none is asked for in vain. `now_ms` is the wall clock, for `ago`.
#[must_use]
pub fn needed_facts(
    from: &StartFrom,
    mode: &StartupMode,
    has_state: bool,
    now_ms: i64,
) -> NeededFacts {
    let by_mode = match mode {
        StartupMode::Timestamp { timestamp } => (false, Some(timestamp.timestamp_millis())),
        StartupMode::GroupOffsets | StartupMode::SpecificOffsets { .. } => (true, None),
        StartupMode::Earliest | StartupMode::Latest => (false, None),
    };
    let (group_offsets, timestamp_ms) = match from {
        StartFrom::Timestamp { timestamp } => {
            (!has_state && by_mode.0, Some(timestamp.timestamp_millis()))
        }
        StartFrom::Ago { duration } => (
            !has_state && by_mode.0,
            Some((now_ms - duration.as_millis()).max(0)),
        ),
        StartFrom::GroupOffsets | StartFrom::SpecificOffsets { .. } => {
            (true, by_mode.1.filter(|_| !has_state))
        }
        StartFrom::Earliest | StartFrom::Latest => by_mode,
        // A partition that waits for its leader since the first start is still decided by the mode.
        StartFrom::Auto | StartFrom::Checkpoint { .. } | StartFrom::Shift { .. } => by_mode,
    };
    NeededFacts {
        group_offsets,
        timestamp_ms,
    }
}

/// Decides where every partition begins. See the module.
#[must_use]
pub fn resolve_positions(inputs: &StartInputs<'_>) -> ResolvedStart {
    let mut resolution = Resolution {
        inputs,
        blockers: Blockers::default(),
        leaderless: Vec::new(),
    };
    let mut partitions: Vec<PlannedPartition> = Vec::new();
    for partition in resolution.partitions_to_decide() {
        partitions.push(resolution.decide(&partition));
    }
    resolution.check_named_partitions();
    let state = inputs.chosen.or(inputs.state);
    let basis = match (inputs.from, state) {
        (StartFrom::Auto | StartFrom::Checkpoint { .. }, Some(_)) => StartBasis::Checkpoint,
        (StartFrom::Auto | StartFrom::Checkpoint { .. }, None) => StartBasis::StartupMode,
        _ => StartBasis::OneShot,
    };
    let totals = totals(&partitions);
    let warnings = resolution.warnings(basis, &partitions);
    ResolvedStart {
        basis,
        checkpoint: state.map(|state| state.id),
        summary: summary(basis, inputs, state, &totals),
        partitions,
        totals,
        blockers: resolution.blockers.into_list(),
        warnings,
    }
}

struct Resolution<'a> {
    inputs: &'a StartInputs<'a>,
    blockers: Blockers,
    leaderless: Vec<TopicPartition>,
}

/// A partition's position before it is held against the log.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// A number from somewhere.
    At {
        number: i64,
        reason: StartReason,
        position_id: Option<CheckpointId>,
    },
    /// The log's beginning.
    Earliest(StartReason),
    /// The end of what can be read.
    Latest(StartReason),
    /// Nothing can be taken: blocked, with the policy's code.
    Blocked(StartReason),
}

impl Resolution<'_> {
    /// The brokers' partitions, and those of the state that the brokers do not report (a broker may be down).
    fn partitions_to_decide(&self) -> BTreeSet<TopicPartition> {
        let state = self.inputs.chosen.or(self.inputs.state);
        let stored = state.into_iter().flat_map(|state| state.positions.keys());
        self.inputs
            .facts
            .partitions
            .keys()
            .chain(stored)
            .cloned()
            .collect()
    }

    fn decide(&mut self, partition: &TopicPartition) -> PlannedPartition {
        let no_facts = PartitionFacts::default();
        let topic_is_read = self
            .inputs
            .facts
            .partitions
            .keys()
            .any(|known| known.topic == partition.topic);
        let facts = self.inputs.facts.partitions.get(partition);
        if facts.is_none() && !topic_is_read {
            let reason = StartReason::NotSubscribedNow;
            return planned(partition, None, reason, &no_facts, self.inputs, None);
        }
        let facts = facts.unwrap_or(&no_facts);
        let wanted = self.wanted(partition, facts);
        let (start_at, reason, position_id) = self.place(partition, wanted, facts);
        planned(partition, start_at, reason, facts, self.inputs, position_id)
    }

    fn covered_by_intent(&self, partition: &TopicPartition) -> bool {
        match self.inputs.from {
            StartFrom::Auto | StartFrom::Checkpoint { .. } => false,
            StartFrom::Earliest
            | StartFrom::Latest
            | StartFrom::Timestamp { .. }
            | StartFrom::Ago { .. }
            | StartFrom::SpecificOffsets { .. }
            | StartFrom::GroupOffsets
            | StartFrom::Shift { .. } => self
                .inputs
                .covered
                .is_none_or(|covered| covered.contains(partition)),
        }
    }

    fn wanted(&mut self, partition: &TopicPartition, facts: &PartitionFacts) -> Wanted {
        if !self.covered_by_intent(partition) {
            return self.by_state(partition, facts);
        }
        match self.inputs.from {
            StartFrom::Earliest => Wanted::Earliest(StartReason::StartupEarliest),
            StartFrom::Latest => Wanted::Latest(StartReason::StartupLatest),
            StartFrom::Timestamp { .. } | StartFrom::Ago { .. } => by_timestamp(facts),
            StartFrom::SpecificOffsets { offsets } => {
                self.by_map(&offsets.by_partition(), partition, facts)
            }
            StartFrom::GroupOffsets => {
                self.by_group(partition, facts, StartReason::StartupGroupOffset)
            }
            StartFrom::Shift { by } => self.shifted(partition, facts, *by),
            StartFrom::Auto | StartFrom::Checkpoint { .. } => self.by_state(partition, facts),
        }
    }

    fn by_state(&mut self, partition: &TopicPartition, facts: &PartitionFacts) -> Wanted {
        let Some(state) = self.state_for(partition) else {
            return self.by_startup_mode(partition, facts);
        };
        let Some(position) = state.positions.get(partition) else {
            return Wanted::Earliest(StartReason::NewSinceCheckpoint);
        };
        let Some(offset) = position.next_offset else {
            // Had no leader since the first start: its position was never decided.
            return self.by_startup_mode(partition, facts);
        };
        if let (Some(stored), Some(now)) = (&position.topic_id, &facts.topic_id)
            && stored != now
        {
            return self.by_policy(
                partition,
                self.inputs.policies.on_topic_recreated,
                StartReason::TopicRecreated,
                Code::TopicRecreated,
                format!("{partition}: the topic was deleted and created again; offset {offset} belonged to the old one"),
                "on_topic_recreated",
            );
        }
        let restored_on_purpose = self
            .inputs
            .chosen
            .is_some_and(|chosen| Some(chosen.id) != self.inputs.state.map(|state| state.id));
        if restored_on_purpose {
            return Wanted::At {
                number: offset.get(),
                reason: StartReason::Checkpoint,
                position_id: None,
            };
        }
        self.with_sink_progress(partition, offset, position.position_id)
    }

    fn state_for(&self, partition: &TopicPartition) -> Option<&RestorableState> {
        let chosen = self.inputs.chosen.filter(|_| {
            self.inputs
                .covered
                .is_none_or(|covered| covered.contains(partition))
        });
        chosen.or(self.inputs.state)
    }

    /// The position ids tell whether sink and store speak of the same run of positions.
    fn with_sink_progress(
        &mut self,
        partition: &TopicPartition,
        stored: Offset,
        position_id: CheckpointId,
    ) -> Wanted {
        let by_store = Wanted::At {
            number: stored.get(),
            reason: StartReason::Checkpoint,
            position_id: Some(position_id),
        };
        let Some(sink) = self.inputs.sink.get(partition) else {
            return by_store;
        };
        if sink.position_id < position_id {
            // The operator moved the position and the sink has not heard of it yet: the claim rewrites the sink's row.
            return by_store;
        }
        if sink.position_id > position_id {
            self.blockers.add(
                Code::StoreBehindSink,
                partition,
                &format!("{partition}: the sink knows checkpoint {}, the store only {position_id}: the store was restored", sink.position_id),
                &[],
            );
            return Wanted::Blocked(StartReason::SinkProgress);
        }
        if sink.next_offset < stored {
            self.blockers.add(
                Code::SinkBehindStore,
                partition,
                &format!(
                    "{partition}: the sink holds records up to {}, the checkpoint says {stored}",
                    sink.next_offset
                ),
                &[],
            );
            return Wanted::Blocked(StartReason::SinkProgress);
        }
        if sink.next_offset == stored {
            return by_store;
        }
        Wanted::At {
            number: sink.next_offset.get(),
            reason: StartReason::SinkProgress,
            position_id: Some(position_id),
        }
    }

    fn by_startup_mode(&mut self, partition: &TopicPartition, facts: &PartitionFacts) -> Wanted {
        match self.inputs.startup_mode {
            StartupMode::Earliest => Wanted::Earliest(StartReason::StartupEarliest),
            StartupMode::Latest => Wanted::Latest(StartReason::StartupLatest),
            StartupMode::Timestamp { .. } => by_timestamp(facts),
            StartupMode::GroupOffsets => {
                self.by_group(partition, facts, StartReason::StartupGroupOffset)
            }
            StartupMode::SpecificOffsets { offsets } => {
                self.by_map(&offsets.by_partition(), partition, facts)
            }
        }
    }

    fn by_map(
        &mut self,
        map: &PartitionOffsets,
        partition: &TopicPartition,
        facts: &PartitionFacts,
    ) -> Wanted {
        match map.get(partition) {
            Some(offset) => Wanted::At {
                number: offset.get(),
                reason: StartReason::StartupSpecificOffset,
                position_id: None,
            },
            None => self.by_group(partition, facts, StartReason::SpecificMissingUsedGroup),
        }
    }

    fn by_group(
        &mut self,
        partition: &TopicPartition,
        facts: &PartitionFacts,
        reason: StartReason,
    ) -> Wanted {
        match facts.group_offset {
            Some(offset) => Wanted::At {
                number: offset.get(),
                reason,
                position_id: None,
            },
            None => self.by_policy(
                partition,
                self.inputs.policies.on_missing_group_offset,
                StartReason::GroupMissingUsedPolicy,
                Code::GroupMissing,
                format!("{partition}: the group has no committed offset"),
                "on_missing_group_offset",
            ),
        }
    }

    fn shifted(&mut self, partition: &TopicPartition, facts: &PartitionFacts, by: i64) -> Wanted {
        let base = self.by_state(partition, facts);
        let isolation = self.inputs.isolation;
        let number = match base {
            Wanted::At { number, .. } => Some(number),
            Wanted::Earliest(_) => facts.bounds.map(|bounds| bounds.earliest.get()),
            Wanted::Latest(_) => facts
                .bounds
                .map(|bounds| bounds.readable_end(isolation).get()),
            Wanted::Blocked(_) => None,
        };
        match number {
            Some(number) => Wanted::At {
                number: number.saturating_add(by),
                reason: StartReason::Shift,
                position_id: None,
            },
            None => base,
        }
    }

    fn by_policy(
        &mut self,
        partition: &TopicPartition,
        policy: PositionPolicy,
        reason: StartReason,
        code: Code,
        summary: String,
        member: &'static str,
    ) -> Wanted {
        match policy {
            PositionPolicy::Earliest => Wanted::Earliest(reason),
            PositionPolicy::Latest => Wanted::Latest(reason),
            PositionPolicy::Fail => {
                self.blockers.add(
                    code,
                    partition,
                    &summary,
                    &[(member, "earliest"), (member, "latest")],
                );
                Wanted::Blocked(reason)
            }
        }
    }

    /// Holds the wanted position against the log.
    fn place(
        &mut self,
        partition: &TopicPartition,
        wanted: Wanted,
        facts: &PartitionFacts,
    ) -> (Option<Offset>, StartReason, Option<CheckpointId>) {
        let Some(bounds) = facts.bounds else {
            self.leaderless.push(partition.clone());
            return match wanted {
                Wanted::At {
                    number,
                    reason,
                    position_id,
                } if Offset::new(number).is_some() => (Offset::new(number), reason, position_id),
                Wanted::Blocked(reason) => (None, reason, None),
                Wanted::At { .. } | Wanted::Earliest(_) | Wanted::Latest(_) => {
                    (None, StartReason::NoLeader, None)
                }
            };
        };
        let readable_end = bounds.readable_end(self.inputs.isolation);
        match wanted {
            Wanted::Earliest(reason) => (Some(bounds.earliest), reason, None),
            Wanted::Latest(reason) => (Some(readable_end), reason, None),
            Wanted::Blocked(reason) => (None, reason, None),
            Wanted::At {
                number,
                reason,
                position_id,
            } => {
                let (outside, why) = if number < bounds.earliest.get() {
                    let gone = bounds.earliest.get() - number;
                    let why = format!(
                        "{partition}: the position is {number}, the log starts at {}: {gone} offsets are gone",
                        bounds.earliest
                    );
                    (StartReason::BelowEarliest, why)
                } else if number > bounds.latest.get() {
                    let why = format!(
                        "{partition}: the position is {number}, the log ends at {}",
                        bounds.latest
                    );
                    (StartReason::BeyondLatest, why)
                } else {
                    return (Offset::new(number), reason, position_id);
                };
                let policy = self.inputs.policies.on_out_of_range;
                let code = Code::OffsetOutOfRange;
                match self.by_policy(partition, policy, outside, code, why, "on_out_of_range") {
                    Wanted::Earliest(reason) => (Some(bounds.earliest), reason, None),
                    Wanted::Latest(reason) => (Some(readable_end), reason, None),
                    Wanted::At { .. } | Wanted::Blocked(_) => (None, outside, None),
                }
            }
        }
    }

    /// A partition that somebody named and that does not exist is a mistake, not a wish to ignore.
    fn check_named_partitions(&mut self) {
        let mut named: BTreeSet<TopicPartition> = BTreeSet::new();
        let state = self.inputs.chosen.or(self.inputs.state);
        if let StartFrom::SpecificOffsets { offsets } = self.inputs.from {
            named.extend(offsets.by_partition().into_keys());
        } else if state.is_none()
            && matches!(self.inputs.from, StartFrom::Auto)
            && let StartupMode::SpecificOffsets { offsets } = self.inputs.startup_mode
        {
            named.extend(offsets.by_partition().into_keys());
        }
        for (topic, numbers) in self
            .inputs
            .covered
            .into_iter()
            .flat_map(|covered| &covered.0)
        {
            named.extend(
                numbers
                    .iter()
                    .map(|number| TopicPartition::new(topic.as_str(), *number)),
            );
        }
        for partition in named {
            if !self.inputs.facts.partitions.contains_key(&partition) {
                self.blockers.add(
                    Code::UnknownPartition,
                    &partition,
                    &format!("{partition} does not exist or is not read by this job"),
                    &[],
                );
            }
        }
        for topic in &self.inputs.facts.missing_topics {
            self.blockers.add_topic(topic);
        }
    }

    fn warnings(&self, basis: StartBasis, partitions: &[PlannedPartition]) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let resumes_somewhere = partitions.iter().any(|planned| {
            !matches!(
                planned.reason,
                StartReason::NewSinceCheckpoint | StartReason::NotSubscribedNow
            )
        });
        if basis == StartBasis::Checkpoint && !partitions.is_empty() && !resumes_somewhere {
            warnings.push(Warning {
                code: Code::CheckpointHasNoSubscribedPartition,
                summary: "the checkpoint holds none of the topics read now: every partition begins at its earliest record".to_owned(),
            });
        }
        if basis == StartBasis::OneShot
            && let Some(state) = self.inputs.state
        {
            warnings.push(Warning {
                code: Code::StateNotUsed,
                summary: format!("checkpoint {} is set aside; it is kept, and from=checkpoint with its number is the way back", state.id),
            });
        }
        if !self.leaderless.is_empty() {
            let names: Vec<String> = self.leaderless.iter().map(ToString::to_string).collect();
            warnings.push(Warning {
                code: Code::NoLeader,
                summary: format!(
                    "no leader answers for {}; the other partitions go on and these follow",
                    names.join(", ")
                ),
            });
        }
        warnings
    }
}

fn by_timestamp(facts: &PartitionFacts) -> Wanted {
    match facts.at_timestamp {
        Some(offset) => Wanted::At {
            number: offset.get(),
            reason: StartReason::StartupTimestamp,
            position_id: None,
        },
        None => Wanted::Latest(StartReason::TimestampPastEnd),
    }
}

fn planned(
    partition: &TopicPartition,
    start_at: Option<Offset>,
    reason: StartReason,
    facts: &PartitionFacts,
    inputs: &StartInputs<'_>,
    position_id: Option<CheckpointId>,
) -> PlannedPartition {
    let readable_end = facts
        .bounds
        .map(|bounds| bounds.readable_end(inputs.isolation));
    let earliest = facts.bounds.map(|bounds| bounds.earliest);
    let stored = stored_position(partition, facts, inputs);
    let mut numbers = Movement::default();
    if let Some(stored) = stored {
        numbers = Movement::between(stored, start_at, earliest, readable_end, reason);
    } else if let (StartReason::BelowEarliest, Some(earliest), Some(group)) =
        (reason, earliest, facts.group_offset)
    {
        numbers.lost = earliest.distance_from(group).max(0);
    }
    PlannedPartition {
        topic: partition.topic.to_string(),
        partition: partition.partition,
        start_at,
        reason,
        earliest,
        readable_end,
        to_read: start_at
            .zip(readable_end)
            .map(|(start, end)| end.distance_from(start).max(0)),
        replayed: numbers.replayed,
        skipped: numbers.skipped,
        lost: numbers.lost,
        topic_id: facts.topic_id.clone(),
        position_id,
    }
}

/// The stored position that a start is measured against; none where the topic's incarnation differs.
fn stored_position(
    partition: &TopicPartition,
    facts: &PartitionFacts,
    inputs: &StartInputs<'_>,
) -> Option<Offset> {
    let position = inputs.state?.positions.get(partition)?;
    match (&position.topic_id, &facts.topic_id) {
        (Some(stored), Some(now)) if stored != now => None,
        _ => position.next_offset,
    }
}

#[derive(Default)]
struct Movement {
    replayed: i64,
    skipped: i64,
    lost: i64,
}

impl Movement {
    fn between(
        stored: Offset,
        start_at: Option<Offset>,
        earliest: Option<Offset>,
        readable_end: Option<Offset>,
        reason: StartReason,
    ) -> Self {
        let earliest = earliest.unwrap_or(Offset::ZERO);
        if reason == StartReason::NotSubscribedNow {
            return Self::default();
        }
        // What lies between the stored position and the log's beginning is gone, whatever is decided.
        let lost = earliest.distance_from(stored).max(0);
        let Some(start) = start_at else {
            return Self {
                lost,
                ..Self::default()
            };
        };
        if start <= stored {
            // Only what was read can be read again: a stored position beyond the end says nothing about records.
            let read_up_to = readable_end.map_or(stored, |end| end.min(stored));
            return Self {
                replayed: read_up_to.distance_from(start).max(0),
                skipped: 0,
                lost: 0,
            };
        }
        Self {
            replayed: 0,
            skipped: start.distance_from(stored.max(earliest)).max(0),
            lost,
        }
    }
}

fn totals(partitions: &[PlannedPartition]) -> PlanTotals {
    let mut totals = PlanTotals::default();
    for planned in partitions
        .iter()
        .filter(|planned| planned.reason != StartReason::NotSubscribedNow)
    {
        totals.to_read += planned.to_read.unwrap_or(0);
        totals.replayed += planned.replayed;
        totals.skipped += planned.skipped;
        totals.lost += planned.lost;
        totals.undecided_partitions += usize::from(planned.start_at.is_none());
    }
    totals
}

fn summary(
    basis: StartBasis,
    inputs: &StartInputs<'_>,
    state: Option<&RestorableState>,
    totals: &PlanTotals,
) -> String {
    let mode = inputs.startup_mode.name();
    let mut text = match (basis, state) {
        (StartBasis::Checkpoint, Some(state)) => {
            format!(
                "resume from checkpoint {}; the startup mode ({mode}) is not used",
                state.id
            )
        }
        (StartBasis::OneShot, Some(state)) => {
            format!(
                "begin from {}, once; checkpoint {} is set aside",
                inputs.from.name(),
                state.id
            )
        }
        (StartBasis::OneShot, None) => format!("begin from {}, once", inputs.from.name()),
        (StartBasis::Checkpoint | StartBasis::StartupMode, _) => {
            format!("no checkpoint: begin by the startup mode ({mode})")
        }
    };
    for (count, what) in [
        (totals.replayed, "replayed"),
        (totals.skipped, "skipped"),
        (totals.lost, "lost"),
    ] {
        if count > 0 {
            text.push_str(&format!("; {count} offsets {what}"));
        }
    }
    text
}

/// Blockers of one code are one entry with all its partitions.
#[derive(Debug, Default)]
struct Blockers(BTreeMap<Code, Blocker>);

impl Blockers {
    fn add(
        &mut self,
        code: Code,
        partition: &TopicPartition,
        summary: &str,
        choices: &[(&str, &str)],
    ) {
        let entry = self.0.entry(code).or_insert_with(|| Blocker {
            code,
            partitions: Vec::new(),
            summary: String::new(),
            choices: choices
                .iter()
                .map(|(member, value)| serde_json::json!({ *member: value }))
                .collect(),
        });
        if !entry.partitions.contains(partition) {
            entry.partitions.push(partition.clone());
            append(&mut entry.summary, summary);
        }
    }

    fn add_topic(&mut self, topic: &str) {
        let entry = self.0.entry(Code::UnknownTopic).or_insert_with(|| Blocker {
            code: Code::UnknownTopic,
            partitions: Vec::new(),
            summary: String::new(),
            choices: Vec::new(),
        });
        append(&mut entry.summary, &format!("topic {topic} does not exist"));
    }

    fn into_list(self) -> Vec<Blocker> {
        self.0.into_values().collect()
    }
}

/// Keeps a summary of many partitions readable: the first few, then a mark that there are more.
fn append(summary: &mut String, part: &str) {
    const ENOUGH: usize = 400;
    if summary.is_empty() {
        summary.push_str(part);
    } else if summary.len() < ENOUGH {
        summary.push_str("; ");
        summary.push_str(part);
    } else if !summary.ends_with("and more") {
        summary.push_str("; and more");
    }
}
