//! The decision as it is shown, stored and carried out.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ProgressFacts, SinkFacts, SinkPosition};
use crate::model::{
    checkpoint::CheckpointPosition,
    code::Code,
    ids::CheckpointId,
    offset::Offset,
    parked::LostRange,
    stop_at::StopAt,
    topic::{TopicId, TopicPartition},
};

/// Why a partition begins where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StartReason {
    /// Stored position, inside the log.
    Checkpoint,
    /// The sink holds more than the checkpoint says: its own progress counts.
    SinkProgress,
    /// The partition appeared after the checkpoint, or without checkpoints after the last run: earliest, whatever the startup
    /// mode.
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
    /// The checkpoint holds it, the spec no longer reads it: its position is kept for the day on which it does again.
    Detached,
    /// The checkpoint holds it, its topic is read, and it does not exist any more: nothing is assigned for it. Its position is
    /// kept.
    PartitionGone,
    /// It has no leader; its position is decided by the startup mode, and stored, before its first fetch.
    NoLeader,
}

/// Why a partition of a bounded run ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The run goes on: the end was resolved when it began.
    RunGoesOn,
    /// The end of what could be read.
    StopLatest,
    /// First record at or after the instant.
    StopTimestamp,
    /// No record at or after the instant: the end of what could be read.
    StopTimestampPastEnd,
    /// The given offset.
    StopSpecificOffset,
    /// The group's committed offset.
    StopGroupOffset,
    /// It appeared after the run had begun and is no part of it: it ends where it begins.
    NotPartOfTheRun,
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
    /// Offsets from `start_at` to `readable_end`; of a bounded job to `stop_at`.
    pub to_read: Option<i64>,
    /// Offsets that were read already and will be read again.
    pub replayed: i64,
    /// Unread offsets that will be passed over. Without a checkpoint they are counted from where the last run stood, or from
    /// the position that was asked for if the log does not hold it; 0 where that is not known.
    pub skipped: i64,
    /// Unread offsets that the log no longer has.
    pub lost: i64,
    /// The offsets between the position that is wanted and the log, where that does not hold it and `on_out_of_range` decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<LostRange>,
    /// The topic's id; the stored one where the brokers do not tell it, so that the next start can still compare.
    pub topic_id: Option<TopicId>,
    /// Where the sink stands, by its own word; `null` where it keeps no progress or none of this partition that counts.
    #[serde(default)]
    pub sink: Option<SinkPosition>,
    /// The position that stays stored of a partition that is not read now; `null` for one that is read, or was never read.
    #[serde(default)]
    pub kept: Option<Offset>,
    /// Why it stays parked at the position that is kept, while the others run; `null` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<PlannedParking>,
    /// The checkpoint that decided this position, if it is not this start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position_id: Option<CheckpointId>,
    /// Where the partition of a bounded job ends: the first offset that is not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<Offset>,
    /// Why it ends there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
}

impl PlannedPartition {
    /// The partition.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition::new(self.topic.as_str(), self.partition)
    }

    /// Whether the start reads it. The others are only shown, so that nobody misses them: they are not assigned, and of
    /// them the next checkpoint has what is [kept](Self::kept).
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.exists() && self.parked.is_none()
    }

    /// Whether it does not exist, and its position is kept.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.reason == StartReason::PartitionGone && self.kept.is_some()
    }

    /// Whether it is there to be read, though it may be parked.
    #[must_use]
    pub fn exists(&self) -> bool {
        !matches!(
            self.reason,
            StartReason::Detached | StartReason::PartitionGone
        )
    }
}

/// Why a start parks a partition: the policy is `fail`, and one partition must not keep the others from running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedParking {
    /// Why, as a code.
    pub code: Code,
    /// Why, in a sentence with the numbers.
    pub detail: String,
    /// The offsets between the position and the log, if it lies outside.
    pub lost: Option<LostRange>,
    /// The id of the topic that has taken the name of its own, if that is why.
    pub replaced_by: Option<TopicId>,
    /// Whether it was parked before.
    pub again: bool,
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

/// Whether a sink says how far it has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProgressKnown {
    /// It keeps no progress.
    #[default]
    NotKept,
    /// It said so.
    Known,
    /// It keeps progress and did not answer; a plan made then promises nothing.
    Unknown,
}

/// The sink as a plan saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedSink {
    /// Names the target.
    pub identity: String,
    /// Whether it says how far it has come.
    pub progress: ProgressKnown,
}

impl PlannedSink {
    pub(super) fn of(facts: &SinkFacts) -> Self {
        Self {
            identity: facts.identity.clone(),
            progress: match facts.progress {
                ProgressFacts::NotKept => ProgressKnown::NotKept,
                ProgressFacts::Kept(_) => ProgressKnown::Known,
                ProgressFacts::Unknown(_) | ProgressFacts::Refused { .. } => ProgressKnown::Unknown,
            },
        }
    }
}

/// The bounded run that a start begins or goes on with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedRun {
    /// The wish of the spec.
    pub stop_at: StopAt,
    /// The checkpoint that began the run this start goes on with; `null` where the start begins a run.
    pub goes_on_from: Option<CheckpointId>,
    /// When the run that goes on began.
    pub begun_at: Option<DateTime<Utc>>,
    /// Partitions with an end.
    pub partitions: usize,
    /// Of these, the ones that begin at their end or behind it.
    pub at_their_end: usize,
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResolvedStart {
    /// What it rests on.
    pub basis: StartBasis,
    /// The checkpoint it resumes from or sets aside.
    pub checkpoint: Option<CheckpointId>,
    /// The checkpoint that `auto` would have resumed from and that this start leaves aside, for some or all partitions.
    #[serde(default)]
    pub set_aside: Option<CheckpointId>,
    /// One sentence.
    pub summary: String,
    /// Each partition, in order.
    pub partitions: Vec<PlannedPartition>,
    /// Sums over the partitions.
    pub totals: PlanTotals,
    /// Positions that the start drops, with `on_partition_gone: forget`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forgotten: Vec<ForgottenPosition>,
    /// Where the records go.
    #[serde(default)]
    pub sink: PlannedSink,
    /// Where a bounded job ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded: Option<PlannedRun>,
    /// What stands against it; a start is refused while there is one.
    pub blockers: Vec<Blocker>,
    /// What to know.
    pub warnings: Vec<Warning>,
}

/// A position of a partition that does not exist, which a start drops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForgottenPosition {
    /// Topic name.
    pub topic: String,
    /// Partition number.
    pub partition: i32,
    /// The next offset that would have been read.
    pub next_offset: Option<Offset>,
}

/// Sums of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanTotals {
    /// Offsets to read until the end as it is now, or until the ends of a bounded run, over the partitions where it is known.
    pub to_read: i64,
    /// Offsets that were read already and will be read again.
    pub replayed: i64,
    /// Unread offsets that will be passed over.
    pub skipped: i64,
    /// Unread offsets that the log no longer has.
    pub lost: i64,
    /// Partitions whose beginning is open.
    pub undecided_partitions: usize,
    /// Partitions that are not read until somebody decides or they are there again.
    #[serde(default)]
    pub parked_partitions: usize,
}

impl ResolvedStart {
    /// Whether this start leaves a checkpoint aside that `auto` would have resumed from.
    #[must_use]
    pub fn sets_state_aside(&self) -> bool {
        self.set_aside.is_some()
    }

    /// The positions that the checkpoint of this start holds: of the partitions that are read, and what is kept of others.
    #[must_use]
    pub fn positions(&self, id: CheckpointId) -> BTreeMap<TopicPartition, CheckpointPosition> {
        let stored = |planned: &&PlannedPartition| planned.is_read() || planned.kept.is_some();
        let position = |planned: &PlannedPartition| CheckpointPosition {
            next_offset: planned.start_at.or(planned.kept),
            position_id: planned.position_id.unwrap_or(id),
            topic_id: planned.topic_id.clone(),
        };
        self.partitions
            .iter()
            .filter(stored)
            .map(|planned| (planned.topic_partition(), position(planned)))
            .collect()
    }

    /// The partitions that the start parks, and why.
    #[must_use]
    pub fn parked(&self) -> BTreeMap<TopicPartition, PlannedParking> {
        let parked = self.partitions.iter().filter_map(|planned| {
            let parking = planned.parked.clone()?;
            Some((planned.topic_partition(), parking))
        });
        parked.collect()
    }

    /// The partitions that the start assigns.
    pub fn read_partitions(&self) -> impl Iterator<Item = &PlannedPartition> {
        self.partitions.iter().filter(|planned| planned.is_read())
    }
}

impl PlanTotals {
    pub(super) fn of(partitions: &[PlannedPartition]) -> Self {
        let mut totals = Self::default();
        for planned in partitions.iter().filter(|planned| planned.is_read()) {
            totals.to_read = totals.to_read.saturating_add(planned.to_read.unwrap_or(0));
            totals.replayed = totals.replayed.saturating_add(planned.replayed);
            totals.skipped = totals.skipped.saturating_add(planned.skipped);
            totals.lost = totals.lost.saturating_add(planned.lost);
            totals.undecided_partitions += usize::from(planned.start_at.is_none());
        }
        let parked = partitions
            .iter()
            .filter(|planned| planned.parked.is_some() || planned.is_gone());
        totals.parked_partitions = parked.count();
        totals
    }
}
